"""Write docs/rent_a_gpu.md: on which GPU V28 fits, how long it takes and what that costs.

    python docs/rent_page.py              write the page
    python docs/rent_page.py --check      exit 1 if it is not what the script writes
    python docs/rent_page.py --measure    compute the memory plan again first; it passes two texts through the whole model
"""
import math, sys
from datetime import date
from functools import cache
from pathlib import Path
import torch
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM
from splade_nb.config.files import machine, read_json, revision, write_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.splade_doc import SpladeDoc
from splade_nb.config.processes import ProcessGroup
from splade_nb.training.memory import BEYOND, memory_plan
from splade_nb.training.trainer import step_count, texts_in_step
from splade_nb.evaluation.figures import source_line

ROOT = Path(__file__).resolve().parent.parent
PAGE, PLAN = ROOT/'docs'/'rent_a_gpu.md', ROOT/'docs'/'results'/'rent'/'plan.json'
REHEARSED = ROOT/'docs'/'results'/'studies'/'rehearsal'/'1000000-1.json'
VOCABULARY, SETTINGS = 250_002, resolve_quietly('v28', 'corrected', 'full')
CARDS = {'L4': (24, 121), 'RTX 4090': (24, 165), 'L40S': (48, 362), 'A100': (80, 312), 'H100 SXM': (80, 989), 'H200': (141, 989)}
PRINTED = read_json(ROOT/'benchmarks'/'results'/'gpu-printed.json')  # of the one run on a GPU so far
UTILISATION, CONTEXT = 0.04, 2  # of the data sheet's rate, as that run had it; GiB of CUDA and of its workspace, assumed
LENGTHS = [SETTINGS.max_length // part for part in (4, 2, 1)]  # tokens of a text
PRICES = (0.5, 1, 2, 4)  # an hour
TEACHER = dict(layers=24, hidden=1024)  # of BGE-M3, whose vectors V28 learns from
TEXT = """# Rent a GPU

> On which GPU V28 fits, how long it takes, and what that costs.

Written by `python docs/rent_page.py`. Sizes are counted, memory is [the plan](../nbs/3_training/11_memory.ipynb) that a run prints before its first step, here for a CPU, and time follows from operations and the utilisation that {measured} had: 391 texts a second in V28's shape, about 4 % of the card, in 13.1 GB where the plan said 12.3. `make gpu` [measures both](gpu.md) first on a rented machine: compare its numbers with these before you rent for days.

## The run

{run}

Pairs and documents are those of {triplets} open triplets, as `make data NAME=triplets` made them for the [rehearsal](../nbs/studies/rehearsal.ipynb). Fewer triplets (`TRIPLETS=100000`) take proportionally less.

## Memory

{memory}

What each process holds in a step whose texts all have the limit of {limit} tokens. With several processes each passes its part of the batch through the model. Gradient checkpointing (`gradient_checkpointing`) is off. Beyond the plan a card needs what {measured} needed, 13.1 GB where weights and plan were 12.3. With {context} GiB more for CUDA itself (assumed): {fits}.

## Time

$$
\\text{{hours}} = \\frac{{S \\cdot T \\cdot L \\cdot 4 F + (2 D + E) \\cdot L \\cdot F_{{\\ast}}}}{{3600 \\cdot n \\cdot u \\cdot P}}
$$

$S$ steps of $T$ texts of $L$ tokens, $F$ operations of a token's forward pass: two for each weight of the layers, the head's transform and the decoder, and $4 L H$ for the attention of a layer. Four forward passes in operations: the gradient cache passes each text twice, and backpropagation takes twice the work of a pass. The second term is evaluation, which encodes the $D$ documents twice, and the teacher, which encodes the $E$ documents and queries once; $F_{{\\ast}}$ is the forward pass of each. $P$ is the dense bf16 rate of the maker's data sheet, $n$ the number of GPUs, and $u = {utilisation}$ is that of {measured}; the step has become faster since, and every later `make gpu` says by how much. The gate adds {gate} of $F$ and is left out.

{time}

Hours on one GPU where the texts have so many tokens, padding included. {lengths} Several GPUs divide the hours by their number at best. Preparation takes the processors about {preparation} hours once, by the processor time of the rehearsal's stages (reading, tokens, words, BM25 and its negatives), shared by at least two cores.

## Cost

At {middle} tokens a text, by the price of an hour in any currency; hours times price, so take yours:

{cost}

## What to type

On a bare Ubuntu machine with an NVIDIA driver, Python 3.11 or later to be had from its packages, and at least {disk} GB of disk for checkpoints beside data and environment:

```text
git clone {repository} && cd splade_nb
nohup deploy/rent_gpu.sh > rent.log 2>&1 &
```

[The script](../deploy/rent_gpu.sh) installs what is missing, makes the triplets, runs `make gpu` and `make train-distributed VERSION=v28 SCALE=full DATA=data/v24.0`, and packs model, report and measurements into `outputs/rented-v28.tar.gz`. It goes on where it stopped: if the machine is taken away, keep `outputs` and `data` on a volume and type the same line on the next one. `deploy/rent_gpu.sh --dry-run` only prints the commands. Copy the archive before you return the machine.
"""


def table(columns: list, rows) -> str:
    lines = [columns, ['---', *['--:'] * (len(columns) - 1)], *rows]
    records = read_json(PLAN), read_json(REHEARSED)
    source = source_line('python docs/rent_page.py', 'sizes of the rehearsal', *([each[name] for each in records] for name in ('revision', 'date')))
    return '\n'.join(f'| {" | ".join(map(str, line))} |' for line in lines) + f'\n\n{source}'


# The memory plan

def full_model() -> SpladeDoc:
    "V28 in the shape of XLM-R base, from random weights."
    shape = XLMRobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=514, type_vocab_size=1,
                             hidden_dropout_prob=SETTINGS.dropout, attention_probs_dropout_prob=SETTINGS.dropout)
    return SpladeDoc(XLMRobertaForMaskedLM(shape), SETTINGS, special=[]).train()


def longest_batch() -> dict:
    "The batch of a step with every text at the limit."
    def rows(texts): return dict(input_ids=torch.full((texts, SETTINGS.max_length), 5), attention_mask=torch.ones(texts, SETTINGS.max_length, dtype=torch.long),
                                     lengths=[SETTINGS.max_length] * texts)
    queries = SETTINGS.batch_size * SETTINGS.accumulation
    return dict(query=rows(queries), document=rows(queries * (1 + SETTINGS.negatives)))


def measured(processes=(1, 2, 4, 8)) -> dict:  # number of processes, as text: bytes by purpose
    model, rows = full_model(), longest_batch()
    return {str(number): memory_plan(model, rows, SETTINGS, ProcessGroup(number=number), SETTINGS.accumulation) for number in processes}


@cache
def shape() -> dict:
    "Sizes of the model, without allocating it."
    with torch.device('meta'): model = full_model()
    config = model.backbone.config
    gate = sum(value.numel() for value in model.gate.parameters())
    return dict(layers=config.num_hidden_layers, hidden=config.hidden_size, parameters=sum(value.numel() for value in model.parameters()), gate=gate)


# Operations and hours

def forward(length: int, layers: int, hidden: int, vocabulary: int = 0) -> float:  # operations
    "Of a token in a text of so many tokens; with a vocabulary its head too."
    weights = layers * 12 * hidden ** 2 + (hidden ** 2 + vocabulary * hidden) * (vocabulary > 0)
    return 2 * weights + layers * 4 * length * hidden


@cache
def rehearsed() -> dict:
    "Pairs, documents and processor seconds of the largest rehearsal."
    part = read_json(REHEARSED)
    first = part['runs']['v26']['stages'][0]  # prepares for V28 too
    stages = ('reading', 'tokens', 'pairs', 'relevant', 'given', 'document frequencies', 'words', 'words of parts', 'word frequencies', 'bm25', 'negatives bm25', 'preparing')
    return dict(triplets=part['size'], pairs=part['runs']['v28']['pairs'], documents=part['runs']['v28']['documents'],
                seconds=sum(first[stage]['cpu_seconds'] for stage in stages))


def operations(length: int) -> float:
    "Of the whole run: training, evaluation and the teacher's vectors."
    sizes, found = dict(layers=shape()['layers'], hidden=shape()['hidden'], vocabulary=VOCABULARY), rehearsed()
    training = step_count(SETTINGS, found['pairs']) * texts_in_step(SETTINGS) * length * 4 * forward(length, **sizes)
    judging = 2 * found['documents'] * length * forward(length, **sizes)
    teacher = (found['documents'] + found['pairs']) * length * forward(length, **TEACHER)
    return training + judging + teacher


def hours(card: str, length: int) -> float: return operations(length) / (CARDS[card][1] * 1e12 * UTILISATION) / 3600


# The page

def gib(size: float) -> str: return f'{size / 2 ** 30:.1f}'


def needed(processes: str = '1') -> float:  # bytes in each process
    return (1 + BEYOND) * (4 * shape()['parameters'] + sum(read_json(PLAN)['processes'][processes].values()))


def run_table() -> str:
    found, sizes = rehearsed(), shape()
    steps, texts = step_count(SETTINGS, found['pairs']), texts_in_step(SETTINGS)
    rows = [('training pairs', f'{found["pairs"]:,}'), ('documents', f'{found["documents"]:,}'), ('epochs', SETTINGS.epochs),
            ('pairs in a step', SETTINGS.batch_size * SETTINGS.accumulation), ('steps $S$', f'{steps:,}'), ('texts in a step $T$', texts),
            ('parameters, the gate among them', f'{sizes["parameters"] / 1e6:.1f} million'),
            (f'operations of a forward pass, a token of {SETTINGS.max_length}, $F$', f'{forward(SETTINGS.max_length, sizes["layers"], sizes["hidden"], VOCABULARY) / 1e9:.2f} billion'),
            (f'operations of the run at {SETTINGS.max_length} tokens a text', f'{operations(SETTINGS.max_length):.1e}')]
    return table(['V28, recipe corrected, scale full', ''], rows)


def memory_table() -> str:
    plan = read_json(PLAN)['processes']
    names = dict(gradients='gradients', moments="AdamW's moments", kept='activations of one pass', vectors='vectors of the batch', decoder='copy of the decoder')
    weights = 4 * shape()['parameters']
    rows = [['weights', *[gib(weights)] * len(plan)], *([label, *(gib(sizes[name]) for sizes in plan.values())] for name, label in names.items()),
            ['beyond the plan', *(gib(needed(number) * BEYOND / (1 + BEYOND)) for number in plan)], ['**sum**', *(f'**{gib(needed(number))}**' for number in plan)]]
    return table(['GiB in each process', *(f'{number} process{"es" * (number != "1")}' for number in plan)], rows)


def fits() -> str:
    least = {memory: [card for card, (size, _) in CARDS.items() if size == memory] for memory, _ in CARDS.values()}
    said = []
    for memory, cards in sorted(least.items()):
        number = next((number for number in read_json(PLAN)['processes'] if needed(number) / 2 ** 30 + CONTEXT <= memory), None)
        how = 'does not hold it' if number is None else 'holds it alone' if number == '1' else f'needs {number} processes'
        said.append(f'{memory} GB ({", ".join(cards)}) {how}')
    return '; '.join(said)


def time_table() -> str:
    rows = [[card, memory, f'{rate:,}', *(f'{hours(card, length):,.0f}' for length in LENGTHS)] for card, (memory, rate) in CARDS.items()]
    return table(['card', 'GB', '$P$, TFLOP/s', *(f'{length} tokens' for length in LENGTHS)], rows)


def cost_table() -> str:
    rows = [[card, f'{hours(card, LENGTHS[1]):,.0f}', *(f'{hours(card, LENGTHS[1]) * price:,.0f}' for price in PRICES)] for card in CARDS]
    return table(['card', 'hours', *(f'{price:g} an hour' for price in PRICES)], rows)


def disk() -> float:  # bytes: weights and both moments of each checkpoint that is kept, the best one and one being written
    return 3 * 4 * shape()['parameters'] * (SETTINGS.keep_checkpoints + 2)


def page() -> str:
    from configparser import ConfigParser
    settings = ConfigParser()
    settings.read(ROOT/'settings.ini', encoding='utf-8')
    sizes, length = shape(), SETTINGS.max_length
    gate = 2 * sizes['gate'] / (length * forward(length, sizes['layers'], sizes['hidden'], VOCABULARY))
    return TEXT.format(
        run=run_table(), triplets=f'{rehearsed()["triplets"]:,}', memory=memory_table(), limit=length, context=CONTEXT, fits=fits(),
        utilisation=UTILISATION, measured=f'the run on an {PRINTED["name"]} of {PRINTED["date"]}', gate=f'{gate:.1%}', time=time_table(), middle=LENGTHS[1], cost=cost_table(),
        lengths=f'{length} is the limit of the version.', preparation=f'{rehearsed()["seconds"] / 3600:.1f}',
        disk=math.ceil(disk() / 1e9), repository=settings['DEFAULT']['git_url'])


def main() -> int:
    if '--measure' in sys.argv:
        PLAN.parent.mkdir(exist_ok=True)
        write_json(PLAN, dict(command='python docs/rent_page.py --measure', revision=revision(), date=date.today().isoformat(), machine=machine(), processes=measured()))
    if '--check' in sys.argv:
        right = PAGE.exists() and PAGE.read_text(encoding='utf-8') == page()
        if not right: print(f'{PAGE.name} is not what its script writes: run docs/rent_page.py', file=sys.stderr)
        return int(not right)
    PAGE.write_text(page(), encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main())

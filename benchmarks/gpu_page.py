"""Write docs/gpu.md from the results of `make gpu`."""
import math, statistics
from pathlib import Path
from splade_nb.config.files import read_json
from gpu_encoder import MOST_JUDGED
from measure import HERE, gigabytes, ratios, source, spread, table

DOCS = HERE.parent/'docs'
CLAIMS = (  # what no CPU shows, stage, what of it is proven without a GPU
    ('The kernel gives the values, first tokens at ties and gradients of a plain float64 product: V = 250,002, fp32, '
     'bf16, fp16, TF32 in three parts, very different lengths, Korean rows, more entries than 32 bits count', 'kernel',
     "small shapes in Triton's interpreter; compiled for five kinds of card (tests/test_kernel.py)"),
    ('Without saved tokens, for encoding, the values are the same', 'kernel', 'the same, in the interpreter'),
    ('SPLADE from a pretrained encoder by the whole recipe: a head in closed form, then pairs', 'encoder',
     'at a tiny size; the head on the real encoder'),
    ('V22 to V28 from a pretrained encoder, on four collections and open triplets', 'versions', 'at a tiny size'),
    ('The kernel is faster than the chunks of the vocabulary and than all logits at once, and takes less memory', 'speed',
     'nothing'),
    ('Encoding takes the kernel and is faster than sentence-transformers', 'encode',
     'one launch a batch, equal vectors, in the interpreter'),
    ('bf16 on a GPU gains speed over fp32', 'encode', 'vectors in bf16 beside fp32 on a CPU (docs/benchmarks.md)'),
    ('A training step is faster and smaller than that of sentence-transformers', 'step', 'on a CPU (docs/benchmarks.md)'),
    ('V26 trains at full shape in bf16: throughput, memory as planned, finite losses', 'v26', 'at `SCALE=mini`; rehearsed'),
    ('V28 with its gate trains at full shape in bf16: throughput, memory as planned, finite losses', 'v28',
     'at `SCALE=mini`; rehearsed'))
PAGE = """# On a GPU

> What only a GPU can show, which stage of `make gpu` shows it, and what it gave.

`make gpu` runs every stage in 40 minutes (`MINUTES`), the most valuable first; each is kept as soon as it is done, so
the same command goes on where it stopped. `STAGE=kernel,encode` runs some of them, `FORCE=1` measures again,
`DEVICE=cpu` tries each at a tiny size in seconds. Results lie in `benchmarks/results/gpu`, in a folder for each
device; this page is written from them. `STAGE=encoder` trains a model from multilingual-e5-small on open pairs in about ten
minutes and keeps it in `outputs/gpu-encoder`, from where `make resume OUT=outputs/gpu-encoder VERSION=splade_v2 SCALE=small` evaluates it for a release;
`STAGE=versions` trains V22 to V28 on the same data.
`PACK=folder` writes project, data and missing packages into a folder for a machine that has a GPU and torch, and neither
network nor git nor pip: some 60 MiB in files of at most 24, for machines that take only so much at once; when all are there, `bash folder/run.sh`
measures. Without Kiwi, `v26` and `v28` draw their negatives at random. In the other stages models have random weights in the shape of XLM-R base (278 million
parameters, V = 250,002).

## What is proven, and what is not

{claims}

V28's steps below ran before flash attention did: cuDNN compiled its attention anew for each shape of a block of texts, so
every step waited for seconds, and a step whose shapes are known takes what the profile says. The stage `encoder` ran with
flash attention, which takes texts of any length, until its time was over; `STAGE=kernel` compares it with plain attention.

{results}
"""


# Numbers

def median(rounds: list) -> float: return statistics.median(each['wall'] for each in rounds)


def spelled(times: dict, slow: str, fast: str) -> str:
    if slow not in times or fast not in times: return ''
    values = spread(ratios(times, slow, fast, 'wall'))
    return f'{values["median"]:.2f}x ({values["low"]:.2f} to {values["high"]:.2f})'


def small_number(value: float) -> str: return f'{value:.0e}' if value else '0'


# What is proven

def state(devices: dict, stage: str) -> str:
    "Whether a stage was run, on which devices, and with which outcome."
    runs = [(result['name'], verdict(stage, result)) for results in devices.values() if (result := results.get(stage))]
    printed = [(known['name'], f'{known["stages"][stage]} ({known["date"]})') for known in printed_results() if stage in known['stages']]
    return '; '.join(f'{name}: {said}' for name, said in runs or printed) or 'not run yet'


def verdict(stage: str, result: dict) -> str:
    measured = [case for case in result.get('cases', ()) if 'right' in case] + [dict(name='attention', **result.get('attention', dict(right=True)))]
    if wrong := [case['name'] for case in measured if not case['right']]: return f'**wrong**: {", ".join(wrong)}'
    if stage in ('v26', 'v28') and not result['finite']: return '**a loss is not finite**'
    return f'run, {result["date"]}' if result['whole'] else f'in part, {result["date"]}'


def claims_table(devices: dict) -> str:
    return table(['what', 'stage', 'proven without a GPU', 'run'],
                 [[what, f'`{stage}`', without, state(devices, stage)] for what, stage, without in CLAIMS])


# What each stage gave

def kernel_table(result: dict) -> str:
    def row(case):
        if 'left_out' in case: return [case['name'], *[''] * 7, case['left_out']]
        return [case['name'], f'{case["type"]} {case["precision"]}', f'{case["texts"]:,}', f'{case["tokens"]:,}', f'{case["V"]:,}',
                small_number(case['value']), small_number(case['named']), small_number(case['gradient']), 'yes' if case['right'] else '**no**']
    columns = ['against float64', 'type', 'texts', 'tokens', 'V', 'values', 'logit of the named token', 'gradients (relative)', 'right']
    found = result.get('attention')
    said = found and (f'Attention inside {found["texts"]} texts of any length, {found["type"]}, beside that of each text in float64: values '
                      f'{small_number(found["value"])}, gradients {small_number(found["gradient"])} (relative).\n\n')
    return (said or '') + table(columns, map(row, result['cases']))


def speed_table(result: dict) -> str:
    names = dict(kernel='kernel', chunks='chunks of the vocabulary', pooling='all logits, as sentence-transformers')
    rows = []
    for form, times in result['rounds'].items():
        rows += [[f'{form.replace("_", " and ")}, {label}', f'{median(times[name]) * 1e3:,.1f} ms', spelled(times, name, 'kernel'),
                  gigabytes(result['peaks'][form][name])] for name, label in names.items() if name in times]
    return (f'{result["texts"]} texts, {result["tokens"]:,} tokens, V = {result["V"]:,}, {result["type"]}.\n\n'
            + table(['head', 'time', 'kernel is faster by', 'peak'], rows))


def encode_table(result: dict) -> str:
    names = dict(pooling='sentence-transformers, bf16', fp32='here, fp32', bf16='here, bf16', korean='here, Korean rows, bf16',
                 chunks='here, bf16, without the kernel')
    def row(name):
        seconds = median(result['rounds'][name])
        share = f'{result["operations"] / result["rate"] / seconds:.0%}' if name not in ('korean', 'fp32') else ''
        return [names[name], f'{result["texts"] / seconds:,.0f}', spelled(result['rounds'], 'pooling', name), share, gigabytes(result['peaks'][name])]
    return (f'{result["texts"]:,} texts of {result["tokens"] / result["texts"]:.0f} tokens. "Of the limit": the time of the dense products alone at '
            f'{result["rate"] / 1e12:,.0f} TFLOP/s, which large products in bf16 reach here.\n\n'
            + table(['encoding', 'texts a second', 'over sentence-transformers', 'of the limit', 'peak'], map(row, names)))


def step_table(result: dict) -> str:
    def row(name, label):
        seconds = median(result['rounds'][name])
        return [label, f'{seconds * 1e3:,.0f} ms', spelled(result['rounds'], 'pooling', name),
                f'{result["operations"] / result["rate"] / seconds:.0%}', gigabytes(result['peaks'][name]), f'{result["loss"][name]:.5f}']
    columns = [f'step, {result["pairs"]} pairs, L{result["length"]}', 'time', 'over sentence-transformers', 'of the limit', 'peak', 'loss']
    names = dict(pooling='sentence-transformers', drop_in='the same with SpladeMaxPooling', rows='here')
    return table(columns, [row(name, label) for name, label in names.items() if name in result['rounds']])


def version_table(result: dict) -> str:
    plan, log = result['held'] + sum(result['plan'].values()), result['log']
    parts = [*dict.fromkeys(name for row in log for name in row['parts'])]
    rows = [[str(row['step']), f'{row["loss"]:.4g}', *(f'{row["parts"].get(name, math.nan):.4g}'.replace('nan', '') for name in parts),
             f'{row["active_query"]:,.0f}', f'{row["active_doc"]:,.0f}'] for row in log]
    return (f'{result["steps"]} of {result["of"]} steps of {result["texts_per_step"]} texts of {result["collection"]} in {result["precision"]}, '
            f'{result["parameters"] / 1e6:,.1f} million parameters: {result["texts_per_second"]:,.0f} texts a second. Memory: planned '
            f'{gigabytes(plan)}, measured {gigabytes(result["peak"])}.\n\n'
            + table(['step', 'loss', *parts, 'terms of a query', 'of a document'], rows))


def encoder_table(result: dict) -> str:
    said = (f'{result["steps"]} of {result["of"]} steps in {result["folder"]}: {result["texts_per_second"]:,.0f} texts a second. '
            f'Encoder: {result["encoder"].get("name", "made for a trial")}.')
    if 'sets' not in result: return said
    rows = [[name, f'{100 * one["ndcg"]:.1f}', f'{one["terms"]["doc"]:.0f}', f'{one["terms"]["query"]:.0f}'] for name, one in result['sets'].items()]
    return said + '\n\n' + table(['the learned terms alone', 'nDCG@10', 'terms of a document', 'of a query'], rows)


def in_order(runs: list) -> dict:  # what is said of a run: the run
    return {f'{run["version"].upper()} {run["recipe"]}, {run["seed"]}': run for run in sorted(runs, key=lambda run: (run['recipe'], run['version'], run['seed']))}


def versions_table(result: dict) -> str:
    "How each run ranks, and what its terms are."
    if not (runs := in_order(result['runs'])): return 'No run is whole yet.'
    names, first = [*dict.fromkeys(name for run in runs.values() for name in run['sets'])], [*runs.values()][0]
    def mean(run, read): return sum(map(read, run['sets'].values())) / len(run['sets'])
    rows = [[said, *(f'{100 * run["sets"][name]["ndcg"]:.1f}' if name in run['sets'] else '' for name in names), f'{mean(run, lambda one: 100 * one["ndcg"]):.1f}',
             f'{mean(run, lambda one: one["terms"]["doc"]):.0f}', f'{mean(run, lambda one: one["terms"]["query"]):.0f}',
             f'{mean(run, lambda one: one["korean"]["count_share"]):.0%}', f'{mean(run, lambda one: one["korean"]["noise"]):.1%}'] for said, run in runs.items()]
    unseen = ', '.join(f'`{name}`' for name in names if name not in first['data'].split(', '))
    return (f'nDCG@10 of the learned terms alone, at most {MOST_JUDGED} test queries of a set; terms, Korean share and noise: means over the sets. {first["of"]} steps each. '
            f'Not in the training data: {unseen}.\n\n' + table(['version, seed', *names, 'mean', 'terms of a document', 'of a query', 'Korean', 'noise'], rows))


def added_table(result: dict) -> str:
    "What each run adds to a query of the designs; empty for other stages."
    if not (runs := in_order(result.get('runs', ()))): return ''
    query = [*runs.values()][0]['shown'][0][0]
    rows = [[said, ' '.join(name.lstrip('▁') for name, _ in run['shown'][0][1] if name.lstrip('▁') not in query)] for said, run in runs.items()]
    return table(['version, seed', f'added to {query}'], rows)


def profile_table(result: dict) -> str:
    "Where one call's time goes; empty where the stage has no profile."
    if not (found := result.get('profile')): return ''
    rows = [[f'`{one["name"]}`', f'{one["times"]:,}', f'{one["milliseconds"]:,.1f} ms', f'{one["share"]:.0%}'] for one in found['top']]
    return (f'\n\nOne call takes {found["seconds"] * 1e3:,.1f} ms in {found["operations"]:,} operations; the products that torch counts '
            f'reach {found["share"]:.0%} of the best rate of large ones.\n\n' + table(['largest operations', 'times', 'time', 'share'], rows))


def printed_results() -> list:  # of the run whose files were lost; what it printed was kept by hand
    path = HERE/'results'/'gpu-printed.json'
    return [read_json(path)] if path.exists() else []


def printed_section(found: dict) -> str:
    about = f'## {found["name"]}, as printed on {found["date"]}\n\n{found["about"]}'
    return f'{about}\n\n{table(found["columns"], found["rows"])}\n\n{source(found | dict(command="make gpu"))}'


TABLES = dict(kernel=kernel_table, encoder=encoder_table, versions=versions_table, speed=speed_table, encode=encode_table, step=step_table, v26=version_table, v28=version_table)
TITLES = dict(kernel='Kernel', encoder='From a pretrained encoder', versions='V22 to V28', speed='Speed of the head', encode='Encoding', step='Training step', v26='V26', v28='V28')


def device_section(results: dict) -> str:
    first = next(iter(results.values()))
    about = f'## {first["name"]}\n\ntorch {first["versions"]["torch"]}, Python {first["versions"]["python"]}; revision of the results: see their commit.'
    def section(stage, result):
        of_runs = next((run['data'] for run in result.get('runs', ())), 'random weights')
        named = source(result, data=result.get('data', of_runs))
        return '\n\n'.join(f'{part}\n\n{named}' for part in (f'### {TITLES[stage]}\n\n{TABLES[stage](result)}', added_table(result), profile_table(result).strip()) if part)
    return '\n\n'.join([about, *(section(stage, result) for stage, result in results.items())])


def read(folder: Path) -> dict:  # device -> stage -> result
    found = {place.name: {stage: read_json(place/f'{stage}.json') for stage in TABLES if (place/f'{stage}.json').exists()}
             for place in sorted(folder.glob('*')) if place.is_dir()}
    return {name: results for name, results in found.items() if results}


def page(devices: dict) -> str:
    sections = [*map(device_section, devices.values()), *map(printed_section, printed_results())]
    results = '\n\n'.join(sections) or 'No stage has been run on a GPU yet.'
    return PAGE.format(claims=claims_table(devices), results=results)


def main(folder: Path) -> None:
    "The page of results in another folder is written into that folder."
    target = DOCS if folder == HERE/'results'/'gpu' else folder
    target.mkdir(parents=True, exist_ok=True)
    (target/'gpu.md').write_text(page(read(folder)), encoding='utf-8')

"""docs/xlmr_one_gpu.md from benchmarks/results; `report.py` calls it."""
from splade_nb.lab.study import known_baselines
from measure import gigabytes, megabytes, ratios, source, spread, table
from models import FULL
from step import QUERY

THREADS = 'https://github.com/huggingface/sentence-transformers'
PAGE = """# XLM-R SPLADE on one small GPU

> Memory, dense vectors and collapse: what users report, and what to do.

Written by `make bench` (`benchmarks/pooling_page.py`) from `benchmarks/results/`. The code trains with
sentence-transformers, its trainer, its losses and its folders; `splade_nb` replaces one module, the pooling. Tests
run it with a small backbone in place of XLM-R.

```text
pip install 'splade_nb[export] @ git+https://github.com/splade-nb/splade_nb'
```

**Every figure of this page was measured on a CPU with two threads in float32; memory is the peak of the process.**
What a GPU takes stands [on its own page](gpu.md). An empty cell: only memory was measured.

Pairs of a query and a document, here from the embedded set; `load` reads a folder in BEIR form as well:

```python
from datasets import Dataset
from splade_nb.data.readers import load

collection = load('mini')
documents = list(collection.texts.values())
pairs = [(query.text, collection.texts[id]) for key, query in collection.split('train').items()
         for id, grade in collection.qrels[key].items() if grade]
rows = Dataset.from_dict(dict(query=[query for query, _ in pairs], document=[document for _, document in pairs]))
```

## Out of memory

> XLM-R large with a router runs out of 48 GB ([3441]({threads}/issues/3441)); larger batches need a cached loss
> ([3670]({threads}/pull/3670)).

`SpladePooling` reads the logits of every token: {texts} documents of {length} tokens over {vocabulary:,} entries are
{logits} in float32, and a training step holds them several times. Its `chunk_size` divides them only after they
were made. `SpladeMaxPooling` computes the largest logit of each text and entry in blocks of the vocabulary, and
passes its gradient to the token that had it. The vectors, losses and gradients are the same.

```python
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from splade_nb.hub.pooling import SpladeMaxPooling

transformer = Transformer('FacebookAI/xlm-roberta-base', transformer_task='fill-mask', max_seq_length=192)
model = SparseEncoder(modules=[transformer, SpladeMaxPooling()])
```

{head}

Of what is left with `SpladeMaxPooling`, the gradient of the decoder is {gradient}; it does not grow with the batch.

A whole step, with weights, gradients and AdamW:

{step}

What remains is that of any encoder: activations, which `gradient_checkpointing=True` divides, and the weights, each
with a gradient and two moments. `python -m splade_nb.model.prune_vocabulary FacebookAI/xlm-roberta-base
path/to/beir_folder pruned` keeps the entries that a collection needs.

## All dimensions active, or none

> Scores of 0 and every dimension active with KLUE backbones, equal vectors for all texts with RobBERT
> ([3431]({threads}/issues/3431)).

Pretraining reads logits through a softmax, which does not change when a constant is added to all of them. SPLADE
reads them through max(0, z). A backbone whose logits all stand far above zero begins with every term of the
vocabulary in every text, and all texts alike; one whose logits stand below begins with empty vectors and no
gradient. A learning rate of 2e-5 moves a bias by about 2e-5 a step. See where a backbone stands:

```python
from splade_nb.hub.pooling import calibrate, level_of, text_logits

print(level_of(text_logits(model, documents[:64])))
```

`active` near 1 or 0, or a `cosine` near 1, is such a start. `calibrate` subtracts one number from the decoder's
bias, so that documents have the wanted number of terms on average:

```python
print(calibrate(model, documents[:64], terms=150))
```

{start}

{about_start}

## Train

```python
from sentence_transformers import SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
import torch

loss = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), document_regularizer_weight=3e-5,
                  query_regularizer_weight=5e-5)
arguments = SparseEncoderTrainingArguments('checkpoints', max_steps=1000, per_device_train_batch_size=16,
                                           learning_rate=2e-5, gradient_checkpointing=True,
                                           bf16=torch.cuda.is_available(), report_to='none')
SparseEncoderTrainer(model=model, args=arguments, train_dataset=rows, loss=loss).train()
```

For batches beyond the memory, `CachedSpladeLoss` takes the place of `SpladeLoss`. Weights stay in float32; `bf16=True`
computes in bfloat16.

## Queries without a model

> With `max_active_dims`, queries went to the route of documents ([3695]({threads}/pull/3695), merged since).

The pooling works as a route of a `Router` too. `router_mapping` names the route of each column in training:

```python
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding

table = SparseStaticEmbedding(tokenizer=model.tokenizer)  # every token weighs 1 until it is trained
router = Router.for_query_document(query_modules=[table], document_modules=[model[0], model[1]])
inference_free = SparseEncoder(modules=[router])
loss = SpladeLoss(inference_free, SparseMultipleNegativesRankingLoss(inference_free), document_regularizer_weight=3e-5,
                  use_document_regularizer_only=True)
routes = SparseEncoderTrainingArguments('inference-free', max_steps=1000, per_device_train_batch_size=16,
                                        learning_rate=2e-5, report_to='none',
                                        router_mapping=dict(query='query', document='document'))
SparseEncoderTrainer(model=inference_free, args=routes, train_dataset=rows, loss=loss).train()
```

## Save and publish

`SparseEncoder(folder, trust_remote_code=True)` opens the folder where `splade_nb` is installed. With the name of
`SpladePooling` in it, the same folder opens everywhere:

```python
from splade_nb.hub.pooling import name_pooling

model.save_pretrained('xlmr-splade')
name_pooling('xlmr-splade', 'SpladePooling')
published = SparseEncoder('xlmr-splade')
```

## What it refuses

A sum over tokens (`pooling_strategy='sum'`) needs every logit and is refused. Backends other than torch, models
without a head and heads that do more than one product with the decoder are refused by name.
"""


def both_measured(head: dict) -> list:  # shapes whose peaks are known with both
    return [row for row in head['memory'] if {'pooling', 'dense'} <= row['peaks'].keys()]


def head_table(head: dict) -> str:
    "The head alone: both poolings from the same states, forward and backward."
    times = {(row['texts'], row['length']): spread(ratios(row['rounds'], 'pooling', 'dense'))['median']
             for row in head['times'] if row['activity'] == 0.001 and not row['ragged']}
    rows = []
    for row in both_measured(head):
        theirs, ours = row['peaks']['pooling'], row['peaks']['dense']
        rows.append([f'{row["texts"]} documents of {row["length"]} tokens', megabytes(theirs), megabytes(ours),
                     f'{theirs / ours:.1f}x', f'{times[row["texts"], row["length"]]:.1f}x'])
    return table(['the head alone, forward and backward', 'SpladePooling', 'SpladeMaxPooling', 'less memory by',
                  'faster by'], rows)


def step_table(found: dict | None) -> str:
    "A whole step; only the pooling differs."
    if not found: return 'Not measured yet: `make bench PART=pooling`.'
    times, rows = {(row['pairs'], row['length']): row for row in found['times']}, []
    for row in found['memory']:
        timed, peaks = times.get((row['pairs'], row['length'])), row['peaks']
        rows.append([f'{row["pairs"]} pairs, documents of {row["length"]} tokens', gigabytes(peaks['theirs']),
                     gigabytes(peaks['drop_in']), f'{peaks["theirs"] / peaks["drop_in"]:.1f}x', *step_times(timed)])
    return table([f'float32, queries of {QUERY} tokens', 'SpladePooling', 'SpladeMaxPooling', 'less memory by', 'faster by',
                  'difference of the loss'], rows)


def step_times(timed: dict | None) -> list:  # empty where only memory was measured
    if not timed: return ['', '']
    loss = timed['loss']
    return [f'{spread(ratios(timed["rounds"], "pooling", "drop_in"))["median"]:.1f}x',
            f'{abs(loss["pooling"] - loss["drop_in"]):.0e}']


def start_table(start: dict | None) -> str:
    if not start: return 'Not measured yet: `make bench PART=start`.'
    terms = f'active of {start["size"]["vocabulary"]:,} terms'
    def row(each):
        before, after = each['before'], each['after']
        return [each['backbone'], each['start'], f'{before["mean"]:.2f} ± {before["deviation"]:.2f}',
                f'{before["cosine"]:.3f}', f'{before["terms"]:,.0f}', f'{after["terms"]:,.0f}',
                f'{before["loss"]:.2f}', f'{after["loss"]:.2f}', f'{after["first"]:.0%}']
    return table(['logits as of', 'start', 'weights, mean ± SD', 'cosine', f'{terms}, before', f'{terms}, after', 'loss before', 'loss after',
                  'right document first'], map(row, start['rows']))


def about_start(start: dict | None) -> str:
    if not start: return ''
    size = start['size']
    levels = '; '.join(f'{name}: {sum(means) / len(means):.2f} ± {sum(spreads) / len(spreads):.2f}'
                       for name, (means, spreads) in start['reported'].items())
    return (f'Small backbones with random weights at published levels (weights of untrained backbones: {levels}), and '
            f'one at the opposite of the highest; {size["steps"]} steps on pairs of the embedded set, judged on '
            f'{size["pairs"]} other pairs. The loss is that of the ranking, without regularizers. '
            f'`make bench PART=start` measures it.')


def with_source(write, found: dict | None, data) -> str: return f'{write(found)}\n\n{source(found, data=data)}' if found else write(found)


def page(results: dict) -> str:  # part -> result, of head, step, pooling and start
    head, size = results['head'], FULL
    shape = max(both_measured(head), key=lambda row: row['texts'] * row['length'])
    return PAGE.format(
        threads=THREADS, texts=shape['texts'], length=shape['length'], vocabulary=size['vocabulary'],
        logits=gigabytes(4 * shape['texts'] * shape['length'] * size['vocabulary']), head=f'{head_table(head)}\n\n{source(head)}',
        gradient=megabytes(4 * size['vocabulary'] * size['hidden']), step=with_source(step_table, results.get('pooling'), 'random weights'),
        start=with_source(start_table, results.get('start'), {'mini': known_baselines()['mini']['hash']}), about_start=about_start(results.get('start')))

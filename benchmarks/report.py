"""Write docs/benchmarks.md, docs/gpu.md, docs/engines.md, docs/xlmr_one_gpu.md and their figures from benchmarks/results.

    python benchmarks/report.py [--check]
"""
import statistics, sys
from pathlib import Path
import engines_page
import gpu_page
import pooling_page
from splade_nb.config.files import read_json
from splade_nb.evaluation.figures import canvas, write_svg
from splade_nb.lab.study import revision_of
from measure import HERE, gigabytes, log_axes, megabytes, ratios, source, spread, table

DOCS = HERE.parent/'docs'
PAGE = """# How fast it is

Written by `make bench` (`benchmarks/report.py`); the times of every round, with date, machine and versions, are
in `benchmarks/results/`. The weights are random, in the shape of XLM-R base (12 layers, hidden 768, V =
250,002); the decoder's bias is shifted until the given share of the vectors is positive ("active"). Compared
with sentence-transformers (`SpladePooling`, a training step of `SpladeLoss` over
`SparseMultipleNegativesRankingLoss` with AdamW, and `SparseEncoder.encode`) and with the code of the design
documents, which computes all logits [B, L, V].

{machines}

A ratio is the other side's time or memory divided by this project's. Both sides run alternately in one process;
a ratio is computed for each round, and the table shows the median with the lowest and the highest. Ratios are
of CPU time, which other work on the machine disturbs less; wall time is beside it. Memory is the kernel's peak
(VmHWM) above what the process held just before, measured in a separate process.

{goals}

## Head

Forward and backward from hidden states, the decoder's gradient dense or as rows (`as_rows=True`, as in a
training run). "Gradient error": norm of the difference of gradients relative to the norm, the largest of the
three; where two tokens tie within float32's rounding the incoming gradient is zero, since `max` may take
either.

{head}

![Head: ratio by shape and activity](benchmarks-head.svg)

{head_source}

{head_memory}

{growth}

![Growth of time and memory](benchmarks-growth.svg)

{head_source}

{gather}

## Training step

{step}

{step_memory}

### The trainer's step

{revision}

With [`SpladeMaxPooling`](xlmr_one_gpu.md) in place of `SpladePooling`, in a step that is otherwise theirs:

{pooling}

## Encoding

{encode}

## Encoding by ONNX Runtime

`make export TO=onnx` and `TO=onnx-int8` (weights and inputs of products as 8-bit integers, [how](../nbs/5_hub/04_onnx_int8.ipynb)), beside PyTorch:

{int8}

What only a GPU can show stands on [a page of its own](gpu.md).
"""


# Numbers

def spelled(values: dict) -> str: return f'{values["median"]:.2f}x ({values["low"]:.2f} to {values["high"]:.2f})'


def ratio(times: dict, slow: str, fast: str, clock: str = 'cpu') -> dict:
    return spread(ratios(times, slow, fast, clock))


def single(value: float) -> dict: return spread([value])


def median_time(rounds: list, clock: str) -> float: return statistics.median(each[clock] for each in rounds)


def row_with(rows: list, **wanted) -> dict: return next(row for row in rows if wanted.items() <= row.items())


# Goals: name, part, required, goal, ratio from the part's result. A negative limit is an upper bound.

def head_times(head: dict) -> dict:
    return row_with(head['times'], texts=8, length=192, activity=0.001, ragged=False)['rounds']


def slowest(head: dict) -> dict:
    "The lowest median over every shape and activity, with the dense gradient on both sides."
    return min((ratio(row['rounds'], 'pooling', 'dense') for row in head['times']), key=lambda values: values['median'])


def head_memory_ratio(head: dict, method: str) -> dict:
    peaks = row_with(head['memory'], texts=8, length=192, activity=0.001)['peaks']
    return single(peaks['pooling'] / peaks[method])


def memory_by_length(head: dict) -> dict:
    grown = head['growth_of_memory']['length']
    peaks = dict(zip(grown['sizes'], grown['peaks']['rows']))
    return single(peaks[192] / peaks[64])


def step_time(step: dict, length: int) -> dict:
    return ratio(row_with(step['times'], length=length)['rounds'], 'pooling', 'rows')


def step_memory_ratio(step: dict, ours: str) -> dict:
    return single(step['memory']['theirs_at_goal'] / step['memory'][ours])


def exact_encoding(encode: dict) -> dict:
    values = [ratio(encode['rounds'], 'pooling', method) for method in ('exact', 'screened')]
    return max(values, key=lambda each: each['median'])


GOALS = (
    ('head, forward and backward, B8 L192, 0.1 % active: time', 'head', 3, 5,
     lambda r: ratio(head_times(r), 'pooling', 'rows')),
    ('the same, the worst of all lengths and activities: time', 'head', 1.0, 1.2, slowest),
    ('head, B8 L192, dense gradient: memory', 'head', 7, None, lambda r: head_memory_ratio(r, 'dense')),
    ('head, B8 L192, gradient as rows: memory', 'head', 100, 150, lambda r: head_memory_ratio(r, 'rows')),
    ('forward memory at L192 over L64 (at most)', 'head', -1.4, -1.1, memory_by_length),
    ('whole training step, float32, L64: time', 'step', 2, 4, lambda r: step_time(r, 64)),
    ('whole training step, float32, L192: time', 'step', 2, 4, lambda r: step_time(r, 192)),
    ('whole training step, B24 L192: memory', 'step', 3, 6, lambda r: step_memory_ratio(r, 'mine')),
    ('the same with gradient checkpointing here: memory', 'step', 3, 6,
     lambda r: step_memory_ratio(r, 'mine_checkpointing')),
    ('step of V28 from an encoder, beside revision 63d11e4: time', 'step_revision', 1.8, None,
     lambda r: ratio(r['steps']['float32, in one batch']['rounds'], 'before', 'now')),
    ('encoding, exact: time', 'encode', 2.2, 4, exact_encoding),
    ('encoding, exact: memory', 'encode', 20, 50, lambda r: single(r['peaks']['pooling'] / r['peaks']['exact'])),
    ('encoding, Korean rows and bfloat16, against full logits sorted by length: time', 'encode', 8, 20,
     lambda r: ratio(r['rounds'], 'sorted', 'korean bf16')),
)


def goal_row(results: dict, name: str, part: str, required: float, goal: float | None, compute) -> list:
    limits = [name, f'{abs(required)}x', f'{abs(goal)}x' if goal else '']
    if part not in results: return [*limits, 'not measured', '']
    values, sign = compute(results[part]), -1 if required < 0 else 1
    reached = 'goal' if goal and sign * values['median'] >= goal else 'yes'
    if sign * values['median'] < required: reached = '**no**'
    several = values['low'] < values['high']
    return [*limits, spelled(values) if several else f'{values["median"]:.3g}x', reached]


def goals(results: dict) -> str:
    return table(['', 'at least', 'goal', 'measured', 'reached'], [goal_row(results, *goal) for goal in GOALS])


# Head

def head_row(row: dict) -> list:
    times, agreement = row['rounds'], row['agreement']
    def against(method): return spelled(ratio(times, method, 'dense')) if method in times else ''
    return [f'B{row["texts"]} L{row["length"]}{" ragged" if row["ragged"] else ""}', f'{row["activity"]:.1%}',
            against('pooling'), spelled(ratio(times, 'pooling', 'rows')),
            f'{ratio(times, "pooling", "rows", "wall")["median"]:.2f}x', against('pooling_chunks'), against('naive'),
            f'{max(agreement["gradient"].values()):.0e}', 'equal' if agreement['support'] else 'differs']


def head_table(head: dict) -> str:
    columns = ['shape', 'active', 'dense gradient', 'rows', 'rows, wall', 'dense, against chunk_size=16',
               'dense, against full logits', 'gradient error', 'active terms']
    return table(columns, map(head_row, head['times']))


def head_memory(head: dict) -> str:
    names = dict(naive='full logits', pooling='sentence-transformers', pooling_chunks='chunk_size=16',
                 dense='dense gradient', rows='rows')
    rows = [[f'B{row["texts"]} L{row["length"]}, {row["activity"]:.1%} active',
             *(megabytes(row['peaks'][name]) if name in row['peaks'] else '' for name in names)]
            for row in head['memory']]
    return table(['peak of forward and backward', *names.values()], rows)


def growth(head: dict) -> str:
    powers = {axis: measured['exponent'] for axis, measured in head['growth_of_time'].items()}
    by_vocabulary = head['growth_of_memory']['vocabulary']
    ours, theirs = (statistics.linear_regression(by_vocabulary['sizes'], by_vocabulary['peaks'][method]).slope / 8
                    for method in ('rows', 'pooling'))
    return (f'Time grows with the number of tokens to the power {powers["tokens"]:.2f} and with the size of the '
            f'vocabulary to the power {powers["vocabulary"]:.2f} (CPU time, 0.1 % active). Forward memory grows by '
            f'{ours:.1f} bytes for each text and vocabulary entry (the maximum and its position take eight), that of '
            f'sentence-transformers at L = 64 by {theirs:,.0f}.')


def gather(head: dict) -> str:
    used, measured = head['gather_cost']['used'], head['gather_cost']['measured']
    costs = ', '.join(f'{each["cost"]["median"]:.1f} (T = {each["tokens"]})' for each in measured)
    return (f'The backward pass gathers active entries as long as `GATHER_COST` = {used} times '
            'their number is below the number of logits; above that it multiplies dense matrices. Measured here, one '
            f'gathered entry takes the time of this many multiplied logits: {costs}.')


# Training step

def step_row(row: dict) -> list:
    times, loss = row['rounds'], row['loss']
    chunks = spelled(ratio(times, 'pooling_chunks', 'rows')) if 'pooling_chunks' in times else ''
    return [f'{row["pairs"]} pairs, L{row["length"]}', spelled(ratio(times, 'pooling', 'rows')),
            f'{ratio(times, "pooling", "rows", "wall")["median"]:.2f}x', chunks, f'{loss["pooling"]:.6f}',
            f'{abs(loss["rows"] - loss["pooling"]) / loss["pooling"]:.0e}']


def step_table(step: dict) -> str:
    columns = ['float32, queries of 16 tokens', 'time', 'wall', 'against chunk_size=16', 'loss', 'relative difference']
    return table(columns, map(step_row, step['times']))


def step_memory(step: dict) -> str:
    memory = step['memory']
    pairs, length = memory['goal']
    theirs, estimated = memory['theirs_at_goal'], memory['extrapolated']
    def row(name, theirs, ours, shown): return [name, shown, gigabytes(ours), f'{theirs / ours:.2f}x']
    rows = [row(f'B{each["pairs"]} L{each["length"]}', each['peak'], each['mine'], gigabytes(each['peak']))
            for each in memory['theirs'] if each['pairs'] != pairs]
    rows.append(row(f'B{pairs} L{length}', theirs, memory['mine'], gigabytes(theirs) + ' (extrapolated)' * estimated))
    rows.append(row(f'B{pairs} L{length}, checkpointing here', theirs, memory['mine_checkpointing'], ''))
    why = ('\n\nThe last shape does not fit this machine with sentence-transformers: its figure is the straight line '
           'through the measured ones.')
    columns = ['whole process: weights, gradients, optimizer and activations', 'sentence-transformers', 'here', 'ratio']
    return table(columns, rows) + why * estimated


CASES = {'before': 'the step of revision {}', 'theirs': "sentence-transformers' step"}


def revision_row(name: str, step: dict, earlier: str) -> list:
    other, times, losses = step['other'], step['rounds'], step['losses']
    return [name, CASES[other].format(earlier), spelled(ratio(times, other, 'now')), f'{ratio(times, other, "now", "wall")["median"]:.2f}x',
            *(f'{median_time(times[side], "cpu"):.1f} s' for side in (other, 'now')), f'{losses[other]:.4f}', f'{losses["now"]:.4f}']


def revision_table(step: dict) -> str:
    columns = ['a step of V28', 'beside', 'faster by (CPU)', 'wall', 'CPU there', 'CPU here', 'loss there', 'here']
    return (f'`train_step` of V28, recipe corrected, from `multilingual-e5-small` with {step["rows"]:,} rows: {step["pairs"]} pairs of '
            f'{", ".join(step["collections"])} and {step["pairs"]} negatives, queries of {step["tokens"][0]:.0f} and documents of '
            f'{step["tokens"][1]:.0f} tokens on average; padded to the longest they are {step["padded"]:.2f} times as many. Dropout is off, '
            'so the losses of two revisions are the same. Each side is a process of its own and they take turns. sentence-transformers '
            'computes `SpladeLoss` alone, the step here every part of V28\'s loss and its gate. In four parts, as V28 divides a step, '
            'the earlier revision passed every text twice.\n\n'
            + table(columns, [revision_row(name, found, step['earlier']) for name, found in step['steps'].items()]))


# Encoding

METHODS = {
    'pooling': 'sentence-transformers', 'pooling chunks': 'sentence-transformers, chunk_size=16',
    'padded': 'full logits, padded to 128', 'sorted': 'full logits, sorted by length', 'exact': 'here',
    'screened': 'here, with the int8 filter', 'korean': 'here, Korean rows',
    'korean screened': 'here, Korean rows, with the int8 filter', 'bf16': 'here, bfloat16',
    'korean bf16': 'here, Korean rows, bfloat16'}


def encode_row(encode: dict, method: str, name: str) -> list:
    times, agreement = encode['rounds'], encode['agreement'][method]
    speed = f'{encode["texts"] / median_time(times[method], "wall"):.1f}'
    return [name, speed, spelled(ratio(times, 'pooling', method)), f'{ratio(times, "sorted", method)["median"]:.2f}x',
            megabytes(encode['peaks'][method]) if method in encode['peaks'] else '', f'{agreement["value"]:.0e}',
            'equal' if agreement['support'] else f'{agreement["jaccard"]:.3f}', f'{agreement["cosine"]:.4f}']


def encode_table(encode: dict) -> str:
    lengths, rates = encode['lengths'], encode['rates']
    speed = ', '.join(f'{rate / 1e9:,.0f} in {name}' for name, rate in rates.items())
    columns = ['', 'documents a second', 'against sentence-transformers', 'against sorted', 'peak',
               'largest difference', 'active terms (Jaccard)', 'lowest cosine']
    return (f'{encode["texts"]} Korean documents of {statistics.mean(lengths):.0f} tokens ({min(lengths)} to '
            f'{max(lengths)}), {encode["agreement"]["pooling"]["terms"]:.0f} terms each; {encode["korean"]:,} of '
            f'{encode["vocabulary"]:,} tokens are Korean, mixed or numbers. With Korean rows, vectors are compared on '
            f'these tokens only. Matrix products of the size of a chunk of the head run here at (GFLOP/s): {speed}; '
            'bfloat16 can gain only where it is faster than float32.\n\n'
            + table(columns, [encode_row(encode, method, name) for method, name in METHODS.items()]))


FORMS = {'torch': 'PyTorch', 'onnx': 'ONNX Runtime', 'onnx-int8': 'ONNX Runtime, 8-bit integers'}


def int8_row(result: dict, form: str, name: str) -> list:
    quality = result['quality'].get(form) or {}
    return [name, f'{result["texts"] / median_time(result["rounds"][form], "wall"):.1f}', spelled(ratio(result['rounds'], 'torch', form)),
            spelled(ratio(result['rounds'], 'onnx', form)), f'{1000 * result["queries"][form]:.1f} ms', megabytes(result['sizes'][form]),
            f'{result["agreement"][form]["cosine"]:.4f}', *(f'{100 * quality[each]:.2f}' if each in quality else '' for each in result['quality']['torch'])]


def int8_table(result: dict) -> str:
    columns = ['', 'documents a second', 'against PyTorch', 'against ONNX Runtime', 'a query, one core', 'weights', 'lowest cosine',
               *(f'nDCG@10 {name}' for name in result['quality']['torch'])]
    return (f'{result["texts"]} Korean documents of {statistics.mean(result["lengths"]):.0f} tokens; 12 layers of 384 trained from '
            f'multilingual-e5-small, {result["vocabulary"]:,} rows.\n\n'
            + table(columns, [int8_row(result, form, name) for form, name in FORMS.items()]))


# Machines

def machine_row(part: str, result: dict) -> list:
    machine, versions = result['machine'], result['versions']
    packages = ', '.join(f'{name} {versions[name]}' for name in ('torch', 'transformers', 'sentence-transformers'))
    hardware = [f'{machine["processor"]}, {machine["cores"]} cores, {gigabytes(machine["memory"])}', machine['device']]
    return [part, result['date'], ', '.join(filter(None, hardware)), f'Python {versions["python"]}, {packages}',
            f'{result["seconds"]:,} s']


def machines(results: dict) -> str:
    return table(['part', 'measured', 'machine', 'with', 'took'],
                 [machine_row(name, result) for name, result in results.items()])


# Figures

def draw_head(head: dict, path: Path) -> None:
    figure, axis = canvas(width=9)
    rows = [row for row in head['times'] if not row['ragged']]
    shapes = list(dict.fromkeys(f'B{row["texts"]} L{row["length"]}' for row in rows))
    for place, activity in enumerate(dict.fromkeys(row['activity'] for row in rows)):
        values = [ratio(row['rounds'], 'pooling', 'rows') for row in rows if row['activity'] == activity]
        medians = [each['median'] for each in values]
        errors = [[each['median'] - each['low'] for each in values], [each['high'] - each['median'] for each in values]]
        places = [bar + 0.25 * (place - 1) for bar in range(len(shapes))]
        axis.bar(places, medians, 0.23, label=f'{activity:.1%} active', yerr=errors, error_kw=dict(linewidth=0.8))
    axis.axhline(1, color='grey', linestyle='--', linewidth=0.8)
    axis.set_xticks(range(len(shapes)), shapes)
    axis.set_ylabel('times faster than sentence-transformers')
    axis.legend()
    write_svg(figure, path)


def draw_growth(head: dict, path: Path) -> None:
    figure, axes = canvas(2, 2, width=9, height=6.4)
    for axis, (name, measured) in zip(axes[0], head['growth_of_time'].items()):
        axis.loglog(measured['sizes'], [median_time(rounds, 'cpu') for rounds in measured['rounds']], 'o-')
        label, symbol = dict(tokens=('tokens T (full V)', 'T'), vocabulary=('vocabulary V (B8 L96)', 'V'))[name]
        log_axes(axis, measured['sizes'], label, 'CPU seconds')
        axis.set_title(f'time ~ {symbol}^{measured["exponent"]:.2f}')
    for axis, (name, measured) in zip(axes[1], head['growth_of_memory'].items()):
        for method, label in dict(pooling='sentence-transformers', rows='here').items():
            axis.loglog(measured['sizes'], [peak / 1e6 for peak in measured['peaks'][method]], 'o-', label=label)
        label = dict(length='length L (B8, full V)', vocabulary='vocabulary V (B8 L64)')[name]
        log_axes(axis, measured['sizes'], label, 'forward peak, MB')
        axis.legend()
    write_svg(figure, path)


# The page

def page(results: dict) -> str:
    def section(part, write, data='random weights'): return f'{write(results[part])}\n\n{source(results[part], data=data)}' if part in results else 'Not measured.'
    def said(part, write): return write(results[part]) if part in results else 'Not measured.'
    return PAGE.format(
        machines=f'{machines(results)}\n\n{source(*results.values())}', goals=f'{goals(results)}\n\n{source(*results.values())}',
        head_source=source(results['head']) if 'head' in results else '', head=section('head', head_table),
        head_memory=section('head', head_memory), growth=said('head', growth), gather=said('head', gather),
        step=section('step', step_table), step_memory=section('step', step_memory),
        revision=section('step_revision', revision_table, 'pairs of public collections beside the project'),
        pooling=section('pooling', pooling_page.step_table),
        encode=section('encode', encode_table, 'Korean documents (hash not kept), random weights'),
        int8=section('int8', int8_table, 'Korean documents (hash not kept), trained weights'))


def read(folder: Path) -> dict:
    parts = ('head', 'step', 'step_revision', 'pooling', 'start', 'encode', 'int8')
    paths = {part: folder/f'{part}.json' for part in parts}
    return {part: dict(of=revision_of(path), **read_json(path)) for part, path in paths.items() if path.exists()}


def pages(folder: Path) -> dict:  # file -> text
    measured = engines_page.read(folder)
    results = read(folder)
    written = {'benchmarks.md': page(results), 'gpu.md': gpu_page.page(gpu_page.read(folder/'gpu'))}
    if 'head' in results: written['xlmr_one_gpu.md'] = pooling_page.page(results)
    return written | ({'engines.md': engines_page.page(measured)} if measured else {})


def main(folder: Path = HERE/'results') -> None:
    "The pages of results in another folder are written into that folder."
    target = DOCS if folder == HERE/'results' else folder
    for name, text in pages(folder).items(): (target/name).write_text(text, encoding='utf-8')
    if head := read(folder).get('head'):
        draw_head(head, target/'benchmarks-head.svg')
        draw_growth(head, target/'benchmarks-growth.svg')
    if measured := engines_page.read(folder): engines_page.draw(measured, target/'engines.svg')


def check() -> None:
    for name, text in pages(HERE/'results').items():
        if (DOCS/name).read_text(encoding='utf-8') != text:
            sys.exit(f'docs/{name} is not what the results say: run python benchmarks/report.py')


if __name__ == '__main__': check() if '--check' in sys.argv else main()

"""Write docs/benchmarks.md, docs/engines.md and their pictures from benchmarks/results.

    python benchmarks/report.py [--check]
"""
import statistics, sys
from pathlib import Path
import engines_page
from splade_nb.config.files import read_json
from measure import HERE, ratios, spread, table

DOCS = HERE.parent/'docs'
PAGE = """# How fast it is

Written by `make bench` (`benchmarks/report.py`); the figures of every round, with date, machine and versions, are in `benchmarks/results/`. Random weights in the shape of XLM-R
base (12 layers, hidden 768, V = 250,002), the decoder's bias shifted to the activity named. Rivals: sentence-transformers' own `SpladePooling`, training step
(`SpladeLoss` over `SparseMultipleNegativesRankingLoss`, AdamW) and `SparseEncoder.encode`; and the design documents' own lines, with full logits [B, L, V].

{machines}

A ratio says how many times less this project needs. Both sides take turns in one process; a ratio is taken in each round, and its median is given with the
lowest and the highest. It is a ratio of CPU time, which other work on the machine disturbs less; wall time is beside it. Memory is the kernel's own peak (VmHWM) above what
the process held just before, in a process of its own.

{goals}

## Head

Forward and backward from hidden states, the decoder's gradient dense or as rows (`as_rows=True`, as in a training run).
"Apart": norm of the difference of gradients relative to the norm, the largest of the three; where two tokens tie within float32's rounding the slope is zero, since `max` may take either.

{head}

![Head: ratio by shape and activity](benchmarks-head.svg)

{head_memory}

{growth}

![Growth of time and memory](benchmarks-growth.svg)

{gather}

## Training step

{step}

{step_memory}

## Encoding

{encode}

## On a GPU

{gpu}
"""


# Figures out of results

def shown(values: dict, form: str = '{:.2f}') -> str:
    return f'{form.format(values["median"])}x ({form.format(values["low"])} to {form.format(values["high"])})'


def ratio(taken: dict, slow: str, fast: str, clock: str = 'cpu') -> dict: return spread(ratios(taken, slow, fast, clock))


def exactly(value: float) -> dict: return dict(median=value, low=value, high=value)


def megabytes(value: float) -> str: return f'{value / 1e6:,.0f} MB'


def gigabytes(value: float) -> str: return f'{value / 1e9:.1f} GB'


def at(rows: list, **wanted) -> dict: return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


# What was asked for: name, part, at least, goal, figure of the part's result. A limit is an upper bound.

def head_low(head) -> dict: return at(head['times'], texts=8, length=192, activity=0.001, ragged=False)['rounds']


def worst(head) -> dict:
    "Of the medians over every shape and activity, the lowest; the dense gradient, like for like."
    return min((ratio(row['rounds'], 'pooling', 'dense') for row in head['times']), key=lambda found: found['median'])


def head_peak(head, rival) -> dict:
    peaks = at(head['memory'], texts=8, length=192, activity=0.001)['peaks']
    return exactly(peaks['pooling'] / peaks[rival])


def by_length(head) -> dict:
    grown = head['growth_of_memory']['length']
    return exactly(grown['peaks']['rows'][grown['sizes'].index(192)] / grown['peaks']['rows'][grown['sizes'].index(64)])


GOALS = (
    ('head, forward and backward, B8 L192, 0.1 % active: time', 'head', 3, 5, lambda r: ratio(head_low(r), 'pooling', 'rows')),
    ('the same, the worst of all lengths and activities: time', 'head', 1.0, 1.2, worst),
    ('head, B8 L192, dense gradient: memory', 'head', 7, None, lambda r: head_peak(r, 'dense')),
    ('head, B8 L192, gradient as rows: memory', 'head', 100, 150, lambda r: head_peak(r, 'rows')),
    ('forward memory at L192 over L64 (at most)', 'head', -1.4, -1.1, by_length),
    *((f'whole training step, float32, L{length}: time', 'step', 2, 4, lambda r, length=length: ratio(at(r['times'], length=length)['rounds'], 'pooling', 'rows')) for length in (64, 192)),
    ('whole training step, B24 L192: memory', 'step', 3, 6, lambda r: exactly(r['memory']['theirs_at_goal'] / r['memory']['mine'])),
    ('the same with gradient checkpointing here: memory', 'step', 3, 6, lambda r: exactly(r['memory']['theirs_at_goal'] / r['memory']['mine_checkpointing'])),
    ('encoding, exact: time', 'encode', 2.2, 4, lambda r: max((ratio(r['rounds'], 'pooling', way) for way in ('exact', 'screened')), key=lambda found: found['median'])),
    ('encoding, exact: memory', 'encode', 20, 50, lambda r: exactly(r['peaks']['pooling'] / r['peaks']['exact'])),
    ('encoding, Korean rows and bfloat16, against full logits sorted by length: time', 'encode', 8, 20, lambda r: ratio(r['rounds'], 'sorted', 'korean bf16')),
)


def goals(results: dict) -> str:
    rows = []
    for name, part, least, goal, figure in GOALS:
        if part not in results: rows.append([name, f'{abs(least)}x', f'{abs(goal)}x' if goal else '', 'not measured', '']); continue
        found, sign = figure(results[part]), -1 if least < 0 else 1
        reached = 'goal' if goal and sign * found['median'] >= goal else 'yes' if sign * found['median'] >= least else '**no**'
        rows.append([name, f'{abs(least)}x', f'{abs(goal)}x' if goal else '', shown(found) if found['low'] < found['high'] else f'{found["median"]:.3g}x', reached])
    return table(['', 'at least', 'goal', 'measured', 'reached'], rows)


# Parts of the page

def head_table(head) -> str:
    rows = []
    for row in head['times']:
        taken, agreed = row['rounds'], row['agreement']
        against = lambda rival: shown(ratio(taken, rival, 'dense')) if rival in taken else ''
        rows.append([f'B{row["texts"]} L{row["length"]}{" ragged" if row["ragged"] else ""}', f'{row["activity"]:.1%}', shown(ratio(taken, 'pooling', 'dense')), shown(ratio(taken, 'pooling', 'rows')),
                     f'{ratio(taken, "pooling", "rows", "wall")["median"]:.2f}x', against('pooling_chunks'), against('naive'), f'{max(agreed["gradient"].values()):.0e}', 'equal' if agreed['support'] else 'differs'])
    return table(['shape', 'active', 'dense gradient', 'rows', 'rows, wall', 'dense, against chunk_size=16', 'dense, against full logits', 'apart', 'support'], rows)


def head_memory(head) -> str:
    names = dict(naive='full logits', pooling='sentence-transformers', pooling_chunks='chunk_size=16', dense='dense gradient', rows='rows')
    rows = [[f'B{row["texts"]} L{row["length"]}, {row["activity"]:.1%} active', *(megabytes(row['peaks'][name]) if name in row['peaks'] else '' for name in names)] for row in head['memory']]
    return table(['peak of forward and backward', *names.values()], rows)


def growth(head) -> str:
    time, memory = head['growth_of_time'], head['growth_of_memory']
    slope = statistics.linear_regression(memory['vocabulary']['sizes'], memory['vocabulary']['peaks']['rows']).slope
    theirs = statistics.linear_regression(memory['vocabulary']['sizes'], memory['vocabulary']['peaks']['pooling']).slope
    return (f'Time grows with the number of tokens to the power {time["tokens"]["exponent"]:.2f} and with that of tokens to the power {time["vocabulary"]["exponent"]:.2f} (CPU time, 0.1 % active). '
            f'Forward memory grows by {slope / 8:.1f} bytes for each text and token (values and winners are eight), sentence-transformers\' at L = 64 by {theirs / 8:,.0f}.')


def gather(head) -> str:
    found = [f'{each["cost"]["median"]:.1f} (T = {each["tokens"]})' for each in head['gather_cost']['measured']]
    return (f'The way back gathers active entries until these times `GATHER_COST` = {head["gather_cost"]["used"]} are more than the logits, then it multiplies. '
            f'Measured here, an entry gathered costs as much as so many logits multiplied: {", ".join(found)}.')


def step_table(step) -> str:
    rows = []
    for row in step['times']:
        taken = row['rounds']
        rows.append([f'{row["pairs"]} pairs, L{row["length"]}', shown(ratio(taken, 'pooling', 'rows')), f'{ratio(taken, "pooling", "rows", "wall")["median"]:.2f}x',
                     shown(ratio(taken, 'pooling_chunks', 'rows')) if 'pooling_chunks' in taken else '', f'{row["loss"]["pooling"]:.6f}', f'{abs(row["loss"]["rows"] - row["loss"]["pooling"]) / row["loss"]["pooling"]:.0e}'])
    return table(['float32, queries of 16 tokens', 'time', 'wall', 'against chunk_size=16', 'loss', 'relative difference'], rows)


def step_memory(step) -> str:
    found = step['memory']; pairs, length = found['goal']
    rows = [[f'B{row["pairs"]} L{row["length"]}', gigabytes(row['peak']), gigabytes(row['mine']), f'{row["peak"] / row["mine"]:.2f}x'] for row in found['theirs'] if row['pairs'] != pairs]
    rows.append([f'B{pairs} L{length}', gigabytes(found['theirs_at_goal']) + ' (extrapolated)' * found['extrapolated'], gigabytes(found['mine']), f'{found["theirs_at_goal"] / found["mine"]:.2f}x'])
    rows.append([f'B{pairs} L{length}, checkpointing here', '', gigabytes(found['mine_checkpointing']), f'{found["theirs_at_goal"] / found["mine_checkpointing"]:.2f}x'])
    why = ('\n\nsentence-transformers\' figure at the last shape does not fit this machine: it is the straight line through the measured ones.' if found['extrapolated'] else '')
    return table(['whole process: weights, gradients, moments and all', 'sentence-transformers', 'here', 'ratio'], rows) + why


def encode_table(encode) -> str:
    names = {'pooling': 'sentence-transformers', 'pooling chunks': 'sentence-transformers, chunk_size=16', 'padded': 'full logits, padded to 128', 'sorted': 'full logits, sorted by length',
             'exact': 'here', 'screened': 'here, screened by int8', 'korean': 'here, Korean rows', 'korean screened': 'here, Korean rows, screened', 'bf16': 'here, bfloat16', 'korean bf16': 'here, Korean rows, bfloat16'}
    rows = []
    for way, name in names.items():
        taken, agreed = encode['rounds'], encode['agreement'][way]
        seconds = statistics.median(r['wall'] for r in taken[way])
        rows.append([name, f'{encode["texts"] / seconds:.1f}', shown(ratio(taken, 'pooling', way)), f'{ratio(taken, "sorted", way)["median"]:.2f}x', megabytes(encode['peaks'][way]) if way in encode['peaks'] else '',
                     f'{agreed["value"]:.0e}', 'equal' if agreed['support'] else f'{agreed["jaccard"]:.3f}', f'{agreed["cosine"]:.4f}'])
    said = (f'{encode["texts"]} Korean documents of {statistics.mean(encode["lengths"]):.0f} tokens ({min(encode["lengths"])} to {max(encode["lengths"])}), {encode["agreement"]["pooling"]["terms"]:.0f} terms each; '
            f'{encode["korean"]:,} of {encode["vocabulary"]:,} tokens are Korean, mixed or numbers. With Korean rows the vectors are held against the others\' on these tokens.')
    speed = ', '.join(f'{rate / 1e9:,.0f} in {name}' for name, rate in encode['rates'].items())
    said += f' A product as large as a chunk of the head runs here at so many GFLOP/s: {speed}; where bfloat16 is no faster than float32 it has nothing to give.'
    return f'{said}\n\n' + table(['', 'documents a second', 'against sentence-transformers', 'against sorted', 'peak', 'largest difference', 'support (Jaccard)', 'least cosine'], rows)


def gpu_table(gpu) -> str:
    encode, step, rows = gpu['encode'], gpu['step'], []
    floor = encode['texts'] * gpu['rate'] / encode['operations']
    for name, said in dict(pooling='sentence-transformers, bfloat16', all='here, bfloat16', korean='here, Korean rows, bfloat16').items():
        speed = encode['texts'] / statistics.median(r['wall'] for r in encode['rounds'][name])
        rows.append([said, f'{speed:,.0f} texts/s', shown(ratio(encode['rounds'], 'pooling', name, 'wall')), f'{speed / floor:.0%}' if name != 'korean' else '', gigabytes(encode['peaks'][name])])
    least = step['operations'] / gpu['rate']
    for name, said in dict(pooling='sentence-transformers', rows='here').items():
        seconds = statistics.median(r['wall'] for r in step['rounds'][name])
        rows.append([f'step, B{step["pairs"]} L{step["length"]}, {said}', f'{seconds * 1e3:,.0f} ms', shown(ratio(step['rounds'], 'pooling', name, 'wall')), f'{least / seconds:.0%}', gigabytes(step['peaks'][name])])
    return (f'{gpu["machine"]["device"]}; large products run at {gpu["rate"] / 1e12:,.0f} TFLOP/s in bfloat16. The floor is what the dense products of the full vocabulary alone would take at that rate.\n\n'
            + table(['', 'speed', 'ratio (wall)', 'of the floor', 'peak on the card'], rows))


def machines(results: dict) -> str:
    rows = []
    for name, found in results.items():
        machine, versions = found['machine'], found['versions']
        rows.append([name, found['date'], f'{machine["processor"]}, {machine["cores"]} cores, {gigabytes(machine["memory"])}' + (f', {machine["device"]}' if machine['device'] else ''),
                     f'Python {versions["python"]}, torch {versions["torch"]}, transformers {versions["transformers"]}, sentence-transformers {versions["sentence-transformers"]}', f'{found["seconds"]:,} s'])
    return table(['part', 'measured', 'machine', 'with', 'took'], rows)


# Pictures

def canvas(rows: int, columns: int):
    import matplotlib; matplotlib.use('Agg')
    from matplotlib import pyplot
    pyplot.rcParams.update({'svg.hashsalt': 'splade_nb', 'svg.fonttype': 'none', 'font.size': 9, 'axes.spines.top': False, 'axes.spines.right': False,
                            'axes.prop_cycle': pyplot.cycler(color=('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9'))})
    return pyplot.subplots(rows, columns, figsize=(9, 3.2 * rows), layout='constrained', squeeze=False)


def mark(axis, sizes: list) -> None:
    "The sizes that were measured, in full, on a logarithmic axis."
    from matplotlib.ticker import LogLocator
    axis.set_xticks(sizes, [f'{size:,}' for size in sizes]); axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5))); axis.yaxis.set_major_formatter(lambda value, _: f'{value:g}')


def save(figure, path: Path) -> None:
    figure.savefig(path, metadata={'Date': None})
    path.write_text('\n'.join(line.rstrip() for line in path.read_text(encoding='utf-8').splitlines()) + '\n', encoding='utf-8')


def draw_head(head, path: Path) -> None:
    figure, ((axis,),) = canvas(1, 1)
    rows = [row for row in head['times'] if not row['ragged']]
    shapes, activities = list(dict.fromkeys(f'B{r["texts"]} L{r["length"]}' for r in rows)), list(dict.fromkeys(r['activity'] for r in rows))
    for i, activity in enumerate(activities):
        found = [ratio(r['rounds'], 'pooling', 'rows') for r in rows if r['activity'] == activity]
        bars = [place + 0.25 * (i - 1) for place in range(len(shapes))]
        axis.bar(bars, [f['median'] for f in found], 0.23, label=f'{activity:.1%} active',
                 yerr=[[f['median'] - f['low'] for f in found], [f['high'] - f['median'] for f in found]], error_kw=dict(linewidth=0.8))
    axis.axhline(1, color='grey', linestyle='--', linewidth=0.8); axis.set_xticks(range(len(shapes)), shapes); axis.set_ylabel('times faster than sentence-transformers'); axis.legend(frameon=False)
    save(figure, path)


def draw_growth(head, path: Path) -> None:
    figure, axes = canvas(2, 2)
    for axis, (name, found) in zip(axes[0], head['growth_of_time'].items()):
        axis.loglog(found['sizes'], [statistics.median(r['cpu'] for r in rounds) for rounds in found['rounds']], 'o-')
        axis.set_xlabel(dict(tokens='tokens T (V full)', vocabulary='tokens V (B8 L96)')[name]); axis.set_ylabel('CPU seconds'); mark(axis, found['sizes']); axis.set_title(f'time ~ {dict(tokens="T", vocabulary="V")[name]}^{found["exponent"]:.2f}')
    for axis, (name, found) in zip(axes[1], head['growth_of_memory'].items()):
        for rival, said in dict(pooling='sentence-transformers', rows='here').items(): axis.loglog(found['sizes'], [p / 1e6 for p in found['peaks'][rival]], 'o-', label=said)
        axis.set_xlabel(dict(length='length L (B8, V full)', vocabulary='tokens V (B8 L64)')[name]); axis.set_ylabel('forward peak, MB'); axis.legend(frameon=False); mark(axis, found['sizes'])
    save(figure, path)


def page(results: dict) -> str:
    absent = 'Not measured.'
    of = lambda part, write: write(results[part]) if part in results else absent
    return PAGE.format(machines=machines(results), goals=goals(results), head=of('head', head_table), head_memory=of('head', head_memory), growth=of('head', growth), gather=of('head', gather),
                       step=of('step', step_table), step_memory=of('step', step_memory), encode=of('encode', encode_table),
                       gpu=of('gpu', gpu_table) if 'gpu' in results else 'Not measured: no CUDA device was there.')


def read(folder: Path) -> dict: return {part: read_json(folder/f'{part}.json') for part in ('head', 'step', 'encode', 'gpu') if (folder/f'{part}.json').exists()}


def pages(folder: Path) -> dict:  # file -> text
    cells = engines_page.read(folder)
    return {'benchmarks.md': page(read(folder))} | ({'engines.md': engines_page.page(cells)} if cells else {})


def main(folder: Path = HERE/'results') -> None:
    "Small results stay beside themselves: the pages hold none of them."
    results, cells, goal = read(folder), engines_page.read(folder), DOCS if folder == HERE/'results' else folder
    for name, text in pages(folder).items(): (goal/name).write_text(text, encoding='utf-8')
    if 'head' in results: draw_head(results['head'], goal/'benchmarks-head.svg'); draw_growth(results['head'], goal/'benchmarks-growth.svg')
    if cells: engines_page.draw(cells, goal/'engines.svg', canvas, mark, save)


if __name__ == '__main__':
    if '--check' not in sys.argv: main()
    else:
        stale = [name for name, text in pages(HERE/'results').items() if (DOCS/name).read_text(encoding='utf-8') != text]
        if stale: sys.exit(f'docs/{stale[0]} is not what the results say: run python benchmarks/report.py')

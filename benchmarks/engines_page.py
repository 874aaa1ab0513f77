"""docs/engines.md and its picture from benchmarks/results/engines/*.json; `report.py` calls it."""
from pathlib import Path
from splade_nb.config.files import read_json
from splade_nb.evaluation.study import revision_of
from splade_nb.serving.embedded_engines import Seismic
from documents import VECTORS
from measure import HERE, exponent, table

NAMES = dict(exact='exact', seismic='Seismic', milvus='Milvus Lite', qdrant='Qdrant Edge', bm25='BM25')
FROM = 10_000  # documents from which on growth is fitted: below, what a call costs by itself hides it
PAGE = """# What engines cost

Written by `make bench PART=engines` (`benchmarks/engines.py`, `benchmarks/engines_page.py`) from `benchmarks/results/engines/`, one file a size and engine.

{documents}

Each size and engine in a process of its own on one core of {machine}, shared with other work. Making is processor time, with saving. A query is asked alone, wall time, the shortest of three rounds: median and 99th percentile over the queries.
Disk is what the file system gives. Memory is the kernel's peak above what was held before, with the documents handed over. Opening ends with the first answer. An engine that took more than {seconds:,} s or {memory} GB was ended by the program.

## A query, milliseconds

{latency}

![Growth with the number of documents](engines.svg)

## Ten best found, of the exact ten

{recall}

Seismic as it comes: {seismic}. Exact engines may differ in equals, which count as found; scores agree within 1e-5.

## Making, seconds

{index}

## Opening, seconds

{opened}

## Disk, MB

{disk}

## Memory while making, MB

{memory_used}

## Growth

The power of the number of documents that a figure grows with, fitted from {start:,} documents on:

{growth}

## With

{versions}
"""

TODAY = """Documents: {real:,} real passages of {collections}, in a random order. Vectors: `splade_ko` as it starts, with tokens, pairs, sounds and the Model 1 expansions of the train splits of {taught}; training leaves its number of terms
and its quality there as they are ([leaderboard](../nbs/studies/leaderboard.ipynb)). {terms} terms a document, {asked} a query; {queries} real queries. Beyond the real ones a document is resampled (`benchmarks/documents.py`): columns are parted
into two halves once, by chance, and it has one half from one document and the other from another of the same collection, so that terms keep their number, their weights and the share of documents that they stand in.
BM25 has the words of a document's first half and of the other's second, as morphemes, already cut: no figure here holds the time of reading or encoding a text. Of {revisions}."""
EARLIER = """**Measured with vectors of an earlier default**, which has not been run again: {terms} terms a document and {asked} a query. Today's `splade_ko` has more ([test queries](../nbs/studies/training.ipynb), document terms).
`make bench PART=engines` measures every size again with today's vectors (`benchmarks/documents.py`). Until then read the figures as those of a sparser model: a document costs more module and time today.
Documents: {real:,} real ones of {collections}, in a random order; beyond these, each is the first half of one and the second half of another of the same collection. {queries} real test queries.
BM25 has the same documents as morphemes, already cut: no figure here holds the time of reading or encoding a text. Of {revisions}."""


FIGURES = {'latency': lambda c: f'{c["latency"]["median"]:.2f} / {c["latency"]["p99"]:.2f}', 'recall': lambda c: f'{c["recall"]:.3f}' if 'recall' in c else '', 'index': lambda c: f'{c["index"]["cpu"]:,.1f}',
           'opened': lambda c: f'{c["opened"]["wall"]:.2f}' if 'opened' in c else '', 'disk': lambda c: f'{c["disk"] / 1e6:,.0f}', 'memory_used': lambda c: f'{c["memory"] / 1e6:,.0f}'}
GROWN = {'a query': lambda c: c['latency']['median'], 'making': lambda c: c['index']['cpu'], 'disk': lambda c: c['disk']}


def read(folder: Path) -> dict:  # {(size, engine): what was found}
    "Those of today's vectors, or where there is none those of earlier ones."
    found = [dict(of=revision_of(path), **read_json(path)) for path in (folder/'engines').glob('*.json')]
    found = [cell for cell in found if cell.get('vectors') == VECTORS] or found
    return {(cell['size'], cell['engine']): cell for cell in sorted(found, key=lambda cell: (cell['size'], list(NAMES).index(cell['engine'])))}


def figures(cells: dict, show, why: bool) -> str:
    of = lambda cell: 'not measured' if cell is None else show(cell) if 'refused' not in cell else f'ended: {cell["refused"]}' if why else 'ended'
    return table(['documents', *NAMES.values()], [[f'{size:,}', *(of(cells.get((size, engine))) for engine in NAMES)] for size in dict.fromkeys(size for size, _ in cells)])


def measured(cells: dict, engine: str, figure, start: int = 0) -> tuple:  # sizes, figures
    pairs = [(size, figure(cell)) for (size, name), cell in cells.items() if name == engine and size >= start and 'refused' not in cell]
    return tuple(zip(*pairs)) if pairs else ((), ())


def growth(cells: dict) -> str:
    def law(engine, figure): sizes, values = measured(cells, engine, figure, FROM); return f'{exponent(sizes, values):.2f}' if len(sizes) > 1 else ''
    return table(['', *NAMES.values()], [[name, *(law(engine, figure) for engine in NAMES)] for name, figure in GROWN.items()])


def page(cells: dict) -> str:
    whole = [cell for cell in cells.values() if 'refused' not in cell]
    vectors = [cell for cell in whole if cell['engine'] != 'bm25']
    span = lambda name: ' to '.join(dict.fromkeys(f'{end([cell[name] for cell in vectors]):.0f}' for end in (min, max)))
    one = whole[-1]
    versions = '; '.join(sorted({f'{cell["package"]}, {cell["date"]}' for cell in cells.values()}))
    facts = dict(real=one['real'], collections=', '.join(one['collections']), taught=', '.join(one.get('taught', [])), terms=span('terms'),
                 asked=span('asked'), queries=one['queries'], revisions=', '.join(dict.fromkeys(f'`{cell["of"]}`' for cell in cells.values())))
    return PAGE.format(documents=(TODAY if one.get('vectors') == VECTORS else EARLIER).format(**facts), start=FROM, growth=growth(cells),
                       machine=f'{one["machine"]["processor"]}, {one["machine"]["cores"]} cores, {one["machine"]["memory"] / 1e9:.1f} GB',
                       seconds=one['limits']['seconds'], memory=one['limits']['memory'] // 2 ** 30, versions=versions,
                       seismic=', '.join(f'`{name}={value}`' for name, value in vars(Seismic()).items()),
                       **{name: figures(cells, show, name == 'latency') for name, show in FIGURES.items()})


def draw(cells: dict, path: Path, canvas, mark, save) -> None:  # the last three of report.py
    figure, (axes,) = canvas(1, 3)
    for axis, (name, value), unit in zip(axes, GROWN.items(), ('a query, ms', 'making, s', 'disk, MB')):
        for engine, said in NAMES.items():
            sizes, values = measured(cells, engine, value)
            if sizes: axis.loglog(sizes, [v / 1e6 if name == 'disk' else v for v in values], 'o-', label=said)
        axis.set_xlabel('documents'); axis.set_ylabel(unit)
        mark(axis, sorted({size for size, _ in cells}))
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc='outside upper center', ncols=len(NAMES))
    save(figure, path)

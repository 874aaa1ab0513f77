"""docs/engines.md and its figure from benchmarks/results/engines/*.json; `report.py` calls it."""
from pathlib import Path
from splade_nb.config.files import read_json
from splade_nb.evaluation.figures import canvas, write_svg
from splade_nb.lab.study import revision_of
from splade_nb.serving.embedded_engines import Seismic
from documents import VECTORS
from measure import exponent, log_axes, source, table

NAMES = dict(exact='exact', seismic='Seismic', milvus='Milvus Lite', qdrant='Qdrant Edge',
             postgres='PostgreSQL', bm25='BM25')
SERVED = ('postgres',)  # a server beside the process, on the same core
FIT_FROM = 10_000  # documents: with fewer, the constant cost of a call hides the growth
PAGE = """# What engines cost

Written by `make bench PART=engines` (`benchmarks/engines.py`, `benchmarks/engines_page.py`) from
`benchmarks/results/engines/`, one file for each size and engine.

{documents}

Each size and engine is measured in a process of its own on one core of {machine}, shared with other work.
Indexing is processor time, with saving. Queries are searched one at a time, wall time, the shortest of three
rounds: median and 99th percentile over the queries. Disk is what the file system allocates. Memory is the
kernel's peak above what was held before indexing, when the documents were already in memory. Opening ends with
the first result; BM25 is not opened, and has rankings of its own. PostgreSQL with pgvector is a server beside the process, on the same core: its indexing is elapsed
time, its disk is that of the table, its memory is not measured. It has no HNSW index, which is approximate and
takes at most 1,000 terms a vector, so it compares the query with every row. An engine that took more than {seconds:,} s or {memory} GB was stopped by the
benchmark.

## A query, milliseconds

{latency}

{left_out}

{source}

![Growth with the number of documents](engines.svg)

{source}

## Share of the exact ten best documents that were found

{recall}

{source}

Seismic with its default parameters: {seismic}. Exact engines may order equal scores differently; a document
that scores like the tenth within 1e-5 counts as found.

## Indexing, seconds

{index}

{source}

## Opening, seconds

{opened}

{source}

## Disk, MB

{disk}

{source}

## Memory while indexing, MB

{memory_used}

{source}

## Growth

The power of the number of documents with which a figure grows, fitted from {start:,} documents on:

{growth}

{source}

## Versions

{versions}
"""

DOCUMENTS = """Documents: {real:,} passages of {collections}, in a random order. Vectors: [the released
model](../splade_nb/released/README.md), counted and learned terms in one index. {terms} terms a document, {asked} a
query; {queries} test queries. Documents beyond these are resampled (`benchmarks/documents.py`): the columns are
divided at random into two halves once, and a document has one half from one passage and the other half from another
of the same collection, so that terms keep their number, their weights and their document frequencies. BM25 has the
words of the first half of the one passage and of the second half of the other, already analysed: no figure here
contains the time of reading or encoding a text. Revision: {revisions}."""


def indexing(result: dict) -> float: return result['index']['wall' if result['engine'] in SERVED else 'cpu']


def optional(name: str, write):  # BM25 has no recall and is not opened, a server's memory is not measured
    return lambda result: write(result[name]) if name in result else '-'


FIGURES = {
    'latency': lambda result: f'{result["latency"]["median"]:.2f} / {result["latency"]["p99"]:.2f}',
    'recall': optional('recall', '{:.3f}'.format), 'index': lambda result: f'{indexing(result):,.1f}',
    'opened': optional('opened', lambda opened: f'{opened["wall"]:.2f}'),
    'disk': lambda result: f'{result["disk"] / 1e6:,.0f}',
    'memory_used': optional('memory', lambda memory: f'{memory / 1e6:,.0f}')}
GROWING = {
    'a query, ms': lambda result: result['latency']['median'], 'indexing, s': indexing,
    'disk, MB': lambda result: result['disk'] / 1e6}


def read(folder: Path) -> dict:  # {(size, engine): result}
    "Results with today's vectors."
    results = [dict(of=revision_of(path), **read_json(path)) for path in (folder/'engines').glob('*.json')]
    results = [result for result in results if result.get('vectors') == VECTORS]
    results.sort(key=lambda result: (result['size'], list(NAMES).index(result['engine'])))
    return {(result['size'], result['engine']): result for result in results}


def figures(results: dict, write, reason: bool) -> str:
    def cell(result):
        if result is None: return 'not measured'
        if 'refused' not in result: return write(result)
        return f'stopped: {result["refused"]}' if reason else 'stopped'
    rows = [[f'{size:,}', *(cell(results.get((size, engine))) for engine in NAMES)]
            for size in dict.fromkeys(size for size, _ in results)]
    return table(['documents', *NAMES.values()], rows)


def measured(results: dict, engine: str, figure, start: int = 0) -> dict:  # size -> figure
    return {size: figure(result) for (size, name), result in results.items()
            if name == engine and size >= start and 'refused' not in result}


def growth(results: dict) -> str:
    def power(engine, figure):
        values = measured(results, engine, figure, FIT_FROM)
        return f'{exponent(list(values), list(values.values())):.2f}' if len(values) > 1 else ''
    rows = [[name.split(',')[0], *(power(engine, figure) for engine in NAMES)] for name, figure in GROWING.items()]
    return table(['', *NAMES.values()], rows)


def expected(results: dict, engine: str, figure, size: int) -> float:
    "A figure at a size that was not measured, by its growth."
    values = measured(results, engine, figure, FIT_FROM)
    return values[max(values)] * (size / max(values)) ** exponent(list(values), list(values.values()))


def left_out(results: dict) -> str:
    "What the engines would take that were not measured at the largest size."
    largest = max(size for size, _ in results)
    def said(engine):
        latency, index = (expected(results, engine, GROWING[name], largest) for name in ('a query, ms', 'indexing, s'))
        return f'{NAMES[engine]} {index / 60:,.0f} minutes for indexing and {latency / 1000:.2g} s a query'
    absent = [said(engine) for engine in NAMES if (largest, engine) not in results and len(measured(results, engine, indexing, FIT_FROM)) > 1]
    return f'At {largest:,} documents not every engine was measured. As they grew until then, these would take: {"; ".join(absent)}.' if absent else ''


def facts(results: list) -> dict:
    "What the paragraph on the documents says."
    whole, last = [result for result in results if result['engine'] != 'bm25'], results[-1]
    def span(name):
        values = [result[name] for result in whole]
        return ' to '.join(dict.fromkeys(f'{value:.0f}' for value in (min(values), max(values))))
    return dict(real=last['real'], collections=', '.join(last['data']), terms=span('terms'), asked=span('asked'),
                queries=last['queries'])


def page(results: dict) -> str:
    finished = [result for result in results.values() if 'refused' not in result]
    machine, limits = finished[-1]['machine'], finished[-1]['limits']
    revisions = ', '.join(dict.fromkeys(f'`{result["of"]}`' for result in results.values()))
    return PAGE.format(
        source=source(*results.values(), data=finished[-1]['data']),
        documents=DOCUMENTS.format(**facts(finished), revisions=revisions), left_out=left_out(results), start=FIT_FROM, growth=growth(results),
        machine=f'{machine["processor"]}, {machine["cores"]} cores, {machine["memory"] / 1e9:.1f} GB',
        seconds=limits['seconds'], memory=limits['memory'] // 2 ** 30,
        versions='; '.join(sorted({f'{result["package"]}, {result["date"]}' for result in results.values()})),
        seismic=', '.join(f'`{name}={value}`' for name, value in vars(Seismic()).items()),
        **{name: figures(results, write, name == 'latency') for name, write in FIGURES.items()})


def draw(results: dict, path: Path) -> None:
    figure, axes = canvas(1, 3, width=9)
    for axis, (name, value) in zip(axes, GROWING.items()):
        for engine, label in NAMES.items():
            values = measured(results, engine, value)
            if values: axis.loglog(list(values), list(values.values()), 'o-', label=label)
        log_axes(axis, sorted({size for size, _ in results}), 'documents', name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside upper center', ncols=len(NAMES))
    write_svg(figure, path)

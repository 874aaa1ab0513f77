"""Every format over the whole vocabulary of XLM-R and over a real collection; conversions killed, gone on with, and measured."""
import importlib.util, json, multiprocessing, os, re, subprocess, sys, unicodedata
from pathlib import Path
import numpy as np
import pyarrow.parquet
import pytest
from scipy import sparse
from conftest import ROOT, is_real, real_or_made
from moments import TEXTS, die_at_change, every_moment
from splade_nb.data import readers as data
from splade_nb.serving import formats
from splade_nb.data.records import toy_corpus
from splade_nb.config.files import ConfigError, read_json
from splade_nb.model.encode import lookup_queries
from splade_nb.evaluation.metrics import rank, retrieval_metrics
from splade_nb.serving.formats import FORMATS, by_name, part_path, read_vectors, rounded, write_vectors
from splade_nb.data.idf import count, idf
from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, train_unigram

each_format = pytest.mark.parametrize('name', FORMATS)


def varied(rows: sparse.csr_matrix) -> sparse.csr_matrix:
    "The same tokens, their weights as if learned: every one another."
    rows = rows.copy(); rows.data = (rows.data * np.random.default_rng(42).uniform(0.5, 1.5, rows.nnz) / np.repeat(np.diff(rows.indptr), np.diff(rows.indptr)) ** 0.5).astype(np.float32)
    return rows


@pytest.fixture(scope='module')
def tokenizer() -> SpladeTokenizer: return load_tokenizer(real_or_made('tokenizers/xlm-roberta-base'))


@pytest.fixture(scope='module')
def collection(tokenizer) -> tuple: # texts, [N, V] documents, [200, V] questions, their judgments
    found = data.load(real_or_made('data/tydiqa_ko_goldp'))
    texts, asked = found.texts, dict(list(found.split('test').items())[:200])
    weights = idf(count(tokenizer.ids(list(texts.values())), len(tokenizer)))
    questions = lookup_queries(tokenizer, weights, [query.text for query in asked.values()])
    return texts, varied(lookup_queries(tokenizer, weights, list(texts.values()))), questions, {id: found.qrels[id] for id in asked}


def test_names_of_the_whole_vocabulary(tokenizer):
    names = by_name(tokenizer)
    apart = lambda keys: len({unicodedata.normalize('NFC', key) for key in keys})
    assert len(names) == len(tokenizer) == apart(names)
    if is_real('tokenizers/xlm-roberta-base'):
        assert len(names) == 250_002 and apart(tokenizer.names) < len(names), 'two tokens that look alike stay two'
    assert not [name for name in names if not name or re.search(r'[.\s\x00-\x1f\x7f-\x9f]', name)] and max(len(name.encode()) for name in names) < 32_766
    assert len({unicodedata.normalize('NFD', name) for name in names}) == len(names)


@pytest.mark.slow
@each_format
def test_every_piece_comes_back(tokenizer, name, tmp_path):
    V = len(tokenizer)
    rows = sparse.csr_matrix((np.linspace(0.01, 3, V, dtype=np.float32), np.random.default_rng(7).permutation(V), np.linspace(0, V, 52).astype(int)), shape=(51, V))
    rows.sort_indices()
    assert write_vectors([rows[:30], rows[30:]], tmp_path, name, tokenizer) == 51
    back = sparse.vstack([part.rows for part in read_vectors(tmp_path, name, tokenizer)])
    assert back.nnz == V and (back != rounded(rows, FORMATS[name].steps)).nnz == 0


@pytest.mark.slow
@each_format
def test_a_collection_is_searched_to_equal_scores(tokenizer, collection, name, tmp_path):
    texts, rows, questions, judgments = collection
    write_vectors((rows[start:start + 1000] for start in range(0, len(texts), 1000)), tmp_path, name, tokenizer, texts, texts.values())
    back = list(read_vectors(tmp_path, name, tokenizer))
    vectors, ids = sparse.vstack([part.rows for part in back]), [id for part in back for id in part.ids]
    assert ids == list(texts) and [text for part in back for text in part.texts] == list(texts.values())
    scores, wanted = (questions @ vectors.T).toarray(), (questions @ rows.T).toarray()
    ndcg = [retrieval_metrics(judgments, rank(some, list(judgments), ids))['ndcg@10'].mean() for some in (scores, wanted)]
    steps = FORMATS[name].steps
    if not steps: assert (scores == wanted).all() and ndcg[0] == ndcg[1]
    else: assert 0 < abs(scores - wanted).max() <= questions.sum(axis=1).max() / steps / 2 * 1.001 and abs(ndcg[0] - ndcg[1]) < 0.2 / steps ** 0.5
    assert ndcg[1] > 0.4


@pytest.mark.slow
def test_seismic_reads_its_format(tokenizer, collection, tmp_path):
    seismic = pytest.importorskip('seismic')
    texts, rows, questions, _ = collection
    write_vectors(rows, tmp_path, 'seismic', tokenizer, texts, texts.values())
    index = seismic.SeismicIndex.build(str(part_path(tmp_path, 0, FORMATS['seismic'])), n_postings=10_000, num_threads=1)
    ids, wanted = list(texts), (questions @ rows.T).toarray()
    for number in range(0, questions.shape[0], 20):
        tokens, weights = questions[number].indices.astype(str).astype(seismic.get_seismic_string()), questions[number].data
        found = index.search('', tokens, weights, k=5, query_cut=100, heap_factor=0.0)
        best = np.sort(wanted[number])[-5:][::-1]
        assert np.allclose([score for _, score, _ in found], best[best > 0], rtol=2e-3), 'Seismic keeps half precision'
        assert found[0][2] == ids[wanted[number].argmax()] and index.get_doc_text(found[0][2]) == texts[found[0][2]]


def module_at(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    return module


def test_milvus_and_qdrant_take_their_formats(tmp_path):
    tokenizer = toy_pieces(); rows = toy_rows(tokenizer, 3)
    for name in ('milvus', 'qdrant'): write_vectors(sparse.vstack([rows, rows[:1] * 0]), tmp_path/name, name, tokenizer, '가나다라')
    qdrant = pytest.importorskip('qdrant_edge')
    points = [json.loads(line) for line in part_path(tmp_path/'qdrant', 0, FORMATS['qdrant']).read_text(encoding='utf-8').splitlines()]
    made = [qdrant.Point(point['id'], {name: qdrant.SparseVector(**vector) for name, vector in point['vector'].items()}, point['payload']) for point in points]
    assert [point.payload['id'] for point in made] == list('가나다라') and len({point['id'] for point in points}) == 4
    checks = module_at(Path(pytest.importorskip('pymilvus').__file__).parent/'bulk_writer'/'validators.py') # its package wants clients of clouds
    table = pyarrow.parquet.read_table(part_path(tmp_path/'milvus', 0, FORMATS['milvus']))
    assert table['id'].to_pylist() == list('가나다') and set(map(str, table.schema.types)) == {'string'}, 'a document without terms is left out'
    for text, row in zip(table['vector'].to_pylist(), rows): assert len(checks.sparse_vector_validator({int(key): weight for key, weight in json.loads(text).items()})) == row.nnz


# A conversion that is killed, and one that is long

def toy_pieces() -> SpladeTokenizer: return SpladeTokenizer(train_unigram(list(toy_corpus().texts.values()), 400))


def toy_rows(tokenizer: SpladeTokenizer, documents: int, seed: int = 0) -> sparse.csr_matrix:
    return sparse.random(documents, len(tokenizer), density=0.2, format='csr', dtype=np.float32, random_state=seed)


def given(tokenizer: SpladeTokenizer, first: int = 0): return (toy_rows(tokenizer, 50, first + number) for number in range(8))


def convert(place: Path, name: str, tokenizer: SpladeTokenizer, number: int) -> None:
    "A child that converts, and is killed at the `number`-th moment of it."
    die_at_change(number, formats, 'write_vectors', (TEXTS, (type(FORMATS[name]), 'write', 1)))
    formats.write_vectors(given(tokenizer), place, name, tokenizer)


def test_a_killed_conversion_goes_on(tmp_path):
    tokenizer, name, stamps, refusals = toy_pieces(), 'rank_features', {}, 0
    def recorded() -> list:
        found = read_json(tmp_path/'parts.json')['parts'] if (tmp_path/'parts.json').exists() else []
        return [part_path(tmp_path, number, FORMATS[name]) for number in range(len(found))]
    def killed(number: int) -> int:  # exit code
        nonlocal refusals
        child = multiprocessing.get_context('fork').Process(target=convert, args=(tmp_path, name, tokenizer, number))
        child.start()
        child.join()
        for path in recorded():
            assert stamps.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns, 'written once'
        if 0 < len(recorded()) < 8:
            with pytest.raises(ConfigError, match='it goes on'): list(read_vectors(tmp_path, name, tokenizer))
            others = given(tokenizer, 1)
            with pytest.raises(ConfigError, match='other vectors'): write_vectors(others, tmp_path, name, tokenizer)
            refusals += 1
        return child.exitcode
    assert every_moment(killed) > 8 and refusals > 2
    assert write_vectors(given(tokenizer), tmp_path, name, tokenizer) == 400
    for number, part in enumerate(read_vectors(tmp_path, name, tokenizer)): assert (part.rows != toy_rows(tokenizer, 50, number)).nnz == 0
    assert part.ids[-1] == '399' and number == 7


MEASURE = """
import json, re, sys
from pathlib import Path
from test_formats import toy_pieces, toy_rows
from splade_nb.serving.formats import read_vectors, write_vectors
tokenizer = toy_pieces()
status = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024
def peak(name, parts):
    Path('/proc/self/clear_refs').write_text('5')
    place = f'{sys.argv[1]}/{name}-{parts}'
    write_vectors((toy_rows(tokenizer, 400, number) for number in range(parts)), place, name, tokenizer)
    assert sum(len(part.ids) for part in read_vectors(place, name, tokenizer)) == 400 * parts
    return status()
told = {}
for name in ('jsonl', 'csr', 'parquet', 'milvus'): peak(name, 1); told[name] = peak(name, 2), peak(name, 16)
print(json.dumps(told))
"""


@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
def test_eight_times_the_documents_take_the_same_memory(tmp_path):
    plain = dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
    done = subprocess.run([sys.executable, '-c', MEASURE, str(tmp_path)], cwd=ROOT/'tests', capture_output=True, text=True, env=os.environ | plain)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert all(long < short + 6 for short, long in told.values()), told

"""Every format over XLM-R's vocabulary and over a real collection; conversions that are killed, and their memory."""
import importlib.util, json, multiprocessing, os, re, subprocess, sys, unicodedata
from pathlib import Path
import numpy as np
import pyarrow.parquet
import pytest
from scipy import sparse
from conftest import ROOT, is_real, real_or_made
from moments import TEXTS, die_at_change, every_moment
from splade_nb.config.files import ConfigError
from splade_nb.data import readers
from splade_nb.data.idf import count, idf
from splade_nb.data.records import toy_corpus
from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, train_unigram
from splade_nb.evaluation.metrics import rank, retrieval_metrics
from splade_nb.model.encode import lookup_queries
from splade_nb.serving import formats
from splade_nb.serving.formats import EMPTY, FORMATS, by_name, part_path, read_vectors, rounded, write_vectors

each_format = pytest.mark.parametrize('name', FORMATS)


@pytest.fixture(scope='module')
def tokenizer() -> SpladeTokenizer: return load_tokenizer(real_or_made('tokenizers/xlm-roberta-base'))


@pytest.fixture(scope='module')
def collection(tokenizer) -> tuple: # texts, [N, V] documents whose weights all differ, [200, V] queries, judgments
    data = readers.load(real_or_made('data/tydiqa_ko_goldp'))
    texts, queries = data.texts, dict(list(data.split('test').items())[:200])
    weights = idf(count(tokenizer.ids(list(texts.values())), len(tokenizer)))
    rows = lookup_queries(tokenizer, weights, list(texts.values()))
    lengths = np.repeat(np.diff(rows.indptr), np.diff(rows.indptr))
    factors = np.random.default_rng(42).uniform(0.5, 1.5, rows.nnz) / lengths ** 0.5
    rows.data = (rows.data * factors).astype(np.float32)
    query_rows = lookup_queries(tokenizer, weights, [query.text for query in queries.values()])
    return texts, rows, query_rows, {id: data.qrels[id] for id in queries}


@pytest.mark.slow
def test_names_of_the_whole_vocabulary(tokenizer):
    names = by_name(tokenizer)
    def different(keys, form): return len({unicodedata.normalize(form, key) for key in keys})
    assert len(names) == len(tokenizer) == different(names, 'NFC') == different(names, 'NFD')
    if is_real('tokenizers/xlm-roberta-base'):
        assert len(names) == 250_002 and different(tokenizer.names, 'NFC') < len(names), 'two that look alike stay two'
    assert [name for name in names if re.search(r'[.\s\x00-\x1f\x7f-\x9f]|^$', name)] == []
    assert max(len(name.encode()) for name in names) < 32_766


@pytest.mark.slow
@each_format
def test_every_token_is_read_back(tokenizer, name, tmp_path):
    V = len(tokenizer)
    weights, columns = np.linspace(0.01, 3, V, dtype=np.float32), np.random.default_rng(7).permutation(V)
    rows = sparse.csr_matrix((weights, columns, np.linspace(0, V, 52).astype(int)), shape=(51, V))
    rows.sort_indices()
    assert write_vectors([rows[:30], rows[30:]], tmp_path, name, tokenizer) == 51
    back = sparse.vstack([part.rows for part in read_vectors(tmp_path, name, tokenizer)])
    assert back.nnz == V and (back != rounded(rows, FORMATS[name].steps)).nnz == 0


@pytest.mark.slow
@each_format
def test_a_collection_has_the_same_scores(tokenizer, collection, name, tmp_path):
    texts, rows, queries, judgments = collection
    parts = (rows[start:start + 1000] for start in range(0, len(texts), 1000))
    write_vectors(parts, tmp_path, name, tokenizer, texts, texts.values())
    back = list(read_vectors(tmp_path, name, tokenizer))
    vectors, ids = sparse.vstack([part.rows for part in back]), [id for part in back for id in part.ids]
    assert ids == list(texts) and [text for part in back for text in part.texts] == list(texts.values())
    scores, exact = (queries @ vectors.T).toarray(), (queries @ rows.T).toarray()
    ndcg, exact_ndcg = (retrieval_metrics(judgments, rank(some, list(judgments), ids))['ndcg@10'].mean()
                        for some in (scores, exact))
    assert exact_ndcg > 0.4
    if not (steps := FORMATS[name].steps):
        assert (scores == exact).all() and ndcg == exact_ndcg
        return
    assert 0 < abs(scores - exact).max() <= queries.sum(axis=1).max() / steps / 2 * 1.001
    assert abs(ndcg - exact_ndcg) < 0.2 / steps ** 0.5


@pytest.mark.slow
def test_seismic_reads_its_format(tokenizer, collection, tmp_path):
    seismic = pytest.importorskip('seismic')
    texts, rows, queries, _ = collection
    write_vectors(rows, tmp_path, 'seismic', tokenizer, texts, texts.values())
    path = part_path(tmp_path, 0, FORMATS['seismic'])
    index = seismic.SeismicIndex.build(str(path), n_postings=10_000, num_threads=1)
    ids, exact = list(texts), (queries @ rows.T).toarray()
    for query, scores in list(zip(queries, exact))[::20]:
        tokens = query.indices.astype(str).astype(seismic.get_seismic_string())
        results = index.search('', tokens, query.data, k=5, query_cut=100, heap_factor=0.0)
        best = np.sort(scores)[-5:][::-1]
        assert np.allclose([score for _, score, _ in results], best[best > 0], rtol=2e-3), 'Seismic has half precision'
        first = results[0][2]
        assert first == ids[scores.argmax()] and index.get_doc_text(first) == texts[first]


def toy_tokenizer() -> SpladeTokenizer: return SpladeTokenizer(train_unigram(list(toy_corpus().texts.values()), 400))


def toy_rows(tokenizer: SpladeTokenizer, documents: int, seed: int = 0) -> sparse.csr_matrix:
    return sparse.random(documents, len(tokenizer), density=0.2, format='csr', dtype=np.float32, random_state=seed)


@pytest.mark.parametrize('made, found', [
    (lambda rows: (rows.toarray(), None, None), 'found ndarray'),
    (lambda rows: ([[[1.0] * rows.shape[1]]], None, None), 'found list'),
    (lambda rows: (rows, ['가', '나', '\ud800', '라'], None), "line 3, id: found '.ud800'"),
    (lambda rows: (rows, None, ['가', '나 \udfff', '다', '라']), "line 2, text: found '나 .udfff'")])
def test_what_cannot_be_written_is_named(made, found, tmp_path):
    tokenizer = toy_tokenizer()
    rows, ids, texts = made(toy_rows(tokenizer, 4))
    with pytest.raises(ValueError, match=found): write_vectors(rows, tmp_path/'out', 'milvus', tokenizer, ids, texts)
    assert not [*tmp_path.rglob('*.jsonl*')]


@pytest.fixture
def four(tmp_path) -> sparse.csr_matrix: # written for Milvus and for Qdrant; the last has no term
    tokenizer = toy_tokenizer()
    rows = toy_rows(tokenizer, 4)
    rows = sparse.vstack([rows[:3], rows[3:] * 0]).tocsr()
    for name in ('milvus', 'qdrant'): write_vectors(rows, tmp_path/name, name, tokenizer, '가나다라')
    return rows


def test_qdrant_takes_its_format(four, tmp_path):
    qdrant = pytest.importorskip('qdrant_edge')
    lines = part_path(tmp_path/'qdrant', 0, FORMATS['qdrant']).read_text(encoding='utf-8').splitlines()
    def point(id, vector, payload):
        return qdrant.Point(id, {name: qdrant.SparseVector(**terms) for name, terms in vector.items()}, payload)
    assert [point(**json.loads(line)).payload['id'] for line in lines] == list('가나다라')
    assert len({json.loads(line)['id'] for line in lines}) == 4


def test_milvus_takes_its_format(four, tmp_path):
    pymilvus = Path(pytest.importorskip('pymilvus').__file__).parent
    # the validators alone: their package imports clients of clouds
    spec = importlib.util.spec_from_file_location('validators', pymilvus/'bulk_writer'/'validators.py')
    checks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checks)
    table = pyarrow.parquet.read_table(part_path(tmp_path/'milvus', 0, FORMATS['milvus']))
    assert table['id'].to_pylist() == list('가나다라') and set(map(str, table.schema.types)) == {'string'}
    vectors = [{int(term): weight for term, weight in json.loads(text).items()} for text in table['vector'].to_pylist()]
    assert [len(checks.sparse_vector_validator(vector)) for vector in vectors] == [*np.diff(four.indptr)[:3], 1]
    assert vectors[3] == {EMPTY: 1.0}, 'Milvus refuses an empty vector'


# A conversion that is killed, and one that is long

def batches(tokenizer: SpladeTokenizer, seed: int = 0): return (toy_rows(tokenizer, 50, seed + n) for n in range(8))


def convert(place: Path, name: str, tokenizer: SpladeTokenizer, number: int) -> None:
    "A child that converts, and is killed at the `number`-th moment of it."
    die_at_change(number, formats, 'write_vectors', (TEXTS, (type(FORMATS[name]), 'write', 1)))
    formats.write_vectors(batches(tokenizer), place, name, tokenizer)


@pytest.mark.slow
def test_a_killed_conversion_continues(tmp_path):
    tokenizer, name, times, refusals = toy_tokenizer(), 'rank_features', {}, []
    def killed(number: int) -> int:  # exit code
        child = multiprocessing.get_context('fork').Process(target=convert, args=(tmp_path, name, tokenizer, number))
        child.start()
        child.join()
        written = [part_path(tmp_path, part, FORMATS[name]) for part in range(len(formats._recorded(tmp_path)))]
        for path in written:
            assert times.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns, 'written once'
        if 0 < len(written) < 8:
            with pytest.raises(ConfigError, match='it goes on'): list(read_vectors(tmp_path, name, tokenizer))
            with pytest.raises(ConfigError, match='other vectors'):
                write_vectors(batches(tokenizer, 1), tmp_path, name, tokenizer)
            refusals.append(number)
        return child.exitcode
    assert every_moment(killed) > 8 and len(refusals) > 2
    assert write_vectors(batches(tokenizer), tmp_path, name, tokenizer) == 400
    parts = list(read_vectors(tmp_path, name, tokenizer))
    for part, rows in zip(parts, batches(tokenizer), strict=True): assert (part.rows != rows).nnz == 0
    assert parts[-1].ids[-1] == '399'


MEASURE = """
import json, re, sys
from pathlib import Path
from test_formats import toy_rows, toy_tokenizer
from splade_nb.serving.formats import read_vectors, write_vectors
tokenizer = toy_tokenizer()

def peak(name, parts):  # MiB
    Path('/proc/self/clear_refs').write_text('5')
    place = f'{sys.argv[1]}/{name}-{parts}'
    write_vectors((toy_rows(tokenizer, 400, number) for number in range(parts)), place, name, tokenizer)
    assert sum(len(part.ids) for part in read_vectors(place, name, tokenizer)) == 400 * parts
    return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024

names = 'jsonl', 'csr', 'parquet', 'milvus'
for name in names: peak(name, 1)
print(json.dumps({name: (peak(name, 2), peak(name, 16)) for name in names}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
def test_eight_times_the_documents_take_the_same_memory(tmp_path):
    plain = dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1',
                 MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
    done = subprocess.run([sys.executable, '-c', MEASURE, str(tmp_path)], cwd=ROOT/'tests',
                          capture_output=True, text=True, env=os.environ | plain)
    assert done.returncode == 0, done.stderr[-2000:]
    peaks = json.loads(done.stdout.splitlines()[-1])
    assert all(long < short + 6 for short, long in peaks.values()), peaks

"A static embedding beside a sparse model: learned from texts alone, one score in every engine, a teacher."
import itertools, json, mmap
from dataclasses import replace
import numpy as np
import pytest
from scipy import sparse
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import EMBEDDED_TEACHERS, Settings, off
from splade_nb.data.bm25 import BM25
from splade_nb.data.idf import Frequencies
from splade_nb.data.prepared import Preparation
from splade_nb.evaluation.hybrid import DensePart
from splade_nb.evaluation.systems import WithDensePart, words_system
from splade_nb.model.static_embedding import StaticEmbedding, hybrid_queries, load_embedding, save_embedding
from splade_nb.serving import embedded_engines
from splade_nb.serving.engines import resume_index
from splade_nb.serving.index import ExactIndex, Label
from splade_nb.serving.opensearch import Layout, SearchOptions, index_body, operation, request
from splade_nb.training import span_contrast
from splade_nb.training.span_contrast import WordModel, learn_embedding, read_words, train_words
from splade_nb.training.teacher import teacher_vectors

SUBJECTS = ['배 사과 과일 감귤 포도 수박'.split(), '기차 버스 공항 여행 호텔 지하철'.split()]


def made_texts(number: int = 60, length: int = 12) -> list:
    generator = np.random.default_rng(0)
    return [' '.join(generator.choice(SUBJECTS[n % 2], length)) for n in range(number)]


@pytest.fixture(scope='module')
def embedding() -> StaticEmbedding: return learn_embedding(made_texts(), dimensions=8)


def test_texts_may_come_as_a_stream_and_in_parts(tmp_path, monkeypatch):
    "What is read a few texts at a time is what is read at once."
    texts = made_texts(25)
    whole = read_words(texts, tmp_path/'whole')
    monkeypatch.setattr(span_contrast, 'islice', lambda stream, size: itertools.islice(stream, 4))
    monkeypatch.setattr(span_contrast._parts, '__defaults__', (7,))
    parts = read_words(iter(texts), tmp_path/'parts')
    assert parts.words == whole.words and parts.starts.tolist() == whole.starts.tolist()
    assert parts.ids.tolist() == whole.ids.tolist() and isinstance(parts.ids.base.obj, mmap.mmap)
    assert parts.seen.counts.tolist() == whole.seen.counts.tolist() == [
        sum(word in text.split() for text in texts) for word in whole.words]
    assert sorted(path.name for path in (tmp_path/'parts').iterdir()) == ['ids.bin', 'starts.npz', 'words.json']


def test_rare_words_leave_texts_without_gaps(tmp_path):
    few = read_words(['배 사과', '제주', '사과 배 사과'], tmp_path, most=2)
    assert few.words == ['사과', '배'] and few.starts.tolist() == [0, 2, 2, 5] and few.ids.tolist() == [1, 0, 0, 1, 0]
    assert few.seen.documents == 3 and few.seen.counts.tolist() == [2, 2]


def test_seed_and_texts_say_what_is_learned(embedding):
    again, other = learn_embedding(iter(made_texts()), dimensions=8), learn_embedding(made_texts(), dimensions=8, seed=1)
    assert np.array_equal(again.rows, embedding.rows) and not np.array_equal(other.rows, embedding.rows)
    vectors = embedding.encode([' '.join(words[:3]) for words in SUBJECTS] + [' '.join(words[3:]) for words in SUBJECTS])
    assert (vectors @ vectors.T)[[0, 1], [2, 3]].min() > (vectors @ vectors.T)[[0, 1], [3, 2]].max()


def test_training_changes_vectors_and_weights(tmp_path):
    words = read_words(made_texts(), tmp_path)
    model = WordModel(*span_contrast.initial_vectors(words, 8))
    before = model.vectors.detach().clone(), model.logs.detach().clone()
    losses = train_words(model, words, steps=20)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert not np.allclose(before[0], model.vectors.detach()) and not np.allclose(before[1], model.logs.detach())


@pytest.mark.parametrize('texts, message', [([], '0 different words'), (['배 배'], '1 different'), (['배 사과'] * 3, 'none of 6 words')])
def test_too_few_words_are_refused(texts, message):
    with pytest.raises(ConfigError, match=message): learn_embedding(texts, dimensions=4)


def test_a_file_gives_the_same_vectors_or_is_refused(embedding, tmp_path):
    path = tmp_path/'embedding.safetensors'
    save_embedding(embedding, path)
    saved = load_embedding(path)
    assert saved.words == embedding.words and saved.seen.documents == 60
    assert np.array_equal(saved.encode(['배와 기차']), embedding.encode(['배와 기차']))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConfigError, match='damaged'): load_embedding(path)
    with pytest.raises(ConfigError, match='missing'): load_embedding(tmp_path/'missing')


def test_the_sum_is_the_plain_sum(embedding):
    texts = dict(zip(map(str, range(20)), made_texts(20)))
    queries = {'q': '배 감귤', 'r': '기차 여행 배', 'unknown': '바나나'}
    dense = DensePart(embedding, texts.values(), 0.3)
    both = WithDensePart(words_system(texts), dense)
    words = BM25(texts).scores(list(queries.values()))
    cosines = embedding.encode(queries.values()) @ embedding.encode(texts.values()).T
    counted = {word: sum(word in text.split() for text in texts.values()) for word in embedding.words}
    def rarity(word): return np.log(1 + (20 - counted.get(word, 1) + 0.5) / (counted.get(word, 1) + 0.5))
    sums = [sum(map(rarity, text.split())) for text in queries.values()]
    expected = words + 0.3 * np.array(sums)[:, None] * cosines
    np.testing.assert_allclose(both.scores(list(queries.values())), expected, atol=1e-4)
    run = both.run(queries)
    assert list(run['q'])[0] == str(expected[0].argmax()) and run['unknown'] == {}


LABEL = Label('words', 30, 'model', dense=4)


def made_vectors(number: int, seed: int) -> tuple:  # [n, 30], [n, 4]
    generator = np.random.default_rng(seed)
    rows = sparse.random_array((number, 30), density=0.2, rng=generator, format='csr', dtype=np.float32)
    return sparse.csr_matrix(rows), generator.normal(size=(number, 4)).astype(np.float32)


@pytest.mark.parametrize('engine', ['exact', 'milvus', 'qdrant'])
def test_every_engine_gives_the_sum(engine, tmp_path):
    (documents, dense), (queries, directions), ids = made_vectors(40, 0), made_vectors(6, 1), [f'문서 {n}' for n in range(40)]
    documents, queries = (sparse.vstack([0 * rows[:1], rows[1:]]).tocsr() for rows in (documents, queries))  # one without a term
    scores = documents @ queries.T + dense @ directions.T
    expected = [sorted(((ids[n], score) for n, score in enumerate(column) if score > 0), key=lambda pair: -pair[1])[:5]
                for column in np.asarray(scores).T]
    with resume_index(engine, tmp_path/engine, LABEL) as index:
        index.add(ids, documents, dense)
        index.save()
    with resume_index(engine, tmp_path/engine, LABEL) as index: found = index.search(queries, 5, directions)
    assert [[id for id, _ in row] for row in found] == [[id for id, _ in row] for row in expected]
    for row, right in zip(found, expected):
        np.testing.assert_allclose([score for _, score in row], [score for _, score in right], rtol=1e-4)
    with pytest.raises(ConfigError, match="dense 4 made this index, 0 is asked for"):
        resume_index(engine, tmp_path/engine, replace(LABEL, dense=0))


def test_what_no_part_finds_is_missed_and_no_more(monkeypatch, tmp_path):
    "With one candidate a part, the two best of both are scored, each with the whole sum."
    monkeypatch.setattr(embedded_engines, 'CANDIDATES', 1)
    rows = sparse.csr_matrix(np.diag([3.0, 1.0, 2.0]).astype(np.float32))
    dense, label = np.array([[0, 0.1], [0, 5], [0, 4]], np.float32), Label('words', 3, 'model', dense=2)
    with resume_index('milvus', tmp_path/'milvus', label) as index:
        index.add(['가', '나', '다'], rows, dense)
        found = index.search(sparse.csr_matrix([[1.0, 1, 1]]), 1, np.array([[0.0, 1]]))
    assert found == [[('나', 6.0)]], 'sparse finds 가 (3.1), dense finds 나 (1 + 5); 다 has 6 as well'


def test_an_index_without_dense_vectors_takes_none(tmp_path):
    vectors, dense = made_vectors(3, 0)
    index = ExactIndex(replace(LABEL, dense=0))
    with pytest.raises(ConfigError, match='dense vectors'): index.add(['가', '나', '다'], vectors, dense)
    with pytest.raises(ConfigError, match='dense vectors'): ExactIndex(LABEL).add(['가', '나', '다'], vectors)
    with pytest.raises(ConfigError, match='engine=seismic'): resume_index('seismic', tmp_path/'seismic', LABEL)


class Opened:  # what `operation` reads of an index
    label, names = LABEL, None


def test_opensearch_adds_a_script_to_the_sparse_query():
    (vectors, dense), (queries, directions) = made_vectors(1, 0), made_vectors(1, 1)
    mapping = index_body(LABEL, Layout())['mappings']
    assert mapping['properties']['dense'] == dict(type='knn_vector', dimension=4) and mapping['_meta']['splade_nb']['label']['dense'] == 4
    assert 'dense' not in index_body(replace(LABEL, dense=0), Layout())['mappings']['properties']
    row = sparse.hstack([vectors, sparse.csr_matrix(dense)], 'csr')
    stored = json.loads(operation(Opened, '가', row)[1].splitlines()[1])
    np.testing.assert_allclose(stored['dense'], dense[0])
    assert len(stored['vector']) == vectors.nnz
    body, scale = request(queries, 5, SearchOptions(by='neural_sparse'), dense=directions[0])
    first, second = body['query']['bool']['should']
    parameters = second['script_score']['script']['params']
    assert scale == 1 and 'neural_sparse' in first and np.isclose(parameters['weight'], np.linalg.norm(directions))
    np.testing.assert_allclose(np.array(parameters['vector']) * parameters['weight'], directions[0], rtol=1e-5)
    alone, _ = request(sparse.csr_matrix((1, 30), dtype=np.float32), 5, SearchOptions(by='neural_sparse'), dense=directions[0])
    assert len(alone['query']['bool']['should']) == 1, 'a query without a term has the script alone'


@pytest.mark.parametrize('weight', [0.0, 0.3, 1.0])
def test_the_weight_scales_the_queries(embedding, weight):
    one = hybrid_queries(embedding, ['배 감귤'], 1.0)
    np.testing.assert_allclose(hybrid_queries(embedding, ['배 감귤'], weight), weight * one, rtol=1e-6)
    doubled = replace(embedding, seen=Frequencies(embedding.seen.documents, embedding.seen.counts // 2))
    assert np.linalg.norm(hybrid_queries(doubled, ['배 감귤'])) > np.linalg.norm(hybrid_queries(embedding, ['배 감귤']))


def test_the_teacher_is_learned_once_from_the_documents(tmp_path, monkeypatch):
    texts, calls = made_texts(20), []
    def learned(documents):
        calls.append(len(documents))
        return learn_embedding(documents, dimensions=8)
    monkeypatch.setattr('splade_nb.training.teacher.learn_embedding', learned)
    first, again = (teacher_vectors(Preparation(base=tmp_path), 'static', ['배 감귤'], texts, []) for _ in range(2))
    assert calls == [20] and np.array_equal(first[1][:], again[1][:])
    assert first[0][:].shape == (1, 8)
    np.testing.assert_allclose(np.linalg.norm(first[1][:], axis=1), 1, rtol=1e-5)
    assert EMBEDDED_TEACHERS == ('lsa', 'static')
    assert 'teacher_max_length' in off(replace(Settings(), teacher='static', lambda_kd=1.0))

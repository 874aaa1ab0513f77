"Topics of a collection beside a sparse model: learned from texts alone, terms of one index, in every engine."
import numpy as np
import pytest
from scipy import sparse
from splade_nb.config.files import ConfigError
from splade_nb.data.idf import Frequencies
from splade_nb.data.records import Document, toy_corpus
from splade_nb.evaluation.hybrid import TopicPart
from splade_nb.evaluation.retrieval import evaluate_model
from splade_nb.evaluation.systems import Index, WithDensePart, words_system
from splade_nb.model.static_embedding import StaticEmbedding, idf_sums, save_embedding
from splade_nb.model.topic_terms import DOCUMENT_TOPICS, QUERY_TOPICS, TOPICS, TopicTerms, load_topics, save_topics
from splade_nb.model.topic_terms import sparse_codes, topic_centres
from splade_nb.model.opened import RELEASED
from splade_nb.serving.searcher import build_searcher, open_encoder, open_searcher
from splade_nb.training import span_contrast
from splade_nb.training.span_contrast import learn_embedding, learn_topics
from test_companion import SUBJECTS, made_texts


@pytest.fixture(scope='module')
def topics() -> TopicTerms: return learn_topics(made_texts(), dimensions=8)


@pytest.fixture(scope='module')
def encoder(): return open_encoder(RELEASED)


def drawn_unit(number: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(number, 6)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_code_is_the_nearest_centres():
    vectors, centres = drawn_unit(30, 0), drawn_unit(20, 1)
    codes = sparse_codes(vectors, centres, 4).toarray()
    for vector, code in zip(vectors, codes):
        cosines = centres @ vector
        wanted = np.where(cosines >= np.sort(cosines)[-4], np.maximum(cosines, 0), 0)
        np.testing.assert_allclose(code[:20], wanted / np.linalg.norm(wanted), atol=1e-6)
    assert codes.shape == (30, TOPICS) and not codes[:, 20:].any()
    assert sparse_codes(vectors, centres[:3], 8).shape == (30, TOPICS), 'fewer centres than topics of a text'


def test_texts_and_seed_say_what_is_learned(topics):
    again, other = learn_topics(iter(made_texts()), dimensions=8), learn_topics(made_texts(), dimensions=8, seed=1)
    assert np.array_equal(again.centres, topics.centres) and not np.array_equal(other.embedding.rows, topics.embedding.rows)
    assert np.array_equal(topics.embedding.rows, learn_embedding(made_texts(), dimensions=8).rows)
    assert len(topics.centres) <= 30, 'at most half as many groups as documents'
    scores = (topics.queries([' '.join(words[:3]) for words in SUBJECTS], np.ones(2)) @ topics.documents([' '.join(words[3:]) for words in SUBJECTS]).T).toarray()
    assert scores.diagonal().min() > 2 * scores[[0, 1], [1, 0]].max(), 'no word is shared'


def test_of_many_texts_some_are_grouped(monkeypatch):
    monkeypatch.setattr(span_contrast, 'GROUPED', 10)
    assert len(learn_topics(made_texts(), dimensions=8).centres) <= 5


def test_without_steps_topics_are_those_of_the_counts():
    before, after = learn_topics(made_texts(), dimensions=8, steps=0), learn_topics(made_texts(), dimensions=8)
    lengths = np.linalg.norm(before.embedding.rows, axis=1)
    rarity = before.embedding.rarity / before.embedding.rarity.mean()
    np.testing.assert_allclose(lengths, rarity, rtol=1e-4)
    assert not np.allclose(before.embedding.rows, after.embedding.rows)


def test_too_few_words_are_refused():
    with pytest.raises(ConfigError, match='different words'): learn_topics(['배 배'], dimensions=4)
    with pytest.raises(ConfigError, match='no text with a known word'): topic_centres(np.zeros((3, 4), np.float32))
    assert len(topic_centres(np.eye(3, dtype=np.float32)[[0, 0, 0]])) == 1, 'equal texts are one group'


def test_a_text_of_unknown_words_has_no_topic(topics):
    assert topics.documents(['바나나', '']).nnz == 0 and topics.queries(['바나나'], np.ones(1)).nnz == 0
    assert topics.documents([]).shape == (0, TOPICS)


def test_texts_have_few_topics():
    embedding = StaticEmbedding(['배', '기차'], drawn_unit(2, 0), Frequencies(4, np.array([2, 2])))
    many = TopicTerms(embedding, drawn_unit(200, 1))
    assert many.documents(['배 기차']).nnz == DOCUMENT_TOPICS and many.queries(['배 기차'], np.ones(1)).nnz == QUERY_TOPICS
    assert len(many.names) == TOPICS and many.names[0] in ('배·기차', '기차·배')


def test_a_file_gives_the_same_topics_or_is_refused(topics, tmp_path):
    path = tmp_path/'topics.safetensors'
    save_topics(topics, path)
    saved = load_topics(path)
    assert saved.names == topics.names and not (saved.documents(['배와 기차']) != topics.documents(['배와 기차'])).nnz
    save_embedding(topics.embedding, path)
    with pytest.raises(ConfigError, match="allowed: 'splade_nb topic terms 1'"): load_topics(path)
    with pytest.raises(ConfigError, match=': missing'): load_topics(tmp_path/'missing')


def test_the_sum_is_the_plain_sum(topics):
    texts, queries = dict(zip(map(str, range(20)), made_texts(20))), ['배 감귤', '기차 여행 배']
    part, words = TopicPart(topics, texts.values(), 0.3), words_system(texts)
    vectors = sparse.random_array((20, 9), density=0.5, rng=np.random.default_rng(0), format='csr', dtype=np.float32)
    asked = sparse.csr_matrix(np.array([[1, 2, 0] * 3, [0, 0, 4] * 3], np.float32))
    model = Index(list(texts), lambda some: asked[:len(some)], lambda: [sparse.csr_matrix(vectors)])
    cosines = (topics.queries(queries, np.ones(2)) @ topics.documents(texts.values()).T).toarray()
    for index, sums in ((words, idf_sums(topics.embedding, [text.split() for text in queries])), (model, np.array([9, 12]))):
        both = WithDensePart(index, part)
        np.testing.assert_allclose(both.scores(queries), index.scores(queries) + 0.3 * sums[:, None] * cosines, atol=1e-4)
        more = {name: both.cost(queries)[name] - index.cost(queries)[name] for name in ('query', 'doc', 'bytes')}
        assert np.isclose(more['doc'], part.documents.nnz / 20) and more['bytes'] == 8 * part.documents.nnz
        assert np.isclose(more['query'], part.queries(queries).nnz / 2)


def ranked(hits) -> list: return [(hit.id, round(hit.score, 3)) for hit in hits]


@pytest.mark.parametrize('engine', ['seismic', 'milvus', 'qdrant'])
def test_every_engine_holds_topics(encoder, engine, tmp_path):
    with build_searcher(encoder, 'toy', tmp_path/'exact', topics=0.5) as searcher: right = ranked(searcher.search('한복 입고 경복궁', 3))
    with build_searcher(encoder, 'toy', tmp_path/engine, engine, topics=0.5) as searcher:
        found = ranked(searcher.search('한복 입고 경복궁', 3))
    assert [id for id, _ in found] == [id for id, _ in right]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in right], rtol=2e-2 if engine == 'seismic' else 1e-3)


def test_what_comes_later_has_topics_too(encoder, tmp_path):
    with build_searcher(encoder, 'toy', tmp_path, topics=0.5) as searcher:
        searcher.add([Document('new', '', '경복궁에서 한복을 입은 관광객')])
        hits = {hit.id: hit for hit in searcher.search('한복 입고 경복궁', 5)}
        assert any(term.kind == 'topic' for term in hits['new'].terms) and any(term.kind == 'topic' for term in searcher.read('new').terms)
        assert any(term.kind == 'topic' for term in searcher.expand('경복궁 관람'))
        searcher.delete(['palace'])
        assert 'palace' not in {hit.id for hit in searcher.search('한복 입고 경복궁', 5)}
    assert len(list(tmp_path.glob('topics*.safetensors'))) == 1, 'those of the texts that are there'
    with open_searcher(tmp_path, encoder, topics=1.0) as searcher: doubled = searcher.search('한복 입고 경복궁', 1)[0]
    assert doubled.id == 'new' and doubled.score > hits['new'].score, 'the weight is one of the query'
    for wrong in (0.0, -1.0):
        with pytest.raises(ConfigError, match=f'topics=.*{wrong}'): open_searcher(tmp_path, encoder, topics=wrong)


def test_topics_and_a_dense_part_add_up(encoder, tmp_path):
    with build_searcher(encoder, 'toy', tmp_path, hybrid=0.3, topics=0.5) as searcher:
        hit = searcher.search('한복 입고 경복궁', 1)[0]
    assert {'topic', 'dense'} <= {term.kind for term in hit.terms}
    assert np.isclose(sum(term.weight for term in hit.terms), hit.score)


def test_an_evaluation_shows_topics_beside_the_model():
    alone, both = evaluate_model(RELEASED, 'toy'), evaluate_model(RELEASED, 'toy', topics=0.3)
    assert both['ndcg@10'] == alone['ndcg@10'] and both['topics']['queries'] == alone['queries'] and 'topics' not in alone
    more = both['index']['topics']['terms'] - both['index']['model']['terms']
    assert 0 < more <= len(toy_corpus().texts) / 2 and both['index']['topics']['bytes'] > both['index']['model']['bytes']
    with pytest.raises(ConfigError, match='topics=-1: must be at least 0'): evaluate_model(RELEASED, 'toy', topics=-1)

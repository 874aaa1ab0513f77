"""Counted and learned terms in one vector: training, files, search, exports."""
import io, json, zipfile
from contextlib import nullcontext
import numpy as np
import pytest
import torch
from conftest import real
from splade_nb import load
from splade_nb.cli import laboratory
from splade_nb.config.files import ConfigError, read_json, write_json
from splade_nb.config.versions import SHIPPED, resolve, resolve_quietly
from splade_nb.data.bm25 import BigramBM25
from splade_nb.data.readers import load_collection
from splade_nb.data.records import Document, toy_corpus
from splade_nb.data.tokenizer import masks
from splade_nb.evaluation.metrics import retrieval_metrics
from splade_nb.evaluation.retrieval import evaluate_queries, retrieve
from splade_nb.experiment import run_version
from splade_nb.hub import opensearch_model
from splade_nb.hub.opensearch_model import CONNECTOR, to_connector
from splade_nb.hub.export import write_form
from splade_nb.hub.model_card import card, facts_of
from splade_nb.hub.release import matching_facts, release
from splade_nb.model.counted_terms import join_counted, learned_part, reweighed, searched_model, widened
from splade_nb.model.opened import RELEASED
from splade_nb.model.encode import encode, encode_collection, encode_queries, input_terms
from splade_nb.serving.connector import side_vectors
from splade_nb.serving.index import label_of
from splade_nb.serving.searcher import Encoder, build_searcher
from splade_nb.training.check_settings import quiet, tiny_checkpoint
from splade_nb.training.checkpoints import CheckpointError
from splade_nb.training.dataset import AFTER_TRAINING, prepare
from splade_nb.training.validation_pool import narrowed

COLUMNS = 2 ** 14


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    "An untrained model of `small` on a tiny checkpoint, its tokenizer, its settings with counted terms, and its corpus."
    corpus, folder = toy_corpus(), tmp_path_factory.mktemp('tiny')
    with quiet():
        settings = resolve_quietly('v28', scale='small', backbone=tiny_checkpoint(folder, list(corpus.texts.values()), 0), teacher='lsa',
                                   max_length=48, initial_terms=20, gate_hidden=8, steps=4, batch_size=4, validations=1,
                                   counted_terms=COLUMNS, most_document_terms=12, most_query_terms=6, bm25_negatives=0, dense_negatives=0)
        setup = prepare(settings, corpus, 42, place='cpu')
    return setup.model.eval(), setup.training_data.tokenizer, settings, corpus


@pytest.fixture(scope='module')
def joined(plain):
    model, tokenizer, settings, corpus = plain
    return join_counted(model, tokenizer, corpus.texts.values(), settings.but(counted_weight=0.5))


def test_training_sees_learned_terms_alone(plain):
    model, tokenizer, settings, _ = plain
    assert {name: getattr(model.settings, name) for name in AFTER_TRAINING} == AFTER_TRAINING
    assert tokenizer.counted_terms == 0 and len(model.special) == len(tokenizer) and settings.counted_terms == COLUMNS


@pytest.mark.slow
def test_the_counted_columns_are_bm25_with_bigrams(joined):
    "On real documents the ranking by them alone is that of two fields, but for the length that they share and for collisions."
    (model, tokenizer), collection = joined, load_collection(str(real('data/techdocs_ko')))
    ids = [*collection.split('test')][:120]
    collection = narrowed(collection, ids, 700)
    queries, texts = {id: collection.queries[id].text for id in ids}, collection.texts
    documents = encode_collection(model, tokenizer, {id: texts[id] for id in [*texts][:40]})[0]
    bags = [tokenizer.bags([text])[0] for text in [*texts.values()]]
    assert (documents[:, -2 * COLUMNS:] > 0).nnz == sum(len({*bag}) for bag in bags[:40]), 'every counted column, and no other'
    vectors, factor = counted_alone(model, tokenizer, texts, bags)
    asked = encode_queries(model, tokenizer, [*queries.values()], factor)[:, -2 * COLUMNS:]
    assert asked.nnz == sum(len({*tokenizer.bags([query])[0]}) for query in queries.values())
    qrels = {id: collection.qrels[id] for id in ids}
    def ndcg(scores): return retrieval_metrics(qrels, {id: dict(zip(texts, row.tolist())) for id, row in zip(ids, scores)})['ndcg@10'].mean()
    ours, theirs = (asked @ vectors.T).toarray(), BigramBM25(texts).scores([*queries.values()])
    assert abs(ndcg(ours) - ndcg(theirs)) < 0.01
    assert np.mean([np.corrcoef(one, two)[0, 1] for one, two in zip(ours, theirs)]) > 0.98


def test_a_mean_length_that_is_given_counts(joined):
    "So that a collection is encoded in parts."
    model, tokenizer, texts = joined[0], joined[1], list(toy_corpus().texts.values())
    whole = encode(model, tokenizer, texts, mean_length=50.0)
    assert (encode(model, tokenizer, texts, whole=True, mean_length=50.0) != whole).nnz == 0
    assert (encode(model, tokenizer, texts, whole=True) != whole).nnz


def counted_alone(model, tokenizer, texts, bags):
    "The counted columns of documents without a pass of the backbone, and the factor of the queries."
    from splade_nb.model.encode import counted as counts_of, factor_for, saturated
    counts = counts_of(bags, len(tokenizer))
    return saturated(counts)[:, -2 * COLUMNS:], factor_for(model, counts.getnnz(axis=0), len(texts))


def test_a_joined_model_is_saved_and_opened(joined, plain, tmp_path):
    from splade_nb.model.load import load_encoder, save
    from splade_nb.data.tokenizer import save_tokenizer
    model, tokenizer = joined
    save_tokenizer(tokenizer, save(model, tmp_path/'model'))
    again, words = load_encoder(tmp_path)
    texts = [*plain[3].texts.values()]
    for document in (True, False):
        one, two = encode(model, tokenizer, texts, document), encode(again, words, texts, document)
        assert (one != two).nnz == 0 and one.shape[1] == len(words) == len(tokenizer)
    assert again.settings.counted_weight == 0.5 and again.digest() == model.digest() != plain[0].digest()
    (tmp_path/'model/text.json').write_text(json.dumps(read_json(tmp_path/'model/text.json') | dict(counted_terms=COLUMNS // 2)))
    with pytest.raises(ConfigError, match='do not belong together'): load_encoder(tmp_path)


def test_bounds_are_of_learned_terms(joined, plain):
    (model, tokenizer), (_, learned, _, corpus) = joined, plain
    for document, most in ((True, 12), (False, 6)):
        vectors = encode(model, tokenizer, [*corpus.texts.values()], document)
        assert 0 < vectors[:, :len(learned)].getnnz(axis=1).max() <= most
    double = encode(reweighed(model, 2.0), tokenizer, ['서울 날씨'], document=False)
    once = encode(model, tokenizer, ['서울 날씨'], document=False)
    assert np.allclose(double[:, len(learned):].toarray(), 2 * once[:, len(learned):].toarray()) and once[:, len(learned):].nnz


def test_own_terms_and_language_are_those_of_the_learned_part(joined, plain):
    from splade_nb.evaluation.exact_search import Block
    from splade_nb.evaluation.retrieval import LanguageShares
    (model, tokenizer), (_, learned, _, corpus) = joined, plain
    texts, groups, found = [*corpus.texts.values()], masks(learned) | dict(allowed=np.zeros(len(learned), bool)), []
    for one, words in ((model, tokenizer), (*learned_part(model, tokenizer),)):
        shares = LanguageShares(words, groups, len(texts))
        shares(Block(np.arange(len(texts)), encode(one, words, texts), texts, words.ids(texts)))
        found.append(shares.values)
    assert np.allclose(*found, equal_nan=True) and np.isfinite(found[0]).any()
    own = input_terms(tokenizer, texts[:1])
    assert {*own.indices} >= {*tokenizer.bags(texts[:1])[0]} and (own.indices < len(learned)).any()


def test_a_searcher_follows_the_collection(joined, plain, tmp_path, monkeypatch):
    "Added one by one or together, in memory or on disk: the scores are those of all texts at once."
    monkeypatch.setattr('splade_nb.serving.searcher.LEAST_COSINE', 0.0)  # every part of a score, however small
    (model, tokenizer), corpus = joined, plain[3]
    from splade_nb.model.load import save
    from splade_nb.data.tokenizer import save_tokenizer
    save_tokenizer(tokenizer, save(model, tmp_path/'model'))
    texts, query = corpus.texts, next(iter(corpus.queries.values())).text
    wanted = retrieve(model, tokenizer, {'q': query}, texts)[0]['q']
    documents = [Document(id, '', text) for id, text in texts.items()]
    with build_searcher(str(tmp_path/'model'), documents[:5], tmp_path/'searcher') as searcher:
        for document in documents[5:]: searcher.add(document)
        hits = searcher.search(query, 5)
        parts = [{name: {hit.id: hit.score for hit in searcher.search(each.text, 50, name)} for name in searcher.parts} for each in corpus.queries.values()]
    assert [*parts[0]] == ['all', 'learned', 'counted'] and all(any(part[name] for part in parts) for name in parts[0])
    for part in parts: assert {id: part['learned'].get(id, 0) + part['counted'].get(id, 0) for id in part['all']} == pytest.approx(part['all'], rel=1e-4)
    for hit in hits:
        assert hit.score == pytest.approx(wanted[hit.id], rel=1e-4)
        assert sum(term.weight for term in hit.terms) == pytest.approx(hit.score, rel=1e-4)
    counted_terms = [term for term in hits[0].terms if term.kind == 'counted']
    assert counted_terms and all(term.name in texts[hits[0].id] and not term.added for term in counted_terms)


def test_a_searcher_says_in_plain_sentences_what_it_does_not_read(joined, tmp_path, capsys, recwarn):
    encoder, long = Encoder('joined', *joined, label_of(*joined)), '한복을 입고 경복궁에 간다 ' * 200
    with build_searcher(encoder, [Document('long', '', long), Document('short', '', '한복을 입는다')], tmp_path/'searcher') as searcher:
        searcher.expand(long)
        assert searcher.search(long, 1)[0].id == 'long'
    text, query = [line for line in capsys.readouterr().err.splitlines() if 'does not read' in line]
    assert text.startswith('1 of 2 texts are longer than 8 windows of 46 tokens: the model does not read ')
    assert query.endswith('tokens at the end of the query') and 'most_windows' not in text + query
    assert not [str(each.message) for each in recwarn if 'longer than' in str(each.message)]


def test_a_joined_model_without_some_of_its_weights_is_refused(joined, tmp_path):
    from safetensors.torch import load_file, save_file
    from splade_nb.model.load import load as opened, save
    place = save(joined[0], tmp_path)/'model.safetensors'
    found = load_file(place)
    for absent in ('frequencies', next(name for name in found if name.startswith('backbone.'))):
        save_file({name: value for name, value in found.items() if name != absent}, place, dict(format='pt'))
        with pytest.raises(ConfigError, match='do not belong together|damaged'): opened(tmp_path)


def test_texts_of_signs_alone_are_indexed(joined, tmp_path):
    from splade_nb.model.load import save
    from splade_nb.data.tokenizer import save_tokenizer
    save_tokenizer(joined[1], save(joined[0], tmp_path/'model'))
    with build_searcher(str(tmp_path/'model'), [Document('a', '', '...')], tmp_path/'searcher') as searcher:
        searcher.add([Document('b', '', '---'), Document('c', '', '경복궁 안내')])
        assert [hit.id for hit in searcher.search('경복궁', 3)] == ['c'] and searcher.expand('') == [] and len(searcher) == 3


def test_a_model_with_more_columns_is_the_same_but_for_collisions(joined, plain):
    (model, tokenizer), texts = joined, [*plain[3].texts.values()]
    more, words = widened(model, tokenizer, 16 * COLUMNS)
    learned, counted_columns = len(model.special), slice(len(model.special), None)
    for document in (True, False):
        few, many = encode(model, tokenizer, texts, document), encode(more, words, texts, document)
        assert (few[:, :learned] != many[:, :learned]).nnz == 0 and few[:, counted_columns].sum() == pytest.approx(many[:, counted_columns].sum(), rel=0.02)
        assert many.nnz >= few.nnz > few[:, :learned].nnz
    with pytest.raises(ConfigError, match=f'a multiple of the {COLUMNS}'): widened(model, tokenizer, COLUMNS + 1)


@pytest.mark.slow
def test_a_run_ends_with_counted_terms_and_says_what_each_part_gives(tmp_path, monkeypatch):
    monkeypatch.setattr('splade_nb.experiment.require_acting_settings', lambda *arguments: None)
    corpus = toy_corpus()
    with quiet():
        given = dict(backbone=tiny_checkpoint(tmp_path/'tiny', list(corpus.texts.values()), 0), teacher=tiny_checkpoint(tmp_path/'teacher', list(corpus.texts.values()), 1),
                     max_length=48, initial_terms=20, gate_hidden=8, steps=4, batch_size=4, counted_terms=256, most_document_terms=30)
        summary = run_version('v28', scale='small', source='toy', out=str(tmp_path/'run'), settings=given)
    systems = 'metrics learned counted bm25 bm25_bigrams dense hybrid model_hybrid before_training'.split()
    assert all(0 <= summary[name]['ndcg@10'] <= 1 for name in systems)
    weights = summary['validation']['counted_weights']
    assert len(weights) == 6 and min(weights) <= summary['validation']['counted_weight'] <= max(weights)
    encoder = load(tmp_path/'run')
    assert encoder.model.settings.counted_weight == summary['validation']['counted_weight'] and encoder.tokenizer.counted_terms == 256
    assert read_json(tmp_path/'run/evaluation.json')['systems'].keys() >= {'learned', 'counted'}
    with quiet(): run_version('v28', scale='small', source='toy', out=str(tmp_path/'run'), settings=given | dict(counted_weight=3.0, most_document_terms=20), resume=True)
    again, said = load(tmp_path/'run'), read_json(tmp_path/'run/config.json')
    assert (again.model.settings.counted_weight, again.model.settings.most_document_terms) == (3.0, 20)
    assert {name: said['settings'][name] for name in ('counted_weight', 'most_document_terms')} == dict(counted_weight=3.0, most_document_terms=20)
    assert said['overridden']['counted_weight'] == 3.0 and (tmp_path/'run/summary.json').exists(), 'the next resume is told what the model has'
    assert all(value.equal(encoder.model.state_dict()[name]) for name, value in again.model.state_dict().items() if name != 'counted_weights'), 'what acts after training trains nothing'
    with quiet(): run_version('v28', scale='small', source='toy', out=str(tmp_path/'run'), settings=given | dict(expansion_df=0.2), resume=True)
    rarer, texts = load(tmp_path/'run'), list(corpus.texts.values())
    def share(encoder):  # largest one of the texts whose first tokens a learned term is added to
        usual = np.flatnonzero(~encoder.model.special[:len(encoder.tokenizer.backend)].numpy())
        vectors, own = encode(encoder.model, encoder.tokenizer, texts, most_windows=1)[:, usual], input_terms(encoder.tokenizer, texts)[:, usual]
        return ((vectors > 0).toarray() & ~(own > 0).toarray()).mean(0).max()
    assert 0 < share(rarer) <= 0.2 < share(encoder)
    moved = {name for name, value in rarer.model.state_dict().items() if not value.equal(encoder.model.state_dict()[name])}
    assert any(name.endswith('decoder.bias') for name in moved) and all(name.endswith('bias') or name == 'counted_weights' for name in moved)
    said = read_json(tmp_path/'run/summary.json')
    write_json(tmp_path/'run/summary.json', said | dict(learned=said['learned'] | {'ndcg@10': -1}, active_terms=dict(query=-1, doc=-1), index={}))
    released = {weight: tmp_path/f'released-{weight:g}' for weight in (0, 0.001)}
    for weight, folder in released.items():
        label = release(tmp_path/'run', folder, forms='', counted_weight=weight)
        assert label['counted_weight'] == load(folder).model.settings.counted_weight == (weight or rarer.model.settings.counted_weight)
    usual, light = (matching_facts(folder)['summary'] for folder in released.values())
    collection = load_collection('toy')
    found = evaluate_queries(load(released[0.001]).model, load(released[0.001]).tokenizer, collection, [*collection.split('test')], k=1000)
    assert light['metrics'] != usual['metrics'] and light['learned'] == said['learned'] != usual['learned'] and light['bm25'] == usual['bm25']
    assert light['active_terms'] == found['active_terms'] and light['index']['model']['terms'] == found['active_terms']['doc']
    assert 'korean' in usual and not {'korean', 'context_discrimination', 'model_hybrid'} & light.keys(), 'they are of another model'
    assert found['metrics'] == {name: value for name, value in light['metrics'].items() if name in found['metrics']}, 'the figures are of the weight'
    with pytest.raises(ConfigError, match='counted_weight=-1'): release(tmp_path/'run', tmp_path/'none', counted_weight=-1)
    with quiet(), pytest.raises(CheckpointError, match='learning_rate='): run_version('v28', scale='small', source='toy', out=str(tmp_path/'run'), settings=given | dict(learning_rate=1e-3), resume=True)


@pytest.mark.parametrize('settings', [dict(inference_free_query=True), dict(similarity='cosine'), dict(term_frequency=True), dict(output_idf=0.5)])
def test_what_counts_tokens_itself_is_refused_beside_it(settings):
    with pytest.raises(ConfigError, match='counted_terms=64: not beside'): resolve('v28', scale='small', counted_terms=64, **settings)


@pytest.mark.parametrize('version', SHIPPED)
def test_the_advice_beside_a_refusal_is_true(version):
    "It said that no version is refused at scale small."
    with pytest.raises(ConfigError) as refused: resolve('v22', recipe='original', counted_terms=64)
    assert 'take the recipe corrected at scale small, where only v29 has that' in str(refused.value)
    with pytest.raises(ConfigError, match='not beside') if version == 'v29' else nullcontext():
        assert resolve(version, recipe='corrected', scale='small', counted_terms=64).counted_terms == 64


def traced_in(file):
    with zipfile.ZipFile(file) as parts: return torch.jit.load(io.BytesIO(parts.read('model.pt')))


@pytest.mark.slow
def test_opensearch_takes_the_learned_terms_and_counts_itself(joined, plain, tmp_path):
    model, tokenizer = joined
    (tmp_path/'served').mkdir(); (tmp_path/'alone').mkdir()
    with quiet():
        limits = write_form(model, tokenizer, 'opensearch', tmp_path/'served')
        write_form(*learned_part(model, tokenizer), 'opensearch', tmp_path/'alone')
    def of(name, folder='served'): return read_json(tmp_path/folder/name)
    should = of('search-rank_features.json')['query']['bool']['should']
    assert should[0] == of('search-rank_features.json', 'alone')['query']
    assert {name: clause['boost'] for each in should[1:] for name, clause in each['match'].items()} == {'text': 1.1, 'text.bigrams': 0.44}
    index = of('index-rank_features.json')
    assert index['mappings']['properties']['text']['analyzer'] == 'nori' and 'bigrams' in index['settings']['analysis']['analyzer']
    ids = dict(input_ids=torch.tensor([[0, 9, 8, 2]]), attention_mask=torch.ones(1, 4, dtype=torch.long))
    one, two = (traced_in(tmp_path/name/'document.zip')(ids)['output'] for name in ('served', 'alone'))
    assert one.equal(two) and one.count_nonzero() and one.shape[1] == len(plain[1])
    assert any('nori' in limit for limit in limits) and (tmp_path/'served/query.zip').exists(), 'queries have another bound'


def card_of(limits: list) -> str: # without what every model has
    return '\n'.join(limit for limit in limits if 'ount' in limit and 'nDCG' not in limit)


@pytest.mark.slow
def test_a_card_names_only_fields_and_boosts_that_its_files_have(joined, tmp_path):
    for form in ('elasticsearch', 'vespa'): laboratory(f'{form}_model')
    with quiet(): said = {form: card_of(write_form(*joined, form, tmp_path/form)) for form in ('elasticsearch', 'vespa')}
    index, search = (read_json(tmp_path/f'elasticsearch/{name}.json') for name in ('index', 'search'))
    learned, *words = search['query']['bool']['should']
    assert 'sparse_vector' in learned and {name: clause['boost'] for each in words for name, clause in each['match'].items()} == {'text': 1.1, 'text.bigrams': 0.44}
    text = index['mappings']['properties']['text']
    assert text['analyzer'] == 'nori' and text['fields']['bigrams']['analyzer'] in index['settings']['analysis']['analyzer']
    assert 'search.json adds' in said['elasticsearch'] and 'text.bigrams' in said['elasticsearch']
    assert 'add 0.5 * bm25(text)' in said['vespa'], "Vespa's bm25 has the factor k1 + 1"
    assert 'bigrams' not in said['vespa'] and 'bigrams' not in (tmp_path/'vespa/application/schemas/doc.sd').read_text()


def test_a_connector_measures_and_says_what_it_does(joined, tmp_path, monkeypatch):
    "It sees no collection: its vectors are those of the training texts, and so are those that are measured."
    model, tokenizer = joined
    seen, losses = {}, opensearch_model._storage_losses
    def kept(documents, queries, *rest):
        seen.update(documents=documents, queries=queries)
        return losses(documents, queries, *rest)
    monkeypatch.setattr(opensearch_model, '_storage_losses', kept)
    tmp_path.joinpath('out').mkdir()
    limits = to_connector(model, tokenizer, tmp_path/'out', data='toy')
    assert any('IDF and mean length are those of the training texts' in limit for limit in limits)
    assert limits[-1].endswith('32,768 of them are columns of counted terms: take rank_features; with TO=opensearch the server counts words itself.')
    assert not any('Prune it' in limit or 'by sparse_vector' in limit for limit in limits), 'pruning makes no room, and there is no such field'
    corpus = toy_corpus()
    encoder = Encoder('joined', model, tokenizer, label_of(model, tokenizer))
    judged = [corpus.queries[id].text for id in corpus.judging()]
    documents, queries = side_vectors(encoder, [*corpus.texts.values()], True), side_vectors(encoder, judged, False)
    def same(some, others): return len(some.data) == len(others.data) and np.allclose(sorted(some.data), sorted(others.data), atol=1e-5)
    assert same(seen['documents'], documents) and same(seen['queries'], queries)
    own, factor = encode_collection(model, tokenizer, {'a': '제주도', 'b': '제주도 여행'})
    assert not np.allclose(own.toarray(), side_vectors(encoder, ['제주도', '제주도 여행'], True).toarray(), atol=1e-3) and (factor != 1).any()


def test_a_card_says_whose_figures_stand_beside_what_a_server_runs(tmp_path):
    for form in ('elasticsearch', 'vespa'): laboratory(f'{form}_model')
    facts, said = facts_of(RELEASED), 'These are figures of splade_nb, not of {}'
    for form, server in {'opensearch': 'OpenSearch', CONNECTOR: 'OpenSearch', 'elasticsearch': 'Elasticsearch', 'vespa': 'Vespa'}.items():
        quality = card(facts, form, 'model', tmp_path, []).split('## Quality')[1].split('## Origin')[0]
        assert 'this model' in quality and said.format(server) in quality
    assert 'figures of splade_nb' not in card(facts, 'mlm', 'model', tmp_path, [])
    assert 'figures of splade_nb' not in card(facts | dict(summary={}), 'vespa', 'model', tmp_path, []), 'there are none'


@pytest.mark.slow
def test_every_setting_of_counted_terms_acts():
    from splade_nb.training.check_settings import check_settings
    names = ['counted_terms', 'counted_weight', 'most_query_terms', 'most_document_terms', 'expansion_df']
    settings = resolve_quietly('v28', scale='small', counted_terms=COLUMNS, most_query_terms=32, most_document_terms=100)
    assert {found.name: found.state for found in check_settings(settings, names, False)} == dict.fromkeys(names, 'live')

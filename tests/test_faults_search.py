"""Any engine after any changes gives what a fresh build gives; ids are opaque; one process at a time has an index."""
import random, shutil, unicodedata
from dataclasses import replace
from threading import Thread
import numpy as np
import pytest
from fake_opensearch import serving
from scipy import sparse
from splade_nb.config.files import ConfigError, in_turn, needs, read_json, write_json
from splade_nb.data.records import Document, toy_corpus
from splade_nb.evaluation.retrieval import retrieve
from splade_nb.serving import document_store, embedded_engines, searcher as searchers
from splade_nb.serving.engines import new_index, open_index
from splade_nb.serving.index import Label
from splade_nb.serving.searcher import build_searcher, open_encoder, open_searcher
from splade_nb.training.check_settings import quiet, tiny_checkpoint

ENGINES = ('exact', 'seismic', 'milvus', 'qdrant', 'opensearch')
every = pytest.mark.parametrize('engine', ENGINES)
inside = pytest.mark.parametrize('engine', ENGINES[:-1])
QUERIES = ('한복 입고 경복궁', '제주 가는 배', '김치 담그기', '눈이 온 길')
LABEL = Label('5e1f', 4, '77aa')


@pytest.fixture(scope='module')
def encoder(): return open_encoder('')


@pytest.fixture
def server():
    with serving() as fake: yield fake


def at(server, engine: str, name: str = 'texts') -> str: return f'{server.url}/{name}' if engine == 'opensearch' else ''


def shown(searcher) -> tuple:
    "All that a searcher says of its texts: hits with their reasons, expansions, document frequencies."
    hits = [{hit.id: (hit.score, {(term.name, term.kind): term.weight for term in hit.terms}) for hit in searcher.search(query, 50)}
            for query in QUERIES]
    ids = sorted(searcher.store.column('SELECT id FROM texts'))
    weights = {id: [term.weight for term in searcher.read(id).terms] for id in ids}
    return hits, weights, [term.weight for term in searcher.expand('제주 가는 배편과 김치')], np.array(searcher.store.postings), len(searcher.index)


def same(found, right) -> bool:
    "Equal, or as near as float32 is whatever else is in a batch."
    if isinstance(right, dict): return found.keys() == right.keys() and all(same(found[key], right[key]) for key in right)
    if isinstance(right, np.ndarray): return np.allclose(found, right, 1e-5, 1e-5)  # of half a million columns
    if isinstance(right, tuple | list): return len(found) == len(right) and all(map(same, found, right))
    return found == pytest.approx(right, rel=1e-5, abs=1e-5)


TEXTS = list(toy_corpus().documents.values())
DRAWN = [*TEXTS, Document('long', '', ' '.join(text.text for text in TEXTS[:6])), Document('short', '', '김치'), Document('none', '', '.'),
         Document('palace', '', '경복궁 문이 닫힌 날'), Document('ferry', '제주 배편', '제주 가는 배는 아침에 뜬다. ' * 9)]


def drawn_changes(seed: int, number: int = 6):
    "Changes of a searcher, and the texts that it has after each."
    drawn, texts = random.Random(seed), {text.id: text for text in TEXTS[:8]}
    for _ in range(number):
        if drawn.random() < 0.4: change, some = 'delete', drawn.sample(sorted(texts), min(len(texts) - 3, drawn.randint(1, 4)))
        else: change, some = 'add', drawn.sample(DRAWN, drawn.randint(1, 4))
        for one in some: texts.pop(one if change == 'delete' else one.id, None)
        if change == 'add': texts |= {one.id: one for one in some}
        yield change, some, list(texts.values())


@pytest.mark.slow
@every
def test_after_any_changes_a_searcher_gives_what_a_fresh_build_gives(engine, encoder, server, tmp_path):
    with build_searcher(encoder, TEXTS[:8], tmp_path/'old', engine, at(server, engine)) as searcher:
        for change, some, texts in drawn_changes(3 + ENGINES.index(engine), 6 if engine == 'exact' else 4): getattr(searcher, change)(some)
        found = shown(searcher)
    with build_searcher(encoder, texts[::-1], tmp_path/'fresh', engine, at(server, engine, 'fresh')) as fresh: assert same(found, shown(fresh))
    with open_searcher(tmp_path/'old', encoder) as searcher: assert same(shown(searcher), found)
    with build_searcher(encoder, TEXTS[:8], tmp_path/'old', engine, at(server, engine)) as searcher: found = shown(searcher)
    with build_searcher(encoder, TEXTS[:8], tmp_path/'first', engine, at(server, engine, 'first')) as first: assert same(found, shown(first))


@pytest.mark.slow
def test_a_dense_part_is_that_of_the_texts_that_are_there(encoder, tiny_encoder, tmp_path):
    options = dict(hybrid=0.3, dense_encoder=tiny_encoder)
    with build_searcher(encoder, TEXTS[:8], tmp_path/'old', **options) as searcher:
        for change, some, texts in drawn_changes(5, 3): getattr(searcher, change)(some)
        assert {*searcher.store.column('SELECT id FROM dense')} == {text.id for text in texts}
        found = shown(searcher)
        hits = searcher.search(QUERIES[0], 50)
    assert any(term.kind == 'dense' and term.weight > 0 for hit in hits for term in hit.terms)
    with build_searcher(encoder, texts[::-1], tmp_path/'fresh', **options) as fresh: assert same(found, shown(fresh))
    with open_searcher(tmp_path/'old', encoder) as searcher: assert same(shown(searcher), found)
    with pytest.raises(ConfigError, match='made with dense_encoder .*, not .*; take another folder'): build_searcher(encoder, texts, tmp_path/'old', hybrid=0.3, dense_encoder=f'{tiny_encoder}/')


def test_the_dense_encoder_reads_a_text_once(encoder, tiny_encoder, tmp_path, monkeypatch):
    "Also where the mean length of the texts changes, an index is lost, or a process ended between encoding and saving the index."
    read, true = [], searchers._dense_encoder
    def counted(name):
        encode = true(name)
        def dense(texts, side='document'):
            if side == 'document': read.extend(texts)
            return encode(texts, side)
        return dense
    monkeypatch.setattr(searchers, '_dense_encoder', counted)
    with monkeypatch.context() as broken:
        broken.setattr(searchers.document_store, 'mark_indexed', lambda store: 1 / 0)
        with pytest.raises(ZeroDivisionError): build_searcher(encoder, TEXTS[:8], tmp_path, hybrid=0.3, dense_encoder=tiny_encoder)
    with build_searcher(encoder, TEXTS[:8], tmp_path, hybrid=0.3, dense_encoder=tiny_encoder) as searcher:
        assert encoder.model.settings.counted_terms and sorted(read) == sorted(text.full for text in TEXTS[:8])
        searcher.add(replace(TEXTS[8], text=TEXTS[8].text * 9))
        searcher.delete(TEXTS[0].id)
        found = shown(searcher)
    shutil.rmtree(tmp_path/'index')
    with open_searcher(tmp_path, encoder) as searcher: assert same(shown(searcher), found)
    assert len(read) == 9


def test_vectors_of_another_dense_encoder_are_not_searched(encoder, tiny_encoder, tmp_path):
    "It has the name and the dimensions of the one that made them."
    shutil.copytree(tiny_encoder, tmp_path/'dense')
    options = dict(hybrid=1.0, dense_encoder=str(tmp_path/'dense'))
    with build_searcher(encoder, TEXTS[:8], tmp_path/'texts', **options) as searcher: before = shown(searcher)
    shutil.rmtree(tmp_path/'dense')
    with quiet(): tiny_checkpoint(tmp_path/'dense', [text.full for text in TEXTS], 1)
    with open_searcher(tmp_path/'texts', encoder) as searcher: found = shown(searcher)
    with build_searcher(encoder, TEXTS[:8], tmp_path/'fresh', **options) as fresh: assert same(found, shown(fresh)) and not same(found, before)


def test_a_dense_vector_goes_with_its_text_and_one_that_is_not_finite_is_not_kept(encoder, tiny_encoder, tmp_path, monkeypatch):
    options = dict(hybrid=0.3, dense_encoder=tiny_encoder)
    with monkeypatch.context() as broken:
        broken.setattr(searchers, '_dense_encoder', lambda name: lambda texts, side='document': np.full((len(texts), 32), np.nan))
        with pytest.raises(ConfigError, match='dense vectors: a number is not finite'): build_searcher(encoder, TEXTS[:4], tmp_path, **options)
    with build_searcher(encoder, TEXTS[:4], tmp_path, **options) as searcher:
        assert len(searcher.store.run('SELECT id FROM dense')) == 4
        searcher.store.run('DELETE FROM texts WHERE id = ?', TEXTS[0].id)  # as an earlier revision does it
        assert len(searcher.store.run('SELECT id FROM dense')) == 3
        searcher.add(Document('silent', '', ''))
        assert searcher.read('silent') is not None


@pytest.mark.parametrize('earlier', [dict(topics=0.5), dict(hybrid=0.2)])
def test_a_searcher_with_parts_that_are_gone_is_refused(earlier, encoder, tmp_path):
    build_searcher(encoder, TEXTS[:3], tmp_path).close()
    saved = read_json(tmp_path/'searcher.json')
    write_json(tmp_path/'searcher.json', {name: value for name, value in saved.items() if name != 'dense_encoder'} | earlier)
    for again in (lambda: open_searcher(tmp_path, encoder), lambda: build_searcher(encoder, TEXTS[:3], tmp_path, hybrid=earlier.get('hybrid', 0.0))):
        with pytest.raises(ConfigError, match='earlier revision, with topics or a static embedding'): again()


@pytest.mark.slow
@every
def test_scores_are_those_of_evaluation_whatever_was_there_before(engine, encoder, server, tmp_path, monkeypatch):
    "An engine that writes texts one by one has the mean length in steps of a thousandth; the model encodes nothing again."
    monkeypatch.setattr(searchers, 'LEAST_COSINE', 0.0)  # every score of evaluation
    kept = {text.id: text.full for text in TEXTS}
    with build_searcher(encoder, [*TEXTS, *(Document(f'{n}', '', '배추를 절인다 ' * 60) for n in range(9))], tmp_path, engine, at(server, engine)) as searcher:
        monkeypatch.setattr(searchers, 'encode', None)
        searcher.delete(map(str, range(9)))
        right = retrieve(encoder.model, encoder.tokenizer, {'q': QUERIES[0]}, kept)[0]['q']
        hits = {hit.id: hit.score for hit in searcher.search(QUERIES[0], 50)}
    exact = engine in ('exact', 'seismic')
    assert hits == pytest.approx({id: right[id] for id in hits}, rel=1e-5 if exact else 4e-3 if engine == 'opensearch' else 6e-4)
    assert hits.keys() == right.keys()


# Ids

HOSTILE = ["O'Brien", "x'] or id not in ['zzz", '"], "a": ["', "' OR 1=1 --", 'a\\', '\\n', 'a\nb\r\tc', '\x00', '%_*?', '{"_id": 1}', '12', '1', '2', '012',
           '-1', '1e3', 'None', ' ', ' 앞', '앞', '../../etc/passwd', '_all', 'id', '\u202e뒤', '🍐', unicodedata.normalize('NFC', '한글'),
           unicodedata.normalize('NFD', '한글'), 'ㄱ' * 170, 'ㄱ' * 171, 'a' * 512, 'a' * 513, 'a' * 514, '글' * 30_000, document_store.index_key('a' * 513)]


@every
@pytest.mark.parametrize('hybrid', (0.0, 0.3))
def test_ids_are_opaque(engine, hybrid, encoder, tiny_encoder, server, tmp_path):
    if hybrid and engine in ('seismic', 'opensearch'): pytest.skip(f'{engine} holds no dense vectors here')
    words = [f'{text.text} 배' for text in TEXTS]
    texts = [Document(id, '', f'{words[place % len(words)]} {place}') for place, id in enumerate(HOSTILE)]
    with build_searcher(encoder, texts, tmp_path, engine, at(server, engine), hybrid=hybrid, dense_encoder=tiny_encoder) as searcher:
        assert {hit.id: hit.text for hit in searcher.search('배', 100)} == {text.id: text.text for text in texts}
        searcher.delete(HOSTILE[::2])
        assert {hit.id for hit in searcher.search('배', 100)} == {*HOSTILE[1::2]}
        assert [searcher.read(id) is None for id in HOSTILE] == [not place % 2 for place in range(len(HOSTILE))]
        searcher.add(Document(id, '', '배 나주 배') for id in HOSTILE[1::4])
        searcher.delete(HOSTILE[3])
        left = {id for id in HOSTILE[1::2] if id != HOSTILE[3]}
        assert {hit.id for hit in searcher.search('배', 100)} == left and {hit.id for hit in searcher.search('나주', 100)} >= {*HOSTILE[1::4]}
        assert searcher.expand('배')
    with open_searcher(tmp_path, encoder) as searcher: assert {hit.id for hit in searcher.search('배', 100)} == left


@pytest.mark.slow
@every
def test_a_hybrid_is_searched_without_its_dense_vectors(engine, encoder, tiny_encoder, server, tmp_path):
    if engine in ('seismic', 'opensearch'): pytest.skip(f'{engine} holds no dense vectors here')
    with build_searcher(encoder, TEXTS, tmp_path/'plain') as searcher:
        wanted = {hit.id: hit.score for hit in searcher.search(QUERIES[0], 5)}
        assert 'sparse' not in searcher.parts
        with pytest.raises(ConfigError, match="part.*'sparse'.*all"): searcher.search(QUERIES[0], part='sparse')
    with build_searcher(encoder, TEXTS, tmp_path/'hybrid', engine, at(server, engine), hybrid=0.3, dense_encoder=tiny_encoder) as searcher:
        found = searcher.search(QUERIES[0], 5, 'sparse')
        assert searcher.parts[:2] == ['all', 'sparse'] and {hit.id: hit.score for hit in found} == pytest.approx(wanted, rel=4e-3)
        assert all(term.kind != 'dense' for hit in found for term in hit.terms)


@inside
def test_ids_are_opaque_in_an_index_by_itself(engine, tmp_path):
    rows = sparse.csr_matrix(np.ones((len(HOSTILE), 4), np.float32))
    with new_index(engine, tmp_path/'색인', LABEL) as index:
        index.add(HOSTILE, rows)
        index.delete(HOSTILE[1])
        index.delete(HOSTILE[2:9])
        index.add('0', rows[:1])
        assert sorted(index.ids()) == sorted({*HOSTILE, '0'} - {*HOSTILE[1:9]})
        assert sorted(id for id, _ in index.search(rows[:1], 99)[0]) == sorted(index.ids())
        for wrong in ({'12': 1}, None, 12, [12], b'12', ['']):
            with pytest.raises(ConfigError, match='id'): index.delete(wrong)
        for wrong in ('2', 0, 2.5, None):
            with pytest.raises(ConfigError, match='k: found'): index.search(rows[:1], wrong)


def test_what_is_no_id_and_no_document_is_refused_and_changes_nothing(encoder, tmp_path):
    with build_searcher(encoder, TEXTS, tmp_path) as searcher:
        for wrong in ({'palace': 1}, None, 12, [12], b'palace'):
            with pytest.raises(ConfigError, match='id'): searcher.delete(wrong)
        for wrong in ('palace', {'palace': '글'}, None, [None], [('palace', '글')]):
            with pytest.raises(ConfigError, match=r'documents: found .*allowed: `Document'): searcher.add(wrong)
        with pytest.raises(ConfigError, match='id 12'): searcher.read(12)
        with pytest.raises(ConfigError, match='k: found'): searcher.search('배', '2')
        assert len(searcher) == len(searcher.index) == len(TEXTS)


# Processes

@pytest.mark.parametrize('engine', ('milvus', 'qdrant'))
def test_a_second_opening_is_refused_before_anything_is_touched(engine, tmp_path):
    place = tmp_path/'색인'
    with new_index(engine, place, LABEL) as index:
        index.add(['가'], sparse.csr_matrix(np.ones((1, 4), np.float32)))
        index.save()
        before = {path: path.stat().st_mtime_ns for path in place.rglob('*')}
        with pytest.raises(ConfigError, match=f'{place}: another process has this index open'): open_index(place)
        with pytest.raises(ConfigError, match=f'{place}: another process has this index open'): new_index(engine, place, LABEL)
        assert before == {path: path.stat().st_mtime_ns for path in place.rglob('*')}
        index.add(['나'], sparse.csr_matrix(np.ones((1, 4), np.float32)))
        index.save()
    with open_index(place) as index: assert len(index) == 2


@pytest.mark.parametrize('engine', ('exact', 'seismic'))
def test_a_save_does_not_undo_what_another_saved(engine, tmp_path):
    row = sparse.csr_matrix(np.ones((1, 4), np.float32))
    with new_index(engine, tmp_path/'색인', LABEL) as first, open_index(tmp_path/'색인') as second:
        second.add(['가'], row)
        second.save()
        first.add(['나'], row)
        with pytest.raises(ConfigError, match='another process has saved'): first.save()
        first.reload()
        first.add(['나'], row)
        first.save()
    with open_index(tmp_path/'색인') as index: assert sorted(index.ids()) == ['가', '나']


def test_of_two_first_searches_one_makes_the_copy_and_the_other_waits(tmp_path, capsys):
    order = []
    def second():
        with in_turn(tmp_path, 'reading these texts'): order.append('second')
    with in_turn(tmp_path, 'reading these texts'):
        thread = Thread(target=second)
        thread.start()
        while 'waiting' not in capsys.readouterr().err: thread.join(0.01)
        order.append('first')
    thread.join()
    assert order == ['first', 'second']


def test_one_more_text_writes_few_rows_of_the_store(encoder, tmp_path):
    "The mean length changes the weights of all texts; it is one value, applied as they are read."
    with build_searcher(encoder, TEXTS, tmp_path) as searcher:
        before, weights = searcher.store.file.total_changes, [term.weight for term in searcher.read(TEXTS[0].id).terms]
        searcher.add(Document('one', '', '김치를 담그는 날 ' * 9))
        assert searcher.store.file.total_changes - before < len(TEXTS) and weights != [term.weight for term in searcher.read(TEXTS[0].id).terms]


def test_a_milvus_collection_of_an_earlier_form_says_so(monkeypatch, tmp_path):
    def earlier(client, dense):
        kinds = needs('pymilvus', 'engines').DataType
        schema, index = client.create_schema(auto_id=False), client.prepare_index_params()
        schema.add_field('id', kinds.VARCHAR, is_primary=True, max_length=512)
        schema.add_field('terms', kinds.SPARSE_FLOAT_VECTOR)
        index.add_index('terms', index_type='SPARSE_INVERTED_INDEX', metric_type='IP')
        return dict(schema=schema, index_params=index)
    with monkeypatch.context() as patch:
        patch.setattr(embedded_engines, '_milvus_schema', earlier)
        new_index('milvus', tmp_path/'색인', LABEL).close()
    with pytest.raises(ConfigError, match='built by an earlier form.*build it anew'): open_index(tmp_path/'색인')


def test_a_store_of_earlier_is_encoded_again(encoder, tmp_path):
    "Its weights are those of a mean length that nobody knows any more."
    with build_searcher(encoder, TEXTS, tmp_path/'old') as searcher: right = shown(searcher)
    with document_store.sqlite3.connect(tmp_path/'old'/'texts.db') as file:
        file.executescript('DROP INDEX lengths; DROP TABLE long; ALTER TABLE texts DROP COLUMN slopes; ALTER TABLE texts DROP COLUMN length')
    file.close()
    with open_searcher(tmp_path/'old', encoder) as searcher: assert same(shown(searcher), right)

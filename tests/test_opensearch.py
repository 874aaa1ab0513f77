"""OpenSearch: against a server that refuses what the real one refuses, or against a real one where OPENSEARCH_URL names it."""
import http.client, json, multiprocessing, os, shutil, socket, subprocess, sys, uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
import numpy as np
import pytest
from scipy import sparse
from conftest import ROOT, real_or_made
from fake_opensearch import Fault, kept, serving
from moments import die_at_change, every_moment
from splade_nb.serving import opensearch
from splade_nb.config.files import ConfigError, read_json
from splade_nb.serving.opensearch import BulkOptions, Layout, OpenSearchIndex, SearchOptions, Server, ingest
from splade_nb.serving.index import Label

sys.path.append(str(ROOT/'docs'))
import opensearch_page as page

REAL = os.environ.get('OPENSEARCH_URL', '').rstrip('/')
LABEL, QUICK = Label('3f2a', 9, '9c1e'), BulkOptions(documents=16, wait=0.001, longest=0.02, patience=600)
VECTORS = sparse.random(200, 9, 0.5, 'csr', np.float32, np.random.default_rng(3))
IDS = [f'문서 {n}' for n in range(200)]


@pytest.fixture
def fake():
    with serving(plugins=('opensearch-neural-search', 'analysis-nori')) as server: yield server


@pytest.fixture
def place(fake):
    "The address of an index that is not there."
    place = f'{REAL or fake.url}/splade-nb-{uuid.uuid4().hex[:8]}'
    yield place
    if REAL: Server(place).client.indices.delete(index=Server(place).name, ignore=404)


def stream(): return ((id, row, f'{id} 본문', '제목') for id, row in zip(IDS, VECTORS))


def filled(index) -> bool: # every document once, as it was given
    if len(index) != len(IDS): return False
    wanted = page.exact(LABEL, IDS, page.cut(VECTORS), VECTORS[:20], 200)
    return all(dict(mine) == pytest.approx(dict(theirs), rel=1e-5) for mine, theirs in zip(index.search(VECTORS[:20], 200), wanted))


def raw(place: str, method: str, path: str, body, kind: str = 'application/json') -> tuple: # status, body
    "One request as it stands, by no client."
    parts = urlsplit(place)
    speaker = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    speaker.request(method, path, body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode(), {'Content-Type': kind})
    answer = speaker.getresponse(); text = answer.read().decode(); speaker.close()
    return answer.status, text


# What the server refuses

DOCUMENTS = {'zero': ({'vector': {'1': 0}}, 'must be a positive normal float'), 'below zero': ({'vector': {'1': -0.5}}, 'must be a positive normal float'),
             'too small': ({'vector': {'1': 1e-40}}, 'must be a positive normal float'), 'infinite': ({'vector': {'1': 1e39}}, 'must be finite'),
             'several values': ({'vector': {'1': [1, 2]}}, 'unexpected token START_ARRAY'), 'the same feature twice': ({'vector': [{'1': 1}, {'1': 2}]}, 'multiple values for the same'),
             'true': ({'vector': {'1': True}}, 'unexpected token VALUE_BOOLEAN'), 'no object': ({'vector': 3}, 'must be json objects'), 'unknown field': ({'vektor': {'1': 1}}, 'dynamic introduction of [vektor]')}
ONE_KIND = {'a name': ('sparse_vector', {'vector': {'제주': 1}}, 'should be valid integer'), 'below zero': ('sparse_vector', {'vector': {'-3': 1}}, 'non-negative integer')}
NEVER_FOUND = {'a dot': ('rank_features', {'vector': {'3.14': 1}}, 'do not support dots'), 'no name': ('rank_features', {'vector': {'': 1}}, 'cannot be an empty string')} # see fake_opensearch.features


def one_refused(place, kind, document, reason):
    index = OpenSearchIndex.new(place, LABEL, Layout(kind))
    lines = [{'index': {'_id': 'bad'}}, document, {'index': {'_id': 'good'}}, {'vector': {'1': '0.5', '2': None}}]
    status, text = raw(place, 'POST', f'/{index.server.name}/_bulk', ''.join(json.dumps(line) + '\n' for line in lines).encode(), 'application/x-ndjson')
    bad, good = (item['index'] for item in json.loads(text)['items'])
    assert status == 200 and bad['status'] == 400 and reason in json.dumps(bad['error'], ensure_ascii=False) and good['status'] == 201 and len(index) == 1


@pytest.mark.parametrize('kind, document, reason', [(kind, *case) for kind in ('rank_features', 'sparse_vector') for case in DOCUMENTS.values()] + list(ONE_KIND.values()))
def test_a_document_is_refused_by_itself(place, kind, document, reason): one_refused(place, kind, document, reason)


@pytest.mark.skipif(bool(REAL), reason='Elasticsearch refuses these, OpenSearch stores and never finds them: the fake is stricter')
@pytest.mark.parametrize('kind, document, reason', NEVER_FOUND.values(), ids=NEVER_FOUND)
def test_a_name_that_is_never_found_is_refused(place, kind, document, reason): one_refused(place, kind, document, reason)


BODIES = {'no last newline': (b'{"index":{}}\n{}', 'application/x-ndjson', 400, 'terminated by a newline'), 'an unknown action': (b'{"put":{}}\n{}\n', 'application/x-ndjson', 400, 'Malformed action/metadata line [1]'),
          'an unknown parameter': (b'{"index":{"id":"1"}}\n{}\n', 'application/x-ndjson', 400, 'unknown parameter [id]'), 'nothing': (b'\n', 'application/x-ndjson', 400, ''),
          'plain text': (b'{"index":{}}\n{}\n', 'text/plain', 406, 'text/plain'), 'a long id': (b'{"index":{"_id":"' + b'a' * 513 + b'"}}\n{}\n', 'application/x-ndjson', 400, 'id is too long')}


@pytest.mark.parametrize('body, kind, status, reason', BODIES.values(), ids=BODIES)
def test_a_bulk_is_refused(place, body, kind, status, reason):
    index = OpenSearchIndex.new(place, LABEL)
    found = raw(place, 'POST', f'/{index.server.name}/_bulk', body, kind)
    assert found[0] == status and reason in found[1]


def hurried(index, fake) -> None:
    "The client soon gives up an answer that the server never gives, and waits for every other as long as it takes."
    true = index.server.client.transport.perform_request
    def perform(method, url, *arguments, **options):
        endpoint = url.rsplit('/', 1)[-1]
        due = fake.faults[endpoint][0] if fake.faults[endpoint] else fake.always.get(endpoint)
        return true(method, url, *arguments, timeout=0.2 if due and due.kind == 'slow' else 600, **options)
    index.server.client.transport.perform_request = perform


@contextmanager
def nobody(port: int = 0):
    "A port that is taken and where nobody listens: whoever knocks is refused."
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(('127.0.0.1', port))
        yield held.getsockname()[1]


def sparsely(tokens: dict, /, **more) -> dict: return dict(neural_sparse=dict(vector=dict(query_tokens=tokens, **more)))
def feature(**more) -> dict: return dict(rank_feature=dict(field='vector.1', **more))


QUERIES = {'unknown query': (dict(rank_features={}), 'unknown query [rank_features]'), 'weight over 64': (sparsely({'1': 65}), 'weight must be in (0, 64'), 'weight of zero': (sparsely({'1': 0}), 'weight must be in (0, 64'),
           'unknown parameter': (sparsely({'1': 1}, tokens=3), 'does not support [tokens]'), 'no tokens': (dict(neural_sparse=dict(vector={})), 'query_tokens'),
           'two functions': (feature(linear={}, log=dict(scaling_factor=1)), 'only specify one of'), 'unknown function': (feature(cubic={}), 'unknown field [cubic]'),
           'log without its factor': (feature(log={}), 'scaling_factor'), 'too many clauses': (sparsely({str(n): 1.0 for n in range(1025)}), '1024'),
           'unknown method parameter': (sparsely({'1': 1}, method_parameters=dict(heap=1)), 'unknown field [heap]'), 'text that is not searched': (dict(match=dict(text='제주')), 'not indexed')}


@pytest.mark.parametrize('query, reason', QUERIES.values(), ids=QUERIES)
def test_a_query_is_refused(place, query, reason):
    with OpenSearchIndex.new(place, LABEL) as index:
        status, text = raw(place, 'POST', f'/{index.server.name}/_search', dict(query=query))
        assert status == 400 and reason in text


MAPPINGS = {'no method': (dict(properties=dict(vector=dict(type='sparse_vector'))), 'requires [method] parameter'), 'another method': (dict(properties=dict(vector=dict(type='sparse_vector', method=dict(name='hnsw')))), 'not supported'),
            'unknown parameter': (dict(properties=dict(vector=dict(type='sparse_vector', method=dict(name='seismic', parameters=dict(postings=3))))), "Unknown parameter 'postings'"),
            'out of range': (dict(properties=dict(vector=dict(type='sparse_vector', method=dict(name='seismic', parameters=dict(cluster_ratio=1))))), 'must be in (0, 1)'),
            'unknown type': (dict(properties=dict(vector=dict(type='sparse'))), 'No handler for type [sparse]'), 'parameter of another type': (dict(properties=dict(vector=dict(type='rank_features', boost=2))), 'unknown parameter [boost]'),
            'unknown analyser': (dict(properties=dict(text=dict(type='text', analyzer='kiwi'))), 'analyzer [kiwi]')}


@pytest.mark.parametrize('mappings, reason', MAPPINGS.values(), ids=MAPPINGS)
def test_a_mapping_is_refused(place, mappings, reason):
    status, text = raw(place, 'PUT', urlsplit(place).path, dict(mappings=mappings))
    assert status == 400 and reason in text


def test_too_many_hits_are_refused_clearly(place):
    with OpenSearchIndex.new(place, LABEL) as index, pytest.raises(ConfigError, match=r'\[10000\]'): index.search(VECTORS[:1], 10_001)


# What is found

@pytest.fixture(scope='module')
def real():
    "tydiqa_ko_goldp in the vocabulary of XLM-R and the columns of pairs, or made data: label, ids, vectors, 200 queries."
    from splade_nb.data import readers as data
    from splade_nb.data.tokenizer import SpladeTokenizer, vocabulary_hash
    folder, backend = real_or_made('data/tydiqa_ko_goldp'), real_or_made('tokenizers/xlm-roberta-base')
    from transformers import AutoTokenizer
    collection, tokenizer = data.load(folder), SpladeTokenizer(AutoTokenizer.from_pretrained(backend), hashed_bigrams=page.KO.hashed_bigrams, phonetic_keys=True, lead_boost=page.KO.lead_boost)
    asked = dict(list(collection.split('test').items())[:200])
    vectors, queries = page.start_vectors(tokenizer, list(collection.texts.values()), [query.text for query in asked.values()])
    return Label(vocabulary_hash(tokenizer), len(tokenizer), 'start'), list(collection.texts), vectors, queries, tokenizer


WAYS = {'rank_features': (Layout(), SearchOptions('neural_sparse')), 'by name, rank_feature': (Layout(terms='names'), SearchOptions('rank_feature')), 'sparse_vector': (Layout('sparse_vector'), SearchOptions())}


@pytest.mark.parametrize('layout, asking', WAYS.values(), ids=WAYS)
def test_the_exact_ranking_of_200_real_queries(place, real, layout, asking):
    label, ids, vectors, queries, tokenizer = real
    with OpenSearchIndex.new(place, label, layout, tokenizer.names, asking, timeout=300) as index:
        index.add(ids, vectors)
        found = index.search(queries, 10)
    same, wanted = page.exact(label, ids, page.cut(vectors), queries), page.exact(label, ids, vectors, queries)
    assert page.shared(found, same) == 1.0, 'but for nine bits of each weight, the product of two matrices'
    assert page.shared(found, wanted) > 0.99
    for mine, theirs in zip(found, map(dict, wanted)): assert all(theirs[id] * (1 - 2 ** -8) <= score <= theirs[id] * (1 + 1e-5) for id, score in mine if id in theirs)


def test_saturation_two_phases_and_clusters_lose(place, real):
    label, ids, vectors, queries, _ = real
    wanted = page.exact(label, ids, vectors, queries)
    by = lambda layout, asking, *how: page.shared(page.found_by(place, label, ids, vectors, queries, layout, asking, how), wanted)
    exact, saturating, phases = by(Layout(), SearchOptions('rank_feature')), by(Layout(), SearchOptions('rank_feature'), page.saturating), by(Layout(), SearchOptions(two_phase={}))
    print(f'top 10 kept: {exact:.3f}; saturating {saturating:.3f}; two phases {phases:.3f}')
    assert exact > 0.99 and saturating < exact - 0.05 and phases < exact


def test_a_searcher_keeps_its_vectors_on_a_server(place, tmp_path):
    from splade_nb.serving.searcher import build_searcher, open_searcher
    from splade_nb.data.records import toy_corpus
    from splade_nb.config.versions import resolve
    from splade_nb.training.dataset import prepare
    from splade_nb.training.dataset import save_model_folder
    save_model_folder(prepare(resolve('v28', hidden=64, layers=1, vocabulary=300), toy_corpus(), seed=42, cache=tmp_path/'cache'), tmp_path/'run')
    results = lambda searcher: [(hit.id, round(hit.score, 1)) for hit in searcher.search('한복 입고 경복궁', 3)]
    with build_searcher(tmp_path/'run', 'toy', tmp_path/'exact') as searcher: wanted = results(searcher)
    with build_searcher(tmp_path/'run', 'toy', tmp_path/'searcher', 'opensearch', place) as searcher: found = results(searcher)
    with open_searcher(tmp_path/'searcher') as searcher: assert results(searcher) == found
    assert [id for id, _ in found] == [id for id, _ in wanted] and np.allclose([score for _, score in found], [score for _, score in wanted], rtol=2 ** -7)


def test_large_segments_fold_ids(place):
    "Of 40,000 columns, two meet in one: the exact search tells them apart, a seismic segment does not, so that it is refused."
    label, vectors = Label('3f2a', 40_000, '9c1e'), sparse.csr_matrix(([1, 1], ([0, 1], [5, 32_773])), shape=(2, 40_000), dtype=np.float32)
    layout = Layout('sparse_vector', seismic=dict(approximate_threshold=0))
    with OpenSearchIndex.new(place, label, layout) as index:
        index.add(['가', '나'], vectors)
        assert [id for id, _ in index.search(vectors[0], 2)[0]] == ['가']
        if not REAL: assert len(json.loads(raw(place, 'POST', f'/{index.server.name}/_search', dict(query=sparsely({'5': 1}, method_parameters=dict(k=2))))[1])['hits']['hits']) == 2
    with pytest.raises(ConfigError, match='prune_vocabulary'): OpenSearchIndex.new(place, label, layout, options=SearchOptions(approximate={}))


def test_text_is_searched_beside(place):
    from splade_nb.serving.opensearch import neural_sparse, with_text
    with OpenSearchIndex.new(place, LABEL, Layout(analyser='standard')) as index:
        ingest(index, [('가', VECTORS[0], '제주 올레길'), ('나', VECTORS[1], '서울 지하철')])
        hits = lambda query: {hit['_id']: hit['_score'] for hit in index.server.client.search(index=index.server.name, body=dict(query=query))['hits']['hits']}
        alone, both = hits(neural_sparse({'1': 1.0, '2': 1.0, '3': 1.0})), hits(with_text(neural_sparse({'1': 1.0, '2': 1.0, '3': 1.0}), '제주'))
        assert both['가'] > alone.get('가', 0) and both.get('나') == alone.get('나')


def test_what_lucene_keeps():
    values = np.random.default_rng(0).uniform(1e-3, 100, 1000).astype(np.float32)
    lost = [1 - kept(value) / value for value in values]
    assert 0 <= min(lost) and 2 ** -9 < max(lost) < 2 ** -8 and kept(1.5) == 1.5 and kept(kept(0.1)) == kept(0.1)


# What goes wrong

TROUBLE = {'refusing for a while': [Fault('rejected')] * 4, 'short of memory': [Fault('breaker')] * 2, 'half of each': [Fault('half')] * 6, 'restarting': [Fault('unavailable')] * 4,
           'behind a narrow proxy': [Fault('large')] * 3, 'hanging up after the work': [Fault('drop')] * 3, 'slow': [Fault('slow')] * 2,
           'everything': [Fault(kind) for kind in ('rejected', 'half', 'drop', 'large', 'breaker', 'unavailable', 'half', 'rejected')]}


@pytest.mark.parametrize('faults', TROUBLE.values(), ids=TROUBLE)
def test_a_server_in_trouble_is_filled(fake, faults):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index:
        fake.faults['_bulk'] = list(faults)
        hurried(index, fake)
        assert ingest(index, stream()).refused == []
        assert filled(OpenSearchIndex.open(f'{fake.url}/docs')) and not fake.faults['_bulk']


def sizes(fake) -> list: return [text.count(b'\n') // 2 for _, path, text, _ in fake.requests if path.endswith('_bulk')]


def test_requests_shrink_and_grow_again(fake):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index:
        fake.faults['_bulk'] = [Fault('rejected')] * 3
        ingest(index, stream())
    assert sizes(fake)[:4] == [16, 8, 4, 2] and max(sizes(fake)[4:]) == 16 and sum(sizes(fake)[3:]) == len(IDS)


def test_a_request_too_large_is_not_tried_again_at_its_size(fake):
    fake.largest = 900
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index:
        report = ingest(index, ((id, row, '긴 글 ' * 400 if id == '문서 7' else '') for id, row in zip(IDS, VECTORS)))
    assert [id for id, _ in report.refused] == ['문서 7'] and '413' in report.refused[0][1] and report.stored == len(IDS) - 1
    fitting = [n for n in sizes(fake)]
    assert fitting.count(16) <= 1 and fitting.count(8) <= 1


def test_only_what_was_put_off_is_sent_again(fake):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=BulkOptions(documents=500, wait=0.001)) as index:
        fake.faults['_bulk'] = [Fault('half')]
        ingest(index, stream())
        assert sizes(fake) == [200, 100] and filled(index)


def test_a_full_server_is_given_up_and_gone_on_with(fake, tmp_path):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=BulkOptions(documents=16, wait=0.001, longest=0.01, patience=0.1)) as index:
        fake.faults['_bulk'] = [None] * 3; fake.always['_bulk'] = Fault('rejected')
        with pytest.raises(ConfigError, match='nothing taken for 0.1 seconds .*rejected_execution_exception'): ingest(index, stream(), tmp_path/'progress.json')
        assert read_json(tmp_path/'progress.json')['done'] == 48
        fake.always.clear(); before = len(fake.requests)
        assert ingest(index, stream(), tmp_path/'progress.json').stored == 200 and filled(index)
        assert sum(text.count(b'\n') // 2 for _, path, text, _ in fake.requests[before:] if path.endswith('_bulk')) == 152


def test_a_server_that_is_down_is_named():
    with nobody() as port, pytest.raises(ConfigError, match=f'http://127.0.0.1:{port}/docs: no answer'):
        OpenSearchIndex.open(f'http://user:secret@127.0.0.1:{port}/docs')
    with serving() as fake:
        pace = BulkOptions(wait=0.001, longest=0.01, patience=0.05)
        index, port = OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=pace), fake.server_port
    with nobody(port):
        with pytest.raises(ConfigError, match='no answer'): index.search(VECTORS[:1])
        with pytest.raises(ConfigError, match='nothing taken for 0.05 seconds .no answer'): index.add(IDS, VECTORS)


@pytest.mark.parametrize('fault, reason', [(Fault('slow'), 'no answer'), (Fault('breaker'), 'Data too large'),
                                           (Fault('unavailable'), '503')])
def test_a_search_that_fails_says_so(fake, fault, reason):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL) as index:
        fake.always['_search'] = fault
        hurried(index, fake)
        with pytest.raises(ConfigError, match=reason): index.search(VECTORS[:1])


def fill(place: str, progress: Path, number: int) -> None:
    "A child that fills an index, and is killed at the `number`-th moment: at a request, or as progress is written."
    die_at_change(number, sys.modules[__name__], 'ingest', calls=[(opensearch, '_send')])
    with OpenSearchIndex.open(place, LABEL, bulk=QUICK) as index: ingest(index, stream(), progress)


def test_a_killed_ingest_loses_nothing_and_doubles_nothing(place, tmp_path):
    index, progress = OpenSearchIndex.new(place, LABEL), tmp_path/'progress.json'
    def killed(number: int) -> int:  # exit code
        child = multiprocessing.get_context('fork').Process(target=fill, args=(place, progress, number))
        child.start()
        child.join()
        assert 0 <= len(index) - (read_json(progress)['done'] if progress.exists() else 0) <= QUICK.documents
        return child.exitcode
    assert every_moment(killed) > 5, 'each kind of moment came'
    assert filled(index) and read_json(progress)['done'] == len(IDS)


def test_memory_holds_a_chunk(fake):
    ahead = []
    def watched():
        for n, each in enumerate(stream()): ahead.append(n - len(fake.shelves['docs'].written)); yield each
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index: ingest(index, watched())
    assert max(ahead) <= QUICK.documents


def test_another_model_is_refused_by_hash(place):
    OpenSearchIndex.new(place, LABEL).close()
    for other in (Label('ffff', 9, '9c1e'), Label('3f2a', 9, 'ffff'), Label('3f2a', 10, '9c1e')):
        with pytest.raises(ConfigError, match='made this index') as told: OpenSearchIndex.open(place, other)
        with pytest.raises(ConfigError, match='there already'): OpenSearchIndex.new(place, other)
    assert '10' in str(told.value)
    with OpenSearchIndex.open(place) as index, pytest.raises(ConfigError, match='vectors over 8 tokens'): index.add(['가'], VECTORS[:1, :8])


def test_a_certificate_is_checked(tmp_path):
    if not shutil.which('openssl'): pytest.skip('no openssl')
    made = subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'key.pem', '-out', 'cert.pem', '-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'], cwd=tmp_path, capture_output=True)
    assert made.returncode == 0, made.stderr
    with serving(certificate=(tmp_path/'cert.pem', tmp_path/'key.pem')) as fake:
        with pytest.raises(ConfigError, match='(?i)certificate.*ca_certs'): OpenSearchIndex.new(f'{fake.url}/docs', LABEL)
        with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, ca_certs=str(tmp_path/'cert.pem')) as index: assert len(index) == 0


# What is written about it

def test_the_page_says_what_the_code_does():
    assert page.PAGE.read_text(encoding='utf-8') == page.page(read_json(page.RESULTS)), 'run docs/opensearch_page.py'


def test_the_trial_server_is_pinned_and_out_of_reach():
    text = (ROOT/'deploy'/'compose.yaml').read_text()
    assert '"127.0.0.1:9200:9200"' in text and 'FROM opensearchproject/opensearch:3.9.0' in text and 'mem_limit' in text and 'healthcheck' in text


def test_make_opensearch_says_what_is_missing(tmp_path):
    for tool in ('bash', 'echo'): (tmp_path/tool).symlink_to(shutil.which(tool))
    done = subprocess.run([shutil.which('make'), 'opensearch', f'PYTHON={sys.executable}'], cwd=ROOT, env=os.environ | dict(PATH=str(tmp_path)), capture_output=True, text=True)
    assert done.returncode != 0 and 'needs docker' in done.stdout

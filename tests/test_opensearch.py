"""OpenSearch: against a server that refuses what the real one refuses, or a real one where OPENSEARCH_URL names it."""
import http.client, json, multiprocessing, os, shutil, socket, subprocess, sys, uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
import numpy as np
import pytest
from scipy import sparse
from conftest import ROOT, real_or_made
from fake_opensearch import Fault, nine_bits, serving
from moments import die_at_change, every_moment
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve
from splade_nb.data import readers
from splade_nb.data.idf import count, idf
from splade_nb.data.records import toy_corpus
from splade_nb.data.tokenizer import SpladeTokenizer, vocabulary_hash
from splade_nb.model.encode import counted, lookup_queries, saturated
from splade_nb.serving import opensearch
from splade_nb.serving.index import Label
from splade_nb.serving.opensearch import BulkOptions, Layout, OpenSearchIndex, SearchOptions, Server, ingest
from splade_nb.serving.opensearch import neural_sparse, with_text
from splade_nb.serving.searcher import build_searcher, open_searcher
from splade_nb.training.dataset import prepare, save_model_folder

sys.path.append(str(ROOT/'docs'))
import opensearch_page as page

REAL = os.environ.get('OPENSEARCH_URL', '').rstrip('/')
LABEL, QUICK = Label('3f2a', 9, '9c1e'), BulkOptions(documents=16, wait=0.001, longest=0.02, patience=600)
VECTORS = sparse.random(200, 9, 0.5, 'csr', np.float32, np.random.default_rng(3))
IDS = [f'문서 {n}' for n in range(200)]
JSON_LINES = 'application/x-ndjson'


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


def is_filled(index) -> bool: # every document once, with its own vector
    if len(index) != len(IDS): return False
    expected = page.exact(LABEL, IDS, page.cut(VECTORS), VECTORS[:20], 200)
    results = index.search(VECTORS[:20], 200)
    return all(dict(mine) == pytest.approx(dict(theirs), rel=1e-5) for mine, theirs in zip(results, expected))


def send(place: str, method: str, path: str, body, kind: str = 'application/json') -> tuple: # status, text
    "One request, without a client of OpenSearch."
    parts = urlsplit(place)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    connection.request(method, path, content, {'Content-Type': kind})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


# What the server refuses

NOT_NORMAL = 'must be a positive normal float'
DOCUMENTS = [
    ({'vector': {'1': 0}}, NOT_NORMAL), ({'vector': {'1': -0.5}}, NOT_NORMAL), ({'vector': {'1': 1e-40}}, NOT_NORMAL),
    ({'vector': {'1': 1e39}}, 'must be finite'), ({'vector': {'1': [1, 2]}}, 'unexpected token START_ARRAY'),
    ({'vector': [{'1': 1}, {'1': 2}]}, 'multiple values for the same'),
    ({'vector': {'1': True}}, 'unexpected token VALUE_BOOLEAN'), ({'vector': 3}, 'must be json objects'),
    ({'vektor': {'1': 1}}, 'dynamic introduction of [vektor]')]
ONE_KIND = [('sparse_vector', {'vector': {'제주': 1}}, 'should be valid integer'),
            ('sparse_vector', {'vector': {'-3': 1}}, 'non-negative integer')]
NEVER_FOUND = {'a dot': ({'vector': {'3.14': 1}}, 'do not support dots'), # see fake_opensearch.check_feature_name
               'no name': ({'vector': {'': 1}}, 'cannot be an empty string')}


def check_one_refused(place, kind, document, reason):
    index = OpenSearchIndex.new(place, LABEL, Layout(kind))
    lines = [{'index': {'_id': 'bad'}}, document, {'index': {'_id': 'good'}}, {'vector': {'1': '0.5', '2': None}}]
    body = ''.join(json.dumps(line) + '\n' for line in lines).encode()
    status, text = send(place, 'POST', f'/{index.server.name}/_bulk', body, JSON_LINES)
    bad, good = (item['index'] for item in json.loads(text)['items'])
    assert status == 200 and bad['status'] == 400 and reason in json.dumps(bad['error'], ensure_ascii=False)
    assert good['status'] == 201 and len(index) == 1


@pytest.mark.parametrize('kind, document, reason', [
    *((kind, *case) for kind in ('rank_features', 'sparse_vector') for case in DOCUMENTS), *ONE_KIND])
def test_a_document_is_refused_by_itself(place, kind, document, reason):
    check_one_refused(place, kind, document, reason)


@pytest.mark.skipif(bool(REAL), reason='the fake is stricter: OpenSearch stores these and never finds them')
@pytest.mark.parametrize('document, reason', NEVER_FOUND.values(), ids=NEVER_FOUND)
def test_a_name_that_is_never_found_is_refused(place, document, reason):
    check_one_refused(place, 'rank_features', document, reason)


BODIES = {
    'no last newline': (b'{"index":{}}\n{}', JSON_LINES, 400, 'terminated by a newline'),
    'an unknown action': (b'{"put":{}}\n{}\n', JSON_LINES, 400, 'Malformed action/metadata line [1]'),
    'an unknown parameter': (b'{"index":{"id":"1"}}\n{}\n', JSON_LINES, 400, 'unknown parameter [id]'),
    'nothing': (b'\n', JSON_LINES, 400, ''),
    'plain text': (b'{"index":{}}\n{}\n', 'text/plain', 406, 'text/plain'),
    'a long id': (b'{"index":{"_id":"' + b'a' * 513 + b'"}}\n{}\n', JSON_LINES, 400, 'id is too long')}


@pytest.mark.parametrize('body, kind, status, reason', BODIES.values(), ids=BODIES)
def test_a_bulk_request_is_refused(place, body, kind, status, reason):
    index = OpenSearchIndex.new(place, LABEL)
    answer = send(place, 'POST', f'/{index.server.name}/_bulk', body, kind)
    assert answer[0] == status and reason in answer[1]


def shorten_timeouts(index, fake) -> None:
    "The client soon gives up an answer that the server never gives, and waits for every other as long as it takes."
    original = index.server.client.transport.perform_request
    def perform(method, url, *arguments, **options):
        endpoint = url.rsplit('/', 1)[-1]
        fault = fake.faults[endpoint][0] if fake.faults[endpoint] else fake.always.get(endpoint)
        timeout = 0.2 if fault and fault.kind == 'slow' else 600
        return original(method, url, *arguments, timeout=timeout, **options)
    index.server.client.transport.perform_request = perform


@contextmanager
def refusing_port(port: int = 0):
    "A port that is taken and where nobody listens, so that connections are refused."
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(('127.0.0.1', port))
        yield held.getsockname()[1]


def by_tokens(tokens: dict, **more) -> dict:
    return dict(neural_sparse=dict(vector=dict(query_tokens=tokens) | more))


def by_feature(**more) -> dict: return dict(rank_feature=dict(field='vector.1', **more))


QUERIES = {
    'unknown query': (dict(rank_features={}), 'unknown query [rank_features]'),
    'weight over 64': (by_tokens({'1': 65}), 'weight must be in (0, 64'),
    'weight of zero': (by_tokens({'1': 0}), 'weight must be in (0, 64'),
    'unknown parameter': (by_tokens({'1': 1}, words=3), 'does not support [words]'),
    'no tokens': (dict(neural_sparse=dict(vector={})), 'query_tokens'),
    'two functions': (by_feature(linear={}, log=dict(scaling_factor=1)), 'only specify one of'),
    'unknown function': (by_feature(cubic={}), 'unknown field [cubic]'),
    'log without its factor': (by_feature(log={}), 'scaling_factor'),
    'too many clauses': (by_tokens({str(n): 1.0 for n in range(1025)}), '1024'),
    'unknown method parameter': (by_tokens({'1': 1}, method_parameters=dict(heap=1)), 'unknown field [heap]'),
    'text that is not searched': (dict(match=dict(text='제주')), 'not indexed')}


@pytest.mark.parametrize('query, reason', QUERIES.values(), ids=QUERIES)
def test_a_query_is_refused(place, query, reason):
    with OpenSearchIndex.new(place, LABEL) as index:
        status, text = send(place, 'POST', f'/{index.server.name}/_search', dict(query=query))
        assert status == 400 and reason in text


def by_clusters(**parameters) -> dict:
    return dict(type='sparse_vector', method=dict(name='seismic', parameters=parameters))


FIELDS = {
    'no method': (dict(vector=dict(type='sparse_vector')), 'requires [method] parameter'),
    'another method': (dict(vector=dict(type='sparse_vector', method=dict(name='hnsw'))), 'not supported'),
    'unknown parameter': (dict(vector=by_clusters(postings=3)), "Unknown parameter 'postings'"),
    'out of range': (dict(vector=by_clusters(cluster_ratio=1)), 'must be in (0, 1)'),
    'unknown type': (dict(vector=dict(type='sparse')), 'No handler for type [sparse]'),
    'parameter of another type': (dict(vector=dict(type='rank_features', boost=2)), 'unknown parameter [boost]'),
    'unknown analyser': (dict(text=dict(type='text', analyzer='kiwi')), 'analyzer [kiwi]')}


@pytest.mark.parametrize('fields, reason', FIELDS.values(), ids=FIELDS)
def test_a_mapping_is_refused(place, fields, reason):
    status, text = send(place, 'PUT', urlsplit(place).path, dict(mappings=dict(properties=fields)))
    assert status == 400 and reason in text


def test_too_many_hits_are_refused_clearly(place):
    with OpenSearchIndex.new(place, LABEL) as index, pytest.raises(ConfigError, match=r'\[10000\]'):
        index.search(VECTORS[:1], 10_001)


# Results

@pytest.fixture(scope='module')
def embedded():
    """tydiqa_ko_goldp in the vocabulary of XLM-R, or made data: label, ids, vectors, 200
    queries, tokenizer."""
    folder, backend = real_or_made('data/tydiqa_ko_goldp'), real_or_made('tokenizers/xlm-roberta-base')
    from transformers import AutoTokenizer
    collection = readers.load(folder)
    tokenizer, texts = SpladeTokenizer(AutoTokenizer.from_pretrained(backend)), list(collection.texts.values())
    queries = [query.text for query in list(collection.split('test').values())[:200]]
    vectors = saturated(counted(tokenizer.ids(texts), len(tokenizer)))
    query_vectors = lookup_queries(tokenizer, idf(count(tokenizer.ids(texts), len(tokenizer))), queries)
    label = Label(vocabulary_hash(tokenizer), len(tokenizer), 'start')
    return label, list(collection.texts), vectors, query_vectors, tokenizer


LAYOUTS = {'rank_features': (Layout(), SearchOptions('neural_sparse')),
           'by name, rank_feature': (Layout(terms='names'), SearchOptions('rank_feature')),
           'sparse_vector': (Layout('sparse_vector'), SearchOptions())}


@pytest.mark.slow
@pytest.mark.parametrize('layout, options', LAYOUTS.values(), ids=LAYOUTS)
def test_the_exact_ranking_of_200_real_queries(place, embedded, layout, options):
    label, ids, vectors, queries, tokenizer = embedded
    with OpenSearchIndex.new(place, label, layout, tokenizer.names, options, timeout=300) as index:
        index.add(ids, vectors)
        results = index.search(queries, 10)
    same, exact = page.exact(label, ids, page.cut(vectors), queries), page.exact(label, ids, vectors, queries)
    assert page.shared(results, same) == 1.0, 'but for nine bits of each weight, the product of two matrices'
    assert page.shared(results, exact) > 0.99
    for mine, theirs in zip(results, map(dict, exact)):
        ratios = [score / theirs[id] for id, score in mine if id in theirs]
        assert all(1 - 2 ** -8 <= ratio <= 1 + 1e-5 for ratio in ratios)


@pytest.mark.slow
def test_saturation_two_phases_and_clusters_lose(place, embedded):
    label, ids, vectors, queries, _ = embedded
    expected = page.exact(label, ids, vectors, queries)
    def agreement(options, *how):
        return page.shared(page.found_by(place, label, ids, vectors, queries, Layout(), options, how), expected)
    exact, two_phases = agreement(SearchOptions('rank_feature')), agreement(SearchOptions(two_phase={}))
    saturating = agreement(SearchOptions('rank_feature'), page.saturating)
    assert exact > 0.99 and saturating < exact - 0.05 and two_phases < exact


def test_a_searcher_keeps_its_vectors_on_a_server(place, tmp_path):
    settings = resolve('v28', hidden=64, layers=1, vocabulary=300)
    save_model_folder(prepare(settings, toy_corpus(), seed=42), tmp_path/'run')
    def results(searcher):
        with searcher: return {hit.id: hit.score for hit in searcher.search('한복 입고 경복궁', 3)}
    expected = results(build_searcher(tmp_path/'run', 'toy', tmp_path/'exact'))
    scores = results(build_searcher(tmp_path/'run', 'toy', tmp_path/'searcher', 'opensearch', place))
    assert results(open_searcher(tmp_path/'searcher')) == scores
    assert list(scores) == list(expected) and scores == pytest.approx(expected, rel=2 ** -8)


def test_large_segments_fold_ids(place):
    """Of 40,000 columns, two meet in one: the exact search tells them apart, a seismic segment does not, so that it is
    refused."""
    label, layout = Label('3f2a', 40_000, '9c1e'), Layout('sparse_vector', seismic=dict(approximate_threshold=0))
    vectors = sparse.csr_matrix(([1, 1], ([0, 1], [5, 32_773])), shape=(2, 40_000), dtype=np.float32)
    with OpenSearchIndex.new(place, label, layout) as index:
        index.add(['가', '나'], vectors)
        assert [id for id, _ in index.search(vectors[0], 2)[0]] == ['가']
        if not REAL:
            body = dict(query=by_tokens({'5': 1}, method_parameters=dict(k=2)))
            _, text = send(place, 'POST', f'/{index.server.name}/_search', body)
            assert len(json.loads(text)['hits']['hits']) == 2
    with pytest.raises(ConfigError, match='prune_vocabulary'):
        OpenSearchIndex.new(place, label, layout, options=SearchOptions(approximate={}))


def test_text_is_searched_beside(place):
    tokens = neural_sparse({'1': 1.0, '2': 1.0, '3': 1.0})
    with OpenSearchIndex.new(place, LABEL, Layout(analyser='standard')) as index:
        ingest(index, [('가', VECTORS[0], '제주 올레길'), ('나', VECTORS[1], '서울 지하철')])
        def scores(query):
            answer = index.server.client.search(index=index.server.name, body=dict(query=query))
            return {hit['_id']: hit['_score'] for hit in answer['hits']['hits']}
        alone, both = scores(tokens), scores(with_text(tokens, '제주'))
        assert both['가'] > alone.get('가', 0) and both.get('나') == alone.get('나')


def test_what_lucene_stores():
    values = np.random.default_rng(0).uniform(1e-3, 100, 1000).astype(np.float32)
    loss = 1 - nine_bits(values) / values
    assert 0 <= loss.min() and 2 ** -9 < loss.max() < 2 ** -8
    assert nine_bits(1.5) == 1.5 and nine_bits(nine_bits(0.1)) == nine_bits(0.1)


# Faults

FAULTS = {'refusing for a while': ['rejected'] * 4, 'short of memory': ['breaker'] * 2, 'half of each': ['half'] * 6,
          'restarting': ['unavailable'] * 4, 'behind a narrow proxy': ['large'] * 3,
          'hanging up after the work': ['drop'] * 3, 'slow': ['slow'] * 2,
          'everything': ['rejected', 'half', 'drop', 'large', 'breaker', 'unavailable', 'half', 'rejected']}


@pytest.mark.parametrize('kinds', FAULTS.values(), ids=FAULTS)
def test_a_server_with_faults_is_filled(fake, kinds):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index:
        fake.faults['_bulk'] = [Fault(kind) for kind in kinds]
        shorten_timeouts(index, fake)
        assert ingest(index, stream()).refused == []
        assert is_filled(OpenSearchIndex.open(f'{fake.url}/docs')) and not fake.faults['_bulk']


def sizes(fake, since: int = 0) -> list: # documents in each bulk request
    return [text.count(b'\n') // 2 for _, path, text, _ in fake.requests[since:] if path.endswith('_bulk')]


def test_requests_shrink_and_grow_again(fake):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index:
        fake.faults['_bulk'] = [Fault('rejected')] * 3
        ingest(index, stream())
    assert sizes(fake)[:4] == [16, 8, 4, 2] and max(sizes(fake)[4:]) == 16 and sum(sizes(fake)[3:]) == len(IDS)


def test_a_request_too_large_is_not_tried_again_at_its_size(fake):
    fake.largest = 900
    documents = [(id, row, '긴 글 ' * 400 if id == '문서 7' else '') for id, row in zip(IDS, VECTORS)]
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index: report = ingest(index, documents)
    assert [id for id, _ in report.refused] == ['문서 7'] and '413' in report.refused[0][1]
    assert report.stored == len(IDS) - 1 and sizes(fake).count(16) <= 1 and sizes(fake).count(8) <= 1


def test_only_what_was_put_off_is_sent_again(fake):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=BulkOptions(wait=0.001)) as index:
        fake.faults['_bulk'] = [Fault('half')]
        ingest(index, stream())
        assert sizes(fake) == [200, 100] and is_filled(index)


def test_an_ingest_into_a_full_server_ends_and_is_resumed(fake, tmp_path):
    bulk, progress = BulkOptions(documents=16, wait=0.001, longest=0.01, patience=0.1), tmp_path/'progress.json'
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=bulk) as index:
        fake.faults['_bulk'] = [None] * 3
        fake.always['_bulk'] = Fault('rejected')
        with pytest.raises(ConfigError, match='nothing taken for 0.1 seconds .*rejected_execution_exception'):
            ingest(index, stream(), progress)
        assert read_json(progress)['done'] == 48
        fake.always.clear()
        before = len(fake.requests)
        assert ingest(index, stream(), progress).stored == 200 and is_filled(index)
        assert sum(sizes(fake, before)) == 152


def test_a_server_that_is_down_is_named():
    with refusing_port() as port, pytest.raises(ConfigError, match=f'http://127.0.0.1:{port}/docs: no answer'):
        OpenSearchIndex.open(f'http://user:secret@127.0.0.1:{port}/docs')
    with serving() as fake:
        bulk = BulkOptions(wait=0.001, longest=0.01, patience=0.05)
        index, port = OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=bulk), fake.server_port
    with refusing_port(port):
        with pytest.raises(ConfigError, match='no answer'): index.search(VECTORS[:1])
        with pytest.raises(ConfigError, match='nothing taken for 0.05 seconds .no answer'): index.add(IDS, VECTORS)


@pytest.mark.parametrize('fault, reason', [
    ('slow', 'no answer'), ('breaker', 'Data too large'), ('unavailable', '503')])
def test_a_search_that_fails_says_so(fake, fault, reason):
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL) as index:
        fake.always['_search'] = Fault(fault)
        shorten_timeouts(index, fake)
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
        done = read_json(progress)['done'] if progress.exists() else 0
        assert 0 <= len(index) - done <= QUICK.documents
        return child.exitcode
    assert every_moment(killed) > 5, 'each kind of moment came'
    assert is_filled(index) and read_json(progress)['done'] == len(IDS)


def test_memory_holds_a_chunk(fake):
    ahead = []
    def watched():
        for n, each in enumerate(stream()):
            ahead.append(n - len(fake.indices['docs'].written))
            yield each
    with OpenSearchIndex.new(f'{fake.url}/docs', LABEL, bulk=QUICK) as index: ingest(index, watched())
    assert max(ahead) <= QUICK.documents


def test_another_model_is_refused_by_hash(place):
    OpenSearchIndex.new(place, LABEL).close()
    for other in (Label('ffff', 9, '9c1e'), Label('3f2a', 9, 'ffff'), Label('3f2a', 10, '9c1e')):
        with pytest.raises(ConfigError, match='made this index') as raised: OpenSearchIndex.open(place, other)
        with pytest.raises(ConfigError, match='there already'): OpenSearchIndex.new(place, other)
    assert '10' in str(raised.value)
    with OpenSearchIndex.open(place) as index, pytest.raises(ConfigError, match='vectors over 8 tokens'):
        index.add(['가'], VECTORS[:1, :8])


def test_a_certificate_is_checked(tmp_path):
    if not shutil.which('openssl'): pytest.skip('no openssl')
    command = ('openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost'
               ' -addext subjectAltName=IP:127.0.0.1')
    subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
    with serving(certificate=(tmp_path/'cert.pem', tmp_path/'key.pem')) as fake:
        place = f'{fake.url}/docs'
        with pytest.raises(ConfigError, match='(?i)certificate.*ca_certs'): OpenSearchIndex.new(place, LABEL)
        with OpenSearchIndex.new(place, LABEL, ca_certs=str(tmp_path/'cert.pem')) as index: assert len(index) == 0


# Its page and its commands

def test_the_page_says_what_the_code_does():
    assert page.PAGE.read_text(encoding='utf-8') == page.page(read_json(page.RESULTS)), 'run docs/opensearch_page.py'


def test_the_trial_server_is_pinned_and_out_of_reach():
    text = (ROOT/'deploy'/'compose.yaml').read_text()
    wanted = '"127.0.0.1:9200:9200"', 'FROM opensearchproject/opensearch:3.9.0', 'mem_limit', 'healthcheck'
    assert [part for part in wanted if part not in text] == []


def test_make_opensearch_says_what_is_missing(tmp_path):
    for tool in ('bash', 'echo'): (tmp_path/tool).symlink_to(shutil.which(tool))
    command = [shutil.which('make'), 'opensearch', f'PYTHON={sys.executable}']
    done = subprocess.run(command, cwd=ROOT, env=os.environ | dict(PATH=str(tmp_path)), capture_output=True, text=True)
    assert done.returncode != 0 and 'needs docker' in done.stdout

"""A model inside OpenSearch: what the server's translators make of the exported files, and what register.sh sends."""
import functools, hashlib, io, json, os, re, shutil, subprocess, threading, urllib.request, zipfile
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit
import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn
from splade_nb.cli import export_model, main
from splade_nb.config.files import ConfigError
from splade_nb.data.tokenizer import SpladeTokenizer, save_tokenizer, train_unigram
from splade_nb.evaluation.exact_search import normalize_for_scoring
from splade_nb.hub.opensearch_model import FOLDED, HEAVIEST, SMALLEST, traced, write_zip
from splade_nb.hub.export import write_form
from splade_nb.model.encode import encode
from splade_nb.model.initialization import toy_model
from splade_nb.model.load import save
from splade_nb.serving.connector import add_connector
from splade_nb.serving import network
from splade_nb.serving.index import label_of
from splade_nb.serving.searcher import Encoder
from splade_nb.serving.web import _invalid_request, bounded

FORMS = {  # what decides which files are written, and what the server would do wrongly
    'looked-up': dict(inference_free_query=True, context_gate=False),
    'cosine': dict(similarity='cosine', mask_special=False),
    'counted': dict(term_frequency=True, log_twice=True)}


@pytest.fixture(scope='module')
def tokenizer(texts): return SpladeTokenizer(train_unigram(texts, 1500))


def made(tokenizer, form: str) -> nn.Module:
    model = toy_model(len(tokenizer), max_length=48, **{'similarity': 'dot'} | FORMS[form])
    if form == 'counted': model.mean_length.fill_(20.0)
    if model.query_shift is not None:
        model.query_weight += torch.arange(len(tokenizer)) % 7
        model.query_weight[9] = 200.0  # more than Lucene takes
    return model.eval()


@pytest.fixture(scope='module')
def exports(tokenizer, tmp_path_factory):
    "A function from a form to its model and its folder, written once."
    folder, known = tmp_path_factory.mktemp('exports'), {}
    def written(form: str) -> tuple:
        if form not in known:
            model = made(tokenizer, form)
            known[form] = model, folder/form, write_form(model, tokenizer, 'opensearch', folder/form, data='toy')
        return known[form][:2]
    written.limits = lambda form: written(form) and known[form][2]
    return written


# The server's side, as the sources of ML Commons and DJL have it

class Loaded:
    "A deployed model: SparseEncodingTranslator or SparseTokenizerModel over the files of a zip."
    def __init__(self, content: bytes, function: str):
        self.function, self.known = function, {}
        with zipfile.ZipFile(io.BytesIO(content)) as found: parts = {name: found.read(name) for name in found.namelist()}
        self.tokenizer = Tokenizer.from_str(parts.pop('tokenizer.json').decode())
        length = self.tokenizer.truncation['max_length']  # HuggingFaceTokenizer: modelMaxLength is 512
        self.tokenizer.enable_truncation(min(length, 512))
        self.idf = {name: np.float32(weight) for name, weight in json.loads(parts.pop('idf.json', b'{}')).items()}
        if function == 'SPARSE_ENCODING':
            script, = [name for name in parts if name.endswith('.pt')]
            self.script = torch.jit.load(io.BytesIO(parts.pop(script)))
        assert parts == {}, 'nothing else stands in the zip'

    def predict(self, text: str, key: str = 'WORD') -> dict:
        ids = self.tokenizer.encode(text).ids
        if self.function == 'SPARSE_ENCODING': found = self.known[text] = self.known[text] if text in self.known else self.encoded(ids)
        else: found = [(i, self.idf.get(self.name(i), np.float32(1))) for i in dict.fromkeys(ids) if self.name(i)]
        if key == 'TOKEN_ID': return {str(i): weight for i, weight in found}
        return {self.name(i): weight for i, weight in found if self.name(i)}

    def name(self, id: int) -> str: return self.tokenizer.decode([id], skip_special_tokens=True)

    def encoded(self, ids: list) -> list:
        with torch.no_grad():
            inputs = dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))
            vector = self.script(inputs)['output'][0].numpy()
        return [(int(i), vector[i]) for i in vector.nonzero()[0]]


@functools.cache
def opened(folder: Path) -> tuple: # models of documents and of queries
    loaded = {}
    for side in ('document', 'query'):
        if (folder/f'{side}.json').exists():
            function = json.loads((folder/f'{side}.json').read_text())['function_name']
            loaded[side] = Loaded((folder/f'{side}.zip').read_bytes(), function)
    return loaded['document'], loaded.get('query', loaded['document'])


def scores(queries: list, documents: list) -> np.ndarray:
    return np.array([[sum(weight * document.get(key, 0) for key, weight in query.items()) for document in documents] for query in queries])


def first_window(tokenizer, text: str) -> str:
    while len(tokenizer.ids([text])[0]) > 46: text = text[:-3]
    return text


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('key', ('WORD', 'TOKEN_ID'))
def test_the_server_gives_our_scores(form, key, exports, tokenizer, texts):
    model, folder = exports(form)
    documents, queries = opened(folder)
    if form == 'looked-up': texts = [*(first_window(tokenizer, text) for text in texts[:50]), *texts[50:]] # `encode` counts what it does not read
    found = scores([queries.predict(text, key) for text in texts[50:]], [documents.predict(text, key) for text in texts[:50]])
    ours = [normalize_for_scoring(encode(model, tokenizer, part, document=side, most_windows=1), model.settings.similarity)
            for part, side in ((texts[50:], False), (texts[:50], True))]
    wanted = (ours[0] @ ours[1].T).toarray()
    factor = 200 / HEAVIEST if form == 'looked-up' else 1
    assert wanted.min() >= 0 and wanted.max() > 0 and np.allclose(found * factor, wanted, rtol=1e-4, atol=1e-5)


def test_names_are_those_of_the_vocabulary(exports, tokenizer, texts):
    "No two tokens share a key, a bare mark of a word stays, and masked special tokens have none."
    documents, _ = opened(exports('looked-up')[1])
    names = [documents.name(i) for i in range(len(tokenizer))]
    assert names == ['' if special else name for name, special in zip(tokenizer.names, exports('looked-up')[0].special.tolist())]
    assert '▁' in names and {documents.name(0), opened(exports('cosine')[1])[0].name(0)} == {'', '<s>'}


def test_a_query_holds_what_lucene_takes(exports, tokenizer):
    "Weights above 0 and up to 64; a token without a weight would count 1."
    _, queries = opened(exports('looked-up')[1])
    assert len(queries.idf) == len(tokenizer) - 5 and max(queries.idf.values()) == HEAVIEST and min(queries.idf.values()) >= SMALLEST
    assert any(f'divided by {200 / HEAVIEST:g}' in limit for limit in exports.limits('looked-up'))


def test_only_what_is_needed_is_written(exports):
    written = {form: {path.name for path in exports(form)[1].iterdir()} for form in FORMS}
    assert 'query.zip' not in written['cosine'] and written['counted'] == written['looked-up'] == written['cosine'] | {'query.zip', 'query.json'}
    functions = [json.loads((exports(form)[1]/'query.json').read_text())['function_name'] for form in ('looked-up', 'counted')]
    assert functions == ['SPARSE_TOKENIZE', 'SPARSE_ENCODING']


def test_losses_are_stated(exports):
    facts = json.loads((exports('looked-up')[1]/'storage.json').read_text())
    assert facts['data'] == 'toy' and {row['field'] for row in facts['losses']} == {'rank_features', 'sparse_vector'}
    said = next(limit for limit in exports.limits('looked-up') if limit.startswith('nDCG@10 lost on'))
    assert f'prune_ratio={facts["prune_ratio"]:g}' in said and '{:g} for documents'.format(facts['ceilings'][0]) in said


@pytest.mark.skipif('TORCH_2_5' not in os.environ, reason='TORCH_2_5 names no folder with torch 2.5.1, whose libtorch OpenSearch loads')
def test_the_libtorch_of_opensearch_loads_the_model(exports, texts, tmp_path):
    folder, script = exports('cosine')[1], tmp_path/'run.py'
    with zipfile.ZipFile(folder/'document.zip') as found: found.extract('model.pt', tmp_path)
    ids = opened(folder)[0].tokenizer.encode(texts[0]).ids
    script.write_text('import json, sys, torch\nids = json.loads(sys.argv[2])\nmodel = torch.jit.load(sys.argv[1])\n'
                      'row = model(dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)))\n'
                      "print(json.dumps([torch.__version__, row['output'][0].tolist()]))")
    done = subprocess.run(['python3', script, tmp_path/'model.pt', json.dumps(ids)], env=os.environ | dict(PYTHONPATH=os.environ['TORCH_2_5']), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, row = json.loads(done.stdout)
    wanted = dict(opened(folder)[0].encoded(ids))
    assert version.startswith('2.5.1') and np.allclose(row, [wanted.get(i, 0) for i in range(len(row))], atol=1e-5)


# What is refused, by name

def test_what_opensearch_cannot_run_is_refused_with_the_connector(texts, tmp_path):
    rich = SpladeTokenizer(train_unigram(texts[-20:], 1000), 'kiwi')
    with pytest.raises(ConfigError, match='segment=kiwi.*TO=opensearch-connector'):
        write_form(toy_model(60), rich, 'opensearch', tmp_path/'out')
    assert [*tmp_path.iterdir()] == []


def test_a_large_vocabulary_is_refused_for_clusters_only(exports, tokenizer, tmp_path, monkeypatch):
    import splade_nb.hub.opensearch_model as module
    monkeypatch.setattr(module, 'FOLDED', len(tokenizer) - 1)
    limits = write_form(exports('looked-up')[0], tokenizer, 'opensearch', tmp_path/'out', data='toy')
    assert FOLDED == 2 ** 15 and 'prune_vocabulary BACKBONE DATA pruned' in limits[-1]
    assert not any('by sparse_vector' in limit for limit in limits), 'no loss of what is refused'
    assert {row['field'] for row in json.loads((tmp_path/'out'/'storage.json').read_text())['losses']} == {'rank_features'}
    assert not (tmp_path/'out'/'index-sparse_vector.json').exists() and (tmp_path/'out'/'index-rank_features.json').exists()
    done = register(tmp_path/'out', 'http://127.0.0.1:9', FIELD='sparse_vector')
    assert done.returncode == 1 and 'prune_vocabulary' in done.stderr


class Constant(nn.Module):
    "A layer that reads the length while it is traced."
    def forward(self, states): return states * float(states.shape[1])


def test_a_model_that_fixes_its_length_is_refused(tokenizer):
    model = made(tokenizer, 'cosine')
    model.decoder.forward = Constant().forward
    with pytest.raises(ConfigError, match='the traced model differs by .* reads the length while it is traced'): traced(model)


@pytest.mark.parametrize('data, said', [('nirgendwo', 'nirgendwo'), ('', 'data=mini: opensearch')])
def test_wrong_data_is_named(data, said, tokenizer, tmp_path, capsys):
    save_tokenizer(tokenizer, save(made(tokenizer, 'looked-up'), tmp_path/'model'))
    form, data = ('opensearch', data) if data else ('mlm', 'mini')
    assert main(['export', '--model', str(tmp_path/'model'), '--out', str(tmp_path/'out'), '--to', form, '--data', data]) == 2
    assert said in capsys.readouterr().err and not (tmp_path/'out').exists()


def test_the_command_writes_the_card(tokenizer, tmp_path):
    save_tokenizer(tokenizer, save(made(tokenizer, 'looked-up'), tmp_path/'model'))
    told = export_model(str(tmp_path/'model'), 'opensearch', str(tmp_path/'out'), data='toy')
    card = (tmp_path/'out'/'README.md').read_text(encoding='utf-8')
    assert told['form'] == 'opensearch' and 'register.sh' in card and 'nDCG@10 lost on' in card
    assert f'\n# {tmp_path.name} (opensearch)\n' in card, 'the model and its form, not the folder that was written'


def test_a_zip_is_the_same_every_time(tmp_path):
    first, second = (write_zip(tmp_path/name, {'a': b'1', '한글': b'2'}) for name in 'xy')
    assert first == second and first['model_content_hash_value'] == hashlib.sha256((tmp_path/'x').read_bytes()).hexdigest()


# register.sh against a server that checks what it is told

TEXT = dict(type='string', minLength=1)
REGISTER = dict(type='object', required=['name', 'version', 'model_format', 'function_name', 'model_content_hash_value', 'model_content_size_in_bytes'],
                properties=dict(name=TEXT, version=TEXT, description=TEXT, url=TEXT, model_format=dict(enum=['TORCH_SCRIPT', 'ONNX']),
                                function_name=dict(enum=['SPARSE_ENCODING', 'SPARSE_TOKENIZE']), total_chunks=dict(type='integer', minimum=1),
                                model_content_size_in_bytes=dict(type='integer', maximum=4 * 2 ** 30),
                                model_content_hash_value=dict(type='string', pattern='^[0-9a-f]{64}$')), additionalProperties=False)
PRUNED = dict(prune_type=dict(enum=['none', 'max_ratio']), prune_ratio=dict(type='number', exclusiveMinimum=0, exclusiveMaximum=1))
PIPELINE = dict(type='object', required=['processors'], properties=dict(processors=dict(type='array', items=dict(
    type='object', required=['sparse_encoding'], properties=dict(sparse_encoding=dict(
        type='object', required=['model_id', 'field_map'], properties=dict(model_id=TEXT, field_map=dict(type='object')) | PRUNED, additionalProperties=False))))))
POSITIVE = dict(type='number', exclusiveMinimum=0)
FIELDS = {'text': {}, 'rank_features': {}, 'semantic': dict(model_id=TEXT, search_model_id=TEXT, raw_field_type=dict(enum=['text']), sparse_encoding_config=dict(
    type='object', properties=PRUNED, additionalProperties=False)), 'sparse_vector': dict(method=dict(type='object', required=['name'], additionalProperties=False, properties=dict(
        name=dict(const='seismic'), engine=dict(enum=['lucene', 'native']), parameters=dict(type='object', additionalProperties=False, properties=dict(
            quantization_ceiling_ingest=POSITIVE, quantization_ceiling_search=POSITIVE)))))}


CONNECTOR = dict(type='object', required=['name', 'version', 'protocol', 'credential', 'parameters', 'actions'], additionalProperties=False, properties=dict(
    name=TEXT, description=TEXT, version=TEXT, protocol=dict(const='http'), credential=dict(type='object', minProperties=1, additionalProperties=TEXT),
    parameters=dict(type='object', additionalProperties=dict(type='string')), actions=dict(type='array', minItems=1, items=dict(
        type='object', required=['action_type', 'method', 'url', 'request_body'], additionalProperties=False, properties=dict(
            action_type=dict(const='predict'), method=dict(const='POST'), url=TEXT, request_body=TEXT, headers=dict(type='object'))))))
REMOTE = dict(type='object', required=['name', 'function_name', 'connector_id'], additionalProperties=False,
              properties=dict(name=TEXT, function_name=dict(const='remote'), connector_id=TEXT))


class Refused(Exception): pass


class Remote:
    "A remote model: ConnectorUtils fills the request, the service answers, and a list becomes the `response` of neural-search."
    def __init__(self, connector: dict, client): self.connector, self.client = connector, client

    def predict(self, text: str, key: str = 'WORD') -> dict:
        action, = self.connector['actions']
        values = self.connector['parameters'] | dict(input=json.dumps([text]), sparse_embedding_format=key)
        body = re.sub(r'\$\{parameters\.(\w+)\}', lambda found: values[found[1]], action['request_body'])
        headers = {name: value.replace('${credential.token}', self.connector['credential']['token']) for name, value in action['headers'].items()}
        answer = self.client.request(action['method'], urlsplit(action['url']).path, content=body, headers=headers)
        if answer.status_code != 200: raise Refused(f'Error from remote service: {answer.text}')
        found, = answer.json()
        return found


class MLServer(ThreadingHTTPServer):
    "As much of ML Commons, ingest pipelines and neural-search as register.sh asks for."
    def __init__(self, broken: str = '', client=None): # client: of the service that connectors call
        super().__init__(('127.0.0.1', 0), Handler)
        self.client, self.connectors = client, {}
        self.broken, self.asked, self.metas, self.files, self.deployed, self.tasks = broken, [], {}, {}, {}, {}
        self.settings, self.pipelines, self.indices, self.documents = {}, {}, {}, {}

    def task(self, model: str) -> dict:
        self.tasks[name := f'task-{len(self.tasks)}'] = model, iter(['CREATED', 'RUNNING'])
        return dict(task_id=name, status='CREATED')

    def add(self, body: dict, content: bytes = b'') -> str:
        jsonschema.validate(body, REMOTE if body['function_name'] == 'remote' else REGISTER)
        self.metas[name := f'model-{len(self.metas)}'] = body
        self.files[name] = content
        return name

    def deploy(self, model: str) -> dict:
        meta, content = self.metas[model], self.files[model]
        if meta['function_name'] == 'remote':
            self.deployed[model] = Remote(self.connectors[meta['connector_id']], self.client)
            return self.task(model)
        if hashlib.sha256(content).hexdigest() != meta['model_content_hash_value']: raise Refused('model content changed')
        self.deployed[model] = Loaded(content, meta['function_name'])
        return self.task(model)

    def answer(self, method: str, path: list, text: bytes) -> dict:
        body = json.loads(text) if text[:1] == b'{' and 'upload_chunk' not in path else {}
        if self.broken and self.broken in path: raise Refused(f'{self.broken} is broken')
        match method, path:
            case 'PUT', ['_cluster', 'settings']: self.settings |= body['persistent']
            case 'POST', ['_plugins', '_ml', 'models', '_register_meta']: return dict(model_id=self.add(body), status='CREATED')
            case 'POST', ['_plugins', '_ml', 'models', model, 'upload_chunk', number]:
                if len(text) > 10_000_000: raise Refused('chunk too large')
                self.files[model] += text
                return dict(status='Uploaded')
            case 'POST', ['_plugins', '_ml', 'connectors', '_create']:
                jsonschema.validate(body, CONNECTOR)
                trusted = self.settings['plugins.ml_commons.trusted_connector_endpoints_regex']
                if not any(re.match(each, body['actions'][0]['url']) for each in trusted): raise Refused('Connector URL is not matching the trusted connector endpoint regex')
                self.connectors[name := f'connector-{len(self.connectors)}'] = body
                return dict(connector_id=name)
            case 'POST', ['_plugins', '_ml', 'models', '_register']:
                if 'connector_id' in body: return self.task(self.add(body))
                with urllib.request.urlopen(body['url']) as found: return self.task(self.add(body, found.read()))
            case 'POST', ['_plugins', '_ml', 'models', model, '_deploy']: return self.deploy(model)
            case 'GET', ['_plugins', '_ml', 'tasks', task]:
                model, states = self.tasks[task]
                state = next(states, 'FAILED' if self.broken == 'task' else 'COMPLETED')
                return dict(model_id=model, task_type='DEPLOY_MODEL', state=state, error='out of memory')
            case 'PUT', ['_ingest', 'pipeline', name]:
                jsonschema.validate(body, PIPELINE)
                self.pipelines[name] = body['processors'][0]['sparse_encoding']
            case 'PUT', [index]: self.make(index, body)
            case 'POST', [index, '_doc', id]: self.write(index, id, body['text'])
            case 'POST', [index, '_search']: return self.search(index, body)
            case _: raise Refused(f'no handler found for uri {path}')
        return dict(acknowledged=True)

    def make(self, index: str, body: dict) -> None:
        if index in self.indices: raise Refused(f'resource_already_exists_exception: index [{index}] already exists')
        for name, field in body['mappings']['properties'].items():
            schema = FIELDS[field['type']]
            jsonschema.validate(field, dict(type='object', properties=schema | dict(type=TEXT), additionalProperties=False))
        if 'sparse_vector' in str(body) and body['settings']['index'].get('sparse') is not True: raise Refused('index.sparse is false')
        self.indices[index] = body

    def field(self, index: str) -> dict: return [*self.indices[index]['mappings']['properties'].values()][-1]

    def write(self, index: str, id: str, text: str) -> None:
        field, index_settings = self.field(index), self.indices[index]['settings'].get('index', {})
        encoding = field if field['type'] == 'semantic' else self.pipelines[index_settings['default_pipeline']]
        weights = self.deployed[encoding['model_id']].predict(text, 'TOKEN_ID' if field['type'] == 'sparse_vector' else 'WORD')
        if min(weights.values()) <= 0: raise Refused('Pruned values must be positive')
        ratio = encoding.get('sparse_encoding_config', encoding).get('prune_ratio', 0)
        self.documents[id] = {key: weight for key, weight in weights.items() if weight >= ratio * max(weights.values())}

    def search(self, index: str, body: dict) -> dict:
        (kind, clause), field = *body['query'].items(), self.field(index)
        (name, query), = clause.items()
        assert kind == ('neural' if field['type'] == 'semantic' else 'neural_sparse') and self.indices[index]['mappings']['properties'][name] == field
        model = field['search_model_id'] if kind == 'neural' else query['model_id']
        weights = self.deployed[model].predict(query['query_text'], 'TOKEN_ID' if field['type'] == 'sparse_vector' else 'WORD')
        if not all(0 < weight <= 64 for weight in weights.values()): raise Refused('weight must be in (0, 64]')
        hits = [dict(_index=index, _id=id, _score=float(scores([weights], [row])[0, 0])) for id, row in self.documents.items()]
        return dict(took=1, hits=dict(hits=[hit for hit in hits if hit['_score'] > 0]))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass

    def route(self) -> None:
        text, path = self.rfile.read(int(self.headers.get('content-length') or 0)), self.path.split('?')[0].strip('/').split('/')
        self.server.asked.append((self.command, self.path, self.headers.get('authorization')))
        try: status, body = 200, self.server.answer(self.command, path, text)
        except (Refused, jsonschema.ValidationError) as error: status, body = 400, dict(error=str(error).splitlines()[0], status=400)
        content = json.dumps(body, separators=(',', ':')).encode()
        self.send_response(status)
        self.send_header('content-length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = route


def started(server: ThreadingHTTPServer) -> ThreadingHTTPServer:
    threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01), daemon=True).start()
    server.address = f'http://127.0.0.1:{server.server_port}'
    return server


@pytest.fixture
def serve():
    servers = []
    def start(server): servers.append(started(server)); return servers[-1]
    yield start
    for server in servers: server.shutdown(); server.server_close()


def register(folder: Path, address: str, **environment) -> subprocess.CompletedProcess:
    if not shutil.which('curl'): pytest.skip('register.sh needs curl')
    known = {name: value for name, value in os.environ.items() if not name.startswith('OPENSEARCH')}
    return subprocess.run(['bash', folder/'register.sh'], env=known | dict(OPENSEARCH_URL=address, PAUSE='0.01', PATIENCE='20') | environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize('form, field', [('looked-up', 'rank_features'), ('looked-up', 'sparse_vector'), ('counted', 'semantic'), ('cosine', 'rank_features')])
def test_the_script_registers_deploys_and_finds(form, field, exports, serve):
    server, folder = serve(MLServer()), exports(form)[1]
    done = register(folder, server.address + '/', FIELD=field, CHUNK='20000', OPENSEARCH_USER='admin', OPENSEARCH_PASSWORD='a"b\\c $x', **(dict(ENGINE='native') if field == 'sparse_vector' else {}))
    assert done.returncode == 0, done.stderr
    uploads = [path for method, path, _ in server.asked if 'upload_chunk' in path]
    assert len(uploads) > 2 and len(server.deployed) == (1 if form == 'cosine' else 2) and '"_id":"1"' in done.stdout
    assert {sign for *_, sign in server.asked} == {'Basic YWRtaW46YSJiXGMgJHg='}  # admin:a"b\c $x
    assert server.settings['plugins.ml_commons.only_run_on_ml_node'] is False and list(server.indices) == ['splade']
    if field == 'sparse_vector': assert server.field('splade')['method']['engine'] == 'native'


def test_the_server_may_fetch_the_files_itself(exports, serve):
    folder = exports('looked-up')[1]
    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *arguments): super().__init__(*arguments, directory=str(folder))
        def log_message(self, *_): pass
    server, files = serve(MLServer()), serve(ThreadingHTTPServer(('127.0.0.1', 0), Files))
    done = register(folder, server.address, MODELS=files.address + '/', SETTINGS='keep', INDEX='한'.encode().hex())
    assert done.returncode == 0, done.stderr
    assert not any('upload_chunk' in path for _, path, _ in server.asked) and server.settings == {} and list(server.indices) == ['ed959c']


@pytest.mark.parametrize('broken, said', [('_register_meta', '_register_meta is broken'), ('upload_chunk', 'upload_chunk is broken'), ('_deploy', '_deploy is broken'),
                                          ('task', 'out of memory'), ('pipeline', 'pipeline is broken'), ('_search', '_search is broken')])
def test_the_script_stops_at_the_first_error_with_the_reason(broken, said, exports, serve):
    server = serve(MLServer(broken))
    done = register(exports('cosine')[1], server.address)
    assert done.returncode == 1 and said in done.stderr and '_score' not in done.stdout


@pytest.mark.parametrize('environment, said', [(dict(FIELD='dense'), 'FIELD=dense: rank_features, semantic or sparse_vector'), (dict(ENGINE='gpu'), 'ENGINE=gpu: lucene or native'),
                                               (dict(INDEX='A b'), 'INDEX=A b: lower case'), (dict(MODELS='http://x/"y'), 'an address is expected'), ({}, 'does not answer')])
def test_wrong_input_of_the_script_is_named(environment, said, exports):
    done = register(exports('cosine')[1], 'http://127.0.0.1:9', **dict(SETTINGS='keep') | environment)
    assert done.returncode == 1 and said in done.stderr


def test_an_index_that_exists_stays(exports, serve):
    server = serve(MLServer())
    server.indices['splade'] = 'theirs'
    done = register(exports('cosine')[1], server.address)
    assert done.returncode == 1 and 'already exists' in done.stderr and server.indices['splade'] == 'theirs'


# The connector

@pytest.fixture(scope='module')
def rich(texts):
    "A model that OpenSearch cannot run: Kiwi, and query weights beyond what Lucene takes."
    tokenizer = SpladeTokenizer(train_unigram(texts[-20:], 1000), 'kiwi')
    model = toy_model(len(tokenizer.backend), inference_free_query=True, max_length=48, similarity='dot')
    model.query_weight += 99
    return Encoder('rich', model.eval(), tokenizer, label_of(model, tokenizer))


@pytest.fixture(scope='module')
def service(rich):
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from fastapi.testclient import TestClient
    async def at_once(call, *arguments): return call(*arguments)
    app = FastAPI()
    app.add_exception_handler(RequestValidationError, _invalid_request)
    add_connector(app, rich, at_once, 'geheim')
    return TestClient(bounded(app))


@pytest.fixture(scope='module')
def connected(rich, tmp_path_factory):
    folder = tmp_path_factory.mktemp('connected')/'out'
    write_form(rich.model, rich.tokenizer, 'opensearch-connector', folder, data='toy')
    return folder


@pytest.mark.parametrize('field', ('rank_features', 'sparse_vector'))
def test_our_service_serves_inside_a_pipeline(field, rich, service, connected, serve, texts):
    server = serve(MLServer(client=service))
    done = register(connected, server.address, FIELD=field, SERVICE='http://10.0.0.7:8000/', TOKEN='geheim')
    assert done.returncode == 0, done.stderr
    documents, queries = (server.deployed[f'model-{number}'] for number in (0, 1))
    key = 'TOKEN_ID' if field == 'sparse_vector' else 'WORD'
    asked, read = texts[90:96], [*texts[:4], '제주도 아이튠즈 요금']
    found = scores([queries.predict(text, key) for text in asked], [documents.predict(text, key) for text in read])
    ours = [encode(rich.model, rich.tokenizer, part, document=side) for part, side in ((asked, False), (read, True))]
    ours[0] = ours[0] * (HEAVIEST / 100)
    assert ours[0].nnz and np.allclose(found, (ours[0] @ ours[1].T).toarray(), rtol=1e-4, atol=1e-4)
    assert server.settings['plugins.ml_commons.trusted_connector_endpoints_regex'] == [r'^http://10\.0\.0\.7:8000/.*$']


@pytest.mark.parametrize('environment, said', [(dict(), 'SERVICE=: the address'), (dict(SERVICE='ftp://a'), 'SERVICE=ftp'), (dict(SERVICE='http://a', TOKEN='"'), 'TOKEN: letters'),
                                               (dict(SERVICE='http://a', FIELD='semantic'), 'its remote models are dense ones'), (dict(SERVICE='http://a', TOKEN='falsch'), 'authorization: Bearer')])
def test_a_wrong_connection_is_named(environment, said, service, connected, serve):
    done = register(connected, serve(MLServer(client=service)).address, **environment)
    assert done.returncode == 1 and said in done.stderr


@pytest.mark.parametrize('body, status', [(b'{"input": [', 422), (json.dumps(dict(input=['글'] * (network.PIPELINE.texts + 1))).encode(), 422), (json.dumps(dict(input=['글' * (network.PIPELINE.letters + 1)])).encode(), 422),
                                          (b'{"input": ["\\ud800"]}', 422), (b'{"input": [null]}', 422), (b'x' * (network.PIPELINE.bytes + 1), 413), (json.dumps(dict(input=['글' * network.PIPELINE.letters])).encode(), 200)])
def test_requests_have_limits(body, status, service):
    sent = dict(content=body, headers={'authorization': 'Bearer geheim', 'content-type': 'application/json'})
    assert service.post('/api/opensearch/documents', **sent).status_code == status
    assert service.post('/api/opensearch/documents', content=body).status_code in (401, 413)


@pytest.mark.skipif(not os.environ.get('OPENSEARCH_URL'), reason='OPENSEARCH_URL names no server')
@pytest.mark.parametrize('field', ('rank_features', 'semantic', 'sparse_vector'))
def test_a_real_server(field, exports):
    name = f'splade-{os.getpid()}-{field}'
    done = subprocess.run(['bash', exports('looked-up')[1]/'register.sh'], env=os.environ | dict(FIELD=field, INDEX=name), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"_id":"1"' in done.stdout

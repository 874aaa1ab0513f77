"""A model inside Vespa: what its embedder makes of the exported application, and what deploy.sh sends."""
import io, json, os, re, shutil, subprocess, tarfile
from pathlib import Path
from xml.etree import ElementTree
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from test_opensearch_model import MLServer, Refused, first_window, scores, serve # noqa: F401
from splade_nb.cli import main
from splade_nb.config.files import ConfigError
from splade_nb.data.tokenizer import SpladeTokenizer, save_tokenizer, train_unigram
from splade_nb.evaluation.exact_search import normalize_for_scoring
from splade_nb.lab import vespa_model # noqa: F401, adds its form
from splade_nb.hub.export import write_form
from splade_nb.hub.opensearch_model import HEAVIEST
from splade_nb.model.counted_terms import learned_part, searched_model
from splade_nb.model.encode import encode
from splade_nb.model.initialization import toy_model
from splade_nb.model.load import save

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's

onnxruntime = pytest.importorskip('onnxruntime')
pytest.importorskip('onnxscript')
FORMS = {'looked-up': dict(inference_free_query=True, context_gate=False),
         'joined': dict(counted_terms=64, most_query_terms=9, most_document_terms=40, document_norm=0.5),
         'cosine': dict(similarity='cosine', mask_special=False)}
GRAPHS = 'looked-up', 'joined', 'cosine'
LENGTH = 48


@pytest.fixture(scope='module')
def tokenizer(texts): return SpladeTokenizer(train_unigram(texts, 1200))


@pytest.fixture(scope='module')
def exports(tokenizer, texts, tmp_path_factory):
    "A function from a form to its model, its folder and its limits, written once."
    folder, known = tmp_path_factory.mktemp('exports'), {}
    def written(form: str) -> tuple:
        if form not in known:
            options = {'similarity': 'dot', 'max_length': LENGTH} | FORMS[form]
            model = toy_model(len(tokenizer), **options | dict(counted_terms=0)).eval()
            whole = searched_model(model, tokenizer, texts, model.settings.but(**options))
            if model.query_shift is not None:
                model.query_weight += torch.arange(len(tokenizer)) % 7
                model.query_weight[9] = 2 * HEAVIEST
            known[form] = learned_part(*whole)[0], folder/form, write_form(*whole, 'vespa', folder/form)
        return known[form]
    return written


# The server's side, as the sources of Vespa have it

class Embedder:
    "SpladeEmbedder over the files that a component of services.xml names."
    def __init__(self, component: ElementTree.Element, read):
        assert component.get('type') == 'splade-embedder'
        self.session = onnxruntime.InferenceSession(read(component.find('transformer-model').get('path')))
        self.tokenizer = Tokenizer.from_str(read(component.find('tokenizer-model').get('path')).decode())
        truncation = self.tokenizer.truncation
        if not truncation or truncation['strategy'] != 'longest_first': self.tokenizer.enable_truncation(int(component.find('max-tokens').text))
        else: self.tokenizer.enable_truncation(min(truncation['max_length'], 512)) # DJL: modelMaxLength
        self.threshold, self.known = float(component.find('term-score-threshold').text), {}

    def embed(self, text: str) -> dict:
        if text in self.known: return self.known[text]
        row = self.tokenizer.encode(text)
        given = dict(input_ids=row.ids, attention_mask=row.attention_mask, token_type_ids=row.type_ids)
        types = {each.name: each.type for each in self.session.get_inputs()}
        if missing := set(given) - set(types): raise Refused(f'ONNX model has no input with name {missing}')
        assert set(types.values()) == {'tensor(int64)'}
        outputs = dict(zip([each.name for each in self.session.get_outputs()], self.session.run(None, {
            name: np.array([ids], dtype=np.float32).astype(np.int64) for name, ids in given.items()})))
        logits = outputs['logits']
        assert logits.ndim == 3 and logits.shape[0] == 1 and logits.dtype == np.float32
        weights = np.log(1 + np.maximum(logits[0].astype(float).max(0), 0))
        found = [(self.tokenizer.decode([int(i)], skip_special_tokens=False), np.float32(weights[i])) for i in np.flatnonzero(weights > self.threshold)]
        assert len(dict(found)) == len(found), 'two weights under one label'
        self.known[text] = dict(found)
        return self.known[text]


class Application:
    "services.xml and the schema: embedders, the field that one fills, and rank profiles."
    def __init__(self, read): # read: path to content
        services = ElementTree.fromstring(read('services.xml'))
        self.embedders = {each.get('id'): Embedder(each, read) for each in services.findall('container/component')}
        schema = read('schemas/doc.sd').decode()
        assert services.find('content/documents/document').get('type') == re.search(r'^schema (\w+) \{', schema)[1] == 'doc'
        assert schema.count('{') == schema.count('}') and services.find('container/document-api') is not None and services.find('container/search') is not None
        self.source, embedder = re.search(r'field vector type tensor<float>\(token\{\}\) \{\s+indexing: input (\w+) \| embed (\w+) \| attribute', schema).groups()
        self.writes, self.profiles = self.embedders[embedder], set(re.findall(r'rank-profile (\w+)', schema))

    def query(self, body: dict) -> dict:
        assert body['ranking'] in self.profiles and body['yql'].startswith('select * from doc where ')
        embedder, parameter = re.fullmatch(r'embed\((\w+), @(\w+)\)', body['input.query(q)']).groups()
        return self.embedders[embedder].embed(body[parameter])


def opened(folder: Path) -> Application: return Application(lambda path: (folder/'application'/path).read_bytes())


@pytest.mark.parametrize('form', GRAPHS)
def test_the_embedder_gives_our_scores(form, exports, tokenizer, texts):
    model, folder, limits = exports(form)
    if form == 'looked-up': texts = [first_window(tokenizer, text) for text in texts] # `encode` counts what it does not read
    application, body = opened(folder), json.loads((folder/'search-exact.json').read_text(encoding='utf-8'))
    found = scores([application.query(body | dict(text=text)) for text in texts[50:]], [application.writes.embed(text) for text in texts[:50]])
    ours = [normalize_for_scoring(encode(model, tokenizer, part, document=side, most_windows=1), model.settings.similarity)
            for part, side in ((texts[50:], False), (texts[:50], True))]
    wanted = (ours[0] @ ours[1].T).toarray()
    factor = 2 if form == 'looked-up' else 1
    assert wanted.max() > 0 and np.allclose(found * factor, wanted, rtol=1e-4, atol=1e-5)
    assert any('Counted terms are left out' in limit for limit in limits) == (form == 'joined')
    assert len(application.embedders) == 1 + (form != 'cosine') and any('divided by 2' in limit for limit in limits) == (factor == 2)


def test_labels_are_those_of_the_vocabulary(exports, tokenizer):
    embedder = opened(exports('cosine')[1]).writes
    assert [embedder.tokenizer.decode([id], skip_special_tokens=False) for id in range(len(tokenizer))] == tokenizer.names


def test_a_text_is_cut_where_the_model_ends(exports, texts):
    embedder, text = opened(exports('cosine')[1]).writes, ' '.join(texts[:20])
    assert len(embedder.tokenizer.encode(text).ids) == LENGTH and embedder.embed(text)


# What is refused, by name

def test_what_vespa_cannot_run_is_refused(tokenizer, tmp_path):
    rich = SpladeTokenizer(tokenizer.backend, 'kiwi')
    with pytest.raises(ConfigError, match='Vespa cannot run this model itself: .*segment=kiwi.*Encode outside'):
        write_form(toy_model(len(tokenizer)), rich, 'vespa', tmp_path/'out')
    assert [*tmp_path.iterdir()] == []


def test_data_is_not_taken(tokenizer, tmp_path, capsys):
    save_tokenizer(tokenizer, save(toy_model(len(tokenizer)), tmp_path/'model'))
    assert main(['export', '--model', str(tmp_path/'model'), '--out', str(tmp_path/'out'), '--to', 'vespa', '--data', 'mini']) == 2
    assert 'data=mini: opensearch, opensearch-connector, elasticsearch measure on it, vespa does not' in capsys.readouterr().err


# deploy.sh against a server that checks what it is told

class VespaServer(MLServer):
    "As much of the config server, the health page, documents and search as deploy.sh asks for."
    application, looks = None, 0
    def answer(self, method: str, path: list, text: bytes) -> dict:
        if self.broken and self.broken in path: raise Refused(f'{self.broken} is broken')
        match method, path:
            case 'POST', ['application', 'v2', 'tenant', 'default', 'prepareandactivate']:
                with tarfile.open(fileobj=io.BytesIO(text), mode='r:gz') as found:
                    files = {each.name.removeprefix('./'): found.extractfile(each).read() for each in found if each.isfile()}
                self.application = Application(files.__getitem__)
            case 'GET', ['state', 'v1', 'health']:
                self.looks += 1
                return dict(status=dict(code='up' if self.application and self.looks > 2 else 'initializing'))
            case 'POST', ['document', 'v1', 'doc', 'doc', 'docid', id]:
                self.documents[f'id:doc:doc::{id}'] = self.application.writes.embed(json.loads(text)['fields'][self.application.source])
            case 'POST', ['search']:
                weights = self.application.query(json.loads(text))
                return dict(root=dict(children=[dict(id=id, relevance=float(scores([weights], [row])[0, 0])) for id, row in self.documents.items()]))
            case _: raise Refused(f'no handler for {path}')
        return dict(ok=True)


def deploy(folder: Path, address: str, **environment) -> subprocess.CompletedProcess:
    if not shutil.which('curl'): pytest.skip('deploy.sh needs curl')
    known = {name: value for name, value in os.environ.items() if not name.startswith('VESPA')}
    return subprocess.run(['bash', folder/'deploy.sh'], env=known | dict(VESPA_URL=address, VESPA_CONFIG_URL=address, PAUSE='0.01', PATIENCE='20') | environment, capture_output=True, text=True)


@pytest.mark.parametrize('form, search', [('looked-up', 'exact'), ('cosine', 'rerank')])
def test_the_script_deploys_and_finds(form, search, exports, serve): # noqa: F811
    server = serve(VespaServer())
    done = deploy(exports(form)[1], server.address + '/', SEARCH=search)
    assert done.returncode == 0, done.stderr
    assert '"id:doc:doc::1"' in done.stdout and server.looks == 3
    first, second = json.loads((exports(form)[1]/'example.json').read_text())['fields']['text'], json.loads((exports(form)[1]/f'search-{search}.json').read_text())
    wanted = scores([server.application.query(second)], [server.application.writes.embed(first)])[0, 0]
    assert json.loads(done.stdout)['root']['children'][0]['relevance'] == pytest.approx(float(wanted))


@pytest.mark.parametrize('broken, environment, said', [
    ('prepareandactivate', {}, 'prepareandactivate is broken'), ('document', {}, 'document is broken'), ('search', {}, 'search is broken'),
    ('health', dict(PATIENCE='1'), 'is not up after 1 seconds'), ('', dict(SEARCH='ann'), 'SEARCH=ann: exact or rerank'), ('', dict(VESPA_CONFIG_URL='http://127.0.0.1:9'), 'does not answer')])
def test_the_script_stops_with_the_reason(broken, environment, said, exports, serve): # noqa: F811
    done = deploy(exports('cosine')[1], serve(VespaServer(broken)).address, **environment)
    assert done.returncode == 1 and said in done.stderr and 'relevance' not in done.stdout


@pytest.mark.skipif(not os.environ.get('VESPA_URL'), reason='VESPA_URL names no server')
@pytest.mark.parametrize('form', FORMS)
def test_a_real_server(form, exports):
    folder = exports(form)[1]
    done = subprocess.run(['bash', folder/'deploy.sh'], env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    application, body = opened(folder), json.loads((folder/'search-exact.json').read_text(encoding='utf-8'))
    example = json.loads((folder/'example.json').read_text(encoding='utf-8'))['fields']['text']
    wanted = scores([application.query(body)], [application.writes.embed(example)])[0, 0]
    assert json.loads(done.stdout)['root']['children'][0]['relevance'] == pytest.approx(float(wanted), rel=1e-4)

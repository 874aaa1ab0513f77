"""Exports and imports on real texts: the same vectors here and in other tools."""
import base64, json, os, re, shutil, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import numpy as np
import pytest
import torch
from conftest import real
from splade_nb.serving.searcher import build_searcher
from splade_nb.hub.model_card import FORMATS, push
from splade_nb.data.records import toy_corpus
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.counted_terms import searched_model
from splade_nb.model.encode import encode
from splade_nb.hub.export import FROM_INTEGERS, beyond_pooling, whole_tokenizer, write_form
from splade_nb import load
from splade_nb.hub import onnx_int8
from splade_nb.model.onnx import OnnxEncoder
from splade_nb.training.dataset import prepare
from splade_nb.model.load import save
from splade_nb.model.initialization import toy_model
from splade_nb.model.load import open_checkpoint_folder
from splade_nb.model.load import load_encoder, pretrained_backbone
from splade_nb.evaluation.retrieval import evaluate_model, retrieve
from splade_nb.cli import export_model
from splade_nb.data.tokenizer import load_tokenizer, save_tokenizer
from splade_nb.training.check_settings import quiet, tiny_checkpoint

sentence_transformers = pytest.importorskip('sentence_transformers')
SMALL = dict(hidden=32, layers=1, vocabulary=600, max_length=48, document_norm=0.5)
FORMS = ('v22-mini', 'v26-full', 'v28-mini', 'v29-mini', 'v28-counted')
PLAIN = ('v26-full',)  # nothing stands beyond pooling


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    "A function from a form's name to an untrained model in a model folder, its weights moved away from their start."
    folder, known, corpus = tmp_path_factory.mktemp('models'), {}, toy_corpus()
    def made(form: str) -> Path:
        if form in known: return known[form]
        version, scale = form.split('-')
        with quiet():
            sizes = SMALL if scale == 'mini' else dict(backbone=tiny_checkpoint(folder/'tiny', list(corpus.texts.values()), 0), max_length=48, teacher='lsa', initial_terms=0, document_norm=0.0)
            settings = resolve_quietly(version, 'corrected', scale.replace('counted', 'full'), **sizes)
            setup = prepare(settings, corpus, 42, place='cpu')
        with torch.no_grad():
            for weight in setup.model.parameters(): weight.add_(0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
        more = dict(counted_terms=64, most_query_terms=8, most_document_terms=20, document_norm=0.5) if scale == 'counted' else {}
        model, tokenizer = searched_model(setup.model.eval(), setup.training_data.tokenizer, corpus.texts.values(), settings.but(**more))
        known[form] = save(model, folder/form)
        save_tokenizer(tokenizer, known[form])
        return known[form]
    return made


@pytest.fixture(scope='module')
def graphs(models, tmp_path_factory):
    "A function from a form's name to its ONNX folder, made once, and what was told."
    folder, known = tmp_path_factory.mktemp('graphs'), {}
    def made(form: str) -> tuple:
        if form not in known: known[form] = folder/form, export_model(str(models(form)), 'onnx', str(folder/form))
        return known[form]
    return made


def far(rows, wanted) -> float:
    "The largest difference between rows, which must not be empty."
    assert rows.shape == wanted.shape and wanted.nnz > rows.shape[0]
    return abs(rows - wanted).max()


def both(model, tokenizer, texts, **how): return {document: encode(model, tokenizer, texts, document=document, **how) for document in (True, False)}


def sparse_rows(tensor):
    from scipy import sparse
    return sparse.csr_matrix(tensor.to_dense().numpy())


def program(script: str, *arguments, folder: Path, **environment) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', script, *map(str, arguments)], cwd=folder, capture_output=True, text=True, env=os.environ | environment)


def card_code(folder: Path) -> str: return re.search(r'```python\n(.*?)```', (folder/'README.md').read_text(encoding='utf-8'), re.S)[1]


# Ours in sentence-transformers

@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
def test_a_sparse_encoder_gives_our_vectors(form, models, texts, tmp_path):
    model, tokenizer = load_encoder(models(form))
    export_model(str(models(form)), 'sentence-transformers', str(tmp_path/'out'))
    there = sentence_transformers.SparseEncoder(str(tmp_path/'out'), trust_remote_code=form not in PLAIN, device='cpu')
    wanted = both(model, tokenizer, texts, most_windows=1 if form in PLAIN else 8)
    assert far(sparse_rows(there.encode_document(texts)), wanted[True]) < 1e-5
    assert far(sparse_rows(there.encode_query(texts)), wanted[False]) < 1e-5
    assert there.get_embedding_dimension() == len(tokenizer) and (form in PLAIN) == (beyond_pooling(model, tokenizer) == [])


def test_a_bias_that_the_decoder_of_the_backbone_lacks_is_exported_with_the_module():
    "Calibration of the start, a bound on expansion and `seen_only` write it; a plain masked language model has no place for it."
    from transformers import ModernBertConfig, ModernBertForMaskedLM
    from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
    from splade_nb.model.initialization import resolve_toy
    from splade_nb.model.splade_doc import SpladeDoc
    shape = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
    model = SpladeDoc(ModernBertForMaskedLM(ModernBertConfig(vocab_size=60, decoder_bias=False, **shape)), resolve_toy(context_gate=False, mask_special=False), [])
    tokenizer = SpladeTokenizer(train_unigram(list(toy_corpus().texts.values()), 300))
    assert beyond_pooling(model, tokenizer) == []
    model.decoder.bias.data[7] = -1
    assert beyond_pooling(model, tokenizer) == ['masked or calibrated terms: the decoder of the backbone has no bias']


def test_a_part_of_ones_own_is_refused_by_what_cannot_carry_it(tmp_path, monkeypatch):
    from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
    from splade_nb.model import term_weights
    monkeypatch.setattr(term_weights, 'TERM_WEIGHTS', {})
    @term_weights.register_term_weight('double')
    class Double(term_weights.TermWeight):
        def __init__(self, settings, columns): pass
        def on_weights(self, weights, texts): return 2 * weights
    tokenizer = SpladeTokenizer(train_unigram(list(toy_corpus().texts.values()), 300))
    model = toy_model(len(tokenizer), context_gate=False, term_weights=('double',))
    for form in ('mlm', 'sentence-transformers'):
        with pytest.raises(ConfigError, match='term_weights=.*double'): write_form(model, tokenizer, form, tmp_path/form)


@pytest.mark.slow
def test_the_folder_needs_no_splade_nb(models, tmp_path):
    export_model(str(models('v29-mini')), 'sentence-transformers', str(tmp_path/'out'))
    done = program("import sys; sys.modules['splade_nb'] = None\n" + card_code(tmp_path/'out').replace("'out'", 'sys.argv[1]'), tmp_path/'out', folder=tmp_path, HF_MODULES_CACHE=str(tmp_path/'code'))
    assert done.returncode == 0 and 'tensor' in done.stdout, done.stderr[-2000:]


@pytest.mark.slow
def test_their_evaluator_and_search_judge_it(models, tmp_path):
    from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator
    from sentence_transformers.sparse_encoder.search_engines import semantic_search_seismic
    corpus = toy_corpus(); (model, tokenizer), folder = load_encoder(models('v28-mini')), tmp_path/'out'
    export_model(str(models('v28-mini')), 'sentence-transformers', str(folder))
    there = sentence_transformers.SparseEncoder(str(folder), trust_remote_code=True, device='cpu')
    asked = {id: query.text for id, query in corpus.queries.items() if corpus.qrels.get(id)}
    found = SparseInformationRetrievalEvaluator(asked, corpus.texts, {id: {doc for doc, grade in corpus.qrels[id].items() if grade} for id in asked}, ndcg_at_k=[10], accuracy_at_k=[1])(there)
    ranking = retrieve(model, tokenizer, asked, corpus.texts)[0]
    right = np.mean([bool(corpus.qrels[id].get(max(rank, key=rank.get), 0)) if rank else False for id, rank in ranking.items()])
    assert found['dot_accuracy@1'] == pytest.approx(right, abs=0.02) and found['dot_ndcg@10'] > 0.3
    ids, [question] = list(corpus.texts), list(asked.values())[:1]
    hits, _ = semantic_search_seismic(there.decode(there.encode_query([question])), there.decode(there.encode_document(list(corpus.texts.values()))), top_k=3)
    assert ids[hits[0][0]['corpus_id']] == max(ranking[next(iter(asked))], key=ranking[next(iter(asked))].get)


# Ours as a plain masked language model, and in ONNX Runtime

def test_a_masked_language_model_by_its_card(models, texts, tmp_path, monkeypatch):
    from scipy import sparse
    model, tokenizer = load_encoder(models('v26-full'))
    export_model(str(models('v26-full')), 'mlm', str(tmp_path/'out'))
    monkeypatch.chdir(tmp_path)
    code, found = re.sub(r"tokenizer\(\[.*?\]", 'tokenizer(texts', card_code(tmp_path/'out')), dict(texts=texts)
    exec(code, found)
    assert far(sparse.csr_matrix(found['vectors'].numpy()), encode(model, tokenizer, texts, most_windows=1)) < 1e-5


@pytest.mark.parametrize('form, said', [('v28-mini', 'the context gate'), ('v22-mini', 'morphemes by Kiwi'), ('v28-counted', '128 columns of counted morphemes')])
def test_what_a_masked_language_model_would_lose_is_named(form, said, models, tmp_path):
    with pytest.raises(ConfigError, match=said): export_model(str(models(form)), 'mlm', str(tmp_path/'out'))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize('form', [form for form in FORMS if form != 'v22-mini'])  # its parts are those of two others
def test_onnx_gives_our_vectors(form, models, graphs, texts):
    (model, tokenizer), (folder, told) = load_encoder(models(form)), graphs(form)
    light, wanted = OnnxEncoder(folder), both(model, tokenizer, texts)
    for document in (True, False): assert far(light.encode(texts, document), wanted[document]) < 1e-4
    assert not any('tokens are read' in limit for limit in told['limits']) and ('splade_onnx' not in card_code(folder)) == (form == 'v26-full')


@pytest.mark.slow
def test_onnx_in_small_integers(models, graphs, texts, tmp_path, monkeypatch):
    import onnx
    (model, tokenizer), (made, _) = load_encoder(models('v26-full')), graphs('v26-full')
    monkeypatch.setattr(onnx_int8, 'to_onnx', lambda _, __, folder: [str(shutil.copytree(made, folder, dirs_exist_ok=True))])
    folder, wanted = tmp_path/'int8', both(model, tokenizer, texts)[True]
    assert write_form(model, tokenizer, 'onnx-int8', folder)[-1] == onnx_int8.ROUNDED
    held = [each for each in onnx.load(folder/'model.onnx').graph.initializer if each.data_type == onnx.TensorProto.INT8]
    assert len(held) >= 7 and {tuple(each.dims) for each in held} >= {(32, len(tokenizer)), (len(tokenizer), 32)}  # decoder, embeddings
    light = load(folder)
    rows = encode(light.model, light.tokenizer, texts)
    assert abs(rows - wanted).max() < 0.05 * wanted.max() and far(rows, wanted) > 0
    assert abs(encode(light.model, light.tokenizer, texts[:1]) - rows[:1]).max() < 1e-5  # whatever stands beside it
    weights = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in ('.onnx', '.safetensors'))
    assert weights < 0.7 * sum((made/name).stat().st_size for name in ('model.onnx', 'model.safetensors'))
    raw = (folder/'model.onnx').read_bytes()
    (folder/'model.onnx').write_bytes(raw[:len(raw) // 2])
    for runtime in ('auto', 'torch'):
        with pytest.raises(ConfigError, match='model.onnx: damaged'): load(folder, runtime)


@pytest.mark.slow
@pytest.mark.parametrize('form', ('v26-full', 'v28-mini', 'v29-mini'))
def test_pytorch_reads_the_weights_of_a_graph(form, models, graphs, tmp_path, monkeypatch):
    "Each weight is that which was trained, within a step of its integers."
    model, tokenizer = load_encoder(models(form))
    if form == 'v28-mini': monkeypatch.setattr(onnx_int8, 'to_onnx', lambda _, __, folder: [str(shutil.copytree(graphs(form)[0], folder, dirs_exist_ok=True))])
    if form == 'v26-full': model.decoder.bias = torch.nn.Parameter(model.decoder.bias - 0.1)  # as `expansion_df` leaves it
    write_form(model, tokenizer, 'onnx-int8', tmp_path/'int8')
    wanted, found = model.state_dict(), load_encoder(tmp_path/'int8')[0].state_dict()
    assert wanted.keys() == found.keys()
    other = [name for name, value in wanted.items() if (found[name].float() - value.float()).abs().max() > value.float().abs().max() / 126]
    unread = ['backbone.lm_head.bias'] * (form == 'v26-full')  # the head's own bias
    assert [name for name in other if name != 'special'] == unread and (found['special'] | wanted['special']).equal(found['special'])  # an export masks signs too
    if form == 'v26-full':
        said = []
        for place in (models(form), tmp_path/'int8'): said.append(write_form(*load_encoder(place), 'mlm', tmp_path/f'mlm-{len(said)}'))
        assert FROM_INTEGERS not in said[0] and said[1] == [*said[0], FROM_INTEGERS]
    (tmp_path/'int8'/'config.json').unlink()
    with pytest.raises(ConfigError, match='config.json missing'): load(tmp_path/'int8', runtime='torch')


@pytest.mark.slow
def test_training_goes_on_from_a_saved_model(models, tmp_path):
    "With its head and its vocabulary, also by a run's folder and from 8-bit integers."
    model, tokenizer = load_encoder(models('v26-full'))
    shutil.copytree(models('v26-full'), tmp_path/'run'/'model')
    write_form(model, tokenizer, 'onnx-int8', tmp_path/'int8')
    for folder in (models('v26-full'), tmp_path/'run', tmp_path/'int8'):
        settings = resolve_quietly('v26', 'corrected', 'small', backbone=str(folder), max_length=48, query_length=48, teacher='lsa')
        setup = prepare(settings, toy_corpus(), 42, place='cpu')
        wanted, found = load_encoder(folder)[0].backbone.state_dict(), setup.model.backbone.state_dict()
        assert wanted.keys() == found.keys() and all(torch.equal(value, found[name]) for name, value in wanted.items())
        assert setup.training_data.tokenizer.names == tokenizer.names and settings.initial_terms == 0
    with pytest.raises(ConfigError, match='trained with mlm_head=True'): pretrained_backbone(str(models('v26-full')), mlm_head=False)


@pytest.mark.parametrize('bias', [(), ('bias',)])
def test_a_product_with_and_without_a_bias_is_turned(bias):
    import onnx, onnx_ir, onnxruntime
    matrix, rows = (np.random.default_rng(seed).standard_normal((20, 20)).astype(np.float32) for seed in (0, 1))
    held = [onnx.numpy_helper.from_array(array, name) for name, array in dict(matrix=matrix, bias=matrix[0]).items() if name in ('matrix', *bias)]
    value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (20, 20))
    nodes = onnx.helper.make_node('Gemm', ['rows', 'matrix', *bias], ['product'], transB=1), onnx.helper.make_node('Identity', ['product'], ['out'])
    graph = onnx.helper.make_graph(nodes, 'gemm', [value('rows')], [value('out')], held)
    source = onnx_ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 18)], ir_version=10))
    onnx_int8.turn(source.graph)
    assert 'Gemm' not in [node.op_type for node in source.graph]
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(source).SerializeToString(), providers=['CPUExecutionProvider'])
    np.testing.assert_allclose(session.run(None, dict(rows=rows))[0], rows @ matrix.T + (matrix[0] if bias else 0), atol=1e-4)


def test_a_matrix_that_two_products_read_is_rounded_once(tmp_path):
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    rng, shape = np.random.default_rng(0), ['rows', 32]
    given = {name: rng.normal(size=(16, 32)).astype(np.float32) for name in 'ab'}
    nodes = [helper.make_node('MatMul', [name, 'weight'], [f'{name}_out'], name=name) for name in 'ab'] + [helper.make_node('Add', ['a_out', 'b_out'], ['sum'])]
    weight = rng.normal(size=(32, 32)).astype(np.float32)
    graph = helper.make_graph(nodes, 'two', [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in 'ab'],
                              [helper.make_tensor_value_info('sum', TensorProto.FLOAT, shape)], [numpy_helper.from_array(weight, 'weight')])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9), tmp_path/'model.onnx')
    onnx_int8.quantize(tmp_path, given)
    held = [each for each in onnx.load(tmp_path/'model.onnx').graph.initializer if each.data_type == TensorProto.INT8]
    import onnxruntime
    found, = onnxruntime.InferenceSession(str(tmp_path/'model.onnx'), providers=['CPUExecutionProvider']).run(None, given)
    wanted = (given['a'] + given['b']) @ weight
    assert len(held) == 1 and 0 < abs(found - wanted).max() < 0.05 * abs(wanted).max()


@pytest.mark.parametrize('form', ('v26-full', pytest.param('v29-mini', marks=pytest.mark.slow)))
def test_onnx_runs_by_its_card_without_torch(form, graphs):
    folder, _ = graphs(form)
    done = program("import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['splade_nb'] = None\n" + card_code(folder), folder=folder)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-2000:]


@pytest.mark.parametrize('segment, packages', [('kiwi', 'tqdm, onnxruntime, kiwipiepy'), ('none', 'tqdm, onnxruntime')])
def test_the_card_of_a_graph_names_every_package(segment, packages, tmp_path):
    settings = dict(inference_free_query=True, term_frequency=True, counted_terms=0)
    for name, facts in (('splade', settings), ('text', dict(segment=segment))): (tmp_path/f'{name}.json').write_text(json.dumps(facts))
    assert FORMATS['onnx'][-1]('me/model', tmp_path).splitlines()[0].endswith(f'tokenizers, {packages}')


@pytest.mark.slow
def test_the_whole_vocabulary_of_xlmr(tmp_path, texts):
    tokenizer = load_tokenizer(real('tokenizers/xlm-roberta-base'))
    model, some = toy_model(len(tokenizer), context_gate=False, max_length=32), texts[:4] + texts[-4:]
    model.decoder.bias.data.fill_(-0.05)
    wanted = encode(model, tokenizer, some, most_windows=1)
    assert wanted.shape[1] == len(tokenizer) == 250_002
    for form, opened, most in (('sentence-transformers', lambda folder: sparse_rows(sentence_transformers.SparseEncoder(str(folder), device='cpu').encode_document(some, batch_size=4)), 1e-5),
                               ('mlm', lambda folder: encode(*open_checkpoint_folder(folder), some, most_windows=1), 1e-5), ('onnx', lambda folder: OnnxEncoder(folder).encode(some, most_windows=1), 1e-4)):
        write_form(model, tokenizer, form, tmp_path/form)
        assert far(opened(tmp_path/form), wanted) < most, form


# Theirs in ours

@pytest.fixture(scope='module')
def public(tmp_path_factory):
    "Checkpoints as sentence-transformers itself saves them, from random weights."
    from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling, Transformer
    folder = tmp_path_factory.mktemp('public'); torch.manual_seed(0)
    with quiet(): source = tiny_checkpoint(folder/'bare', list(toy_corpus().texts.values()), 1)
    tokenizer = whole_tokenizer(load_tokenizer(source))
    shutil.copytree(source, source := str(folder/'marked')); tokenizer.save_pretrained(source)
    def encoder(pooling): return [Transformer(source, transformer_task='fill-mask', max_seq_length=40), pooling]
    def keep(name, modules): sentence_transformers.SparseEncoder(modules=modules, device='cpu').save_pretrained(str(folder/name)); return folder/name
    table = SparseStaticEmbedding(tokenizer, torch.rand(len(tokenizer)) * 5, frozen=True)
    symmetric = keep('symmetric', encoder(SpladePooling('max')))
    old = json.loads((symmetric/'modules.json').read_text())  # the names of the first versions
    for each, kind in zip(old, ('MLMTransformer', 'SpladePooling')): each['type'] = f'sentence_transformers.sparse_encoder.models.{kind}'
    (symmetric/'modules.json').write_text(json.dumps(old))
    keep('inference-free', [Router.for_query_document([table], encoder(SpladePooling('max', 'log1p_relu')))])
    keep('summed', encoder(SpladePooling('sum')))
    return folder


@pytest.mark.parametrize('name', ('symmetric', 'inference-free'))
def test_a_public_checkpoint_gives_their_vectors(name, public, texts):
    there, (model, tokenizer) = sentence_transformers.SparseEncoder(str(public/name), device='cpu'), open_checkpoint_folder(public/name)
    ours, theirs = both(model, tokenizer, texts, most_windows=1), {True: there.encode_document(texts), False: there.encode_query(texts)}
    for document, vectors in theirs.items():
        vectors = sparse_rows(vectors)
        vectors[:, tokenizer.bare] = 0  # a bare ▁ has a weight there
        assert far(ours[document], vectors) < 1e-5
    assert model.settings.max_length == 40 and (model.query_shift is not None) == (name == 'inference-free')
    assert far(encode(model, tokenizer, texts[:20], screen=True), encode(model, tokenizer, texts[:20])) < 1e-5


def test_commands_take_a_public_checkpoint(public, tmp_path):
    judged = evaluate_model(str(public/'inference-free'), 'toy')
    with build_searcher(public/'inference-free', 'toy', tmp_path/'searcher') as searcher: found = searcher.search('김치찌개 맛집', 5)
    assert judged['queries'] > 0 and judged['active_terms']['doc'] > 0 and len(found) == 5


def test_what_would_be_read_wrongly_is_refused(public):
    with pytest.raises(ConfigError, match="pooling_strategy='sum'"): open_checkpoint_folder(public/'summed')
    with pytest.raises(ConfigError, match='its tokenizer puts'): open_checkpoint_folder(public/'bare')


# The hub

class Hub(BaseHTTPRequestHandler):
    "As much of the hub as a push asks for; remembers what it was told."
    def log_message(self, *_): pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get('content-length', 0))).decode()
        self.server.asked.append((self.path, self.headers.get('authorization'), body))
        here = f'http://127.0.0.1:{self.server.server_port}'
        answer = {'/api/repos/create': dict(url=f'{here}/me/ko', name='me/ko', id='me/ko')}.get(self.path, dict(files=[dict(path=f['path'], uploadMode='regular', shouldIgnore=False) for f in json.loads(body)['files']])
                 if '/preupload/' in self.path else dict(commitUrl=f'{here}/me/ko/commit/1', commitOid='1' * 40, success=True))
        self.send_response(200); self.send_header('content-type', 'application/json'); self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self):
        self.send_response(200); self.send_header('content-type', 'application/json'); self.end_headers()
        self.wfile.write(json.dumps(dict(id='me/ko', sha='0' * 40, siblings=[], private=True)).encode())


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(('127.0.0.1', 0), Hub); server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def login(monkeypatch, tmp_path):
    "A function that says where the hub is, and the token that the client finds."
    from huggingface_hub import constants
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False); monkeypatch.setattr(constants, 'HF_TOKEN_PATH', str(tmp_path/'token'))
    for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'): monkeypatch.delenv(name, raising=False)
    def at(endpoint: str, token: str = '') -> str:
        monkeypatch.setattr(constants, 'ENDPOINT', endpoint)
        if token: monkeypatch.setenv('HF_TOKEN', token)
        return endpoint
    return at


def test_a_push_makes_a_private_repository_and_uploads_the_folder(hub, login, tmp_path):
    (tmp_path/'out').mkdir(); (tmp_path/'out'/'README.md').write_text('---\nlanguage: ko\n---\n# 한국어\n', encoding='utf-8'); (tmp_path/'out'/'model.safetensors').write_bytes(b'weights')
    login(f'http://127.0.0.1:{hub.server_port}', 'hf_test')
    assert push(tmp_path/'out', 'me/ko').endswith('/me/ko')
    created = next(json.loads(body) for path, _, body in hub.asked if path == '/api/repos/create')
    assert created['name'] == 'ko' and (created.get('private') or created.get('visibility') == 'private') and {token for _, token, _ in hub.asked} == {'Bearer hf_test'}
    sent = [json.loads(line) for path, _, body in hub.asked if '/commit/' in path for line in body.splitlines()]
    files = {line['value']['path']: base64.b64decode(line['value']['content']) for line in sent if line['key'] == 'file'}
    assert files.keys() == {'README.md', 'model.safetensors'} and files['model.safetensors'] == b'weights'


def test_a_push_that_cannot_be_says_why(login, tmp_path):
    login('http://127.0.0.1:9')
    with pytest.raises(ConfigError, match='hf auth login'): push(tmp_path, 'me/ko')
    with pytest.raises(ConfigError, match='hf auth login'): export_model('released', 'onnx', str(tmp_path/'out'), name='me/ko')
    assert not (tmp_path/'out').exists(), 'nothing is written where nobody is logged in'
    login('http://127.0.0.1:9', 'hf_test')
    with pytest.raises(ConfigError, match='me/ko could not be pushed to http://127.0.0.1:9'): push(tmp_path, 'me/ko')

"""The package as `pip install splade_nb` brings it: vectors, search and the command line without PyTorch and transformers."""
import ast, inspect, json, os, re, shutil, subprocess, sys
from importlib.metadata import packages_distributions
import numpy as np
import pytest
from packaging.utils import canonicalize_name
from scipy import sparse
from conftest import ROOT
from packages import HIDE, brought
from splade_nb import api, cli
from splade_nb.config.files import ConfigError
from splade_nb.data.tokenizer import PlainTokenizer, SpladeTokenizer, load_tokenizer, masks, text_options
from splade_nb.model.onnx import OnnxModel
from splade_nb.hub.export import add_graph
from splade_nb.model.encode import encode
from splade_nb.model.opened import RELEASED, open_model

SLOW_FIXTURES = 'graph',

TEXTS = ['경복궁은 한복을 입으면 무료입니다', '택배 문자의 링크는 누르지 마세요', '', '제주도 올레길은 봄에 걷기 좋습니다. ' * 60]
QUERIES = ['한복 입고 경복궁', '올레길']

# Where a program is started with these missing, nothing that imports them can pass.
WITHOUT = '''
import sys
class Absent:
    names = {'torch', 'transformers', 'datasets', 'matplotlib', 'pandas', 'sklearn', 'accelerate', 'pyarrow', 'bm25s',
             'pytrec_eval', 'sentencepiece', 'tensorboard', 'onnx', 'fastapi', 'uvicorn', 'ray'}
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in self.names: raise ModuleNotFoundError(f'No module named {name!r}', name=name.split('.')[0])
sys.meta_path.insert(0, Absent())
'''
ENCODED = WITHOUT + '''
import json
from scipy import sparse
from splade_nb import load, search
texts, queries, folder = json.loads(sys.argv[1])
encoder = load()
documents = encoder.encode_document(texts)
found = encoder.encode_query(queries, documents)
sparse.save_npz(f'{folder}/documents.npz', documents)
sparse.save_npz(f'{folder}/queries.npz', found)
hits = search('', folder, queries[0])
print(json.dumps(dict(decoded=encoder.decode(found, 3), hit=hits[0].id, scores=encoder.similarity(found, documents).tolist())))
'''
COMMANDS = WITHOUT + '''
from splade_nb.cli import main
assert not {'numpy', 'scipy'} & {*sys.modules}, 'the command line reads what a command needs when it runs'
print([main(command.split()) for command in sys.argv[1:]])
'''


def program(script: str, *arguments: str, folder) -> subprocess.CompletedProcess:
    environment = os.environ | dict(PYTHONPATH=str(ROOT))
    return subprocess.run([sys.executable, '-c', script, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def write_corpus(folder):  # the folder
    rows = [dict(id=f'd{n}', title='', text=text) for n, text in enumerate(TEXTS) if text]
    (folder/'corpus.jsonl').write_text('\n'.join(json.dumps(row, ensure_ascii=False) for row in rows), encoding='utf-8')
    return folder


@pytest.fixture(scope='module')
def graph(tiny_encoder, tmp_path_factory):
    "A model with counted terms in a folder that both libraries read."
    folder = tmp_path_factory.mktemp('graph')
    api.fit(write_corpus(folder)/'corpus.jsonl', folder/'own',
            dict(backbone=tiny_encoder, max_length=48, initial_terms=20, counted_terms=4096, most_query_terms=0, most_document_terms=0))
    add_graph(open_model(folder/'own', 'torch')[0], folder/'own'/'model')
    return folder/'own'


@pytest.fixture(scope='module')
def runtimes(graph): return open_model(graph, 'torch'), open_model(graph, 'onnx')


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*are longer than')
def test_a_process_without_torch_gives_the_vectors_of_one_with_it(tmp_path):
    write_corpus(tmp_path)
    (tmp_path/'settings.ini').touch()  # where saved copies go
    done = program(ENCODED, json.dumps([TEXTS, QUERIES, str(tmp_path)]), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found, encoder = json.loads(done.stdout), api.load()
    documents = encoder.encode_document(TEXTS)
    queries = encoder.encode_query(QUERIES, documents)
    for name, wanted in dict(documents=documents, queries=queries).items():
        assert abs(sparse.load_npz(tmp_path/f'{name}.npz') - wanted).max() < 1e-4
    assert np.allclose(found['scores'], encoder.similarity(queries, documents), atol=1e-3) and found['hit'] == 'd0'
    assert [[term for term, _ in row] for row in found['decoded']] == [[term for term, _ in row] for row in encoder.decode(queries, 3)]


def test_what_an_installation_lacks_is_named_with_its_extra(tmp_path):
    commands = ['train v28', 'fit --data x', 'evaluate --model x --data mini', 'export --model x --out y', 'serve --data x', 'release --model x --out y',
                'encode --data texts.txt --out y --engine ray', 'encode --data texts.txt --out y --screen on']
    (tmp_path/'texts.txt').write_text('제주도', encoding='utf-8')
    done = program(COMMANDS, *commands, folder=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout) == [2] * len(commands), done.stderr[-2000:]
    assert re.findall(r"pip install 'splade_nb\[(\w+)\]'", done.stderr) == ['train', 'train', 'train', 'export', 'serve', 'export', 'cluster', 'train']
    assert "splade-nb train needs torch: pip install 'splade_nb[train]'" in done.stderr.splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ['texts.txt'], 'nothing half done'


def test_what_only_the_repository_has_is_named(tmp_path, monkeypatch, capsys):
    class NoLaboratory:
        @staticmethod
        def find_spec(name, *_):
            if name == 'splade_nb.lab': raise ModuleNotFoundError(f'No module named {name!r}', name=name)
    monkeypatch.setattr(sys, 'meta_path', [NoLaboratory, *sys.meta_path])
    for name in [name for name in sys.modules if name.startswith('splade_nb.lab')]: monkeypatch.delitem(sys.modules, name)
    (tmp_path/'texts.txt').write_text('제주도', encoding='utf-8')
    url = re.search('^git_url = (.*)$', (ROOT/'settings.ini').read_text(encoding='utf-8'), re.M)[1]
    for command in (*(f'export --to {form} --out' for form in cli.LAB_FORMS), f'encode --data {tmp_path}/texts.txt --engine ray --out'):
        assert cli.main([*command.split(), str(tmp_path/'out')]) == 2
        said = capsys.readouterr().err
        assert f'{next((module for form, module in cli.LAB_FORMS.items() if form in command), "encode_cluster")} is in splade_nb.lab' in said and said.strip().endswith(f'git clone {url}')
    with pytest.raises(ConfigError, match='mlm does not'): cli.export_model('', 'mlm', str(tmp_path/'out'), data='toy')


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*are longer than')
@pytest.mark.parametrize('options', [{}, dict(most_windows=0), dict(whole=True), dict(mean_length=30.0), dict(top_k=9),
                                     dict(keep=np.arange(5, 200, 2)), dict(document=False)], ids=lambda options: '-'.join(options) or 'default')
def test_both_runtimes_give_one_vector(options, runtimes):
    (torch_model, tokenizer), (onnx_model, _) = runtimes
    wanted, found = (encode(model, tokenizer, TEXTS, **options) for model in (torch_model, onnx_model))
    assert wanted.nnz and (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and abs(found - wanted).max() < 1e-4


def test_a_batch_is_divided_between_texts(runtimes, monkeypatch):
    (_, tokenizer), (model, _) = runtimes
    wanted = encode(model, tokenizer, TEXTS, most_windows=2, cut={})
    monkeypatch.setattr('splade_nb.model.onnx.DENSE_BYTES', 1)
    assert abs(encode(model, tokenizer, TEXTS, most_windows=2, cut={}) - wanted).max() < 1e-5


def test_a_tokenizer_read_without_transformers_gives_the_same_ids():
    ours = load_tokenizer(RELEASED/'model')
    plain = SpladeTokenizer(PlainTokenizer(RELEASED/'model'), **text_options(ours))
    assert type(ours.backend) is not PlainTokenizer and plain.ids(TEXTS) == ours.ids(TEXTS) and plain.bags(TEXTS) == ours.bags(TEXTS)
    assert (plain.begin, plain.end, plain.pad, plain.names, plain.words) == (ours.begin, ours.end, ours.pad, ours.names, ours.words)
    assert all((masks(plain)[name] == mask).all() for name, mask in masks(ours).items())


def test_the_graph_reads_the_weights_beside_it(graph, tmp_path):
    import onnx
    made = onnx.load(graph/'model'/'model.onnx', load_external_data=False).graph
    outside = [{entry.key: entry.value for entry in each.external_data} for each in made.initializer if each.external_data]
    assert {entry['location'] for entry in outside} == {'model.safetensors'}
    assert (graph/'model'/'model.onnx').stat().st_size < 200_000
    shutil.copytree(graph/'model', tmp_path/'model')
    (tmp_path/'model'/'model.safetensors').unlink()
    with pytest.raises(ConfigError, match='model.safetensors missing'): OnnxModel(tmp_path/'model')


def test_public_functions_have_types():
    functions = [api.load, api.encode, api.search, api.train, api.evaluate]
    functions += [getattr(api.SparseEncoder, name) for name in ('encode_document', 'encode_query', 'similarity', 'decode', 'sparsity')]
    for function in functions:
        signature = inspect.signature(function)
        untyped = [name for name, given in signature.parameters.items()
                   if given.annotation is given.empty and name != 'self' and given.kind is not given.VAR_KEYWORD]
        assert not untyped and signature.return_annotation is not signature.empty, function.__name__
    assert (ROOT/'splade_nb'/'py.typed').exists()


# The wheel itself

def run(*command: str, folder, code: int = 0, **more: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name not in ('PYTHONPATH', 'IN_TEST')} | more
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, f'{command}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}'
    return done


def in_an_environment(folder, wheel):
    "The programs of an empty environment into which only the wheel was installed: pip chooses what it brings."
    probe = subprocess.run([sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '-d', folder/'probe', 'tqdm'], capture_output=True, text=True)
    if probe.returncode: pytest.skip(f'no package index can be reached: {probe.stderr.strip().splitlines()[-1][:200]}')
    run(sys.executable, '-m', 'venv', folder/'venv', folder=folder)
    run(folder/'venv'/'bin'/'python', '-m', 'pip', 'install', '-q', wheel, folder=folder)
    return folder/'venv'/'bin'


def among_what_it_brings(folder, wheel):
    "Programs that find the wheel, what it depends on and nothing else: no index is asked."
    package, programs = folder/'venv'/'package', folder/'venv'/'bin'
    run(sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--target', package, wheel, folder=folder)
    there = brought('splade_nb', set(), set())
    hidden = {module for module, found in packages_distributions().items() if not {canonicalize_name(each) for each in found} & there}
    (package/'sitecustomize.py').write_text(HIDE.format(hidden=hidden), encoding='utf-8')
    programs.mkdir()
    for name, arguments in (('python', ''), ('splade-nb', '-m splade_nb.cli')):
        (programs/name).write_text(f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" {arguments} "$@"\n', encoding='utf-8')
        (programs/name).chmod(0o755)
    return programs


@pytest.fixture(scope='module', params=[among_what_it_brings, pytest.param(in_an_environment, marks=pytest.mark.weekly)], ids=lambda way: way.__name__)
def installed(request, tmp_path_factory):
    "The programs of the installed wheel, and a folder outside the checkout."
    folder = tmp_path_factory.mktemp('wheel')
    shutil.copytree(ROOT/'splade_nb', folder/'source'/'splade_nb', ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('pyproject.toml', 'setup.py', 'README.md', 'LICENSE'): shutil.copy(ROOT/name, folder/'source'/name)
    files = ast.literal_eval(re.search('^BROUGHT = (.*)$', (ROOT/'setup.py').read_text(), re.M)[1])
    for name in files: shutil.copytree(ROOT/name, folder/'source'/name)
    run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', folder/'built', folder/'source', folder=folder)
    assert not (folder/'source'/'build').exists(), 'the next build would pack its files'
    (folder/'work').mkdir()
    write_corpus(folder/'work')
    [wheel] = (folder/'built').glob('*.whl')
    return request.param(folder, wheel), folder/'work'


@pytest.mark.slow
def test_the_wheel_brings_neither_torch_nor_transformers(installed):
    programs, work = installed
    script = ('import importlib.util as find, pathlib, splade_nb\n'
              'heavy = [name for name in ("torch", "transformers", "datasets", "matplotlib", "pandas") if find.find_spec(name)]\n'
              'assert not heavy, heavy\nfolder = pathlib.Path(splade_nb.__file__).parent\n'
              'assert (folder/"py.typed").exists() and "venv" in folder.parts and not (folder/"lab").exists()\nprint(splade_nb.load())')
    assert repr(api.load()) in run(programs/'python', '-c', script, folder=work).stdout


@pytest.mark.slow
def test_the_wheel_searches_encodes_and_converts(installed):
    programs, work = installed
    command = programs/'splade-nb'
    assert run(command, 'search', '--data', work, '--query', QUERIES[0], folder=work).stdout.startswith('1. d0')
    label = json.loads(run(command, 'encode', '--data', work, '--out', 'shards', folder=work).stdout)
    assert label['whole'] and label['collection']['documents'] == 3
    (work/'queries.txt').write_text('\n'.join(QUERIES), encoding='utf-8')
    run(command, 'encode', '--queries', 'queries.txt', '--collection', 'shards', '--out', 'queries', folder=work)
    documents, queries = (sparse.load_npz(work/name/'shard-000000.npz') for name in ('shards', 'queries'))
    wanted = api.load()
    vectors = wanted.encode_document([text for text in TEXTS if text])
    assert abs(documents - vectors).max() < 1e-4 and abs(queries - wanted.encode_query(QUERIES, vectors)).max() < 1e-4
    run(command, 'convert', '--vectors', 'shards', '--format', 'jsonl', '--out', 'rows', '--data', work, folder=work)
    [rows] = (work/'rows').rglob('*.jsonl*')
    assert [json.loads(row)['id'] for row in rows.read_text(encoding='utf-8').splitlines()] == ['d0', 'd1', 'd3']


@pytest.mark.slow
def test_every_command_of_the_wheel_has_help_or_names_its_extra(installed):
    programs, work = installed
    for name, (_, said, _, extra) in cli.COMMANDS.items():
        shown = ' '.join(run(programs/'splade-nb', name, '--help', folder=work, COLUMNS='300').stdout.split())
        assert said in shown and (f'splade_nb[{extra}]' in shown) == bool(extra)
    refused = run(programs/'splade-nb', 'train', 'v28', folder=work, code=2)
    assert refused.stderr.strip() == "splade-nb train needs torch: pip install 'splade_nb[train]'"
    assert 'miracl_ko' in run(programs/'splade-nb', 'data', folder=work).stdout
    assert not (work/'outputs'/'v28').exists()

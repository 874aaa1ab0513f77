"""The public functions give the scores that `make evaluate` judges; what the README said one version ago still works."""
import json, shutil, subprocess, sys, warnings
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
import splade_nb
from conftest import ROOT, made_collection
from faults import program
from splade_nb.cli import main
from splade_nb.config.files import ConfigError, DataError
from splade_nb.config.versions import resolve
from splade_nb.data.readers import load_collection
from splade_nb.data.records import Document, toy_corpus
from splade_nb.evaluation.metrics import rank, retrieval_metrics
from splade_nb.evaluation.retrieval import evaluate_model, retrieve
from splade_nb.hub.model_card import facts_of, origin
from splade_nb.model.opened import RELEASED
from splade_nb.serving import searcher as searchers
from splade_nb.serving.index import check_vectors
from splade_nb.training.dataset import as_searched, prepare, save_model_folder

TEXTS = ['경복궁은 한복을 입으면 무료로 들어갑니다', '택배 문자의 링크는 누르지 마세요', '제주도 올레길은 봄에 걷기 좋습니다']


def saved(folder: Path, version: str, **settings) -> Path:
    "A run folder with a small untrained model of the toy collection."
    small = resolve(version, hidden=64, vocabulary=1000, **settings)
    save_model_folder(as_searched(prepare(small, toy_corpus(), 42)), folder)
    return folder


@pytest.fixture(scope='module')
def v28(tmp_path_factory) -> Path: return saved(tmp_path_factory.mktemp('v28'), 'v28')


def test_the_package_alone_loads_nothing():
    script = ('import sys, splade_nb\nassert {"load", "encode", "fit", "train", "evaluate", "search"} <= set(dir(splade_nb))\n'
              'assert not {"torch", "numpy", "transformers", "splade_nb.api"} & set(sys.modules)')
    done = subprocess.run([sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    from splade_nb import api, load, search
    assert (load, search) == (api.load, api.search)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match='no attribute'): splade_nb.serach


@pytest.mark.parametrize('version, settings', [('v28', {}), ('splade_ko', {}), ('v28', {'similarity': 'cosine'})])
def test_the_five_lines_give_the_judged_scores(version, settings, tmp_path):
    folder, collection = saved(tmp_path, version, **settings), toy_corpus()
    queries = {id: query.text for id, query in collection.split('test').items()}
    encoder = splade_nb.load(folder)
    documents = encoder.encode_document(collection.texts.values())
    asked = encoder.encode_query(queries.values(), documents)
    scores = encoder.similarity(asked, documents)
    ranking, of_queries, of_documents = retrieve(encoder.model, encoder.tokenizer, queries, collection.texts)
    np.testing.assert_array_equal(scores, (of_queries @ of_documents.T).toarray())
    judged = retrieval_metrics({id: collection.qrels[id] for id in queries}, rank(asked @ documents.T, list(queries), list(collection.texts)))
    found = evaluate_model(str(folder), 'toy')
    assert judged.mean().round(5).to_dict() == {name: found[name] for name in judged}
    assert splade_nb.evaluate(folder, 'toy') == found
    assert found['active_terms']['doc'] == encoder.sparsity(documents)['active_dims']


def test_a_query_without_its_collection_warns(v28, tmp_path):
    encoder = splade_nb.load(saved(tmp_path, 'splade_ko'))
    with pytest.warns(UserWarning, match='pass documents='): encoder.encode_query(TEXTS[:1])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        splade_nb.load(v28).encode_query(TEXTS[:1])


def test_one_text_is_a_list_of_one(v28):
    encoder = splade_nb.load(v28)
    assert encoder.encode_document(TEXTS[0]).shape[0] == encoder.encode_query(TEXTS[0]).shape[0] == 1


def test_what_is_no_vector_of_this_encoder_is_refused(v28):
    encoder = splade_nb.load(v28)
    documents = encoder.encode_document(TEXTS)
    for call in (lambda: encoder.encode_query(TEXTS[:1], TEXTS), lambda: encoder.encode_query(TEXTS[:1], documents[:, :9]), lambda: encoder.similarity(documents, documents[:, :9]),
                 lambda: encoder.similarity(TEXTS, documents), lambda: encoder.decode(documents, -1), lambda: encoder.decode(documents[:, :9]), lambda: splade_nb.load(None)):
        with pytest.raises(ConfigError, match='; allowed: '): call()
    assert encoder.decode(documents[:1].toarray(), 2) == encoder.decode(documents[:1], 2), 'an array will do'
    half = documents[:1].toarray().astype(np.float16)
    assert [term for term, _ in encoder.decode(half, 2)[0]] == [term for term, _ in encoder.decode(documents[:1], 2)[0]]
    for options in (dict(mean_length=np.nan), dict(mean_length=-5.0), dict(threshold=np.inf), dict(threshold='1'), dict(top_k=2.5), dict(top_k=-1), dict(most_windows=1.5),
                    dict(keep=['a']), dict(keep=[-1]), dict(keep=[10 ** 9]), dict(keep=[1.5])):
        with pytest.raises(ConfigError, match=f'{next(iter(options))}: found .*; allowed: '): encoder.encode_document(TEXTS, **options)
    with pytest.raises(ConfigError, match='allowed: a text'): encoder.encode_document(np.array('가'))
    with pytest.raises(ConfigError, match='1 dimensions; allowed: 2'): check_vectors(np.ones(5), searchers.open_encoder(v28).label)


def test_search_finds_what_the_vectors_find(v28, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    hits = splade_nb.search(v28, str(tmp_path/'texts.txt'), '한복 입고 경복궁', k=2)
    encoder = splade_nb.load(v28)
    documents = splade_nb.encode(v28, TEXTS)
    scores = encoder.similarity(encoder.encode_query('한복 입고 경복궁', documents), documents)[0]
    assert [hit.text for hit in hits] == [TEXTS[i] for i in np.argsort(-scores)[:2] if scores[i]]
    assert hits[0].score == pytest.approx(float(scores.max()), rel=1e-5)
    (tmp_path/'table.csv').write_text('text\n나주 배는 달다\n', encoding='utf-8')
    for joined in ('table.csv,texts.txt', 'texts.txt,table.csv'):
        with searchers.saved_searcher(v28, ','.join(str(tmp_path/name) for name in joined.split(','))) as searcher: assert len(searcher) == len(TEXTS) + 1


def test_fewer_results_are_the_first_of_more(tmp_path, monkeypatch):
    "Texts that share only terms that the model added may be no hits: others take their places."
    texts = [*load_collection('mini').documents.values()][:40] + [Document(id, '', text) for id, text in dict(h='漢字 文書 檢索', k='같은 글', t='제목만').items()]
    with searchers.build_searcher('released', texts, tmp_path/'texts') as searcher:
        asked, found = [], searcher.index.search
        monkeypatch.setattr(searcher.index, 'search', lambda vector, k, dense: asked.append(k) or found(vector, k, dense))
        for query in ('이름', '제목만', '漢字'):
            every = searcher.search(query, len(texts))
            assert every and all(searcher.search(query, k) == every[:k] for k in range(1, 9))
        assert len(asked) > 27, 'some are refused'
        asked.clear()
        monkeypatch.setattr(searchers, '_counts_as_hit', lambda *_: False)
        monkeypatch.setattr(searchers, 'MOST_ASKED', 16)
        assert searcher.search('한복 입고 경복궁', 3) == [] and asked == [3, 6, 12, 16], 'a server gives no more'


def test_a_model_named_from_the_root_is_found_again(v28, tmp_path, monkeypatch):
    "A searcher is built from a folder inside the project, and opened without naming the model."
    (tmp_path/'settings.ini').touch()
    shutil.copytree(v28, tmp_path/'run')
    (tmp_path/'notes').mkdir()
    monkeypatch.chdir(tmp_path/'notes')
    documents = [Document(str(number), '', text) for number, text in enumerate(TEXTS)]
    with searchers.build_searcher('run', documents, 'place') as built: assert built.encoder.folder == str((tmp_path/'run').resolve())
    monkeypatch.chdir(tmp_path)
    with searchers.open_searcher('notes/place') as found: assert found.search('한복 입고 경복궁', 1)[0].id == '0'


def test_a_model_of_the_hub_keeps_its_name(monkeypatch):
    monkeypatch.setattr(searchers, 'open_model', lambda name: ('model', 'tokenizer'))
    monkeypatch.setattr(searchers, 'label_of', lambda *of: 'label')
    assert searchers.open_encoder('someone/model').folder == 'someone/model'
    assert searchers.open_encoder('').folder == 'released'


def test_shards_are_made_of_what_has_a_name(v28, tmp_path):
    out = tmp_path/'shards'
    with pytest.raises(ConfigError, match='not as an open one'): splade_nb.encode(splade_nb.load(v28), 'texts.txt', out=out)
    with pytest.raises(ConfigError, match='not a list'): splade_nb.encode(v28, TEXTS, out=out)
    assert not out.exists()


@pytest.mark.parametrize('hybrid', (-3.0, float('inf'), float('nan')))
def test_an_impossible_weight_of_a_hybrid_is_refused(hybrid, capsys):
    with pytest.raises(ConfigError, match=f'hybrid: found {hybrid}; allowed: a finite number from 0 on'): splade_nb.evaluate('nowhere', 'toy', hybrid=hybrid)
    assert main(['evaluate', '--model', 'nowhere', '--data', 'toy', '--hybrid', str(hybrid)]) == 2
    assert f'hybrid: found {hybrid}; allowed: a finite number from 0 on' in capsys.readouterr().err


def test_a_query_that_is_no_utf_8_is_one_line(v28, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    assert main(['search', '--model', str(v28), '--data', str(tmp_path/'texts.txt'), '--query', '한\udcff']) == 2
    assert capsys.readouterr().err.splitlines()[-1] == r"query '한\udcff': half of a surrogate pair, '\udcff'; UTF-8 cannot hold it"


def test_a_question_without_spaces_is_read_with_them(v28, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    def asked(query):
        assert main(['search', '--model', str(v28), '--data', str(tmp_path/'texts.txt'), '--query', query]) == 0
        return capsys.readouterr()
    joined, apart = map(asked, ('한복입고경복궁에서', '한복 입고 경복궁에서'))
    assert joined.out == apart.out and '경복궁' in joined.out
    assert joined.err.splitlines()[-1] == 'the query is read as: 한복 입고 경복궁에서' and 'read as' not in apart.err


@pytest.mark.parametrize('options, said', [(['--query', '배', '--results', '0'], 'results: found 0; allowed: a whole number from 1 on'),
                                           (['--query', ''], "query '': a text is expected, and not an empty one"), (['--query', ' \t'], r"query ' \t': a text is expected")])
def test_a_search_that_cannot_be_is_refused_before_texts_are_encoded(options, said, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    assert main(['search', '--data', str(tmp_path/'texts.txt'), *options]) == 2
    assert capsys.readouterr().err.splitlines() == [said]
    query, k = options[1], int(options[3]) if len(options) > 2 else 10
    with pytest.raises(ConfigError, match='k: found 0' if k == 0 else 'query'): splade_nb.search('', str(tmp_path/'texts.txt'), query, k)


def test_the_filter_of_pytorch_is_refused_in_words_that_the_command_has(tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    assert main(['encode', '--data', str(tmp_path/'texts.txt'), '--out', str(tmp_path/'out'), '--screen', 'on']) == 2
    said = capsys.readouterr().err
    assert "leave it at auto, or load the model in Python with runtime='torch'" in said and 'pip install' not in said, 'PyTorch is installed here'


def test_counted_terms_are_read_by_the_texts_that_they_are_of():
    encoder, texts = splade_nb.load(), ['한복 입고 경복궁에 간다', '나주 배는 달다']
    vectors = encoder.encode_document(texts)
    alone, named = encoder.decode(vectors, 999), encoder.decode(vectors, 999, texts)
    assert any(term[0] == '⟨' for term, _ in alone[0]) and not any(term[0] == '⟨' for row in named for term, _ in row)
    assert {term for term, _ in named[0]} >= {'경복⁺', '한복⁺'} and [weight for _, weight in named[0]] == [weight for _, weight in alone[0]]
    with pytest.raises(ConfigError, match='texts: found 1 for 2 vectors'): encoder.decode(vectors, 3, texts[:1])


def test_what_is_no_vector_is_refused_by_every_method():
    encoder = splade_nb.load()
    for wrong in ([[1.0]], [1.0], 'text', None):
        for method in (encoder.decode, encoder.sparsity):
            with pytest.raises(ConfigError, match='vectors: found'): method(wrong)
    assert encoder.sparsity(np.eye(2)) == encoder.sparsity(sparse.csr_matrix(np.eye(2)))


def test_what_is_said_of_the_size_in_integers_is_one_number(capsys):
    with pytest.raises(SystemExit): main(['release', '--help'])
    assert '30 % of the size' in ' '.join(capsys.readouterr().out.split())
    for page in ('commands.md', 'commands_ko.md'): assert '30 %' in (ROOT/'docs'/page).read_text(encoding='utf-8'), page
    assert 'encode_collection' in (ROOT/'docs'/'opensearch.md').read_text(encoding='utf-8'), 'what gives vectors with counted terms'


# The README of the version before: every command and import that it named

def python(*arguments, folder: Path = ROOT) -> subprocess.CompletedProcess:
    done = program(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope='module')
def own(tiny_encoder) -> dict: return dict(backbone=tiny_encoder, max_length=48, initial_terms=20, counted_terms=1024)


def load_settings(folder: Path) -> tuple:
    settings = splade_nb.load(folder).model.settings
    return settings.counted_terms, settings.counted_weight


def weights(folder: Path) -> bytes: return (folder/'model'/'model.safetensors').read_bytes()


@pytest.mark.slow
def test_fit_reads_documents_and_nothing_else(tmp_path, own):
    "With questions beside the documents, and without: one model, and another for other documents."
    judged, alone = made_collection(), tmp_path/'alone'
    alone.mkdir()
    (alone/'corpus.jsonl').write_bytes((judged/'corpus.jsonl').read_bytes())
    for name, source in (('one', judged), ('two', alone)): splade_nb.fit(source, tmp_path/name, own)
    assert weights(tmp_path/'one') == weights(tmp_path/'two')
    lines = (alone/'corpus.jsonl').read_text(encoding='utf-8').splitlines(keepends=True)
    (alone/'corpus.jsonl').write_text(''.join(lines[:len(lines) // 2]), encoding='utf-8')
    encoder = splade_nb.fit(alone, tmp_path/'two', own)
    assert weights(tmp_path/'two') != weights(tmp_path/'one') and encoder.encode_document(TEXTS).nnz
    assert sorted(path.name for path in (tmp_path/'two').iterdir()) == ['.lock', 'fit.json', 'model'], 'replaced whole'


def test_fit_by_command(tmp_path, own, capsys):
    (tmp_path/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    assert main(['fit', '--data', str(tmp_path/'texts.txt'), '--out', str(tmp_path/'own'), '--settings', json.dumps(own)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts['documents'] == 3 and load_settings(tmp_path/'own') == (1024, 2.0) and facts['out'] == str(tmp_path/'own') and facts['seed'] == 42
    said = origin(facts_of(tmp_path/'own'/'model'))
    assert facts['data']['hash'] in said and '| version | fit: ' in said and f'| parameters | {facts["parameters"]} |' in said, 'what the card of an export says'
    hits = splade_nb.search(tmp_path/'own', str(tmp_path/'texts.txt'), '한복 입고 경복궁')
    assert hits[0].text == TEXTS[0]


def test_fit_refuses_and_writes_nothing(tmp_path):
    for name, text in (('texts.txt', TEXTS[0]), ('empty.txt', '\n')): (tmp_path/name).write_text(text, encoding='utf-8')
    (tmp_path/'run').mkdir()
    (tmp_path/'run'/'summary.json').write_text('{}')
    for source, settings, out, said in (('texts.txt', {}, 'run', 'holds a trained run'), ('empty.txt', {}, 'new', 'found no text'),
                                        ('none.txt', {}, 'new', 'none.txt'), ('texts.txt', {'vocabularies': 300}, 'new', "did you mean 'vocabulary'")):
        with pytest.raises((ConfigError, DataError), match=said): splade_nb.fit(tmp_path/source, tmp_path/out, settings)
    assert {path.name for path in tmp_path.iterdir()} == {'texts.txt', 'empty.txt', 'run'} and len(list((tmp_path/'run').iterdir())) == 1


@pytest.mark.slow
def test_training_by_its_module(tmp_path):
    small = ('steps=2', 'hidden=64', 'layers=1', 'vocabulary=300', 'batch_size=8')
    done = python('-m', 'splade_nb.training', 'v28', '--set', 'data=toy', 'scale=mini', f'out={tmp_path}', '--set', *small)
    assert json.loads(done.stdout.splitlines()[-1])['steps'] == 2 and (tmp_path/'model'/'splade.json').exists()


MAKE = ['train', 'test', 'search QUERY=한복', "train OUT=outputs/mine SETTINGS={}", 'compare', 'train DATA=path OUT=outputs/mine',
        'train VERSION=splade_ko OUT=outputs/ko', 'train VERSION=v28 SCALE=full', 'resume-v28',  # further names: test_make.py
        'evaluate-full MODEL=outputs/v28 SAMPLE=10000', 'evaluate-board MODEL=outputs/v28 TASKS=LawIRKo', 'evaluate MODEL=outputs/v28 DATA=mini', 'search QUERY=택배 ENGINE=seismic',
        'serve', 'clean-search', 'export MODEL=outputs/v28 TO=onnx', 'opensearch', 'bench', 'lab', 'docs', 'test-all']


@pytest.mark.parametrize('command', MAKE)
def test_a_target_is_still_there(command):
    done = subprocess.run(['make', '--dry-run', '--no-print-directory', *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

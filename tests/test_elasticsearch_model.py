"""A model inside Elasticsearch: what the server's tokenizers and process make of the exported files, and what import.sh sends."""
import base64, io, json, os, re, shutil, subprocess, unicodedata
from base64 import b64decode
from pathlib import Path
import numpy as np
import pytest
import regex
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from conftest import real
from test_opensearch_model import MLServer, Refused, first_window, scores, serve # noqa: F401
from splade_nb.cli import main
from splade_nb.config.files import ConfigError
from splade_nb.data.tokenizer import SpladeTokenizer, save_tokenizer, train_unigram
from splade_nb.evaluation.exact_search import normalize_for_scoring
from splade_nb.lab.elasticsearch_model import KNOWN, Operations, differing, difference_line, doubled, elastic_script, elastic_tokenizer, unknown_operations, vocabulary_body, xlmr_charsmap
from splade_nb.hub.export import write_form
from splade_nb.hub.opensearch_model import HEAVIEST, traced
from splade_nb.model.encode import encode
from splade_nb.model.initialization import toy_model
from splade_nb.model.load import save

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's

FORMS = {  # kind of vocabulary and settings
    'looked-up': ('xlm_roberta', dict(inference_free_query=True, context_gate=False)),
    'counted': ('xlm_roberta', dict(term_frequency=True, log_twice=True)),
    'cosine': ('bert', dict(similarity='cosine', gate_pooler='heads')),
    'bounded': ('xlm_roberta', dict(most_query_terms=9, most_document_terms=40, document_norm=0.5))}
LENGTH = 48
TRICKY = ['㎡ ½ … ＡＢ', 'a\tb\u3000c  d', '漢字와 한글', '.. ... __ a.b', '가\u200b나', '☃ 눈사람 🐶🐶', '<mask> 뒤', 'é e\u0301', '']


@pytest.fixture(scope='module')
def tokenizers(texts):
    "As XLM-R's, with its table of characters, and as a Korean WordPiece vocabulary, whose special tokens have other names."
    table = normalizers.Precompiled(b64decode(xlmr_charsmap()))
    unigram = train_unigram([table.normalize_str(text) for text in texts], 1200)
    unigram.backend_tokenizer.normalizer = table
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme='always')]
    unigram.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    pieces = Tokenizer(models.WordPiece(unk_token='<unk>'))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    pieces.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=1200, special_tokens=['<cls>', '<pad>', '<sep>', '<unk>', '<mask>'], show_progress=False))
    wordpiece = PreTrainedTokenizerFast(tokenizer_object=pieces, cls_token='<cls>', sep_token='<sep>', pad_token='<pad>', unk_token='<unk>', mask_token='<mask>')
    return dict(xlm_roberta=SpladeTokenizer(unigram), bert=SpladeTokenizer(wordpiece))


def made(tokenizer, settings: dict) -> nn.Module:
    model = toy_model(len(tokenizer), max_length=LENGTH, **{'similarity': 'dot'} | settings)
    if model.settings.term_frequency: model.mean_length.fill_(20.0)
    if model.query_shift is not None:
        model.query_weight += torch.arange(len(tokenizer)) % 7
        model.query_weight[9] = 2 * HEAVIEST
    return model.eval()


@pytest.fixture(scope='module')
def exports(tokenizers, tmp_path_factory):
    "A function from a form to its model, its tokenizer, its folder and its limits, written once."
    folder, known = tmp_path_factory.mktemp('exports'), {}
    def written(form: str) -> tuple:
        if form not in known:
            kind, settings = FORMS[form]
            model = made(tokenizers[kind], settings)
            known[form] = model, tokenizers[kind], folder/form, write_form(model, tokenizers[kind], 'elasticsearch', folder/form, data='toy')
        return known[form]
    return written


# The server's side, as the sources of Elasticsearch and ml-cpp have it

class CharacterTable:
    "PrecompiledCharMapNormalizer: a double array of prefixes, asked for whole graphemes under six bytes, else for single characters."
    def __init__(self, content: bytes):
        size = int.from_bytes(content[:4], 'little')
        self.units, self.texts = np.frombuffer(content, '<u4', size // 4, 4).tolist(), content[4 + size:]

    def part(self, text: str) -> str | None:
        place = (self.units[0] >> 10) << ((self.units[0] & 512) >> 6)
        for byte in text.encode():
            if byte == 0: return None
            place ^= byte
            unit = self.units[place]
            if unit & 0x800000ff != byte: return None
            place ^= (unit >> 10) << ((unit & 512) >> 6)
            if unit >> 8 & 1:
                start = self.units[place] & 0x7fffffff
                return self.texts[start:self.texts.index(0, start)].decode()
        return None

    def __call__(self, text: str) -> str:
        done = []
        for grapheme in regex.findall(r'\X', text):
            whole = self.part(grapheme) if len(grapheme.encode()) < 6 else None
            if whole is not None: done.append(whole)
            else: done += [each if (other := self.part(each)) is None else other for each in grapheme]
        return ''.join(done)


class Unigram:
    "UnigramTokenizer and XLMRobertaTokenizer: white space, the sign before each word, the best path, unknown characters joined."
    def __init__(self, body: dict):
        self.ids = {token: id for id, token in enumerate(body['vocabulary'])}
        self.scores, self.longest = body['scores'], max(map(len, body['vocabulary']))
        assert len(self.scores) == len(body['vocabulary'])
        self.missing = min(self.scores) - 10
        self.marks, self.unknown, self.table = (self.ids['<s>'], self.ids['</s>']), self.ids['<unk>'], CharacterTable(b64decode(xlmr_charsmap()))

    def words(self, text: str) -> list:
        return [part for word in self.table(text).split() for part in re.split('(<mask>)', word) if part]

    def cut(self, word: str) -> list:
        if word == '<mask>': return [self.ids[word]]
        word = f'▁{word}'
        best = [(0.0, 0, 0)] + [None] * len(word)
        for start in range(len(word)):
            before = best[start][0] if best[start] else 0.0
            found = [(end, self.ids[word[start:end]]) for end in range(start + 1, min(len(word), start + self.longest) + 1) if word[start:end] in self.ids]
            for end, id in [*found, *([] if any(end == start + 1 for end, _ in found) else [(start + 1, self.unknown)])]:
                score = before + (self.missing if id == self.unknown else self.scores[id])
                if best[end] is None or score > best[end][0]: best[end] = score, id, start
        ids, end = [], len(word)
        while end:
            _, id, end = best[end]
            if id != self.unknown or ids[-1:] != [id]: ids.append(id)
        return ids[::-1]


class WordPiece:
    "BasicTokenFilter and WordPieceTokenFilter: punctuation and Chinese characters by themselves, then the longest parts."
    def __init__(self, body: dict, lower: bool):
        self.ids, self.lower = {token: id for id, token in enumerate(body['vocabulary'])}, lower
        self.marks, self.unknown = (self.ids['[CLS]'], self.ids['[SEP]']), self.ids['[UNK]']

    def words(self, text: str) -> list:
        kept = ''.join(' ' if each in '\t\n\r' else each for each in text if each in '\t\n\r' or unicodedata.category(each)[0] != 'C')
        alone = r'([!-/:-@\[-`{-~]|\p{P}|[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff])'
        return [part for word in kept.split() for part in ([word] if word == '[MASK]' else regex.split(alone, word)) if part]

    def cut(self, word: str) -> list:
        ids, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                id = self.ids.get(('##' if start else '') + word[start:end])
                if id is not None: break
            else: return [self.unknown]
            ids, start = [*ids, id], end
        return [self.unknown] if len(word) > 100 else ids


class Deployed:
    "A model of the task text_expansion: PyTorchModel, NlpTask and TextExpansionProcessor."
    def __init__(self, config: dict, body: dict, content: bytes):
        (self.kind, self.tokenization), = config['inference_config']['text_expansion']['tokenization'].items()
        assert config['model_type'] == 'pytorch' and self.tokenization['truncate'] == 'first' and self.tokenization['span'] == -1 and self.tokenization['with_special_tokens']
        self.tokenizer = Unigram(body) if self.kind == 'xlm_roberta' else WordPiece(body, self.tokenization['do_lower_case'])
        assert not [record for record in (b'__setstate__', b'__getstate__') if record in content]
        self.script, self.names, self.known = torch.jit.load(io.BytesIO(content)), [name.replace('.', '__') for name in body['vocabulary']], {}
        if unknown_operations(content): raise Refused('Model graph validation failed')

    def ids(self, text: str) -> list:
        ids = [id for word in self.tokenizer.words(text) for id in self.tokenizer.cut(word)]
        begin, end = self.tokenizer.marks
        return [begin, *ids[:self.tokenization['max_sequence_length'] - 2], end]

    def infer(self, text: str) -> dict:
        if text in self.known: return self.known[text]
        ids = torch.tensor([self.ids(text)])
        more = [] if self.kind == 'xlm_roberta' else [torch.zeros_like(ids), torch.arange(ids.shape[1])[None]]
        with torch.inference_mode(): result = self.script(ids, torch.ones_like(ids), *more)
        assert result.dim() in (2, 3) and result.shape[0] == 1
        row = result.reshape(-1, result.shape[-1])[0].double().numpy()
        found = [(self.names[i], np.float32(row[i])) for i in range(len(row)) if row[i] > 0]
        assert len(dict(found)) == len(found), 'two weights under one name'
        self.known[text] = dict(found)
        return self.known[text]


def opened(folder: Path) -> tuple: # models of documents and of queries
    body = json.loads((folder/'vocabulary.json').read_text(encoding='utf-8'))
    loaded = {side: Deployed(json.loads((folder/f'{side}.json').read_text()), body, (folder/f'{side}.pt').read_bytes())
              for side in ('document', 'query') if (folder/f'{side}.pt').exists()}
    return loaded['document'], loaded.get('query', loaded['document'])


@pytest.mark.parametrize('form', FORMS)
def test_the_server_gives_our_scores(form, exports, texts):
    model, tokenizer, folder, limits = exports(form)
    if form == 'looked-up': texts = [first_window(tokenizer, text) for text in texts] # `encode` counts what it does not read
    documents, queries = opened(folder)
    found = scores([queries.infer(text) for text in texts[50:]], [documents.infer(text) for text in texts[:50]])
    ours = [normalize_for_scoring(encode(model, tokenizer, part, document=side, most_windows=1), model.settings.similarity)
            for part, side in ((texts[50:], False), (texts[:50], True))]
    left_out = doubled(tokenizer.names)
    for rows in ours: rows[:, left_out] = 0
    wanted = (ours[0] @ ours[1].T).toarray()
    factor = 2 if form == 'looked-up' else 1
    assert wanted.max() > 0 and np.allclose(found * factor, wanted, rtol=1e-4, atol=1e-4)
    assert (folder/'query.pt').exists() == (form != 'cosine') and any('divided by 2' in limit for limit in limits) == (form == 'looked-up')


@pytest.mark.parametrize('form', FORMS)
def test_padding_changes_nothing(form, exports, texts):
    "The windows of a semantic_text field come padded to the longest."
    tokenizer, models = exports(form)[1], opened(exports(form)[2])
    for model in models:
        ids = torch.tensor([model.ids(texts[60])])
        longer = nn.functional.pad(ids, (0, 5), value=tokenizer.pad)
        with torch.inference_mode():
            rows = [model.script(*arguments, *[torch.zeros_like(arguments[0])] * (2 * (model.kind == 'bert')))
                    for arguments in ((ids, torch.ones_like(ids)), (longer, (torch.arange(longer.shape[1]) < ids.shape[1]).long()[None]))]
        assert (rows[0] - rows[1]).abs().max() < 1e-5 and rows[0].any()


@pytest.mark.parametrize('kind', ('xlm_roberta', 'bert'))
def test_the_tokenizer_of_the_server_is_made_right(kind, tokenizers, texts):
    "`elastic_tokenizer` gives what the Java code gives, also for texts that ours reads otherwise."
    tokenizer, body = tokenizers[kind], vocabulary_body(tokenizers[kind])
    java = Unigram(body) if kind == 'xlm_roberta' else WordPiece(body, False)
    known = [text for text in TRICKY if kind == 'xlm_roberta' or '<mask>' not in text]
    for text, row in zip([*texts, *known], elastic_tokenizer(tokenizer, 512).encode_batch([*texts, *known])):
        ids = [id for word in java.words(text) for id in java.cut(word)]
        assert row.ids == [java.marks[0], *ids[:510], java.marks[1]], text
    assert differing(tokenizer, texts, LENGTH) == []


def test_xlm_roberta_is_read_as_it_is(texts):
    folder = real('tokenizers/xlm-roberta-base')
    tokenizer = SpladeTokenizer(AutoTokenizer.from_pretrained(folder))
    assert json.loads((folder/'tokenizer.json').read_text(encoding='utf-8'))['normalizer']['precompiled_charsmap'] == xlmr_charsmap()
    java = Unigram(vocabulary_body(tokenizer))
    for text, ours in zip(texts[45:55], tokenizer.ids(texts[45:55])):
        assert [id for word in java.words(text) for id in java.cut(word)] == ours
    assert differing(tokenizer, texts, 512) == [] and '__' in [tokenizer.names[id] for id in doubled(tokenizer.names)]


def test_what_differs_is_counted_or_refused(texts, tokenizers):
    plain, capital = (SpladeTokenizer(train_unigram([*texts[50:], '서울 1 2'], 400)) for _ in range(2))
    assert [differing(plain, [text], LENGTH) for text in ('서울 １', '서울 1', unicodedata.normalize('NFD', '서울'))] == [[0], [], [0]]
    capital.backend.backend_tokenizer.normalizer = normalizers.Prepend('Q')
    assert ' 0 of ' in difference_line(plain, 'toy', LENGTH)
    with pytest.raises(ConfigError, match='tokenizes .* otherwise: .* becomes .*query_vector'): difference_line(capital, 'toy', LENGTH)


def test_a_full_stop_takes_the_name(tokenizers):
    names = ['<s>', '<pad>', '</s>', '<unk>', '<mask>', '▁', '__', '.', 'a', 'a.b', 'a__b']
    backend = train_unigram(['가'], 30)
    state = json.loads(backend.backend_tokenizer.to_str())
    state['model']['vocab'] = [(name, -float(i > 4)) for i, name in enumerate(names)]
    tokenizer = SpladeTokenizer(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **backend.special_tokens_map))
    model = made(tokenizer, {})
    script = torch.jit.load(io.BytesIO(elastic_script(model, tokenizer, 'document')))
    ids = torch.tensor([[0, 6, 7, 9, 10, 2]])
    assert doubled(names) == [6, 10] and [bool(script(ids, torch.ones_like(ids))[0, i]) for i in (6, 7, 9, 10)] == [False, True, True, False]


def test_every_operation_is_known(exports, tokenizers, monkeypatch):
    "Without the replacements the server would refuse the same model."
    content, tokenizer = (exports('counted')[2]/'document.pt').read_bytes(), tokenizers['xlm_roberta']
    assert unknown_operations(content) == [] and not {'aten::as_strided', 'aten::sigmoid', 'aten::log1p'} & KNOWN
    for name in ('log1p', 'sigmoid', 'amax'): monkeypatch.delitem(__import__('splade_nb.lab.elasticsearch_model', fromlist='x').REPLACED, name)
    with pytest.raises(ConfigError, match='refuses models with aten::amax, aten::log1p, aten::sigmoid, which'): elastic_script(exports('counted')[0], tokenizer, 'document')


@pytest.mark.skipif('TORCH_2_5' not in os.environ, reason='TORCH_2_5 names no folder with torch 2.5.1, whose libtorch Elasticsearch 9.0 loads')
@pytest.mark.parametrize('form', FORMS)
def test_the_libtorch_of_elasticsearch_loads_the_model(form, exports, texts, tmp_path):
    folder, script = exports(form)[2], tmp_path/'run.py'
    script.write_text('import json, sys, torch\nids = torch.tensor([json.loads(sys.argv[2])])\nmodel = torch.jit.load(sys.argv[1]).eval()\n'
                      'with torch.inference_mode(): row = model(ids, torch.ones_like(ids), *[torch.zeros_like(ids)] * int(sys.argv[3]))[0]\n'
                      'print(json.dumps([torch.__version__, row.tolist()]))')
    for side, model in zip(('document', 'query'), dict.fromkeys(opened(folder))):
        done = subprocess.run(['python3', script, folder/f'{side}.pt', json.dumps(model.ids(texts[0])), str(2 * (model.kind == 'bert'))],
                              env=os.environ | dict(PYTHONPATH=os.environ['TORCH_2_5']), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        version, row = json.loads(done.stdout)
        wanted = model.infer(texts[0])
        assert version.startswith('2.5.1') and np.allclose(row, [wanted.get(name, 0) for name in model.names], atol=1e-5)


# What is refused, by name

def byte_pairs(tokenizer):
    return SpladeTokenizer(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({'a': 0, '<s>': 1}, [])), cls_token='<s>', sep_token='<s>', pad_token='<s>', unk_token='<s>'))


def name_taken(tokenizer):
    backend = train_unigram(['가 나 [CLS]'], 40)
    pieces = Tokenizer(models.WordPiece({name: id for id, name in enumerate(['<s>', '</s>', '<pad>', '<unk>', '[CLS]'])}, unk_token='<unk>'))
    return SpladeTokenizer(PreTrainedTokenizerFast(tokenizer_object=pieces, cls_token='<s>', sep_token='</s>', pad_token='<pad>', unk_token='<unk>')) if backend else None


def rich(tokenizer): return SpladeTokenizer(tokenizer.backend, 'kiwi')


@pytest.mark.parametrize('change, settings, said', [
    (rich, {}, 'segment=kiwi.*convert --format rank_features'),
    (byte_pairs, {}, 'a tokenizer of type BPE: .* takes Unigram and WordPiece. Encode outside'),
    (name_taken, {}, r'token 4 is called \[CLS\], which is 0 in Elasticsearch'),
    (lambda tokenizer: tokenizer, dict(mlm_head=False), 'refuses models with .*aten::scatter_reduce, which this one needs. Encode outside')])
def test_what_elasticsearch_cannot_run_is_refused(change, settings, said, tokenizers, tmp_path):
    tokenizer = change(tokenizers['xlm_roberta'])
    with pytest.raises(ConfigError, match=said): write_form(made(tokenizer, settings), tokenizer, 'elasticsearch', tmp_path/'out', data='toy')
    assert [*tmp_path.iterdir()] == []


def test_the_command_writes_the_card(exports, tmp_path, capsys):
    model, tokenizer, *_ = exports('counted')
    save_tokenizer(tokenizer, save(model, tmp_path/'model'))
    assert main(['export', '--model', str(tmp_path/'model'), '--out', str(tmp_path/'out'), '--to', 'elasticsearch', '--data', 'toy']) == 0
    card = (tmp_path/'out'/'README.md').read_text(encoding='utf-8')
    assert 'import.sh' in card and 'sparse_vector field keeps 9 bits' in card and 'tokenizes 0 of' in card
    assert main(['export', '--model', str(tmp_path/'model'), '--out', str(tmp_path/'no'), '--to', 'elasticsearch', '--data', 'nirgendwo']) == 2
    assert 'nirgendwo' in capsys.readouterr().err and not (tmp_path/'no').exists()


# import.sh against a server that checks what it is told

class ElasticServer(MLServer):
    "As much of trained models, ingest pipelines and sparse_vector as import.sh asks for."
    def answer(self, method: str, path: list, text: bytes) -> dict:
        body = json.loads(text or b'{}')
        if self.broken and self.broken in path: raise Refused(f'{self.broken} is broken')
        match method, path:
            case 'PUT', ['_ml', 'trained_models', model]: self.metas[model], self.files[model] = body, {}
            case 'PUT', ['_ml', 'trained_models', model, 'definition', part]:
                if set(body) != {'definition', 'total_definition_length', 'total_parts'}: raise Refused('unknown field')
                self.files[model][int(part)] = base64.b64decode(body['definition'], validate=True)
                if int(part) == body['total_parts'] - 1 and sum(map(len, self.files[model].values())) != body['total_definition_length']: raise Refused('size')
            case 'PUT', ['_ml', 'trained_models', model, 'vocabulary']: self.tasks[model] = body
            case 'POST', ['_ml', 'trained_models', model, 'deployment', '_start']:
                content = b''.join(self.files[model][part] for part in sorted(self.files[model]))
                self.deployed[model] = Deployed(self.metas[model], self.tasks[model], content)
            case 'PUT', ['_ingest', 'pipeline', name]: self.pipelines[name] = body['processors'][0]['inference']
            case 'PUT', [index]:
                if index in self.indices: raise Refused(f'index [{index}] already exists')
                self.indices[index] = body
            case 'POST', [index, '_doc', id]:
                pipeline = self.pipelines[self.indices[index]['settings']['index']['default_pipeline']]
                fields, = pipeline['input_output']
                assert self.indices[index]['mappings']['properties'][fields['output_field']] == dict(type='sparse_vector', index_options=dict(prune=False))
                self.documents[id] = self.deployed[pipeline['model_id']].infer(body[fields['input_field']])
            case 'POST', [index, '_search']:
                query = body['query']['sparse_vector']
                weights = self.deployed[query['inference_id']].infer(query['query'])
                if not all(0 < weight <= 64 for weight in weights.values()): raise Refused('weight must be in (0, 64]')
                hits = [dict(_index=index, _id=id, _score=float(scores([weights], [row])[0, 0])) for id, row in self.documents.items()]
                return dict(hits=dict(hits=[hit for hit in hits if hit['_score'] > 0]))
            case _: raise Refused(f'no handler found for uri {path}')
        return dict(acknowledged=True)


def import_into(folder: Path, address: str, **environment) -> subprocess.CompletedProcess:
    if not shutil.which('curl'): pytest.skip('import.sh needs curl')
    known = {name: value for name, value in os.environ.items() if not name.startswith('ELASTICSEARCH')}
    return subprocess.run(['bash', folder/'import.sh'], env=known | dict(ELASTICSEARCH_URL=address, PATIENCE='20') | environment, capture_output=True, text=True)


@pytest.mark.parametrize('form', ('looked-up', 'cosine'))
def test_the_script_imports_and_finds(form, exports, serve): # noqa: F811
    server = serve(ElasticServer())
    done = import_into(exports(form)[2], server.address + '/', CHUNK='200000', INDEX='abc', ELASTICSEARCH_USER='elastic', ELASTICSEARCH_PASSWORD='a"b\\c $x')
    assert done.returncode == 0, done.stderr
    assert set(server.deployed) == ({'abc-document', 'abc-query'} if form == 'looked-up' else {'abc-document'}) and '"_id":"1"' in done.stdout
    assert max(len(parts) for parts in server.files.values()) > 1 and {sign for *_, sign in server.asked} == {'Basic ZWxhc3RpYzphImJcYyAkeA=='}


@pytest.mark.parametrize('broken, environment, said', [
    ('definition', {}, 'definition is broken'), ('vocabulary', {}, 'vocabulary is broken'), ('_start', {}, '_start is broken'), ('_search', {}, '_search is broken'),
    ('', dict(INDEX='A b'), 'INDEX=A b: lower case'), ('', dict(INDEX='taken'), 'already exists'), ('', dict(ELASTICSEARCH_URL='http://127.0.0.1:9'), 'does not answer')])
def test_the_script_stops_with_the_reason(broken, environment, said, exports, serve): # noqa: F811
    server = serve(ElasticServer(broken))
    server.indices['taken'] = 'theirs'
    done = import_into(exports('cosine')[2], server.address, **environment)
    assert done.returncode == 1 and said in done.stderr and '_score' not in done.stdout and server.indices['taken'] == 'theirs'


@pytest.mark.skipif(not os.environ.get('ELASTICSEARCH_URL'), reason='ELASTICSEARCH_URL names no server')
@pytest.mark.parametrize('form', FORMS)
def test_a_real_server(form, exports):
    folder, name = exports(form)[2], f'splade-{os.getpid()}-{form}'
    done = subprocess.run(['bash', folder/'import.sh'], env=os.environ | dict(INDEX=name), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = json.loads((folder/'search.json').read_text(encoding='utf-8'))['query']['sparse_vector']['query']
    example = json.loads((folder/'example.json').read_text(encoding='utf-8'))['text']
    documents, queries = opened(folder)
    wanted = scores([queries.infer(text)], [documents.infer(example)])[0, 0]
    assert json.loads(done.stdout)['hits']['hits'][0]['_score'] == pytest.approx(wanted, rel=0.005) # 9 bits of a weight

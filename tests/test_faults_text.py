"""Text as people write it: one cleaning for every analysis, no vector without a token, errors that name the place."""
from contextlib import nullcontext
import unicodedata
import numpy as np
import pandas as pd
import pytest
from splade_nb import load
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve_quietly
from splade_nb.data import text, tokenizer as tokenizers
from splade_nb.data.bm25 import BM25, TOKENIZERS
from splade_nb.data.readers import load_collection
from splade_nb.data.records import Document
from splade_nb.data.tokenizer import SpladeTokenizer, tokenizer_key, train_unigram, vocabulary_hash
from splade_nb.hub.export import add_graph, whole_tokenizer
from splade_nb.model.encode import encode
from splade_nb.model.encode_shards import encode_shards, read_shards, shard_ids
from splade_nb.model.initialization import toy_model
from splade_nb.model.opened import open_model
from splade_nb.serving.engines import INSIDE
from splade_nb.serving.searcher import Term, build_searcher, open_encoder
from splade_nb.serving.web import passage
from splade_nb.training.dataset import as_searched, prepare, save_model_folder

SLOW_FIXTURES = 'encoders',

PLAIN = '시장·군수·구청장은 경복궁 야간 개장을 알린다'
WRITTEN = {'araea': PLAIN.replace('·', 'ㆍ'), 'araea after NFKC': unicodedata.normalize('NFKC', PLAIN.replace('·', 'ㆍ')),
           'katakana': PLAIN.replace('·', '・'), 'hyphenation point': PLAIN.replace('·', '‧'), 'decomposed': unicodedata.normalize('NFD', PLAIN),
           'soft hyphens': '\xad'.join(PLAIN), 'joiners': '\u200d'.join(PLAIN), 'marks': '\ufeff\u200e' + PLAIN.replace(' ', '\u200b \u2066'),
           'fillers': PLAIN.replace(' ', '\u3164'), 'both': unicodedata.normalize('NFD', '\u2060'.join(PLAIN.replace('·', 'ㆍ')))}
EMPTY = ['', ' ', '.', '😀', '▁', '\u200b', '\x00']


@pytest.fixture(scope='module')
def encoders(tmp_path_factory):
    "A model of counted tokens that adds nothing at random, opened by both libraries."
    folder = tmp_path_factory.mktemp('both')
    save_model_folder(as_searched(prepare(resolve_quietly('splade_ko', scale='mini'), load_collection('mini'), 42)), folder)
    add_graph(open_model(folder, 'torch')[0], folder/'model')
    return dict(folder=str(folder), released=load()) | {runtime: load(folder, runtime=runtime) for runtime in ('torch', 'onnx')}


@pytest.fixture(scope='module')
def unigram(): return train_unigram([PLAIN, '시장과 군수', '경복궁의 야간 개장', '알린다'], 60)


@pytest.mark.parametrize('form', WRITTEN)
def test_every_analysis_reads_one_spelling(form, unigram):
    written = WRITTEN[form]
    assert text.clean_text(written) == PLAIN and text.fold_text(written) == PLAIN
    plain, whole = SpladeTokenizer(unigram), whole_tokenizer(SpladeTokenizer(unigram))
    assert plain.ids([written]) == plain.ids([PLAIN]) == whole([written], add_special_tokens=False)['input_ids']
    for name in {*TOKENIZERS} - {'nori', 'cjk'}: assert TOKENIZERS[name]([written]) == TOKENIZERS[name]([PLAIN]), name
    listed = 'ㆍ' in written or '・' in written or '‧' in written or 'ᆞ' in written  # servers join at · alone
    assert TOKENIZERS['cjk']([written]) == TOKENIZERS['cjk']([PLAIN.replace('·', ' ') if listed else PLAIN])


def test_the_dot_of_korean_law_separates_words(encoders):
    texts = {'araea': '도로ㆍ지반ㆍ건축ㆍ화재 설비', 'dot': '도로·지반·건축·화재 설비'}
    found, model = BM25(texts).run({'q': '건축'})['q'], encoders['torch']
    documents = model.encode_document(texts)
    assert found['araea'] == found['dot'] and len({*model.similarity(model.encode_query('건축', documents), documents)[0].tolist()}) == 1
    assert text.clean_text('ᄒᆞᆫ글') == 'ᄒᆞᆫ글', 'old Hangul stays'


@pytest.mark.parametrize('form', WRITTEN)
def test_what_matched_is_marked_in_the_text_that_is_shown(form):
    shown = passage(WRITTEN[form], [Term('경복궁', 'word', 1.0, False)], width=1000)
    assert ''.join(part for part, _ in shown) == WRITTEN[form]
    assert [text.clean_text(part).strip() for part, marked in shown if marked] == ['경복궁']


@pytest.mark.parametrize('shown', ['재밌다ㅋㅠㅠ 경복궁', 'ㅎㅏㄴ복', 'ﾊﾞｽ 정류장', 'ￄￂ나다'])
def test_letters_that_join_are_aligned_together(shown):
    "NFKC makes one syllable of 자모 that touch, and one letter of a kana and its mark."
    cleaned, places = text.aligned(shown)
    assert cleaned == text.clean_text(shown) and len(places) == len(cleaned) + 1 and list(places) == sorted(places)


def test_another_table_is_another_vocabulary(unigram, monkeypatch):
    def keys(): return [name(SpladeTokenizer(unigram, segment)) for name in (vocabulary_hash, tokenizer_key) for segment in ('none', 'kiwi')]
    before = keys()
    monkeypatch.setattr(tokenizers, 'TEXT_FORM', 'another')
    assert not {*before} & {*keys()}, 'what was made of texts that were cleaned otherwise is never mixed in'


SILENT = [value for value in EMPTY if value != '▁']  # a model that counts morphemes counts a symbol, too


@pytest.mark.parametrize('name', ['torch', 'onnx', 'released'])
def test_a_text_without_a_token_has_no_vector(encoders, name):
    model, empty = encoders[name], [*SILENT, '!?…']
    documents = model.encode_document([*empty, PLAIN])
    assert documents.getnnz(axis=1)[:-1].tolist() == [0] * len(empty) and documents[len(empty)].nnz
    assert model.encode_query(empty, documents).nnz == 0
    assert model.encode_query('password reset', model.encode_document(['구두는 천으로 닦는다', 'zzqx'])).nnz
    assert not set(documents.indices) & set(model.tokenizer.bare) and model.tokenizer.names[model.tokenizer.bare[0]] == '▁'


@pytest.mark.parametrize('options', [dict(mlm_head=False), dict(inference_free_query=True), dict(mask_special=False), {}], ids=str)
def test_no_form_of_a_model_gives_it_one(unigram, options, tmp_path):
    tokenizer = SpladeTokenizer(unigram)
    model, texts = toy_model(len(tokenizer), **options), [*EMPTY, PLAIN]
    for document in (True, False): assert encode(model, tokenizer, texts, document)[:-1].nnz == 0
    encode_shards(model, tokenizer, dict(enumerate(texts)), tmp_path, size=3)
    assert np.concatenate([rows.getnnz(axis=1) for rows in read_shards(tmp_path)])[:-1].sum() == 0


@pytest.mark.parametrize('engine', INSIDE)
@pytest.mark.parametrize('name, found, unrelated', [('counted', ['rice'], '스마트폰 배터리'), ('released', ['rice', 'shoes'], 'password reset')])
def test_no_engine_finds_it(engine, name, found, unrelated, tmp_path, encoders):
    encoder = open_encoder(encoders['folder'] if name == 'counted' else '')
    texts = [*(Document(f'empty{n}', '', value) for n, value in enumerate(SILENT)), Document('rice', '', '쌀은 찬물에 씻는다'), Document('shoes', '', '구두는 천으로 닦는다')]
    with build_searcher(encoder, texts, tmp_path/'s', engine) as searcher:
        assert [hit.id for hit in searcher.search('쌀 씻기', 20)] == found
        for query in (*SILENT, unrelated, '��ġ'):
            with pytest.raises(ConfigError, match='a text is expected') if not query.strip() else nullcontext():
                assert searcher.search(query, 20) == [], query


@pytest.mark.parametrize('wrong, said', [
    (['쌀'] * 700 + [None], r'\[700\] None'), (['쌀', float('nan')], r'\[1\] nan'), ([b'\xec'], r'\[0\] b'), (['\ud800'], 'half of a surrogate pair'),
    ([dict(text='쌀')], r"\[0\] \{'text': '쌀'\}"), ({'d7': None}, r"\['d7'\] None"), (pd.DataFrame({'text': ['쌀']}), 'found a table'),
    ({'쌀'}, 'found set'), (b'abc', 'found bytes'), (None, 'found NoneType')], ids=str)
def test_what_is_no_text_is_refused_with_its_place(encoders, wrong, said):
    model = encoders['onnx']
    with pytest.raises(ConfigError, match=f'^texts.*{said}'): model.encode_document(wrong)
    with pytest.raises(ConfigError, match=f'^queries.*{said}'): model.encode_query(wrong)


def test_a_dictionary_and_a_series_are_their_texts(encoders, tmp_path, unigram):
    model, texts = encoders['onnx'], {'d1': '쌀은 찬물에 씻는다', 'd2': '구두는 천으로 닦는다'}
    wanted = model.encode_document(list(texts.values()))
    for given in (texts, pd.Series(texts), iter(texts.values())): assert (model.encode_document(given) != wanted).nnz == 0
    tokenizer = SpladeTokenizer(unigram)
    encode_shards(toy_model(len(tokenizer)), tokenizer, texts, tmp_path)
    assert list(shard_ids(tmp_path)) == ['d1', 'd2']
    with pytest.raises(ConfigError, match=r'texts\[3\] None'): encode_shards(toy_model(len(tokenizer)), tokenizer, ['쌀'] * 3 + [None], tmp_path/'x', size=2)

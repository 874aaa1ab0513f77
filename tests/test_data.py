"""Faults in files, real collections beside the project, and what the embedded set promises."""
import json, re, unicodedata
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from conftest import real
from splade_nb.config.files import root
from splade_nb.data.records import DataError, collect, ready, toy_corpus, train_triplets, with_splits
from splade_nb.data.readers import load

CORPUS = [{'_id': 'd1', 'title': '나주 배', 'text': '나주 배는 달다.'}, {'_id': 'd2', 'text': '제주로 가는 배가 떠난다.'}]
QUERIES = [{'_id': 'q1', 'text': '과일 배'}, {'_id': 'q2', 'text': '제주 배편', 'metadata': {'kind': 'travel', 'split': 'train'}}]
TRAIN, TEST = [('q1', 'd1', '1')], [('q2', 'd2', '1')]


def jsonl(rows) -> str: return ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)


def tsv(rows, header='query-id\tcorpus-id\tscore\n') -> str: return header + ''.join('\t'.join(row) + '\n' for row in rows)


def beir(folder: Path, **files) -> Path:
    "A sound folder in BEIR form, with some files replaced (None: left out); in names, __ stands for a dot and ___ for a slash."
    sound = {'corpus__jsonl': jsonl(CORPUS), 'queries__jsonl': jsonl(QUERIES), 'qrels_train__tsv': tsv(TRAIN), 'qrels_test__tsv': tsv(TEST)}
    for name, content in (sound | files).items():
        if content is None: continue
        path = folder/name.replace('___', '/').replace('__', '.')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def refused(source, pair_types=None, **known) -> DataError:
    "The fault that `source` raises, with the attributes and the message that a person needs."
    with pytest.raises(DataError) as caught: load(source, pair_types=pair_types)
    error = caught.value
    assert {name: getattr(error, name) for name in known} == known
    place = error.file + (f', line {error.line}' if error.line else '')
    assert str(error) == f'{place}, {error.field}: found {error.found}; allowed: {error.allowed}' and error.found and error.allowed
    return error


# ---- faults

LONG = '가' * 100_001
LINES = {  # name: (file, second line, field, part of what was found)
    'text missing': ('corpus.jsonl', {'_id': 'x'}, 'text', 'nothing'),
    'text null': ('corpus.jsonl', {'_id': 'x', 'text': None}, 'text', 'nothing'),
    'text empty': ('corpus.jsonl', {'_id': 'x', 'title': ' ', 'text': ''}, 'text', 'empty'),
    'text of spaces': ('corpus.jsonl', {'_id': 'x', 'text': ' \n\u200b\u3000'}, 'text', 'empty'),
    'text a number': ('corpus.jsonl', {'_id': 'x', 'text': 7}, 'text', '7 (int)'),
    'text a list': ('corpus.jsonl', {'_id': 'x', 'text': ['가']}, 'text', '(list)'),
    'text too long': ('corpus.jsonl', {'_id': 'x', 'text': LONG}, 'text', '100,001 characters'),
    'title too long': ('corpus.jsonl', {'_id': 'x', 'title': LONG, 'text': '가'}, 'title', '100,001 characters'),
    'title a number': ('corpus.jsonl', {'_id': 'x', 'title': 1, 'text': '가'}, 'title', '1 (int)'),
    'id missing': ('corpus.jsonl', {'text': '가'}, '_id', 'nothing'),
    'id a fraction': ('corpus.jsonl', {'_id': 3.5, 'text': '가'}, '_id', '3.5 (float)'),
    'id twice': ('corpus.jsonl', CORPUS[0], '_id', "'d1' a second time"),
    'metadata a text': ('corpus.jsonl', {'_id': 'x', 'text': '가', 'metadata': '가'}, 'metadata', "'가'"),
    'half a surrogate pair': ('corpus.jsonl', b'{"_id": "x", "text": "\\ud800"}\n', 'text', 'surrogate'),
    'not UTF-8': ('corpus.jsonl', '{"_id": "x", "text": "한글"}\n'.encode('cp949'), 'encoding', 'byte 0xc7'),
    'broken JSON': ('corpus.jsonl', b'{"_id": "x", "text": "a"\n', 'JSON', 'column 25'),
    'two objects in a line': ('corpus.jsonl', b'{} {}\n', 'JSON', 'Extra data'),
    'no object': ('corpus.jsonl', b'["d"]\n', 'JSON', "['d']"),
    'nested without end': ('corpus.jsonl', b'[' * 100_000 + b'\n', 'JSON', 'recursion'),
    'query text empty': ('queries.jsonl', {'_id': 'x', 'text': ' '}, 'text', 'empty'),
    'query too long': ('queries.jsonl', {'_id': 'x', 'text': LONG}, 'text', '100,001 characters'),
    'query id twice': ('queries.jsonl', QUERIES[0], '_id', "'q1' a second time"),
    'split unknown': ('queries.jsonl', {'_id': 'x', 'text': '가', 'metadata': {'split': 'tset'}}, 'metadata.split', "'tset'"),
    'kind a number': ('queries.jsonl', {'_id': 'x', 'text': '가', 'metadata': {'kind': 1}}, 'metadata.kind', '1 (int)'),
    'document unknown': ('qrels_train.tsv', b'q1\td9\t1\n', 'corpus-id', "'d9'"),
    'query unknown': ('qrels_train.tsv', b'q9\td1\t1\n', 'query-id', "'q9'"),
    'score a fraction': ('qrels_train.tsv', b'q1\td1\t0.5\n', 'score', "'0.5'"),
    'score a word': ('qrels_train.tsv', b'q1\td1\tyes\n', 'score', "'yes'"),
    'score below 0': ('qrels_train.tsv', b'q1\td1\t-1\n', 'score', "'-1'"),
    'two scores for a pair': ('qrels_train.tsv', b'q1\td1\t2\n', 'score', '2 after 1'),
    'two columns': ('qrels_train.tsv', b'q1\td1\n', 'columns', '2 in'),
    'spaces for tabs': ('qrels_train.tsv', b'q1 0 d1 1\n', 'columns', '1 in'),
    'judged in two splits': ('qrels_test.tsv', b'q1\td1\t1\n', 'query-id', 'judged in train too'),
    'negative unknown': ('negatives.jsonl', {'query_id': 'q1', 'negative_ids': ['d2', 'd9']}, 'negative_ids[1]', "'d9'"),
    'negative relevant': ('negatives.jsonl', {'query_id': 'q1', 'negative_ids': ['d1']}, 'negative_ids', "'d1'"),
    'negatives no list': ('negatives.jsonl', {'query_id': 'q1', 'negative_ids': 'd2'}, 'negative_ids', "'d2'"),
    'negatives of no query': ('negatives.jsonl', {'query_id': 'q9', 'negative_ids': ['d2']}, 'query_id', "'q9'"),
    'positive not judged': ('train_triplets.jsonl', {'query_id': 'q1', 'positive_id': 'd2', 'negative_ids': []}, 'positive_id', "'d2'"),
    'pair of three': ('context_pairs.jsonl', {'_id': 'p', 'phrase': '배', 'queries': ['배'] * 3, 'documents': [['d1'], ['d2']]}, 'queries', '3'),
    'pair of no document': ('context_pairs.jsonl', {'_id': 'p', 'phrase': '배', 'queries': ['배', '배'], 'documents': [['d1'], ['d9']]}, 'documents[0]', "'d9'"),
}
FIRST = {'corpus.jsonl': jsonl(CORPUS), 'queries.jsonl': jsonl(QUERIES), 'qrels_train.tsv': tsv(TRAIN), 'qrels_test.tsv': tsv(TEST), 'negatives.jsonl': jsonl([{'query_id': 'q2', 'negative_ids': ['d1']}])}


@pytest.mark.parametrize('name', LINES)
def test_faulty_line(name, tmp_path):
    "Strict: refused with file, line, field and finding. Not strict: that line alone is skipped, and counted."
    file, bad, field, found = LINES[name]
    good = FIRST.get(file, '').encode()
    beir(tmp_path, **{file.replace('.', '__'): good + (bad if isinstance(bad, bytes) else jsonl([bad]).encode())})
    error = refused(tmp_path, file=str(tmp_path/file), line=good.count(b'\n') + 1, field=field)
    assert found in error.found and len(str(error)) < 400 + len(str(tmp_path))
    lenient, sound = load(tmp_path, strict=False), load(beir(tmp_path/'sound', **({'negatives__jsonl': FIRST['negatives.jsonl']} if file == 'negatives.jsonl' else {})))
    assert lenient.hash == sound.hash and not sound.notes
    skipped, = lenient.notes
    assert skipped.startswith('skipped 1 with a fault in ' + file)


@pytest.mark.parametrize('files, looked_for', [
    ({'corpus__jsonl': None}, ['corpus.jsonl']),
    ({'queries__jsonl': None}, ['queries.jsonl']),
    ({'qrels_train__tsv': None, 'qrels_test__tsv': None}, ['qrels_<split>.tsv', 'qrels/<split>.tsv', 'qrels.tsv', 'train, dev, test']),
    ({'corpus__jsonl': ''}, ['d1']),
    ({'qrels_train__tsv': tsv([]), 'qrels_test__tsv': tsv([])}, ['judgments', 'at least one']),
], ids=['no corpus', 'no queries', 'no judgments', 'empty corpus', 'empty judgments'])
def test_missing_files(files, looked_for, tmp_path):
    error = refused(beir(tmp_path, **files))
    assert all(name in str(error) for name in looked_for)
    with pytest.raises(DataError): load(tmp_path, strict=False)


@pytest.mark.parametrize('source', ['minni', 'no/such/folder', 'tests/nothing', 'triplets.jsonl', 'owner/file.json', '', ' , '])
def test_no_such_source_needs_no_network(source):
    assert 'mini' in refused(source, field='source').allowed


def test_unknown_suffix(tmp_path):
    (tmp_path/'a.pdf').write_text('a')
    assert '.jsonl' in refused(tmp_path/'a.pdf', field='file name').allowed


# ---- forms that are accepted

def test_mark_crlf_blank_lines_and_nfd_change_nothing(tmp_path):
    "A byte order mark, CRLF, blank lines and decomposed Hangul (in text, titles, ids and escapes) leave the content as it was."
    plain = load(beir(tmp_path/'plain', corpus__jsonl=jsonl([{'_id': '문서', 'title': '나주 배', 'text': '나주 배는 달다.'}]), queries__jsonl=jsonl([{'_id': '질문', 'text': '과일 배'}]),
                      qrels_train__tsv=None, qrels_test__tsv=tsv([('질문', '문서', '1')])))
    apart = lambda text: unicodedata.normalize('NFD', text)
    windows = lambda text: b'\xef\xbb\xbf' + apart(text).replace('\n', '\r\n\r\n').encode()
    escaped = json.dumps({'_id': apart('질문'), 'text': apart('과일 배')})
    assert '\\u11' in escaped  # Jamo
    odd = load(beir(tmp_path/'odd', corpus__jsonl=windows(jsonl([{'_id': '문서', 'title': '나주 배', 'text': '나주 배는 달다.'}])), queries__jsonl=escaped,
                    qrels_train__tsv=None, qrels_test__tsv=windows(tsv([('질문', '문서', '1')]))))
    assert odd.hash == plain.hash and odd.documents == plain.documents and list(odd.split('test')) == ['질문']
    assert odd.documents['문서'].full == '나주 배 나주 배는 달다.'


def test_split_is_where_the_judgments_are(tmp_path):
    "Split files rule over qrels.tsv and over metadata (q2 says train)."
    collection = load(beir(tmp_path, qrels__tsv=tsv([('q1', 'd2', '1')])))
    assert {key: query.split for key, query in collection.queries.items()} == {'q1': 'train', 'q2': 'test'}
    assert collection.qrels == {'q1': {'d1': 1}, 'q2': {'d2': 1}} and collection.queries['q2'].kind == 'travel'


@pytest.mark.parametrize('files', [{'qrels___train__tsv': tsv(TRAIN), 'qrels___test__tsv': tsv(TEST)}, {'qrels___train__tsv': tsv(TRAIN, header=''), 'qrels___test__jsonl': jsonl([{'query-id': 'q2', 'corpus-id': 'd2', 'score': 1.0}])},
                                   {'qrels___train__tsv': tsv(TRAIN), 'qrels___validation__tsv': tsv(TEST)}], ids=['folder', 'no header, jsonl', 'validation'])
def test_judgment_files(files, tmp_path):
    collection = load(beir(tmp_path/'other', qrels_train__tsv=None, qrels_test__tsv=None, **files))
    assert collection.qrels == load(beir(tmp_path/'plain')).qrels and list(collection.split('test')) == ['q2']
    assert ('dev queries stand in' in ''.join(collection.notes)) == ('qrels___validation__tsv' in files)


def test_unjudged_queries_and_zero_scores(tmp_path):
    "A query counts in a split if something is relevant to it; a document judged 0 is a negative."
    collection = load(beir(tmp_path, qrels_train__tsv=tsv([('q1', 'd1', '2'), ('q1', 'd2', '0'), ('q4', 'd2', '0')]), queries__jsonl=jsonl([*QUERIES, {'_id': 'q3', 'text': '눈', 'metadata': {'split': 'train'}}, {'_id': 'q4', 'text': '비'}])))
    assert list(collection.split('train')) == ['q1'] and len(collection.queries) == 4
    assert [triplet.negative_ids for triplet in train_triplets(collection)] == [('d2',)]
    with pytest.raises(ValueError, match="'train'"): collection.split('trian')


def test_negatives_join_triplets(tmp_path):
    files = {'negatives__jsonl': jsonl([{'query_id': 'q1', 'negative_ids': ['d2']}]), 'train_triplets__jsonl': jsonl([{'query_id': 'q1', 'query': '과일 배', 'positive_id': 'd1', 'negative_ids': ['d2', 'd3']}]),
             'corpus__jsonl': jsonl([*CORPUS, {'_id': 'd3', 'text': '과일 배 상자'}]), 'context_pairs__jsonl': jsonl([{'_id': 'p', 'phrase': '배', 'queries': ['단 배', '빠른 배'], 'documents': [['d1'], ['d2']]}])}
    collection = load(beir(tmp_path, **files))
    triplet, = train_triplets(collection)
    assert (triplet.query_id, triplet.positive_id, triplet.negative_ids) == ('q1', 'd1', ('d2', 'd3'))
    assert triplet.positive == '나주 배 나주 배는 달다.' and triplet.pair_type == 'original'
    picked = load(beir(tmp_path, **files | {'queries__jsonl': jsonl([QUERIES[0] | {'text': '단것', 'metadata': {'kind': 'hard_neg'}}, QUERIES[1]])}))
    assert [t.pair_type for t in train_triplets(picked)] == ['hard_neg']
    assert collection.context_pairs[0].documents == (('d1',), ('d2',))


def squad(*paragraphs) -> str: return json.dumps({'data': [{'title': '배', 'paragraphs': list(paragraphs)}]})


def test_squad_merges_paragraphs(tmp_path):
    one = {'context': '나주 배는 달다.', 'qas': [{'id': 'a', 'question': '맛은?', 'answers': []}]}
    two = {'context': '나주 배는 달다. ', 'qas': [{'id': 'b', 'question': '산지는?'}, {'id': 'c', 'question': '없는 것?', 'is_impossible': True}]}
    (tmp_path/'korquad.json').write_text(squad(one, two, {'context': '눈이 온다.', 'qas': []}), encoding='utf-8')
    collection = load(tmp_path/'korquad.json')
    assert [document.full for document in collection.documents.values()] == ['배 나주 배는 달다.', '배 눈이 온다.']
    assert list(collection.queries) == ['a', 'b'] and len({tuple(judged) for judged in collection.qrels.values()}) == 1
    assert load(tmp_path).hash == collection.hash


@pytest.mark.parametrize('text, field', [
    ('{"data": 3}', 'data'), ('{}', 'data'), ('{"data": [{}]}', 'data[0].paragraphs'), (squad({'qas': []}), 'data[0].paragraphs[0].context'), (squad({'context': '가'}), 'data[0].paragraphs[0].qas'),
    (squad({'context': '가', 'qas': [{'id': 'a', 'question': LONG}]}), 'data[0].paragraphs[0].qas[0].question'),
    (squad({'context': '가', 'qas': [{'id': 'a', 'question': '나'}] * 2}), 'data[0].paragraphs[0].qas[1].id')])
def test_squad_faults(text, field, tmp_path):
    (tmp_path/'a.json').write_text(text, encoding='utf-8')
    refused(tmp_path/'a.json', field=field, line=None)


def test_squad_broken_json_names_the_line(tmp_path):
    (tmp_path/'a.json').write_text('{"data":\n\n[}', encoding='utf-8')
    refused(tmp_path/'a.json', field='JSON', line=3)


SEED = {'query': '당뇨병 치료', 'positive': 'diabetes mellitus treatment', 'negative': '고혈압 예방', 'pair_type': 'cross_lingual', 'difficulty': 'hard'}


def test_seed_triplets(tmp_path):
    lines = [SEED, SEED | {'negative': ['김장', '고혈압 예방']}, {'query': '배', 'positive': '나주 배', 'negatives': []}, {'query': '배', 'positive': '제주 배편', 'negative': '나주 배'}]
    (tmp_path/'seed.jsonl').write_text(jsonl(lines), encoding='utf-8')
    collection = load(tmp_path/'seed.jsonl')
    assert [(t.query, t.positive, t.negatives, t.pair_type) for t in collection.triplets] == [
        ('당뇨병 치료', 'diabetes mellitus treatment', ('고혈압 예방', '김장'), 'cross_lingual'), ('배', '나주 배', (), 'original'), ('배', '제주 배편', (), 'original')]
    assert sorted(collection.texts.values()) == sorted(['diabetes mellitus treatment', '고혈압 예방', '김장', '나주 배', '제주 배편'])
    assert [(query.text, query.kind, query.meta['line'], len(collection.qrels[key])) for key, query in collection.queries.items()] == [('당뇨병 치료', 'cross_lingual', 1, 1), ('배', 'original', 3, 2)]
    assert all(collection.documents[key].full == text for t in collection.triplets for key, text in zip(t.negative_ids, t.negatives, strict=True))


@pytest.mark.parametrize('change, field, found', [
    ({'query': ''}, 'query', 'empty'), ({'query': None}, 'query', 'nothing'), ({'positive': 3}, 'positive', '3 (int)'), ({'negative': ['가', '']}, 'negative[1]', 'empty'), ({'negative': None}, 'negative', 'nothing'),
    ({'negative': {'a': 1}}, 'negative', '(dict)'), ({'negative': LONG}, 'negative', '100,001'), ({'negative': SEED['positive']}, 'negative', 'the positive itself'),
    ({'pair_type': 5}, 'pair_type', '5 (int)')])
def test_seed_faults(change, field, found, tmp_path):
    (tmp_path/'seed.jsonl').write_text(jsonl([SEED, SEED | change]), encoding='utf-8')
    assert found in refused(tmp_path/'seed.jsonl', field=field, line=2).found
    assert len(load(tmp_path/'seed.jsonl', strict=False).triplets) == 1


TYPES = ('original', 'single_term', 'cross_lingual', 'travel')  # what a caller may allow


def test_unknown_pair_type_in_triplets(tmp_path):
    "Also where the query has stood before under a known one; without a list of pair types any text is one."
    (tmp_path/'seed.jsonl').write_text(jsonl([SEED, SEED | {'negative': '김장', 'pair_type': 'cross_lingul'}, SEED | {'query': '배', 'pair_type': None}]), encoding='utf-8')
    error = refused(tmp_path/'seed.jsonl', TYPES, file=str(tmp_path/'seed.jsonl'), line=2, field='pair_type')
    assert "'cross_lingul'" in error.found and "nearest: 'cross_lingual'" in error.found and error.allowed == 'original, single_term, cross_lingual, travel'
    lenient = load(tmp_path/'seed.jsonl', strict=False, pair_types=TYPES)
    assert [triplet.pair_type for triplet in lenient.triplets] == ['cross_lingual', 'original'] and lenient.notes[0] == 'skipped 1 with a fault in seed.jsonl, pair_type'
    assert 'cross_lingul' in {triplet.pair_type for triplet in load(tmp_path/'seed.jsonl').triplets}


def test_unknown_pair_type_of_a_query(tmp_path):
    beir(tmp_path, queries__jsonl=jsonl([*QUERIES, {'_id': 'q3', 'text': '눈', 'metadata': {'kind': 'traval'}}]))
    error = refused(tmp_path, TYPES, file=str(tmp_path/'queries.jsonl'), line=3, field='metadata.kind')
    assert "nearest: 'travel'" in error.found and list(load(tmp_path, strict=False, pair_types=TYPES).queries) == ['q1', 'q2']
    with pytest.raises(DataError, match='metadata.kind'): load(f'mini,{tmp_path}', pair_types=[*KINDS])


def test_the_curriculum_allows_what_the_embedded_sets_hold():
    from splade_nb.data.records import PAIR_TYPES
    assert load('mini', pair_types=PAIR_TYPES).hash == load('mini').hash
    assert {query.kind for query in toy_corpus().queries.values()} <= set(PAIR_TYPES)


@pytest.mark.parametrize('raw, field, found', [
    (json.dumps(SEED).encode('utf-16'), 'encoding', 'byte 0xff at 0'), (json.dumps(SEED, ensure_ascii=False).encode('cp949'), 'encoding', 'byte 0x'),
    (b'\xef\xbb\xbf' + json.dumps(SEED).encode(), 'JSON', 'BOM'), (b'\0\0', 'JSON', 'Expecting value')],
    ids=['UTF-16', 'cp949', 'mark inside', 'zero bytes'])
def test_bytes_that_are_no_line(raw, field, found, tmp_path):
    "A byte order mark counts as one only where the file begins: here on line 2."
    (tmp_path/'seed.jsonl').write_bytes(jsonl([SEED]).encode() + raw)
    assert found in refused(tmp_path/'seed.jsonl', file=str(tmp_path/'seed.jsonl'), line=2, field=field).found
    lenient = load(tmp_path/'seed.jsonl', strict=False)
    assert len(lenient.triplets) == 1 and lenient.notes[0] == f'skipped 1 with a fault in seed.jsonl, {field}'


def in_form(folder: Path, form: str, mend) -> Path: # mend: what is done to every file's text
    "One small collection in a form, as a file or folder."
    if form == 'beir': return beir(folder, corpus__jsonl=mend(jsonl(CORPUS)), queries__jsonl=mend(jsonl(QUERIES)), qrels_train__tsv=mend(tsv(TRAIN)), qrels_test__tsv=mend(tsv(TEST)))
    files = {'squad': ('a.json', squad({'context': '나주 배는 달다.', 'qas': [{'id': '질문', 'question': '배 맛은?'}]})), 'seed': ('a.jsonl', jsonl([SEED, SEED | {'query': '과일 배'}]))}
    folder.mkdir(); (folder/files[form][0]).write_bytes(mend(files[form][1]).encode())
    return folder/files[form][0]


@pytest.mark.parametrize('form', ['beir', 'squad', 'seed'])
def test_decomposed_hangul_does_not_split_the_vocabulary(form, tmp_path):
    "NFC and NFD files give the same records and the same words; together in one file they give no more."
    together, apart = (load(in_form(tmp_path/name, form, lambda text: unicodedata.normalize(name, text))) for name in ('NFC', 'NFD'))
    assert together.hash == apart.hash and together.documents == apart.documents
    assert [replace(query, meta={}) for query in together.queries.values()] == [replace(query, meta={}) for query in apart.queries.values()]
    vocabulary = [{word for text in [*c.texts.values(), *(query.text for query in c.queries.values())] for word in text.split()} for c in (together, apart)]
    assert vocabulary[0] == vocabulary[1] and all(unicodedata.is_normalized('NFC', word) for word in vocabulary[1])
    if form == 'seed':
        mixed = load(in_form(tmp_path/'mixed', form, lambda text: text + unicodedata.normalize('NFD', text)))
        assert mixed.hash == together.hash


def test_seed_line_without_negative_field(tmp_path):
    (tmp_path/'seed.jsonl').write_text(jsonl([{'query': '가', 'positive': '나', 'negatve': '다'}]), encoding='utf-8')
    refused(tmp_path/'seed.jsonl', field='negatives', line=1)


def bare(triplets): return [replace(triplet, query_id='', positive_id='', negative_ids=()) for triplet in triplets]


def write_triplets(triplets, path):
    "One line for each negative, as design 3 has them; `[]` where there is none."
    rows = [dict(query=one.query, positive=one.positive, negative=negative, pair_type=one.pair_type)
            for one in triplets for negative in one.negatives or ([],)]
    path.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    return path


@pytest.mark.parametrize('source', ['toy', 'mini'])
def test_triplets_survive_a_round_trip(source, tmp_path):
    triplets = train_triplets(toy_corpus() if source == 'toy' else load('mini'))
    path = write_triplets(triplets, tmp_path/'triplets.jsonl')
    rows = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    assert len(rows) == sum(max(1, len(triplet.negatives)) for triplet in triplets) and rows[0].keys() == SEED.keys() - {'difficulty'}
    assert Counter(bare(load(path).triplets)) == Counter(dict.fromkeys(bare(triplets), 1)) and any(triplet.negatives for triplet in triplets)


# ---- splits, merging, hash

def test_splits_by_hash(tmp_path):
    rows = [{'query': f'질문 {i}', 'positive': f'답 {i}', 'negative': []} for i in range(400)]
    halves = {}
    for name, part in {'all': rows, 'reversed': rows[::-1], 'half': rows[:200]}.items():
        (tmp_path/f'{name}.jsonl').write_text(jsonl(part), encoding='utf-8')
        halves[name] = {query.text: query.split for query in load(tmp_path/f'{name}.jsonl').queries.values()}
    assert set(halves['all'].values()) == {'train', 'test'} and 60 <= Counter(halves['all'].values())['test'] <= 100
    assert halves['all'] == halves['reversed'] and sum(halves['all'][text] != split for text, split in halves['half'].items()) <= 2
    assert 'by hash of the query (20% test)' in ''.join(load(tmp_path/'all.jsonl').notes)


@pytest.mark.parametrize('count', [1, 2, 3])
def test_small_collections_keep_a_query_in_each_split(count, tmp_path):
    (tmp_path/'a.jsonl').write_text(jsonl([{'query': f'질문 {i}', 'positive': f'답 {i}', 'negative': []} for i in range(count)]), encoding='utf-8')
    loaded = load(tmp_path/'a.jsonl')
    assert loaded.split('test') and len(loaded.split('train')) >= min(count - 1, 1)
    queries = {key: replace(query, split='') for key, query in loaded.queries.items()}
    for share in (0.0, 0.2, 1.0):
        made = with_splits(collect('a', dict(loaded.documents), queries, dict(loaded.qrels)), share)
        assert made.split('test') and len(made.split('train')) >= min(count - 1, 1)


def test_a_published_test_split_stays(tmp_path):
    collection = load(beir(tmp_path, qrels_train__tsv=None, qrels_test__tsv=tsv(TRAIN + TEST)))
    assert len(collection.split('test')) == 2 and 'no train split' in ''.join(collection.notes)
    made = with_splits(collection)
    assert len(made.split('test')) == len(made.split('train')) == 1 and made.hash != collection.hash


def test_merge_prefixes_ids(tmp_path):
    one, two = beir(tmp_path/'a'/'set'), beir(tmp_path/'b'/'set', negatives__jsonl=jsonl([{'query_id': 'q1', 'negative_ids': ['d2']}]))
    both = load(f'{one}, {two},mini')
    assert both.name == 'set+set-2+mini' and list(both.documents)[:4] == ['set/d1', 'set/d2', 'set-2/d1', 'set-2/d2']
    assert all(key == record.id for part in (both.documents, both.queries) for key, record in part.items())
    assert both.qrels['set-2/q1'] == {'set-2/d1': 1} and both.triplets[0].negative_ids == ('set-2/d2',)
    assert all(key in both.documents for pair in both.context_pairs for group in pair.documents for key in group) and both.context_pairs
    assert len(both.split('train')) == 2 + len(load('mini').split('train'))


def test_hash_names_content_in_reading_order(tmp_path):
    first = load(beir(tmp_path/'first')).hash
    assert re.fullmatch('[0-9a-f]{16}', first) and first == load(beir(tmp_path/'same', corpus__jsonl=jsonl(CORPUS).replace(', ', ' ,  '), queries__jsonl=jsonl([QUERIES[0], QUERIES[1] | {'metadata': {'split': 'train', 'kind': 'travel'}}]))).hash
    changes = [{'corpus__jsonl': jsonl(CORPUS[::-1])}, {'corpus__jsonl': jsonl([CORPUS[0] | {'text': '나주 배는 쓰다.'}, CORPUS[1]])}, {'qrels_train__tsv': tsv([('q1', 'd1', '2')])},
               {'qrels_train__tsv': None, 'qrels_test__tsv': tsv(TRAIN + TEST)}, {'negatives__jsonl': FIRST['negatives.jsonl']}]
    assert len({first, *(load(beir(tmp_path/str(i), **change)).hash for i, change in enumerate(changes))}) == 1 + len(changes)


# ---- the hub

CARD = '---\nconfigs:\n' + ''.join(f'- config_name: {name}\n  data_files:\n  - split: {split}\n    path: {name}/{split}.jsonl\n' for name, split in [('corpus', 'dev'), ('queries', 'dev'), ('default', 'dev')]) + '---\n'


def test_hub_snapshot_through_datasets(tmp_path, monkeypatch):
    "A snapshot of a hub repository, laid out as mteb does it, read by `datasets` itself and without a network."
    import datasets
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path/'cache')
    folder = tmp_path/'Ko-Tiny'
    for name, rows in {'corpus': CORPUS, 'queries': [{'_id': 'q1', 'text': unicodedata.normalize('NFD', '과일 배')}], 'default': [{'query-id': 'q1', 'corpus-id': 'd1', 'score': 1.0}]}.items():
        (folder/name).mkdir(parents=True); (folder/name/'dev.jsonl').write_text(jsonl(rows), encoding='utf-8')
    (folder/'README.md').write_text(CARD, encoding='utf-8')
    collection = load(folder)
    assert collection.name == 'Ko-Tiny' and collection.texts['d1'] == '나주 배 나주 배는 달다.' and collection.qrels == {'q1': {'d1': 1}}
    assert collection.split('test')['q1'].text == '과일 배' and 'dev queries stand in' in collection.notes[0]


def hub(monkeypatch, tables):
    import datasets
    monkeypatch.setattr(datasets, 'get_dataset_config_names', lambda name: list(tables))
    monkeypatch.setattr(datasets, 'load_dataset', lambda name, config: tables[config])


def test_hub_by_name(monkeypatch):
    hub(monkeypatch, {'ko-corpus': {'test': CORPUS}, 'ko-queries': {'test': QUERIES[:1]}, 'ko-qrels': {'test': [{'query-id': 'q1', 'corpus-id': 'd1', 'score': 1}]}, 'en-corpus': {}})
    assert list(load('mteb/Some-Retrieval').split('test')) == ['q1']


@pytest.mark.parametrize('tables, field', [({'default': {}}, 'configurations'), ({'corpus': {'test': CORPUS}, 'queries': {'test': QUERIES}, 'qrels': {'ko': []}}, 'splits of the judgments'),
                                           ({'corpus': {'test': [{'_id': 'd1', 'text': ''}]}, 'queries': {'test': []}, 'qrels': {'test': []}}, 'text')])
def test_hub_faults(tables, field, monkeypatch):
    hub(monkeypatch, tables)
    assert 'mteb/Some-Retrieval' in refused('mteb/Some-Retrieval', field=field).file


def test_hub_out_of_reach_says_what_to_do(monkeypatch):
    import datasets
    def fail(name): raise ConnectionError("Couldn't reach the Hub")
    monkeypatch.setattr(datasets, 'get_dataset_config_names', fail)
    error = refused('mteb/Ko-StrategyQA', field='hub data set')
    assert "Couldn't reach the Hub" in error.found and 'hf download mteb/Ko-StrategyQA' in error.allowed and 'mini' in error.allowed


# ---- real collections beside the project

@pytest.mark.slow
@pytest.mark.parametrize('name, documents, test, train', [
    ('tydiqa_ko_goldp', 1488, 276, 1590), ('question_pair', 7428, 352, 3778), ('ko_strategyqa_facts', 4160, 1647, 2513), ('techdocs_ko', 2567, 858, 1590), ('parakqc', 8987, 1000, 0)])
def test_real_collection(name, documents, test, train):
    folder = real(f'data/{name}')
    collection = load(folder)
    assert (len(collection.documents), len(collection.split('test')), len(collection.split('train'))) == (documents, test, train)
    triplets = train_triplets(collection)
    assert len(triplets) == sum(len(collection.qrels[key]) for key in collection.split('train'))
    given = folder/'train_triplets.jsonl'
    rows = [json.loads(line) for line in given.read_text(encoding='utf-8').splitlines()] if train else []
    assert {(t.query_id, t.positive_id): t.negative_ids for t in triplets} == {(row['query_id'], row['positive_id']): tuple(row['negative_ids']) for row in rows}
    assert bool(triplets) == bool(train)


def test_real_korquad():
    "964 paragraphs, three of them twice; every question judged; a fifth is test."
    path = real('data/korquad_v1')/'KorQuAD_v1.0_dev.json'
    collection = load(path)
    paragraphs = [paragraph for article in json.loads(path.read_text(encoding='utf-8'))['data'] for paragraph in article['paragraphs']]
    assert len(paragraphs) == 964 and len(collection.documents) == len({p['context'] for p in paragraphs}) == 961
    assert len(collection.queries) == len(collection.qrels) == 5774 and all(document.title for document in collection.documents.values())
    assert abs(len(collection.split('test')) / 5774 - 0.2) < 0.02 and len(collection.split('test')) + len(collection.split('train')) == 5774


def test_real_pairs():
    "Lists of negatives without pair type, as inference pairs come."
    collection = load(real('data/nli_ko.jsonl'))
    assert len(collection.triplets) == 3500 and len([triplet for triplet in collection.triplets if triplet.negatives]) > 3400


# ---- the embedded set

KINDS = ('single_term', 'multi_term', 'original', 'hard_neg', 'travel', 'cross_lingual')
FILES = ('corpus.jsonl', 'queries.jsonl', 'qrels_train.tsv', 'qrels_test.tsv', 'negatives.jsonl', 'context_pairs.jsonl')


@pytest.fixture(scope='module')
def mini(): return load('mini')


def by_meta(records, key) -> Counter: return Counter(record.meta[key] for record in records)


def test_mini_files_hold_what_is_loaded(mini):
    "No line is lost or doubled on reading, and every file is NFC, without mark and CRLF."
    raw = {name: (root()/'data'/'mini'/name).read_bytes().decode() for name in FILES}
    assert all(unicodedata.is_normalized('NFC', text) and '\r' not in text and not text.startswith('\ufeff') for text in raw.values())
    assert all(unicodedata.is_normalized('NFC', value) for text in (raw[name] for name in FILES if name.endswith('.jsonl')) for line in text.splitlines() for value in re.findall('"([^"]*)"', json.dumps(json.loads(line), ensure_ascii=False)))
    lines = {name: len(text.splitlines()) for name, text in raw.items()}
    judged = sum(map(len, mini.qrels.values()))
    assert (lines['corpus.jsonl'], lines['queries.jsonl'], lines['context_pairs.jsonl']) == (len(mini.documents), len(mini.queries), len(mini.context_pairs))
    assert lines['qrels_train.tsv'] + lines['qrels_test.tsv'] - 2 == judged and not mini.notes
    ids = [*mini.documents, *mini.queries, *(pair.id for pair in mini.context_pairs)]
    assert len(ids) == len(set(ids)) and all(mini.qrels.get(key) for key in mini.queries)


def test_mini_size_and_balance(mini):
    fields = by_meta(mini.documents.values(), 'field')
    assert len(mini.documents) >= 400 and len(fields) >= 10 and min(fields.values()) >= 36, fields
    assert max(fields.values()) <= 2 * min(fields.values()), fields
    assert len(mini.split('train')) >= 1500 and len(mini.split('test')) >= 300


@pytest.mark.parametrize('split', ['train', 'test'])
def test_mini_kinds_and_traits(mini, split):
    queries = mini.split(split).values()
    kinds = Counter(query.kind for query in queries)
    assert set(kinds) == set(KINDS) and min(kinds.values()) >= 0.06 * len(queries), {kind: f'{count / len(queries):.1%}' for kind, count in kinds.items()}
    traits = Counter(trait for query in queries for trait in query.meta['traits'])
    assert set(traits) == {'no_shared_word', 'loanword', 'typed'}, traits
    assert by_meta(queries, 'field').keys() == by_meta(mini.documents.values(), 'field').keys()
    assert all(query.meta['split'] == split for query in queries)


@pytest.mark.parametrize('split', ['train', 'test'])
def test_mini_crosses_both_ways(mini, split):
    "An English query for a Korean document and the reverse."
    hangul = re.compile('[가-힣]')
    assert {document.meta['lang'] for document in mini.documents.values()} == {'ko', 'en'}
    assert all(bool(hangul.search(document.text)) == (document.meta['lang'] == 'ko') for document in mini.documents.values())
    ways = Counter(('ko' if hangul.search(query.text) else 'en', mini.documents[key].meta['lang']) for query in mini.split(split).values() if query.kind == 'cross_lingual' for key in mini.qrels[query.id])
    assert ways['en', 'ko'] and ways['ko', 'en'], ways


def test_mini_splits_share_no_query(mini):
    texts = {split: {re.sub(r'\s', '', query.text).casefold() for query in mini.split(split).values()} for split in ('train', 'test')}
    assert all(texts.values()) and not texts['train'] & texts['test']


def test_mini_hard_negatives(mini):
    named = {triplet.query_id for triplet in mini.triplets if triplet.negatives}
    hard = [query.id for query in mini.split('train').values() if query.kind == 'hard_neg']
    assert hard and not set(hard) - named
    assert {triplet.query_id for triplet in train_triplets(mini)} == set(mini.split('train'))


def test_mini_context_pairs(mini):
    assert len(mini.context_pairs) >= 60
    assert not [pair.id for pair in mini.context_pairs if not all(pair.phrase in query for query in pair.queries) or len(set(pair.queries)) < 2]
    assert not [pair.id for pair in mini.context_pairs if not all(pair.documents) or set(pair.documents[0]) & set(pair.documents[1])]
    assert all(key in mini.documents for pair in mini.context_pairs for group in pair.documents for key in group)


def test_mini_has_no_near_duplicates(mini):
    "Character 3-grams shared, over the smaller set."
    grams = {key: {text[i:i + 3] for i in range(len(text) - 2)} for key, text in ((key, re.sub(r'\s', '', text)) for key, text in mini.texts.items())}
    near = [(one, two) for one, two in combinations(grams, 2) if len(grams[one] & grams[two]) > 0.5 * min(len(grams[one]), len(grams[two]))]
    assert min(map(len, grams.values())) > 20 and not near


def test_mini_texts_are_two_to_four_sentences(mini):
    sentences = {key: len(re.findall(r'[.!?]["”’)]*(?=\s|$)', document.text)) for key, document in mini.documents.items()}
    assert not {key: count for key, count in sentences.items() if not 2 <= count <= 4}


# ---- the package

def test_nothing_heavy_is_imported():
    import subprocess, sys
    code = "import sys, splade_nb.data; print([name for name in ('nbdev', 'fastcore', 'torch', 'datasets', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == '[]'


def test_toy_corpus():
    toy = toy_corpus()
    assert len([key for key, text in toy.texts.items() if re.search('[가-힣]', text)]) == 12 and len(toy.documents) == 14 and len(toy.queries) == 24
    assert {query.kind for query in toy.split('train').values()} == {query.kind for query in toy.split('test').values()} == set(KINDS)
    assert toy == toy_corpus() and all(len(query) for pair in toy.context_pairs for query in pair.queries if pair.phrase in query)


def test_questions_that_are_asked_in_training_too_are_noted():
    "Under another id, with spaces around: the text is the same."
    corpus = toy_corpus()
    train, test = (next(iter(corpus.split(split))) for split in ('train', 'test'))
    same = replace(corpus.queries[test], text=f' {corpus.queries[train].text} ')
    known = collect('toy', corpus.documents, dict(corpus.queries) | {test: same}, dict(corpus.qrels))
    assert not any('training queries too' in note for note in ready(corpus).notes)
    assert f'1 of {len(corpus.split("test"))} test query texts are training queries too' in ready(known).notes

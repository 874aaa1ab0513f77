"""What people have in their folders: any encoding, any form, any name; nothing is lost, divided again or numbered twice."""
import gzip, json, lzma, threading, unicodedata
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from splade_nb.config.files import DataError
from splade_nb.cli import _texts_of
from splade_nb.model.encode_shards import Again
from splade_nb.data import collections as sets
from splade_nb.data.corpus import open_corpus
from splade_nb.data.readers import iterate_texts, load, load_collection, locate, named_queries, read_source
from splade_nb.evaluation.metrics import retrieval_metrics, without_self


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    "A project of its own, and the working folder in it."
    monkeypatch.setenv('SPLADE_NB_PREPARED', str(tmp_path/'prepared'))
    (tmp_path/'settings.ini').touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(path: str, *records) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(''.join(json.dumps(record, ensure_ascii=False) + '\n' for record in records), encoding='utf-8')
    return Path(path)


def beir(folder: str, grades=(1,) * 10, split: str = 'test', start: int = 0) -> str:
    rows(f'{folder}/corpus.jsonl', *({'_id': f'd{n}', 'text': f'글 {start + n}'} for n in range(len(grades))))
    rows(f'{folder}/queries.jsonl', *({'_id': f'q{n}', 'text': f'질문 {start + n}'} for n in range(len(grades))))
    Path(folder, f'qrels_{split}.tsv').write_text(''.join(f'q{n}\td{n}\t{grade}\n' for n, grade in enumerate(grades)))
    return folder


def squad(path: str, *names, **more) -> str:
    def paragraph(name): return {'context': f'문단 {name}', 'qas': [{'question': f'질문 {name}', **({'id': name} if not more else more)}]}
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps({'data': [{'title': '제목', 'paragraphs': [*map(paragraph, names)]}]}, ensure_ascii=False), encoding='utf-8')
    return path


def test_what_judges_is_never_divided():
    "Named test or dev queries all judge, whether train queries are there or not; queries without an answer judge in no split."
    for split in ('test', 'dev'):
        found = load_collection(beir(split, (1,) * 8 + (0, 2), split))
        assert len(found.judging()) == len(found.judging('all')) == len(found.split('test')) == 9 and not found.split('train')
        assert len(open_corpus(split).queries) == 9
    for name in ('my_train', 'my_test'): rows(f'pairs/{name}.jsonl', *({'query': f'{name} {n}', 'positive': f'글 {n}', 'negative': []} for n in range(9)))
    assert {query.text[:7] for query in load_collection('pairs').split('test').values()} == {'my_test'}


def test_no_relevant_document_is_an_error():
    found = load_collection(beir('zeros', (0,) * 10))
    for split in ('test', 'all'):
        with pytest.raises(DataError, match='no relevant document'): found.judging(split)
    with pytest.raises(DataError, match='no relevant document'): open_corpus('zeros')


def test_grades_are_whole_numbers():
    assert retrieval_metrics({'q': {'d': 1.0}}, {'q': {'d': 2.0}})['ndcg@10'].iloc[0] == 1
    with pytest.raises(ValueError, match='0.9'): retrieval_metrics({'q': {'d': 0.9}}, {'q': {'d': 2.0}})
    assert load(beir('floats', ('1.0', '2.0'))).qrels == {'q0': {'d0': 1}, 'q1': {'d1': 2}}
    for order in ('abc', 'bca'):  # the order decided where b stood
        with pytest.raises(ValueError, match='NaN'): retrieval_metrics({'q': {'a': 1}}, {'q': {doc: dict(a=1.0, b=float('nan'), c=2.0)[doc] for doc in order}})
    spam = retrieval_metrics({'q': {'d': -2}, 'r': {'d': -2, 'e': 1}}, {'q': {'d': 2.0}, 'r': {'d': 2.0, 'e': 1.0}})
    assert spam['mrr@10'].tolist() == [0, 0.5], 'grades below -1, as TREC has them, ended the process'


def test_no_query_finds_itself():
    "The same id and the same text; an id that two texts share by chance, and a judged one, stay."
    run, queries = {name: {name: 2., 'z': 1.} for name in 'abc'}, dict(a='쌀은 씻는다', b='다른 글', c='쌀은 씻는다')
    found = without_self(run, {'c': {'c': 1}}, queries, dict.fromkeys('abcz', '쌀은 씻는다'))
    assert [*map(len, found.values())] == [1, 2, 2]


def test_collections_of_one_name_stay_apart():
    names = [beir(f'{folder}/{name}', (1,) * 3, start=start) for folder, name, start in (('a', 'qa', 0), ('b', 'qa', 3), ('c', 'qa-2', 6), ('d', 'qa', 9))]
    for order in (names, names[::-1]):
        both = load(','.join(order))
        assert len(both.documents) == len(both.queries) == 12 and len(set(both.texts.values())) == 12


def test_files_of_squad_name_their_splits():
    squad('both/KorQuAD_v1.0_train.json', '가', '나', '다')
    squad('both/KorQuAD_v1.0_dev.json', '라', '마')
    Path('both/._KorQuAD_v1.0_dev.json').write_bytes(b'\0\5\26\7')
    for source in ('both', 'both/KorQuAD_v1.0_train.json,both/KorQuAD_v1.0_dev.json', 'train=both/KorQuAD_v1.0_train.json,test=both/KorQuAD_v1.0_dev.json'):
        found = load(source)
        assert {query.text[-1] for query in found.split('test').values()} == {*'라마'} and len(found.split('train')) == 3


@pytest.mark.parametrize('field, value, expected', [('guid', 'klue-1', 'klue-1'), ('question_id', 55, '55'), ('', '', None)])
def test_questions_have_an_id_of_any_name(field, value, expected):
    found = load(squad('a.json', '가', **{field: value}))
    assert len(found.queries) == 1 and (expected is None or expected in found.queries)


def test_skipped_questions_are_told():
    with pytest.raises(DataError, match=r'skipped 1 with a fault in a.json, data\[\].paragraphs\[\].qas\[\].question'):
        load(squad('a.json', '가', id='q', question=3), strict=False)


def test_titles_numbers_and_fields_that_nobody_reads():
    rows('corpus.jsonl', {'_id': 1, 'title': '제목', 'text': '', 'url': 'x'}, {'_id': 2, 'text': '글', 'url': 'y'})
    rows('queries.jsonl', {'_id': 3, 'text': '질문'})
    rows('qrels/test.jsonl', {'query-id': 3, 'corpus-id': 1, 'score': 1})
    found = load('.')
    assert dict(found.texts) == {'1': '제목', '2': '글'} and found.qrels == {'3': {'1': 1}}
    assert 'not read: url of corpus.jsonl, in 2 rows' in found.notes


@pytest.mark.parametrize('given', [{'negative': '가', 'negatives': ['나', '다']}, {'negative': '가', 'negative_1': '나', 'negative_2': '다'}])
def test_all_negatives_are_read(given):
    found = load(rows('train.jsonl', {'query': '질문', 'positive': '답', 'score': 3, **given}))
    assert found.triplets[0].negatives == ('가', '나', '다') and 'not read: score of train.jsonl, in 1 rows' in found.notes


def test_a_data_set_of_save_to_disk_is_called_so():
    rows('saved/dataset_info.json', {}), rows('saved/state.json', {})
    with pytest.raises(DataError, match='save_to_disk'): load('saved')


LINES = '쌀을 씻는다\n\n밥을 짓는다\n'


@pytest.mark.parametrize('name, content', [
    ('a.txt', LINES.encode()), ('A.TXT', LINES.encode('utf-8-sig')), ('a.txt.xz', lzma.compress(LINES.encode())), ('a.txt.gz', gzip.compress(LINES.encode(), mtime=0)),
    ('mac.txt', LINES.replace('\n', '\r').encode()), ('dos.txt', LINES.replace('\n', '\r\n').encode()), ('apart.txt', unicodedata.normalize('NFD', LINES).encode())], ids=lambda part: part if isinstance(part, str) else "")
def test_a_line_has_one_number(name, content):
    "That an editor shows: for search, for encode and its queries, packed or not."
    Path(name).write_bytes(content)
    expected = [('1', '쌀을 씻는다'), ('3', '밥을 짓는다')]
    assert [(document.id, document.text) for document in read_source(name)] == [*iterate_texts(name)] == [*named_queries(name)] == expected
    texts, ids = _texts_of(name)
    assert [*zip(ids, texts)] == [*zip(ids, texts)] == expected


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'cp949', 'utf-16'])
def test_a_folder_of_ones_own(encoding, capsys):
    Path('own').mkdir()
    Path('own/faq.csv').write_bytes('제목,내용,작성일\r\n환불,"환불은\n사흘",2024\r\n,,\r\n교환,,2025\r\n'.encode(encoding))
    Path('own/notes.txt').write_text(LINES, encoding='utf-8')
    Path('own/help.md').write_text('# 도움말\n\n비밀번호를 바꾼다\n', encoding='utf-8')
    rows('own/docs.jsonl', {'id': 7, 'text': '글 하나'}, {'text': '글 둘'})
    Path('own/._notes.txt').write_bytes(b'\0\5')
    assert dict(iterate_texts('own')) == {
        'docs.jsonl:7': '글 하나', 'docs.jsonl:2': '글 둘', 'faq.csv:2': '환불 환불은\n사흘', 'faq.csv:5': '교환', 'help.md:1': '도움말 비밀번호를 바꾼다',
        'notes.txt:1': '쌀을 씻는다', 'notes.txt:3': '밥을 짓는다'}
    with pytest.raises(DataError, match='documents alone'): load('own/docs.jsonl')


@pytest.mark.parametrize('content, said', [(b'\xff\xff\xff', 'allowed: UTF-8$'), (('가' * 100_001).encode(), '100,001 characters')])
def test_a_text_that_cannot_be_read_is_named(content, said):
    Path('a.txt').write_bytes(content)
    with pytest.raises(DataError, match=f'a.txt, line 1.*{said}'): [*read_source('a.txt')]


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16', 'cp949', 'euc-kr'])
@pytest.mark.parametrize('name, content, expected', [('a.txt', '환불\n교환', ['환불', '교환']), ('a.md', '# 환불\n사흘', ['환불 사흘']), ('a.csv', '질문,답변\n환불은?,사흘', ['환불은? 사흘'])])
def test_texts_of_windows_are_read_as_they_are(encoding, name, content, expected):
    Path(name).write_bytes(content.encode(encoding))
    assert [document.full for document in read_source(name)] == expected


@pytest.mark.slow
def test_an_encoding_that_changes_inside_a_file_is_refused():
    Path('a.txt').write_bytes('환불\n'.encode('cp949') * 200_000 + '환불\n'.encode('utf-8') + b'\xff\xff')
    with pytest.raises(DataError, match='CP949 in all of the file'): [*read_source('a.txt')]


@pytest.mark.parametrize('name', ['a.txt.gz', 'a.md.gz', 'a.csv.gz'])
def test_a_packed_file_of_ones_own_that_is_cut_is_refused(name):
    Path(name).write_bytes(gzip.compress('질문,답변\n환불,사흘\n'.encode() * 99)[:-9])
    with pytest.raises(DataError, match='a whole .xz or .gz file'): [*read_source(name)]


def test_what_a_folder_holds_and_is_not_read_is_said(capsys):
    Path('own/older').mkdir(parents=True)
    for name in ('table.xlsx', 'letter.hwp'): Path('own', name).write_bytes(b'0')
    with pytest.raises(DataError, match='own, files: found letter.hwp, older/, table.xlsx; allowed: files of texts: .txt'): [*read_source('own')]
    Path('own/notes.txt').write_text('글', encoding='utf-8')
    assert [document.text for document in read_source('own')] == ['글']
    assert 'own: not read: letter.hwp, older/, table.xlsx; ' in capsys.readouterr().err


def test_names_of_files_are_spelled_alike_on_every_machine():
    "macOS writes 한글 in its parts: ids, collections and their hashes were others there."
    def made(form):
        name = unicodedata.normalize(form, '한글')
        Path(form, name).mkdir(parents=True)
        for ending in ('txt', 'md'): Path(form, name, f'{name}.{ending}').write_text('글\n', encoding='utf-8')
        sources = [beir(f'{form}/{name} 1'), squad(f'{form}/{name} 2.json', 'a'), rows(f'{form}/{name} 3.jsonl', *({'query': f'질문 {n}', 'positive': f'답 {n}', 'negative': []} for n in range(9)))]
        both = load(','.join(map(str, sources)))
        return [*iterate_texts(f'{form}/{name}')], both.name, both.hash, [*both.documents]
    assert made('NFD') == made('NFC')


def test_a_table_without_a_text_column_names_its_columns():
    Path('a.csv').write_text('번호,질문\n1,환불\n', encoding='utf-8')
    with pytest.raises(DataError, match='a.csv, line 2, columns: found .번호, 질문.*내용'): [*read_source('a.csv')]


@pytest.mark.parametrize('name, mark', [('a.csv', ';'), ('a.csv', '\t'), ('a.csv', ','), ('a.tsv', '\t'), ('a.tsv', ',')])
def test_a_table_says_by_its_first_line_what_parts_its_columns(name, mark):
    Path(name).write_text(f'제목{mark}내용\n"환불, 또는 교환"{mark}사흘\n', encoding='utf-8')
    assert [document.full for document in read_source(name)] == ['환불, 또는 교환 사흘']


@pytest.mark.parametrize('before, mark', [('sep=;', ';'), ('"sep=,"', ','), ('sep=\t', '\t'), ('sep=|', '|')])
def test_the_line_in_which_excel_names_the_mark_is_none_of_the_table(before, mark):
    Path('a.csv').write_text(f'{before}\r\n제목{mark}내용\r\n환불{mark}사흘\r\n', encoding='utf-8-sig')
    assert [(document.id, document.full) for document in read_source('a.csv')] == [('3', '환불 사흘')]


def test_a_mark_inside_a_quoted_name_parts_no_columns():
    Path('a.csv').write_text('"내용";"분류, 작성자"\n사흘, 또는 나흘;가\n', encoding='utf-8')
    assert [document.full for document in read_source('a.csv')] == ['사흘, 또는 나흘']


@pytest.mark.parametrize('order', [1, -1])
def test_a_line_and_an_id_never_name_two_documents(order):
    rows('a.jsonl', *[{'id': 2 if order == 1 else 1, 'text': '환불'}, {'text': '교환'}][::order])
    with pytest.raises(DataError, match=f"a.jsonl, line 2, id: found '{2 if order == 1 else 1}' a second time"): [*read_source('a.jsonl')]


def test_a_quotation_mark_that_is_never_closed_swallows_nothing():
    Path('a.csv').write_text('제목,내용\n환불,사흘\n교환,"나흘\n' + '배송,이틀\n' * 99, encoding='utf-8')
    with pytest.raises(DataError, match='a.csv, line 3, CSV: found a quotation mark that no later one closes'): [*read_source('a.csv')]


def test_utf_32_is_not_taken_for_utf_16():
    Path('a.txt').write_bytes('환불\n'.encode('utf-32'))
    with pytest.raises(DataError, match='a.txt, line 1, encoding'): [*read_source('a.txt')]


def test_an_empty_file_decides_nothing_of_its_folder():
    Path('own').mkdir()
    rows('own/a.jsonl', {'_id': '1', 'text': '글'})
    Path('own/b.jsonl').write_text('')
    assert dict(iterate_texts('own')) == {'a.jsonl:1': '글'}


def test_every_command_looks_in_the_same_places(project, monkeypatch):
    "From the root and from a folder below it; `mini` is the embedded set; a name in NFD is found."
    rows('data/own/corpus.jsonl', {'_id': 'd', 'text': '글'}), rows('mini/corpus.jsonl', {'_id': 'd', 'text': '남의 글'})
    Path('data', unicodedata.normalize('NFD', '글')).mkdir()
    Path('nbs').mkdir()
    for folder in (project, project/'nbs'):
        monkeypatch.chdir(folder)
        for source in ('own', 'data/own'): assert dict(iterate_texts(source)) == {'d': '글'}
        assert len(list(iterate_texts('mini'))) > 100 and locate('글').is_dir()


def test_a_folder_without_files_is_refused_at_once(project):
    (project/'empty/below').mkdir(parents=True)
    with pytest.raises(DataError, match='none in the folder itself'): [*read_source('empty')]


class Changing(BaseHTTPRequestHandler):
    "Breaks the first answer off; the file has changed since. `form`: what a server may do."
    version, content, form = 0, (b'a' * 50, b'b' * 50), ''
    def log_message(self, *arguments): pass
    def do_GET(self):
        whole, given, kind = self.content[min(self.version, 1)], self.headers.get('Range'), type(self)
        partial = given and (self.headers.get('If-Range') == f'"{min(self.version, 1)}"' or kind.form == 'ignores')
        if kind.form == '416' and given: return self.send_error(416)
        start = int(given[6:-1]) if partial else 0
        self.send_response(206 if partial else 200)
        self.send_header('Content-Length', str(len(whole) - start))
        if kind.form != 'no tag': self.send_header('ETag', f'"{min(self.version, 1)}"')
        if partial: self.send_header('Content-Range', f'bytes {start}-{len(whole) - 1}/{len(whole)}')
        self.end_headers()
        self.wfile.write(whole[start:] if kind.version else whole[:20])
        kind.version += 1


@pytest.mark.parametrize('form', ['', 'ignores', 'no tag', '416'])
def test_a_download_never_joins_two_versions(form, project):
    Changing.version, Changing.form = 0, form
    server = HTTPServer(('127.0.0.1', 0), Changing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f'http://127.0.0.1:{server.server_port}/a'
    with pytest.raises(DataError, match='20 of 50'): sets.download(address, project/'a')
    found = sets.download(address, project/'a')
    server.shutdown()
    server.server_close()
    assert found.read_bytes() == b'b' * 50 and sorted(path.name for path in project.iterdir() if path.is_file()) == ['a', 'settings.ini']


@pytest.mark.parametrize('name, text, found', [
    ('title.csv', '제목\n안녕\n', ['안녕']), ('title.jsonl', '{"id": "1", "title": "제목"}\n', ['제목']), ('capitals.csv', 'ID,Text\n7,한복\n', ['한복']),
    ('blank.csv', 'id,text,,\n1,한복,,\n', ['한복']), ('pandas.csv', ',text\n0,한복\n', ['한복']), ('notes.csv', '내용,\n한복,비고\n', ['한복']), ('unnamed.jsonl', '{"": "x", "text": "한복"}\n', ['한복']),
    ('spellings.csv', 'Text,text\n한복,서울\n', 'line 2, columns: found .Text, text.; allowed: text once'), ('fields.jsonl', '{"text": "한복", "text": "서울"}\n', "line 1, JSON: found text is given twice: '한복' and '서울'"),
    ('reviews.csv', '후기\n좋아요\n', ['좋아요']),
    ('id.csv', 'id\n1\n', 'line 2, columns: found .id.'), ('id.jsonl', '{"id": "1", "text": "한복"}\n{"id": "2"}\n', 'line 2, columns: found .id.'),
    ('other.csv', 'id,제목,비고\n1,가,나\n', 'allowed: a column for the text'), ('twice.csv', 'id,text,text\n1,한복,서울\n', "line 1, columns: found 'text' twice")])
def test_columns_are_read_by_their_names_or_refused(name, text, found, tmp_path, capsys):
    (tmp_path/name).write_text(text, encoding='utf-8')
    if isinstance(found, str):
        with pytest.raises(DataError, match=found): [*read_source(str(tmp_path/name))]
        return
    documents = [*read_source(str(tmp_path/name))]
    assert [document.full for document in documents] == found and (name != 'capitals.csv' or documents[0].id == '7')
    assert ("'후기', is read as the name of its column" in capsys.readouterr().err) == (name == 'reviews.csv')


def test_documents_are_read_one_by_one(tmp_path):
    "Of a folder of texts and of a `corpus.jsonl`, whatever follows."
    (tmp_path/'corpus.jsonl').write_text('{"_id": "1", "text": "한복"}\nno JSON\n', encoding='utf-8')
    (tmp_path/'own').mkdir()
    for name in 'ab': (tmp_path/'own'/f'{name}.txt').write_text('서울\n부산\n', encoding='utf-8')
    for source, first in ((tmp_path, '한복'), (tmp_path/'own', '서울')):
        assert next(read_source(str(source))).text == first
        assert isinstance(_texts_of(str(source))[0], Again), 'they are read again, and not held'

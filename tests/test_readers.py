"""Triplets in the layout of the design documents: one collection of many files, read once, at any size."""
import json, shutil, subprocess, sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import made_collection
from splade_nb.config.files import DataError, root
from splade_nb.data import lines, triplets
from splade_nb.data.prepared import clean_prepared, file_hash
from splade_nb.data.readers import load, load_collection, short_queries
from splade_nb.data.records import toy_corpus
from splade_nb.data.text import letters


@pytest.fixture(autouse=True)
def prepared(tmp_path, monkeypatch):
    "An empty folder for prepared data."
    monkeypatch.setenv('SPLADE_NB_PREPARED', str(tmp_path/'prepared'))
    return tmp_path/'prepared'


def line(query, positive, *negatives, kind='original', **more):
    return dict(query=query, positive=positive, negative=list(negatives), pair_type=kind) | more


def write(path: Path, *rows, mode='w') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode, encoding='utf-8') as file: file.writelines(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    return path


FERRY, PEAR, SNOW = '목포에서 제주로 가는 배편', '나주 배 한 상자', '눈길에서는 천천히'


@pytest.fixture
def seeds(tmp_path) -> tuple:
    "The folders of V24 and V27."
    write(tmp_path/'v24.0/train_01.jsonl', line('제주 가는 배', FERRY, PEAR, SNOW), line('과일 배', PEAR, FERRY, kind='hard_neg', difficulty='hard'))
    write(tmp_path/'v24.0/train_02.jsonl', line(' 과일 배 ', f' {PEAR} ', '새 글', kind='hard_neg'), dict(query='배편', positive='제주 배표', negative=SNOW))
    write(tmp_path/'v24.0/val.jsonl', line('눈 오는 날 운전', SNOW))
    write(tmp_path/'v27.0/train_travel_01.jsonl', line('제주 가는 배', '제주 배표', PEAR, FERRY, kind='travel_ferry'))
    return tmp_path/'v24.0', tmp_path/'v27.0'


def listed(rows) -> list: return [np.asarray(row).tolist() for row in rows]


# ---- one collection

def test_folders_become_one_collection(seeds):
    "A text of several files is one document; a query text under two pair types is two queries that share what answers them."
    both = load_collection(f'{seeds[0]}, {seeds[1]}')
    assert both.name == 'v24.0+v27.0' and list(both.texts.values()) == [FERRY, PEAR, SNOW, '새 글', '제주 배표']
    assert [(query.text, query.kind, query.split) for query in both.queries.values()] == [
        ('제주 가는 배', 'original', 'train'), ('과일 배', 'hard_neg', 'train'), ('배편', 'original', 'train'),
        ('눈 오는 날 운전', 'original', 'test'), ('제주 가는 배', 'travel_ferry', 'train')]
    rows = both.split_rows('train')
    assert rows.tolist() == [0, 1, 2, 4] and both.pairs(rows).tolist() == [[0, 0], [1, 1], [2, 4], [3, 4]]
    assert listed(both.relevant_rows(rows)) == [[0, 4], [1], [4], [0, 4]]
    assert listed(both.given_rows(rows)) == [[1, 2], [0, 3], [2], [1]]  # the ferry answers the query in another line
    assert both.query_texts(rows)[2:] == ['배편', '제주 가는 배'] and list(both.kinds(rows)) == ['original', 'hard_neg', 'original', 'travel_ferry']
    assert both.qrels['q4'] == {'d0': 1, 'd4': 1} and both.notes == ('no test split given: the 1 dev queries stand in for it',)
    assert both.queries['q4'].meta == {'file': 'v27.0/train_travel_01.jsonl', 'line': 1}


def test_a_pair_needs_no_negatives(tmp_path):
    rows = dict(query='제주 가는 배', positive=FERRY), dict(query='과일 배', positive=PEAR, negatves=SNOW)
    with pytest.raises(DataError, match='line 2, negatives: found none, beside negatves'): load(write(tmp_path/'train.jsonl', *rows))
    found = load(write(tmp_path/'train.jsonl', rows[0], dict(query='과일 배', positive=PEAR, pair_type='original')))
    assert list(found.texts.values()) == [FERRY, PEAR] and not len(found.given_rows([0, 1])[0])


def test_mappings_over_tables(seeds):
    both = load_collection(f'{seeds[0]},{seeds[1]}')
    assert (len(both.documents), len(both.queries), len(both.qrels), len(both.triplets)) == (5, 5, 5, 5)
    assert both.documents['d3'].full == both.texts['d3'] == both.texts.values()[3] == '새 글' and both.texts.values()[-2:] == ['새 글', '제주 배표']
    assert 'd5' not in both.documents and 'q1' not in both.texts and 'd1' not in both.queries and 'd01' not in both.documents and 3 not in both.documents
    assert list(both.split('test')) == ['q3'] and 'q0' not in both.split('test') and len(both.split('dev')) == 0
    for unknown in ('d5', 'q0', '', 'd', 'd-1', 'd٣'):
        with pytest.raises(KeyError): both.documents[unknown]
    assert [id for id, _ in both.documents.items()] == list(both.texts) and both.document_rows(['d4', 'd0']).tolist() == [4, 0]
    assert both.triplets[-1].negative_ids == ('d1',) and both.triplets[1].positive == PEAR
    with pytest.raises(ValueError, match="'trian'"): both.split_rows('trian')


def test_one_file_and_its_split(tmp_path, capsys):
    "Nothing is drawn by lot where files are named; a source may name the split; a draw is told of each time."
    write(tmp_path/'train.jsonl', *(line(f'질문 {n}', f'답 {n}') for n in range(40)))
    write(tmp_path/'more.jsonl', *(line(f'물음 {n}', f'답 {n}') for n in range(10)))
    named = load(f'{tmp_path}/train.jsonl,test={tmp_path}/more.jsonl')
    assert (len(named.split('train')), len(named.split('test')), named.notes) == (40, 10, ()) and not capsys.readouterr().err
    dev = load(f'{tmp_path}/train.jsonl,validation={tmp_path}/more.jsonl')
    assert len(dev.split('test')) == 10 and 'dev queries stand in' in dev.notes[0]
    doubtful = load(f'{tmp_path}/train.jsonl,{tmp_path}/more.jsonl')
    assert doubtful.notes[0] in capsys.readouterr().err and 'by hash' in doubtful.notes[0]
    assert {query.text[:2] for query in doubtful.split('test').values()} == {'물음'} and len(doubtful.split('train')) > 40
    assert load(f'{tmp_path}/train.jsonl,{tmp_path}/more.jsonl').notes[0] in capsys.readouterr().err  # opened, not read


def test_other_files_of_a_folder(tmp_path):
    write(tmp_path/'set/train_a.jsonl', line('질문', '답'))
    write(tmp_path/'set/test_a.jsonl', line('물음', '답'))
    write(tmp_path/'set/pairs.jsonl', line('배', '나주 배'))
    assert load(tmp_path/'set').notes == ('1 queries that name no split are train',) and len(load(tmp_path/'set').split('train')) == 2
    assert len(load(f'train={tmp_path}/set').split('train')) == 2 and len(load(f'{tmp_path}/set,train={tmp_path}/set/pairs.jsonl').split('train')) == 2


def test_leaks_are_dropped(tmp_path):
    "Query texts of dev and test leave train, those of test leave dev; documents may stand in all."
    write(tmp_path/'s/train.jsonl', line('새는 질문', '답 1', '남'), line('질문', '답 2'), line('새는 질문', '답 3', kind='travel'))
    write(tmp_path/'s/val.jsonl', line('새는 질문', '답 2'), line('dev 질문', '답 1'))
    write(tmp_path/'s/test_1.jsonl', line('새는 질문 2', '답 1'), line('dev 질문', '답 2'))
    found = load(tmp_path/'s')
    texts = {split: [query.text for query in found.split(split).values()] for split in ('train', 'dev', 'test')}
    assert texts == {'train': ['질문'], 'dev': ['새는 질문'], 'test': ['새는 질문 2', 'dev 질문']}
    assert found.notes == ('1 query texts (2 triplets) dropped from train: dev or test has them too', '1 query texts (1 triplets) dropped from dev: dev or test has them too')
    answers = {query.text: sorted(found.documents[id].text for id in found.qrels[query.id]) for query in found.queries.values()}
    assert answers == {'질문': ['답 2'], '새는 질문': ['답 1', '답 2', '답 3'], '새는 질문 2': ['답 1'], 'dev 질문': ['답 1', '답 2']}, 'relevant in any split'
    assert len(found.documents) == 4


def test_texts_that_differ_in_spaces_and_signs_stay_on_one_side(tmp_path):
    "In files whose names tell no split, in those whose names do, and across sources."
    spellings = lambda n: (f'부자 되게 해주세요 {n}', f'부자되게  해주세요{n}!', f'부자 되게\u200b 해주세요 {n}.')
    asked = [line(text, f'답 {n}') for n in range(60) for text in spellings(n)]
    def apart(found): return not {*map(letters, texts(found, 'train'))} & {*map(letters, texts(found, 'test'))}
    def texts(found, split): return [query.text for query in found.split(split).values()]
    write(tmp_path/'all.jsonl', *asked)
    drawn = load(tmp_path/'all.jsonl')
    assert apart(drawn) and len(texts(drawn, 'test')) + len(texts(drawn, 'train')) == 180, 'nothing is lost where all spellings go together'
    write(tmp_path/'train.jsonl', *asked[::3], line('다른 질문', '답'))
    write(tmp_path/'test.jsonl', *asked[1::3])
    assert texts(load(f'{tmp_path}/train.jsonl,{tmp_path}/test.jsonl'), 'train') == ['다른 질문']
    write(tmp_path/'asked/corpus.jsonl', dict(_id='d', text='답'))
    write(tmp_path/'asked/queries.jsonl', *(dict(_id=f'q{n}', text=spellings(n)[1]) for n in range(60)))
    (tmp_path/'asked/qrels_test.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(f'q{n}\td\t1\n' for n in range(60)), encoding='utf-8')
    joined = load(f'train={tmp_path}/train.jsonl,{tmp_path}/asked')
    assert texts(joined, 'train') == ['다른 질문'] and len(texts(joined, 'test')) == 60
    assert joined.notes[-1] == '60 train queries left out: dev or test queries of another source have the same text'


def test_a_split_before_a_collection_is_that_of_its_queries(tmp_path):
    plain, named = made_collection(), tmp_path/'named'
    shutil.copytree(plain, named)
    for path in named.glob('qrels*'): path.unlink()
    rows = [json.loads(row) for row in (plain/'queries.jsonl').read_text(encoding='utf-8').splitlines()]
    write(named/'queries.jsonl', *(row | dict(metadata={}) for row in rows))
    judged = [path.read_text(encoding='utf-8').splitlines() for path in plain.glob('qrels_*.tsv')]
    (named/'qrels.tsv').write_text('\n'.join([judged[0][0], *(row for part in judged for row in part[1:])]) + '\n', encoding='utf-8')
    number = len(load(plain).relevant)
    assert len(load(f'test={named}').split('test')) == number > len(load(named).split('test'))
    with pytest.raises(DataError, match="split: found train; allowed: none, or test, after test="): load(f'test={plain}')
    with pytest.raises(DataError, match="split: found .*; allowed: none, or train, after train="): load('train=mini,toy')


def test_named_dev_queries_stay_dev_beside_test_queries_of_another_source(tmp_path):
    for name, numbers in dict(train=range(40), dev=range(40, 50), test=range(50, 60)).items():
        paragraphs = [dict(context=f'문단 {n}', qas=[dict(question=f'질문 {n}', id=f'q{n}')]) for n in numbers]
        write(tmp_path/f'set/{name}.json', dict(data=[dict(title='제목', paragraphs=paragraphs)]))
    sizes = lambda source: [len(load(source).split(split)) for split in ('train', 'dev', 'test')]
    assert sizes(tmp_path/'set') == [40, 10, 10] and sizes(f'{tmp_path}/set/train.json,{tmp_path}/set/dev.json') == [40, 0, 10]


def test_beside_judged_collections(seeds):
    "A list of both kinds: triplets as one collection, each judged set with its own ids."
    mixed = load(f'{seeds[0]},mini,{seeds[1]}')
    mini = load('mini')
    assert mixed.name == 'mini+v24.0+v27.0' and len(mixed.documents) == len(mini.documents) + 5
    assert len(mixed.split('train')) == len(mini.split('train')) + 4 and mixed.texts['v24.0+v27.0/d1'] == PEAR
    rows = mixed.split_rows('train')
    assert len(mixed.pairs(rows)) == len(mini.pairs(mini.split_rows('train'))) + 4
    last = len(mini.documents)
    assert listed(mixed.relevant_rows(rows[-1:])) == [[last, last + 4]] and listed(mixed.given_rows(rows[-1:])) == [[last + 1]]
    assert mixed.kinds(rows[-1:])[0] == 'travel_ferry' and mixed.query_texts(rows[:1])[:] == mini.query_texts(mini.split_rows('train')[:1])[:]


def test_where_one_source_judges_no_training_query_of_another_is_drawn(tmp_path):
    "Triplets beside a judged set with test queries lost a fifth of themselves to its test split, and the other way round."
    taught = write(tmp_path/'own/train.jsonl', *(line(f'질문 {n}', f'답 {n}') for n in range(10)))
    mixed = load(f'mini,{taught}')
    assert [*mixed.split('test')] == [f'mini/{id}' for id in load('mini').split('test')] and len(load(str(taught)).split('test')) > 0
    write(tmp_path/'set/corpus.jsonl', *({'_id': f'd{n}', 'text': f'글 {n}'} for n in range(10)))
    write(tmp_path/'set/queries.jsonl', *({'_id': f'q{n}', 'text': f'물음 {n}'} for n in range(10)))
    (tmp_path/'set/qrels_train.tsv').write_text(''.join(f'q{n}\td{n}\t1\n' for n in range(10)))
    judging = write(tmp_path/'own/test.jsonl', line('시험', '답 1'))
    assert len(load(f'{tmp_path}/set,{judging}').split('test')) == 1 and len(load(f'{tmp_path}/set,{taught}').split('test')) > 2


# ---- the same arrays as lists of triplets gave

def to_indices(collection, queries: dict) -> tuple:  # pairs, relevant, given
    "Judgments and given negatives as indices, computed from dictionaries."
    index, given = {id: i for i, id in enumerate(collection.documents)}, {id: {} for id in queries}
    relevant = [{index[d] for d, grade in collection.qrels[q].items() if grade > 0} for q in queries]
    pairs = [(q, d) for q, documents in enumerate(relevant) for d in sorted(documents)]
    for triplet in collection.triplets:
        given.get(triplet.query_id, {}).update((index[d], None) for d in triplet.negative_ids if d in index)
    return pairs, relevant, [[d for d in row if d not in answers] for row, answers in zip(given.values(), relevant)]


@pytest.mark.parametrize('source', ['toy', 'mini', 'triplets'])
def test_rows_are_those_of_dictionaries(source, tmp_path):
    if source == 'triplets': write(tmp_path/'s/train.jsonl', *(line(f'질문 {n % 30}', f'답 {n % 7}', f'답 {n % 11 + 7}', f'답 {(n + 1) % 7}') for n in range(200)))
    collection = toy_corpus() if source == 'toy' else load(tmp_path/'s' if source == 'triplets' else source)
    for split in ('train', 'test'):
        rows, queries = collection.split_rows(split), collection.split(split)
        pairs, relevant, given = to_indices(collection, queries)
        assert collection.pairs(rows).tolist() == list(map(list, pairs)) and len(rows) == len(queries) > 0
        assert [set(row) for row in listed(collection.relevant_rows(rows))] == relevant and listed(collection.given_rows(rows)) == given
        assert [*collection.query_texts(rows)] == [query.text for query in queries.values()]
        assert [*collection.kinds(rows)] == [query.kind for query in queries.values()]


# ---- faults, and what is kept

@pytest.mark.parametrize('bad, field', [({'query': ''}, 'query'), ({'positive': 3}, 'positive'), ({'negative': ['가', None]}, 'negative[1]'), ({'pair_type': 'hard_ngative'}, 'pair_type')])
def test_a_faulty_line_leaves_nothing(bad, field, tmp_path, prepared):
    rows = [line(f'질문 {n}', f'답 {n}') for n in range(3000)]
    write(tmp_path/'s/train_1.jsonl', line('처음', '답'))
    path = write(tmp_path/'s/train_2.jsonl', *rows, line('질문', '답') | bad, *rows[:5])
    for _ in range(2):
        with pytest.raises(DataError) as caught: load_collection(str(tmp_path/'s'))
        assert (caught.value.file, caught.value.line, caught.value.field) == (str(path), 3001, field)
    assert not list(prepared.glob('triplets/*/*.arrow')) and not list(prepared.rglob('*.part')) and not list(prepared.rglob('summary.json'))
    lenient = load(tmp_path/'s', strict=False, pair_types=['original'])
    assert len(lenient.queries) == 3001 and lenient.notes[0] == f'skipped 1 with a fault in train_2.jsonl, {field.replace("[1]", "[]")}'
    write(path, *rows)
    assert len(load_collection(str(tmp_path/'s')).queries) == 3001


def test_a_second_opening_reads_no_line(seeds, monkeypatch):
    source = ','.join(map(str, seeds))
    first = load_collection(source)
    monkeypatch.setattr(triplets, 'read_files', None)
    again = load_collection(source)
    assert again.hash == first.hash and list(again.texts.values()) == list(first.texts.values()) and again.notes == first.notes
    with pytest.raises(TypeError): load_collection(str(seeds[0]))  # other files have not been read


def test_hashes_of_files_are_kept(tmp_path, monkeypatch):
    "By path, size and time; not for a file that was changed a moment ago."
    import os
    path = write(tmp_path/'train.jsonl', line('질문', '답'))
    young = file_hash(path)
    os.utime(path, (1e9, 1e9))
    assert file_hash(path) == young
    monkeypatch.setattr('hashlib.file_digest', None)
    assert file_hash(path) == young
    os.utime(path)
    with pytest.raises(TypeError): file_hash(path)


def test_a_change_that_keeps_size_and_time_is_read(tmp_path):
    "As `rsync --times --inplace` and `cp -p` leave it."
    import os
    path = write(tmp_path/'train.jsonl', line('질문', '답'))
    os.utime(path, (1e9, 1e9))
    before, known = path.stat(), file_hash(path)
    with open(path, 'r+', encoding='utf-8') as file: file.write(path.read_text(encoding='utf-8').replace('답', '말'))
    while path.stat().st_ctime_ns == before.st_ctime_ns: os.utime(path, (1e9, 1e9))  # until the clock of the disk goes on
    os.utime(path, (1e9, 1e9))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns) and file_hash(path) != known


def test_a_cleaning_that_is_interrupted_leaves_no_half_of_a_stage(tmp_path, prepared, monkeypatch):
    "Triplets whose tables were gone but for their summary could not be opened again."
    path = write(tmp_path/'train.jsonl', line('질문', '답', '남'), line('물음', '답 2'))
    first = load(path).hash
    shutil.rmtree(prepared/'sha256')
    def interrupted(folder):
        for name in ('documents.arrow', 'of.json'): (folder/name).unlink(missing_ok=True)
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr('shutil.rmtree', interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt): clean_prepared()
    assert load(path).hash == first
    clean_prepared()
    assert not [*prepared.glob('*/*')]


def test_the_hash_names_content(tmp_path):
    rows = [line('질문', '답', '남'), line('물음', '답 2')]
    first = load(write(tmp_path/'a/train.jsonl', *rows)).hash
    assert load(write(tmp_path/'b/train_x.jsonl', *(row | {'difficulty': 'easy'} for row in rows))).hash == first
    changes = [rows[::-1], [rows[0] | {'pair_type': 'travel'}, rows[1]], [rows[0] | {'negative': []}, rows[1]], [rows[0] | {'positive': '답 3'}, rows[1]]]
    assert len({first, *(load(write(tmp_path/f'{n}/train.jsonl', *change)).hash for n, change in enumerate(changes))}) == 5


def test_lines_are_streamed(tmp_path, monkeypatch):
    "No reader takes a whole file into memory."
    monkeypatch.setattr(Path, 'read_bytes', None)
    path = write(tmp_path/'train.jsonl', *(line(f'질문 {n}', f'답 {n}') for n in range(10)))
    with open(path, 'a', encoding='utf-8') as file: file.write('{')
    rows = lines.read_rows(path, lines.Faults())
    assert next(rows).values['query'] == '질문 0'  # the fault further on is not reached
    with pytest.raises(DataError, match='line 11'): list(rows)


def test_two_processes_read_once(seeds, tmp_path):
    "The second waits for the first and opens what it wrote."
    code = ('import sys; from splade_nb.data import triplets; from splade_nb.data.readers import load_collection\n'
            'real = triplets.read_files\n'
            'def told(*given): print("reads", flush=True); real(*given)\n'
            'triplets.read_files = told\n'
            f'print(load_collection({",".join(map(str, seeds))!r}).hash)')
    both = [subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True, cwd=root()) for _ in range(2)]
    said = [process.communicate()[0].split() for process in both]
    assert Counter(word for words in said for word in words)['reads'] == 1 and said[0][-1] == said[1][-1]


MEASURE = '''
import sys, threading
from splade_nb.data.readers import load_collection
import pyarrow, numpy
def size(name): return next(int(line.split()[1]) / 1024 for line in open('/proc/self/status') if line.startswith(name))
began = size('RssAnon')
collection = load_collection(sys.argv[1])
rows = collection.split_rows('train')
print(len(collection.triplets), size('VmHWM') - began, size('RssAnon') - began)
'''


@pytest.mark.slow
def test_memory_of_many_triplets(tmp_path):
    "100,000 triplets of about 60 MB: while reading below 250 MB more than the libraries, opened below 40 MB."
    text = '제주로 가는 배는 하루 두 번 떠난다. ' * 8
    with open(tmp_path/'train.jsonl', 'w', encoding='utf-8') as file:
        for n in range(100_000):
            row = line(f'{n}째 질문', f'{n} {text}', f'{n * 7 % 100_000} {text}' if n * 7 % 100_000 != n else '')
            file.write(json.dumps(row | ({'negative': []} if not row['negative'][0] else {}), ensure_ascii=False) + '\n')
    write(tmp_path/'val.jsonl', line('검증', '답'))
    measured = []
    for _ in range(2):
        done = subprocess.run([sys.executable, '-c', MEASURE, str(tmp_path)], capture_output=True, text=True, cwd=root(), check=True)
        measured.append([float(word) for word in done.stdout.split()])
    (number, peak, _), (again, _, held) = measured
    assert number == again == 100_001 and peak < 250 and held < 40, measured


def test_a_draw_is_told_each_time(tmp_path, capsys):
    "Dev queries are never drawn from: they stand in for test, and nothing is left to learn from."
    write(tmp_path/'val.jsonl', *(line(f'질문 {n}', f'답 {n}') for n in range(30)))
    found = load_collection(str(tmp_path/'val.jsonl'))
    assert found.notes[0].startswith('no test split given: the 30 dev queries') and not capsys.readouterr().err
    assert len(found.split('test')) == 30 and not len(found.split('train'))
    (tmp_path/'val.jsonl').rename(tmp_path/'more.jsonl')
    drawn = load_collection(str(tmp_path/'more.jsonl'))
    assert drawn.notes[-1] in capsys.readouterr().err and len(drawn.split('train')) + len(drawn.split('test')) == 30
    assert load_collection(str(tmp_path/'more.jsonl')).notes[-1] in capsys.readouterr().err and len(drawn.split('train')) > 15


def test_examples_are_short_queries_of_the_folder(tmp_path):
    asked = short_queries('mini')
    assert len(asked) == 3 and all(0 < len(text) <= 30 for text in asked)
    assert short_queries('toy') == short_queries(str(tmp_path)) == short_queries('no/such/folder') == ()
    file = write(tmp_path/'queries.jsonl', dict(_id='q1', text='긴 질문 ' * 9), dict(_id='q2', text='환불'))
    assert short_queries(str(tmp_path)) == ('환불',)
    file.write_text('{"_id": "q1"}', encoding='utf-8')
    assert short_queries(str(tmp_path)) == ()

"""Public sets by name: fetched from a server or a folder, checked, continued; triplets in the layout of the designs."""
import json, lzma, re, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import pytest
from conftest import ROOT
from splade_nb.config.files import ConfigError, DataError, sha256_of
from splade_nb.data import collections as sets
from splade_nb.lab import mixture as mixture_module, pairs as pairs_module
from splade_nb.lab.block_negatives import Mining
from splade_nb.data.collections import Source, download, fetch, registered, registry
from splade_nb.cli import make_data
from splade_nb.lab.mixture import Rules, build
from splade_nb.lab.passages import text_files
from splade_nb.data.readers import load_collection
sys.path.append(str(ROOT/'docs'))
import data_page

CORPUS = [{'_id': f'd{i}', 'text': f'경복궁은 {i}월에 {i}일 쉰다'} for i in range(1, 4)]
QUERIES = [{'_id': f'q{i}', 'text': f'{i}월에 경복궁은 며칠 쉬나'} for i in range(1, 4)]


def write_beir(folder: Path) -> dict:  # file: hash
    folder.mkdir(parents=True)
    def lines(rows): return ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    (folder/'corpus.jsonl').write_text(lines(CORPUS), encoding='utf-8')
    (folder/'queries.jsonl').write_text(lines(QUERIES), encoding='utf-8')
    for split, wanted in {'train': (1, 2), 'test': (3,)}.items():
        rows = ''.join(f'q{i}\td{i}\t1\n' for i in wanted)
        (folder/f'qrels_{split}.tsv').write_text('query-id\tcorpus-id\tscore\n' + rows, encoding='utf-8')
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}


def source(name: str, sha256: dict, form: str = 'prepared', **rest) -> Source:
    return Source(name, '궁', 'CC0', form, 'test', 3, {'test': 1}, 3, sha256, repository='owner/name', **rest)


class Server(ThreadingHTTPServer):
    "Serves a folder, parts of files too; breaks the first answer off after `most` bytes."
    def __init__(self, folder: Path, most: int = 0):
        self.folder, self.most, self.ranges = folder, most, []
        super().__init__(('127.0.0.1', 0), Answer)
    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self
    def __exit__(self, *error): self.shutdown(); self.server_close()
    @property
    def address(self) -> str: return f'http://127.0.0.1:{self.server_port}'


class Answer(BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def do_GET(self):
        path, server = self.server.folder/self.path.lstrip('/'), self.server
        if not path.is_file(): return self.send_error(404)
        given = self.headers.get('Range')
        server.ranges.append(given)
        start, whole = int(re.search(r'\d+', given)[0]) if given else 0, path.read_bytes()
        if start >= len(whole): return self.send_error(416)
        self.send_response(206 if given else 200)
        self.send_header('Content-Length', str(len(whole) - start))
        self.send_header('ETag', '"1"')
        if given: self.send_header('Content-Range', f'bytes {start}-{len(whole) - 1}/{len(whole)}')
        self.end_headers()
        most, server.most = server.most or len(whole), 0
        self.wfile.write(whole[start:start + most])


@pytest.fixture
def palace(tmp_path, monkeypatch):
    "A registered set of three files, and the folder that holds them."
    hashes = write_beir(tmp_path/'copy')
    monkeypatch.setattr(sets, 'registry', lambda: {'palace': source('palace', hashes)})
    return tmp_path/'copy'


def test_a_local_copy_is_checked_and_read(palace, tmp_path):
    folder = fetch('palace', str(palace), tmp_path/'data')
    collection = load_collection(str(folder))
    assert (len(collection.documents), len(collection.split('train')), len(collection.split('test'))) == (3, 2, 1)
    label = json.loads((folder/'SOURCE').read_text(encoding='utf-8'))
    assert label['sha256']['corpus.jsonl'] == sha256_of(palace/'corpus.jsonl') and 'corpus.jsonl' in label['checked']
    assert fetch('palace', '/nowhere', tmp_path/'data') == folder, 'what is there stays'


def test_another_content_is_refused_by_both_hashes(palace, tmp_path):
    wanted = sha256_of(palace/'queries.jsonl')
    (palace/'queries.jsonl').write_text('{"_id": "q1", "text": "다른 질의"}\n', encoding='utf-8')
    with pytest.raises(DataError) as error: fetch('palace', str(palace), tmp_path/'data')
    assert 'queries.jsonl' in str(error.value) and wanted in str(error.value) and sha256_of(palace/'queries.jsonl') in str(error.value)
    assert list((tmp_path/'data').iterdir()) == [], 'nothing half made stays'


def test_a_missing_file_is_named(palace, tmp_path):
    (palace/'corpus.jsonl').unlink()
    with pytest.raises(DataError, match='no corpus.jsonl'): fetch('palace', str(palace), tmp_path/'data')


def test_an_interrupted_download_is_continued(palace, tmp_path):
    with Server(palace, most=40) as server:
        with pytest.raises(DataError, match='40 of'): fetch('palace', server.address, tmp_path/'data')
        assert not (tmp_path/'data'/'palace').exists()
        folder = fetch('palace', server.address, tmp_path/'data')
        assert 'bytes=40-' in server.ranges
    assert {path.name: sha256_of(path) for path in palace.iterdir()}.items() <= {path.name: sha256_of(path) for path in folder.iterdir()}.items()


def test_a_whole_part_needs_nothing_more(palace, tmp_path):
    (tmp_path/'corpus.jsonl.part').write_bytes((palace/'corpus.jsonl').read_bytes())
    with Server(palace) as server: download(f'{server.address}/corpus.jsonl', tmp_path/'corpus.jsonl')
    assert sha256_of(tmp_path/'corpus.jsonl') == sha256_of(palace/'corpus.jsonl')


def test_without_a_network_the_error_says_how(tmp_path, monkeypatch):
    published = source('palace', {}, 'squad', files={'dev.json': 'data/dev.json'}, revision='1a2b3c')
    monkeypatch.setattr(sets, 'registry', lambda: {'palace': published})
    def refused(*arguments, **options): raise OSError('no network')
    monkeypatch.setattr(sets.urllib.request, 'urlopen', refused)
    with pytest.raises(DataError) as error: fetch('palace', into=tmp_path/'data')
    address = 'https://raw.githubusercontent.com/owner/name/1a2b3c/data/dev.json'
    assert address in str(error.value) and 'make data NAME=palace FROM=folder' in str(error.value) and 'no network' in str(error.value)


def test_a_hub_set_without_a_hub_says_how(tmp_path, monkeypatch):
    import huggingface_hub
    def refused(*arguments, **options): raise OSError('no network')
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', refused)
    with pytest.raises(DataError, match='hf download taeminlee/Ko-miracl --repo-type dataset'): fetch('miracl_ko', into=tmp_path)


def test_published_splits_become_one_collection(tmp_path, monkeypatch):
    squad = lambda id, text: {'data': [{'title': '궁', 'paragraphs': [{'context': text, 'qas': [{'id': id, 'question': f'{text} 언제?'}]}]}]}
    (tmp_path/'web'/'data').mkdir(parents=True)
    for split, text in {'train': '경복궁은 화요일에 쉰다', 'dev': '창덕궁은 월요일에 쉰다'}.items():
        (tmp_path/'web'/'data'/f'{split}.json').write_text(json.dumps(squad(split, text)), encoding='utf-8')
    published = source('palace', {'corpus.jsonl': '0' * 64}, 'squad_splits', files={'train.json': 'data/train.json', 'test.json': 'data/dev.json'})
    monkeypatch.setattr(sets, 'registry', lambda: {'palace': published})
    with Server(tmp_path/'web') as server:
        monkeypatch.setattr(sets, '_address', lambda source: f'{server.address}/')
        collection = load_collection(str(fetch('palace', into=tmp_path/'data')))
    assert list(collection.split('train')) == ['train'] and list(collection.split('test')) == ['dev'] and len(collection.documents) == 2


def test_a_fetched_set_is_found_by_its_name(palace, tmp_path, monkeypatch):
    (tmp_path/'settings.ini').touch()
    monkeypatch.chdir(tmp_path)
    fetch('palace', str(palace))
    assert load_collection('palace').name == 'palace'


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'parakqc'"): registered('parakcq')
    assert registered('tydiqa_ko').name == 'tydiqa_ko_goldp'


def test_the_registry_agrees_with_the_files_at_hand():
    copies = ROOT.parent/'shared'/'data'
    if not copies.is_dir(): pytest.skip('../shared/data is missing')
    for name, known in registry().items():
        if (copies/name).is_dir(): sets.check_files(copies/name, known.sha256)


@pytest.mark.parametrize('name', ['tydiqa_ko_goldp', 'question_pair'])
def test_the_registry_counts_what_is_read(name):
    copy, known = ROOT.parent/'shared'/'data'/name, registry()[name]
    if not copy.is_dir(): pytest.skip(f'../shared/data/{name} is missing')
    collection = load_collection(str(copy))
    assert len(collection.documents) == known.documents and sum(map(len, collection.qrels.values())) == known.judgments
    assert {split: len(collection.split(split)) for split in ('test', 'train')} == known.queries


def test_every_set_of_the_results_is_registered_and_on_the_page():
    said = (ROOT/'docs'/'results.md').read_text(encoding='utf-8')
    named = set(re.findall(r'^\| (?:v\d+ \| )?(\w+(?:_ko|pair|facts|kqc|goldp|koen_\w+|ko_\w+)) \|', said, re.M))
    assert named and named <= {*registry(), 'splade_ko'}, named - {*registry()}
    for language, path in data_page.PAGES.items(): assert path.read_text(encoding='utf-8') == data_page.page(language), 'run docs/data_page.py'


# Triplets

def pairs_folder(folder: Path, sources: int = 2, number: int = 120) -> Path:
    folder.mkdir()
    for one in range(sources):
        rows = [dict(query=f'제{one}편 {i}장 계약 해지 통지{i} 방법', positive=f'계약의 해지는 통지{i}로 한다. {i}장의 기한은 {i}일이고 담당은 {one}부서 {i % 7}팀이다.', kind='title_body') for i in range(number)]
        rows += [dict(query=f'부산 여행 {i}일 코스', positive=f'부산 해운대에서 {i}일을 묵고 {i}번 버스로 공항에 간다.', kind='title_body') for i in range(10)]
        text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
        (folder/f'source{one}.jsonl').write_text(text, encoding='utf-8')
    return folder


RULES = Rules(block=50, judged=0.1, mining=Mining(overlap=0.95))


def contents(out: Path) -> dict:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.glob('v2*/*')) if path.is_file()}


def read(path: Path) -> list: return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


@pytest.mark.slow
def test_triplets_have_the_layout_of_the_designs_and_no_text_in_two_splits(tmp_path):
    out = tmp_path/'out'
    build(pairs_folder(tmp_path/'pairs'), out, RULES, said=lambda line: None)
    train = [line for path in out.glob('v2*/train_*.jsonl') for line in read(path)]
    judged = {split: read(out/'v24.0'/f'{split}.jsonl') for split in ('val', 'test')}
    assert all(list(line) == ['query', 'positive', 'negative', 'pair_type', 'difficulty'] for line in train)
    assert {line['pair_type'] for line in train} == {'original', 'single_term', 'multi_term', 'hard_neg', 'travel'}
    travel = [line for path in out.glob('v27.0/train_travel_*.jsonl') for line in read(path)]
    assert travel and {line['pair_type'] for line in travel} == {'travel'}
    assert not [line for path in out.glob('v24.0/train_*.jsonl') for line in read(path) if line['pair_type'] == 'travel']
    learned = {line[part] for line in train for part in ('positive', 'negative')}
    held = {split: {line['positive'] for line in lines} for split, lines in judged.items()}
    assert held['val'] and held['test'] and not learned & (held['val'] | held['test']) and not held['val'] & held['test']


@pytest.mark.slow
def test_an_interrupted_mixture_ends_as_an_uninterrupted_one(tmp_path):
    pairs, seen = pairs_folder(tmp_path/'pairs'), []
    build(pairs, tmp_path/'whole', RULES, said=lambda line: None)
    def stop(line):
        seen.append(line)
        if len(seen) == 3: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): build(pairs, tmp_path/'cut', RULES, said=stop)
    done = {path: path.stat().st_mtime_ns for path in (tmp_path/'cut').glob('v2*/train_*')}
    assert done and not (tmp_path/'cut'/'v24.0'/'val.jsonl').exists()
    build(pairs, tmp_path/'cut', RULES, said=lambda line: None)
    assert contents(tmp_path/'cut') == contents(tmp_path/'whole')
    assert done.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path/'cut').glob('v2*/train_*')}.items()


def test_texts_of_judged_sets_stay_out(tmp_path, monkeypatch):
    pairs, copy = pairs_folder(tmp_path/'pairs', 1, 20), tmp_path/'copy'
    hashes = write_beir(copy)
    judged = json.loads((copy/'corpus.jsonl').read_text(encoding='utf-8').splitlines()[0])['text']
    with open(pairs/'source0.jsonl', 'a', encoding='utf-8') as file:
        file.write(json.dumps(dict(query='경복궁 쉬는 날', positive=judged.replace(' ', '  ') + '.', kind='title_body'), ensure_ascii=False) + '\n')
    (tmp_path/'settings.ini').touch()
    monkeypatch.chdir(tmp_path)
    known = {'palace': source('palace', hashes)}
    for module in (sets, pairs_module): monkeypatch.setattr(module, 'registry', lambda: known)
    monkeypatch.setattr(mixture_module, '_origin', lambda name: ('here', 'CC0'))
    def positives(out):
        build(pairs, out, RULES, said=lambda line: None)
        return {line['positive'] for path in out.glob('v2*/*.jsonl') for line in read(path)}
    assert any('경복궁' in text for text in positives(tmp_path/'before'))
    fetch('palace', str(copy))
    assert not any('경복궁' in text for text in positives(tmp_path/'after'))


@pytest.mark.slow
def test_other_rules_need_another_folder(tmp_path):
    pairs = pairs_folder(tmp_path/'pairs', 1, 30)
    build(pairs, tmp_path/'out', RULES, said=lambda line: None)
    with pytest.raises(ConfigError, match='other rules'): build(pairs, tmp_path/'out', Rules(), said=lambda line: None)
    lines = (pairs/'source0.jsonl').read_text(encoding='utf-8').splitlines(True)
    (pairs/'source0.jsonl').write_text(''.join(lines[::-1]), encoding='utf-8')  # as large as before
    with pytest.raises(ConfigError, match='other rules'): build(pairs, tmp_path/'out', RULES, said=lambda line: None)


@pytest.mark.slow
def test_the_card_counts_what_is_there(tmp_path):
    made = make_data('triplets', str(pairs_folder(tmp_path/'pairs')), str(tmp_path/'out'), said=lambda line: None)
    lines = [line for path in (tmp_path/'out').glob('v2*/*.jsonl') for line in read(path)]
    card = Path(made['card']).read_text(encoding='utf-8')
    assert made['triplets'] == len(lines) and f'{len(lines):,} triplets of 250 pairs' in card, 'ten pairs stand in both sources'
    for path in (tmp_path/'out').glob('v2*/*.jsonl'): assert sha256_of(path) in card


@pytest.mark.slow
def test_a_broken_pair_is_named_by_its_line(tmp_path):
    folder = pairs_folder(tmp_path/'pairs', 1, 3)
    with open(folder/'source0.jsonl', 'a', encoding='utf-8') as file: file.write('{"query": "한복", "kind": "title_body"}\n')
    with pytest.raises(DataError, match='source0.jsonl, line 14, positive'): build(folder, tmp_path/'out', said=lambda line: None)


def test_every_file_of_pairs_is_a_source(tmp_path):
    line = json.dumps(dict(query='경복궁 휴일', positive='경복궁은 화요일에 쉰다', kind='title_body'), ensure_ascii=False)
    for part in (1, 2): (tmp_path/f'wiki.part{part}.jsonl').write_bytes(b'\xef\xbb\xbf' + (line + '\n\n').encode())
    found = pairs_module.sources(tmp_path)
    assert [*found] == ['wiki.part1', 'wiki.part2'] and len([*pairs_module.read_pairs(found['wiki.part1'])]) == 1
    with lzma.open(tmp_path/'wiki.part1.jsonl.xz', 'wt') as file: file.write(line)
    with pytest.raises(DataError, match='second file of this name'): pairs_module.sources(tmp_path)


@pytest.mark.parametrize('content, expected', [(b'[1]', 'one JSON object'), (b'{"query": 3, "positive": "a", "kind": "b"}', 'query'),
                                               ('경복궁'.encode('cp949'), 'UTF-8')])
def test_a_line_that_is_no_pair_is_named(content, expected, tmp_path):
    (tmp_path/'a.jsonl').write_bytes(content)
    with pytest.raises(DataError, match=expected): [*pairs_module.read_pairs(tmp_path/'a.jsonl')]


def test_a_text_file_beside_a_collection_is_not_its_content(tmp_path):
    write_beir(tmp_path/'set')
    (tmp_path/'set'/'LICENSE.txt').write_text('이 자료는 이용 허락(license)을 따른다', encoding='utf-8')
    assert text_files(str(tmp_path/'set')) == [] and len(text_files(str(tmp_path/'set'/'LICENSE.txt'))) == 1

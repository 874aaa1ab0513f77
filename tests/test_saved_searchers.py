"""Saved searchers follow their source, stay apart on a server, survive interruptions, and are removed when outdated."""
import json, os, shutil, signal, sys
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
from fake_opensearch import Fault, serving
from splade_nb import cli
from splade_nb.serving import document_store, saved_copies, searcher as searchers
from splade_nb.data.records import Document
from splade_nb.model import opened as opened_models
from splade_nb.model.opened import RELEASED
from splade_nb.config.files import ConfigError, DataError
from splade_nb.serving.opensearch import OpenSearchIndex
from splade_nb.serving.index import Label

SIZE = 97
LABEL = Label('5e1f00', SIZE, '77aa00')
ENGINES = ('exact', 'seismic', 'milvus', 'qdrant', 'opensearch')
every = pytest.mark.parametrize('engine', ENGINES)
WORDS = ('김치를 담근다', '한복을 입는다', '제주로 가는 배', '나주의 단 배', '버스를 탄다')
TEXTS = [Document(f'글 {number}', '', text) for number, text in enumerate(WORDS)]


def counted(text: str) -> np.ndarray: # [V]
    return np.bincount([ord(letter) % SIZE for letter in text], minlength=SIZE).astype(np.float32)


@pytest.fixture
def encoder(monkeypatch, tmp_path):
    "A model that counts letters; `read` lists what it was given."
    read = []
    def encoded(encoder, words, cut):
        read.extend(words)
        rows = sparse.csr_matrix(np.stack([counted(text) for text in words]))
        return rows, rows
    model = tmp_path/'model'
    model.mkdir()
    (model/'model.safetensors').write_bytes(b'weights')
    found = searchers.Encoder(str(model), None, None, LABEL)
    monkeypatch.setattr(searchers, 'document_vectors', encoded)
    monkeypatch.setattr(searchers, 'open_encoder', lambda folder: found)
    monkeypatch.setattr(Encoders, 'read', read)
    return found


class Encoders: read = [] # texts that were encoded


@pytest.fixture
def build(encoder, tmp_path):
    "Build a searcher in a folder of the test."
    def made(documents=TEXTS, engine='exact', index='', place='searcher'):
        return searchers.build_searcher(encoder, documents, tmp_path/place, engine, index)
    return made


@pytest.fixture
def reopen(encoder, tmp_path):
    def opened(index='', place='searcher'): return searchers.open_searcher(tmp_path/place, encoder, index)
    return opened


@pytest.fixture
def server():
    with serving() as fake: yield fake


def at(server, engine: str, name: str = 'texts') -> str: return f'{server.url}/{name}' if engine == 'opensearch' else ''


def search_letters(searcher, text: str, k: int) -> list: # ids
    return [id for id, _ in searcher.index.search(sparse.csr_matrix(counted(text)[None]), k)[0]]


def first_results(searcher) -> dict: # id of a text: id of the best result for its letters
    ids = sorted(searcher.index.ids())
    assert ids == sorted(searcher.store.column('SELECT id FROM texts'))
    assert len(searcher.index) == len(ids) == len(searcher)
    return {id: search_letters(searcher, document_store.read_entry(searcher.store, id).text, 1)[0] for id in ids}


def closing_results(searcher) -> dict:
    with searcher: return first_results(searcher)


# A source that changed

@every
def test_what_the_source_no_longer_has_leaves_the_index(engine, build, reopen, server):
    assert len(closing_results(build(TEXTS, engine, at(server, engine)))) == 5
    new, changed = Document('글 9', '', '새로 온 이야기'), Document('글 1', '', '두루마기를 걸친다')
    ids = ['글 0', '글 1', '글 4', '글 9']
    Encoders.read.clear()
    with build([TEXTS[0], changed, TEXTS[4], new], engine, at(server, engine)) as searcher:
        assert searcher.changed == (2, 2) and sorted(first_results(searcher)) == ids
        assert sorted(Encoders.read) == [changed.text, new.text], 'what is unchanged is not encoded again'
    with reopen() as searcher:
        assert first_results(searcher) == {id: id for id in ids}
        assert not {'글 2', '글 3'} & set(search_letters(searcher, WORDS[2], 5))


def interrupted():
    yield TEXTS[0]
    raise OSError('the source is cut off')


@every
def test_a_source_that_is_cut_off_changes_nothing(engine, build, reopen, server):
    before = closing_results(build(TEXTS, engine, at(server, engine)))
    with pytest.raises(OSError, match='cut off'): build(interrupted(), engine, at(server, engine))
    assert closing_results(reopen()) == before


STEPS = ('_replace_texts', '_update_index', 'delete', 'add', 'save', 'mark_indexed')


def dying_after(step: str, kind) -> None: # in a child: the process dies when this step is done
    owner = kind if step in ('delete', 'add', 'save') else document_store if step == 'mark_indexed' else searchers
    original = getattr(owner, step)
    def call(*arguments, **named):
        original(*arguments, **named)
        os._exit(9)
    setattr(owner, step, call)


@pytest.mark.parametrize('step', STEPS)
# Not Seismic: in a fork of a process where its threads ran, it would wait for them.
@pytest.mark.parametrize('engine', ('exact', 'opensearch'))
def test_a_process_that_dies_between_two_steps_is_finished_by_the_next(engine, step, build, reopen, server):
    build(TEXTS, engine, at(server, engine)).close()
    changed = [TEXTS[0], Document('글 1', '', '두루마기를 걸친다')]
    child = os.fork()
    if not child:
        signal.alarm(120)
        dying_after(step, searchers.ENGINES[engine])
        build(changed, engine, at(server, engine))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with reopen() as searcher:
        assert first_results(searcher) == {'글 0': '글 0', '글 1': '글 1'}
        assert document_store.read_entry(searcher.store, '글 1').text == '두루마기를 걸친다'


@pytest.mark.parametrize('engine', ('exact', 'seismic', 'milvus', 'qdrant'))
def test_a_damaged_index_is_made_again_from_the_store(engine, build, reopen, tmp_path, capsys):
    before = closing_results(build(TEXTS, engine))
    Encoders.read.clear()
    (tmp_path/'searcher'/'index'/'index.json').write_text('{"engine": ')
    assert closing_results(reopen()) == before and not Encoders.read
    assert 'made again from' in capsys.readouterr().err


# Servers

def test_two_collections_at_one_address_stay_apart(build, reopen, server, tmp_path):
    before = closing_results(build(TEXTS, 'opensearch', f'{server.url}/docs', 'recipes'))
    others = [Document(text.id, '', f'다른 {text.text}') for text in TEXTS]
    index = server.indices['docs']
    written = dict(index.written)
    message = f'holds the documents of .*{tmp_path}/recipes; those of .*{tmp_path}/news are asked for'
    with pytest.raises(ConfigError, match=message): build(others, 'opensearch', f'{server.url}/docs', 'news')
    assert index.written == written, 'nothing was overwritten'
    label = index.mappings['_meta']['splade_nb']['label']
    assert f'{tmp_path}/recipes' in label['texts'], 'the server says whose documents it has'
    assert len(closing_results(build(others, 'opensearch', f'{server.url}/news', 'more'))) == 5
    assert closing_results(reopen(place='recipes')) == before


def test_an_index_that_does_not_say_whose_it_is_is_left_alone(build, server):
    with OpenSearchIndex.new(f'{server.url}/docs', LABEL) as index:
        index.add(['글 0'], sparse.csr_matrix(counted('남의 글')[None]))
    with pytest.raises(ConfigError, match='does not say of which collection'):
        build(TEXTS, 'opensearch', f'{server.url}/docs')
    assert list(server.indices['docs'].written) == ['글 0']


def test_the_fault_of_a_server_is_named_and_the_next_try_goes_on(build, server):
    server.always['_bulk'] = Fault('breaker')
    server.faults['_count'] = [Fault('unavailable')] * 2 # the client tries once more
    with pytest.raises(ConfigError, match='503'): build(TEXTS, 'opensearch', f'{server.url}/docs')
    server.always.clear()
    assert len(closing_results(build(TEXTS, 'opensearch', f'{server.url}/docs'))) == 5


def test_a_password_is_not_written_down(build, reopen, tmp_path):
    with serving(auth=('admin', 'bibimbap')) as guarded:
        address = f'{guarded.url}/docs'.replace('//', '//admin:bibimbap@')
        build(TEXTS, 'opensearch', address).close()
        files = [path for path in (tmp_path/'searcher').rglob('*') if path.is_file()]
        assert files and not [path for path in files if b'bibimbap' in path.read_bytes()]
        assert len(closing_results(reopen(address))) == 5
        with pytest.raises(ConfigError, match='Credentials'): reopen()


# Several processes, and texts that cannot be kept

def second_writer(reopen) -> None:
    "A searcher of another process replaces one text by another."
    with reopen() as other:
        other.delete(['글 0'])
        other.add([Document('글 8', '', '커피를 내린다')])


@pytest.mark.parametrize('engine', ('exact', 'seismic', 'opensearch'))
def test_a_searcher_keeps_what_another_wrote_since_it_was_opened(engine, build, reopen, server):
    with build(TEXTS, engine, at(server, engine)) as first:
        second_writer(reopen)
        first.add([Document('글 9', '', '바다에서 논다')])
        assert sorted(first_results(first)) == ['글 1', '글 2', '글 3', '글 4', '글 8', '글 9']
    with reopen() as searcher:
        assert first_results(searcher) == {f'글 {number}': f'글 {number}' for number in (1, 2, 3, 4, 8, 9)}
        texts = [*WORDS[1:], '커피를 내린다', '바다에서 논다']
        assert searcher.store.postings.tolist() == (np.stack([counted(text) for text in texts]) > 0).sum(0).tolist()
        searcher.delete(['글 8'])
        assert searcher.store.postings.min() == 0 and '글 8' not in search_letters(searcher, '커피를 내린다', 9)


def test_a_search_reads_what_another_process_saved(build, reopen, monkeypatch):
    monkeypatch.setattr(searchers, '_search', lambda searcher, text, k, part: search_letters(searcher, text, k))
    with build() as reader:
        before = reader.index.rows()
        assert reader.search(WORDS[0], 1) == ['글 0'] and reader.index.rows() is before, 'nothing to read again'
        reader.factor = 'of before'
        second_writer(reopen)
        assert reader.search('커피를 내린다', 1) == ['글 8'] and '글 0' not in reader.search(WORDS[0], 9)
        assert reader.factor is None and reader.store.postings.sum() == reader.index.rows()[1].nnz


def written() -> int:
    "Bytes that this process has handed to files."
    return int(dict(line.split(': ') for line in Path('/proc/self/io').read_text().splitlines())['wchar'])


@pytest.mark.parametrize('engine', ('exact', 'qdrant'))
def test_a_change_of_a_saved_searcher_writes_what_it_changes(engine, encoder, monkeypatch, tmp_path):
    "Half a million columns, as counted terms have them: their document frequencies alone are 4 MB."
    size = 547_921
    def encoded(encoder, words, cut): # some columns of each text, far from one another
        rows = sparse.vstack([sparse.csr_matrix(([1.0] * 300, ([0] * 300, np.arange(300) * 1800 + len(text))), (1, size)) for text in words], 'csr')
        return rows, rows
    monkeypatch.setattr(searchers, 'document_vectors', encoded)
    wide = searchers.Encoder(encoder.folder, None, None, Label('5e1f00', size, '77aa00'))
    monkeypatch.setattr(searchers, 'open_encoder', lambda folder: wide)
    with searchers.build_searcher(wide, TEXTS, tmp_path/'searcher', engine) as searcher:
        searcher.store.set_fact('postings', searcher.store.postings)  # a folder that an earlier revision saved
        searcher.store.run('DELETE FROM changes')
    with searchers.open_searcher(tmp_path/'searcher', wide) as searcher:
        frequencies = searcher.store.postings.copy()
        assert frequencies.sum() == 300 * len(TEXTS)
        before = written()
        searcher.add(Document('글 9', '', '바다에서 논다'))
        added = written()
        assert searcher.store.postings.sum() == 300 * (len(TEXTS) + 1)
        searcher.delete('글 9')
        assert added - before < 1_000_000 and written() - added < 1_000_000, 'not all columns, several times over'
    with searchers.open_searcher(tmp_path/'searcher', wide) as searcher: assert (searcher.store.postings == frequencies).all()


def test_changes_of_document_frequencies_are_summed_up_in_time(build, reopen):
    with build() as searcher:
        for turn in range(40):
            searcher.add(Document('글 9', '', f'{turn} 바다에서 논다'))
            kept = searcher.store.column('SELECT SUM(LENGTH(postings)) FROM changes')[0] or 0
            assert kept < searcher.store.postings.nbytes
        expected = (np.stack([counted(text) for text in (*WORDS, '39 바다에서 논다')]) > 0).sum(0).tolist()
        assert searcher.store.postings.tolist() == expected
    with reopen() as searcher: assert searcher.store.postings.tolist() == expected


@pytest.mark.parametrize('again', ('change', 'opening'))
def test_texts_that_a_full_disk_kept_from_the_index_are_indexed_later(again, build, reopen, monkeypatch):
    "As the docstring of `Searcher.add` says."
    new = Document('글 9', '', '바다에서 논다')
    searcher = build()
    with pytest.raises(ConfigError, match='text is expected'): searcher.add([new, Document('글 8', '', None)])
    assert searcher.store.count("id = '글 9'") == 0, 'a wrong text changes nothing'
    with monkeypatch.context() as full:
        def save(): raise ConfigError('index: cannot be written: No space left on device')
        full.setattr(searcher.index, 'save', save)
        with pytest.raises(ConfigError, match='No space left'): searcher.add(new)
    assert searcher.store.count("id = '글 9'") == 1
    if again == 'change':
        searcher.delete('글 0')
        assert '글 9' in first_results(searcher)
    searcher.close()
    with reopen() as found: assert first_results(found)['글 9'] == '글 9'


def test_as_many_texts_but_others_in_the_index_are_mended(build, reopen, tmp_path):
    "As an earlier version left them where two processes wrote."
    build().close()
    with searchers.ENGINES['exact'].open(tmp_path/'searcher'/'index') as index:
        index.delete(['글 0'])
        index.add(['글 x'], sparse.csr_matrix(counted('없는 글')[None]))
        index.save()
    assert closing_results(reopen()) == {f'글 {number}': f'글 {number}' for number in range(5)}


FAULTY = {'id 1: a text is expected': Document(1, '', '글'), "id '': a text is expected, and not an empty one": Document('', '', '글'),
          'text None: a text is expected': Document('글 9', '', None), r"text '글\\ud800': half of a surrogate pair": Document('글 9', '', '글\ud800'),
          r"id '\\udcff': half of a surrogate pair": Document('\udcff', '', '글')}


@pytest.mark.parametrize('told', FAULTY)
def test_a_text_that_cannot_be_kept_is_refused_and_changes_nothing(told, build, reopen):
    with build() as searcher:
        with pytest.raises(ConfigError, match=told): searcher.add([Document('글 8', '', '커피를 내린다'), FAULTY[told]])
        assert len(first_results(searcher)) == 5
        searcher.add([Document('글 8', '', '커피를 내린다')])
    with pytest.raises(ConfigError, match=told): build([FAULTY[told]])
    assert len(closing_results(reopen())) == 6


# Saved under outputs/

@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('settings.ini').touch()
    Path('texts.txt').write_text('\n'.join(WORDS), encoding='utf-8')
    return tmp_path


def places() -> list: return sorted(Path('outputs/.search').iterdir())


def test_another_address_is_another_searcher(encoder, server, project):
    for name in ('one', 'two', 'one'):
        with searchers.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/{name}') as searcher:
            assert searcher.index.server.name == name and len(first_results(searcher)) == 5
    assert len(places()) == 2 and len(server.indices['one'].written) == len(server.indices['two'].written) == 5


def test_a_file_that_changed_is_followed_in_its_one_searcher(encoder, project, capsys):
    searchers.saved_searcher('model', 'texts.txt').close()
    assert '5 texts' in (printed := capsys.readouterr().err) and '5 new or changed, 0 taken out' in printed
    Encoders.read.clear()
    Path('texts.txt').write_text('\n'.join([*WORDS[:2], '새로운 세 번째 줄']), encoding='utf-8')
    with searchers.saved_searcher('model', 'texts.txt') as searcher: assert len(first_results(searcher)) == 3
    assert '1 new or changed, 2 taken out' in capsys.readouterr().err and Encoders.read == ['새로운 세 번째 줄']
    searchers.saved_searcher('model', str(project/'texts.txt')).close()
    assert 'nothing to encode' in capsys.readouterr().err and len(places()) == 1


@pytest.mark.parametrize('name', ['searcher.json', 'texts.db', 'paths.json', 'index/vectors.npz'])
def test_a_damaged_copy_is_made_again_and_named(name, encoder, project, capsys):
    before = closing_results(searchers.saved_searcher('model', 'texts.txt'))
    [place] = places()
    (place/name).write_bytes((place/name).read_bytes()[:40])
    assert closing_results(searchers.saved_searcher('model', 'texts.txt')) == before
    assert name == 'paths.json' or f'{place}/{name}' in capsys.readouterr().err.replace(str(place.resolve()), str(place))
    searchers.saved_searcher('model', 'texts.txt').close()
    assert 'nothing to encode' in capsys.readouterr().err


def test_a_local_copy_that_was_lost_does_not_leave_texts_at_the_server(encoder, server, project):
    searchers.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/docs').close()
    saved_copies.shutil.rmtree(places()[0])
    Path('texts.txt').write_text(WORDS[0], encoding='utf-8')
    searcher = searchers.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/docs')
    assert list(closing_results(searcher)) == ['1']
    assert list(server.indices['docs'].written) == ['1']


WRONG = [('exact', 'http://localhost:1/x', 'in a folder'), ('opensearch', '', 'is a server'),
         ('qdrant', 'milvus+http://localhost:1/x', "engine 'milvus'"),
         ('milvus', 'localhost:1/x', 'expected an address')]


@pytest.mark.parametrize('engine, index, message', WRONG)
def test_an_engine_and_an_address_that_do_not_fit_leave_nothing_behind(engine, index, message, encoder, project):
    with pytest.raises(ConfigError, match=message): searchers.saved_searcher('model', 'texts.txt', engine, index)
    assert not Path('outputs').exists()


def test_a_first_search_that_fails_leaves_nothing_and_opens_no_model_for_what_cannot_be_read(encoder, project, monkeypatch):
    opened = []
    monkeypatch.setattr(searchers, 'open_encoder', lambda folder: opened.append(folder) or encoder)
    for name in ('/usr', 'no-such.jsonl'):
        with pytest.raises((ConfigError, DataError)): searchers.saved_searcher('model', name)
    assert not opened and not Path('outputs').exists()
    Path('wrong.txt').write_bytes('첫째 줄\n'.encode() + b'\xbd\xd2\n')
    with pytest.raises(DataError, match='wrong.txt, line 2'): searchers.saved_searcher('model', 'wrong.txt')
    assert opened and not places()
    Path('empty.txt').write_text('\n')
    with pytest.raises(ConfigError, match='found no text'): searchers.saved_searcher('model', 'empty.txt')
    assert not places()


def child_with_a_searcher(place: Path, encoder) -> tuple: # process, what to close so that it ends
    "A process that has a searcher open, once this returns."
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(120)
        searcher = searchers.open_searcher(place, encoder)
        os.write(tell, b'x')
        signal.pause()
        searcher.close()
    os.close(tell)
    assert os.read(ready, 1) == b'x'
    os.close(ready)
    return child


def test_texts_do_not_change_under_an_open_searcher(encoder, project):
    searchers.saved_searcher('model', 'texts.txt').close()
    child = child_with_a_searcher(places()[0], encoder)
    try:
        searchers.saved_searcher('model', 'texts.txt').close() # as they were: both may
        Path('texts.txt').write_text(WORDS[0], encoding='utf-8')
        with pytest.raises(ConfigError, match='another process has this searcher open'):
            searchers.saved_searcher('model', 'texts.txt')
        with searchers.open_searcher(places()[0], encoder) as searcher: assert len(first_results(searcher)) == 5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with searchers.saved_searcher('model', 'texts.txt') as searcher: assert len(first_results(searcher)) == 1


def test_old_copies_are_told_and_cleaned_but_never_one_that_is_open(encoder, project, capsys):
    searchers.saved_searcher('model', 'texts.txt').close()
    Path('other.txt').write_text('\n'.join(WORDS), encoding='utf-8')
    searchers.saved_searcher('model', 'other.txt').close()
    (project/'outputs'/'.search'/'77aa-5e1f-of-before-exact').mkdir()
    (project/'outputs'/'.search'/'77aa-5e1f-of-before-exact'/'texts.db').write_bytes(b'x' * 1000)
    Path('other.txt').unlink()
    used, old = (next(place for place in places() if place.name.startswith(name)) for name in ('texts', 'other'))
    size = saved_copies.folder_size(old)
    capsys.readouterr()
    searchers.saved_searcher('model', 'texts.txt').close()
    printed = capsys.readouterr().err
    assert f'2 old copies in {project}/outputs/.search, {size + 1000:,} bytes' in printed
    assert 'make clean-search' in printed
    child = child_with_a_searcher(old, encoder)
    try: assert cli.main(['clean-search']) == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    printed = capsys.readouterr().out
    assert f'kept: {old.resolve()}: a running process has it open' in printed
    assert '1,000 bytes removed in 1 old copies' in printed
    assert cli.main(['clean-search']) == 0 and f'{old.resolve()}, {size:,} bytes' in capsys.readouterr().out
    assert [path.name for path in places()] == [used.name]
    searchers.saved_searcher('model', 'texts.txt').close()
    printed = capsys.readouterr().err
    assert 'nothing to encode' in printed and 'old copies' not in printed


def test_a_model_that_was_trained_again_leaves_an_old_copy(encoder, project, monkeypatch, capsys):
    searchers.saved_searcher('model', 'texts.txt').close()
    assert not saved_copies.old_copies()
    (Path(encoder.folder)/'model.safetensors').write_bytes(b'other weights')
    again = searchers.Encoder(encoder.folder, None, None, Label(LABEL.vocabulary, SIZE, 'b0b0'))
    monkeypatch.setattr(searchers, 'open_encoder', lambda folder: again)
    searchers.saved_searcher('model', 'texts.txt').close()
    (place, why), = saved_copies.old_copies()
    assert 'another model is in' in why and json.loads((place/'searcher.json').read_text())['label']['model'] == '77aa00'


def test_a_searcher_whose_removal_was_cut_off_is_none(encoder, project, monkeypatch, capsys):
    searchers.saved_searcher('model', 'texts.txt').close()
    Path('texts.txt').rename('moved.txt')
    def refuse(path): raise OSError('cut off')
    with monkeypatch.context() as cut:
        cut.setattr(saved_copies.shutil, 'rmtree', refuse)
        with pytest.raises(OSError): saved_copies.clean()
    assert [place.name[:9] for place in places()] == ['.removed-'] and not saved_copies.old_copies()
    saved_copies.clean()
    assert not places()


def test_a_searcher_of_the_packaged_model_names_it_wherever_the_package_lies(monkeypatch, tmp_path):
    names = [searchers.open_encoder(name).folder for name in ('released', RELEASED, RELEASED/'..'/'released')]
    assert names == ['released'] * 3
    place = tmp_path/'copy'
    saved_copies.record_use(place, 'released', str(Path(__file__)))
    assert not saved_copies.outdated(place)
    moved = tmp_path/'elsewhere'
    shutil.copytree(RELEASED, moved, copy_function=shutil.copyfile)
    for module in (opened_models, saved_copies): monkeypatch.setattr(module, 'RELEASED', moved)
    assert not saved_copies.outdated(place), 'the same weights in a new installation'
    (moved/'model'/'model.onnx').write_bytes(b'others')
    saved_copies._content_stamp.cache_clear()
    assert 'another model' in saved_copies.outdated(place)


def test_a_searcher_is_closed_once(build):
    with build() as searcher: searcher.close()
    searcher.close()


def test_an_engine_that_is_not_installed_is_named_before_texts_are_encoded(build, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'seismic', None)
    with pytest.raises(ConfigError, match='seismic is not installed'): build(engine='seismic')
    assert not Encoders.read

"""Kept search boxes follow their source, stay apart at a server, survive what is cut off, and are cleaned away."""
import json, os, signal
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
from fake_opensearch import Fault, serving
from splade_nb.serving import searcher as room
from splade_nb.data.records import Document
from splade_nb.config.files import ConfigError
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
    def encoded(box, words):
        read.extend(words)
        rows = sparse.csr_matrix(np.stack([counted(text) for text in words]))
        return rows, rows
    model = tmp_path/'model'
    model.mkdir()
    (model/'model.safetensors').write_bytes(b'weights')
    found = room.Encoder(str(model), None, None, LABEL)
    monkeypatch.setattr(room, 'doc_vectors', encoded)
    monkeypatch.setattr(room, 'open_encoder', lambda folder: found)
    monkeypatch.setattr(Encoders, 'read', read)
    return found


class Encoders: read = [] # texts that were encoded


@pytest.fixture
def server():
    with serving() as fake: yield fake


def at(server, engine: str, name: str = 'texts') -> str: return f'{server.url}/{name}' if engine == 'opensearch' else ''


def held_by(box) -> dict: # what searching each text's own letters finds first, of the texts that the index lists
    ids = sorted(box.index.ids())
    assert ids == sorted(id for id, in box.store.run('SELECT id FROM texts')) and len(box.index) == len(ids) == len(box)
    found = {}
    for id in ids:
        asked = sparse.csr_matrix(counted(room.texts.entry(box.store, id).text)[None])
        found[id] = box.index.search(asked, 1)[0][0][0]
    return found


# A source that changed

@every
def test_what_the_source_no_longer_has_leaves_the_index(engine, encoder, server, tmp_path):
    with room.build_searcher(encoder, TEXTS, tmp_path/'box', engine, at(server, engine)) as box: assert len(held_by(box)) == 5
    changed = [TEXTS[0], Document('글 1', '', '두루마기를 걸친다'), TEXTS[4], Document('글 9', '', '새로 온 이야기')]
    Encoders.read.clear()
    with room.build_searcher(encoder, changed, tmp_path/'box', engine, at(server, engine)) as box:
        assert box.changed == (2, 2) and sorted(held_by(box)) == ['글 0', '글 1', '글 4', '글 9']
        assert sorted(Encoders.read) == ['두루마기를 걸친다', '새로 온 이야기'], 'what is unchanged is not encoded again'
    with room.open_searcher(tmp_path/'box', encoder) as box:
        assert held_by(box) == {id: id for id in ('글 0', '글 1', '글 4', '글 9')}
        assert all(id not in ('글 2', '글 3') for id, _ in box.index.search(sparse.csr_matrix(counted(WORDS[2])[None]), 5)[0])


def interrupted():
    yield TEXTS[0]
    raise OSError('the source is cut off')


@every
def test_a_source_that_is_cut_off_changes_nothing(engine, encoder, server, tmp_path):
    with room.build_searcher(encoder, TEXTS, tmp_path/'box', engine, at(server, engine)) as box: before = held_by(box)
    with pytest.raises(OSError, match='cut off'):
        room.build_searcher(encoder, interrupted(), tmp_path/'box', engine, at(server, engine))
    with room.open_searcher(tmp_path/'box', encoder) as box: assert held_by(box) == before


STEPS = ('renew', 'catch_up', 'delete', 'add', 'save', 'placed')


def dying_after(step: str, kind) -> None: # in a child: the process dies when this step is done
    owner = kind if step in ('delete', 'add', 'save') else room.texts if step == 'placed' else room
    original = getattr(owner, step)
    def call(*arguments, **named):
        original(*arguments, **named)
        os._exit(9)
    setattr(owner, step, call)


@pytest.mark.parametrize('step', STEPS)
# Not Seismic: in a fork of a process where its threads ran, it would wait for them.
@pytest.mark.parametrize('engine', ('exact', 'opensearch'))
def test_a_process_that_dies_between_two_steps_is_finished_by_the_next(engine, step, encoder, server, tmp_path):
    room.build_searcher(encoder, TEXTS, tmp_path/'box', engine, at(server, engine)).close()
    changed = [TEXTS[0], Document('글 1', '', '두루마기를 걸친다')]
    child = os.fork()
    if not child:
        signal.alarm(120)
        dying_after(step, room.ENGINES[engine])
        room.build_searcher(encoder, changed, tmp_path/'box', engine, at(server, engine))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with room.open_searcher(tmp_path/'box', encoder) as box:
        assert held_by(box) == {'글 0': '글 0', '글 1': '글 1'}
        assert room.texts.entry(box.store, '글 1').text == '두루마기를 걸친다'


@pytest.mark.parametrize('engine', ('exact', 'seismic', 'milvus', 'qdrant'))
def test_a_damaged_index_is_made_again_from_the_store(engine, encoder, tmp_path, capsys):
    with room.build_searcher(encoder, TEXTS, tmp_path/'box', engine) as box: before = held_by(box)
    Encoders.read.clear()
    (tmp_path/'box'/'index'/'index.json').write_text('{"engine": ')
    with room.open_searcher(tmp_path/'box', encoder) as box: assert held_by(box) == before and not Encoders.read
    assert 'made again from' in capsys.readouterr().err


def test_texts_that_became_longer_are_all_encoded_again(encoder, tmp_path):
    "The mean length that a model divides by was measured on the texts of before."
    with room.build_searcher(encoder, TEXTS, tmp_path/'box') as box:
        box.store.keep('letters', room.letters(box.store))
        box.store.keep('mean_length', 4.0)
    Encoders.read.clear()
    with room.build_searcher(encoder, TEXTS[:-1] + [Document('글 4', '', '버스를 탔다')], tmp_path/'box') as box: assert len(Encoders.read) == 1
    with room.build_searcher(encoder, TEXTS[:-1] + [Document('글 4', '', '버스를 ' * 40)], tmp_path/'box') as box:
        assert len(Encoders.read) == 1 + 5 and box.store.fact('mean_length') is None
        texts = [*WORDS[:-1], '버스를 ' * 40]
        assert box.store.postings.tolist() == (np.stack([counted(text) for text in texts]) > 0).sum(0).tolist()


# Servers

def test_two_collections_at_one_address_stay_apart(encoder, server, tmp_path):
    with room.build_searcher(encoder, TEXTS, tmp_path/'recipes', 'opensearch', f'{server.url}/docs') as box: before = held_by(box)
    others = [Document(text.id, '', f'다른 {text.text}') for text in TEXTS]
    written = dict(server.shelves['docs'].written)
    with pytest.raises(ConfigError, match=f'holds the documents of .*{tmp_path}/recipes; those of .*{tmp_path}/news are asked for'):
        room.build_searcher(encoder, others, tmp_path/'news', 'opensearch', f'{server.url}/docs')
    assert server.shelves['docs'].written == written, 'nothing was overwritten'
    label = server.shelves['docs'].mappings['_meta']['splade_nb']['label']
    assert f'{tmp_path}/recipes' in label['texts'], 'the server says which is which'
    with room.build_searcher(encoder, others, tmp_path/'more', 'opensearch', f'{server.url}/news') as box: assert len(held_by(box)) == 5
    with room.open_searcher(tmp_path/'recipes', encoder) as box: assert held_by(box) == before


def test_an_index_that_does_not_say_whose_it_is_is_left_alone(encoder, server, tmp_path):
    with OpenSearchIndex.new(f'{server.url}/docs', LABEL) as index:
        index.add(['글 0'], sparse.csr_matrix(counted('남의 글')[None]))
    with pytest.raises(ConfigError, match='does not say of which collection'):
        room.build_searcher(encoder, TEXTS, tmp_path/'box', 'opensearch', f'{server.url}/docs')
    assert list(server.shelves['docs'].written) == ['글 0']


def test_a_server_that_fails_is_said_and_the_next_try_goes_on(encoder, server, tmp_path):
    server.always['_bulk'] = Fault('breaker')
    server.faults['_count'] = [Fault('unavailable')] * 2 # the client tries once more
    with pytest.raises(ConfigError, match='503'): room.build_searcher(encoder, TEXTS, tmp_path/'box', 'opensearch', f'{server.url}/docs')
    server.always.clear()
    with room.build_searcher(encoder, TEXTS, tmp_path/'box', 'opensearch', f'{server.url}/docs') as box: assert len(held_by(box)) == 5


def test_a_password_is_not_written_down(encoder, tmp_path):
    with serving(auth=('admin', 'bibimbap')) as guarded:
        address = f'{guarded.url}/docs'.replace('//', '//admin:bibimbap@')
        room.build_searcher(encoder, TEXTS, tmp_path/'box', 'opensearch', address).close()
        assert not [path for path in (tmp_path/'box').rglob('*') if path.is_file() and b'bibimbap' in path.read_bytes()]
        with room.open_searcher(tmp_path/'box', encoder, address) as box: assert len(held_by(box)) == 5
        with pytest.raises(ConfigError, match='Credentials'): room.open_searcher(tmp_path/'box', encoder)


# Kept under outputs/

@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('settings.ini').touch()
    Path('texts.txt').write_text('\n'.join(WORDS), encoding='utf-8')
    return tmp_path


def places() -> list: return sorted(Path('outputs/.boxes').iterdir())


def test_another_address_is_another_box(encoder, server, project):
    for name in ('one', 'two', 'one'):
        with room.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/{name}') as box:
            assert box.index.server.name == name and len(held_by(box)) == 5
    assert len(places()) == 2 and len(server.shelves['one'].written) == len(server.shelves['two'].written) == 5


def test_a_file_that_changed_is_followed_in_its_one_box(encoder, project, capsys):
    room.saved_searcher('model', 'texts.txt').close()
    assert '5 texts' in (said := capsys.readouterr().err) and '5 new or changed, 0 taken out' in said
    Encoders.read.clear()
    Path('texts.txt').write_text('\n'.join([*WORDS[:2], '새로운 세 번째 줄']), encoding='utf-8')
    with room.saved_searcher('model', 'texts.txt') as box: assert len(held_by(box)) == 3
    assert '1 new or changed, 2 taken out' in capsys.readouterr().err and Encoders.read == ['새로운 세 번째 줄']
    room.saved_searcher('model', str(project/'texts.txt')).close()
    assert 'nothing to encode' in capsys.readouterr().err and len(places()) == 1


def test_a_local_copy_that_was_lost_does_not_leave_texts_at_the_server(encoder, server, project):
    room.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/docs').close()
    room.shutil.rmtree(places()[0])
    Path('texts.txt').write_text(WORDS[0], encoding='utf-8')
    with room.saved_searcher('model', 'texts.txt', 'opensearch', f'{server.url}/docs') as box: assert list(held_by(box)) == ['1']
    assert list(server.shelves['docs'].written) == ['1']


WRONG = [('exact', 'http://localhost:1/x', 'in a folder'), ('opensearch', '', 'is a server'),
         ('qdrant', 'milvus+http://localhost:1/x', "engine 'milvus'"), ('milvus', 'localhost:1/x', 'expected an address')]


@pytest.mark.parametrize('engine, index, said', WRONG)
def test_an_engine_and_an_address_that_do_not_fit_leave_nothing_behind(engine, index, said, encoder, project):
    with pytest.raises(ConfigError, match=said): room.saved_searcher('model', 'texts.txt', engine, index)
    assert not Path('outputs').exists()


def child_with_a_box(place: Path, encoder) -> tuple: # process, what to close so that it ends
    "A process that has a box open, once this returns."
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(120)
        box = room.open_searcher(place, encoder)
        os.write(tell, b'x')
        signal.pause()
        box.close()
    os.close(tell)
    assert os.read(ready, 1) == b'x'
    os.close(ready)
    return child


def test_texts_do_not_change_under_an_open_box(encoder, project):
    room.saved_searcher('model', 'texts.txt').close()
    child = child_with_a_box(places()[0], encoder)
    try:
        room.saved_searcher('model', 'texts.txt').close() # as they were: both may
        Path('texts.txt').write_text(WORDS[0], encoding='utf-8')
        with pytest.raises(ConfigError, match='another process has this box open'): room.saved_searcher('model', 'texts.txt')
        with room.open_searcher(places()[0], encoder) as box: assert len(held_by(box)) == 5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with room.saved_searcher('model', 'texts.txt') as box: assert len(held_by(box)) == 1


def test_old_copies_are_told_and_cleaned_but_never_one_that_is_open(encoder, project, capsys):
    room.saved_searcher('model', 'texts.txt').close()
    Path('other.txt').write_text('\n'.join(WORDS), encoding='utf-8')
    room.saved_searcher('model', 'other.txt').close()
    (project/'outputs'/'.boxes'/'77aa-5e1f-of-before-exact').mkdir()
    (project/'outputs'/'.boxes'/'77aa-5e1f-of-before-exact'/'texts.db').write_bytes(b'x' * 1000)
    Path('other.txt').unlink()
    used, old = (next(place for place in places() if place.name.startswith(name)) for name in ('texts', 'other'))
    size = room.size_of(old)
    capsys.readouterr()
    room.saved_searcher('model', 'texts.txt').close()
    said = capsys.readouterr().err
    assert f'2 old copies in {project}/outputs/.boxes, {size + 1000:,} bytes' in said and 'make clean-search' in said
    child = child_with_a_box(old, encoder)
    try: assert room.main(['clean']) == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    said = capsys.readouterr().out
    assert f'kept: {old.resolve()}: a running process has it open' in said and '1,000 bytes removed in 1 old copies' in said
    assert room.main(['clean']) == 0 and f'{old.resolve()}, {size:,} bytes' in capsys.readouterr().out
    assert [path.name for path in places()] == [used.name]
    room.saved_searcher('model', 'texts.txt').close()
    said = capsys.readouterr().err
    assert 'nothing to encode' in said and 'old copies' not in said


def test_a_model_that_was_trained_again_leaves_an_old_copy(encoder, project, monkeypatch, capsys):
    room.saved_searcher('model', 'texts.txt').close()
    assert not room.old_copies()
    (Path(encoder.folder)/'model.safetensors').write_bytes(b'other weights')
    again = room.Encoder(encoder.folder, None, None, Label(LABEL.vocabulary, SIZE, 'b0b0'))
    monkeypatch.setattr(room, 'open_encoder', lambda folder: again)
    room.saved_searcher('model', 'texts.txt').close()
    (place, why), = room.old_copies()
    assert 'another model lies in' in why and json.loads((place/'box.json').read_text())['label']['model'] == '77aa00'


def test_a_box_whose_removal_was_cut_off_is_none(encoder, project, monkeypatch, capsys):
    room.saved_searcher('model', 'texts.txt').close()
    Path('texts.txt').rename('moved.txt')
    def refuse(path): raise OSError('cut off')
    with monkeypatch.context() as cut:
        cut.setattr(room.shutil, 'rmtree', refuse)
        with pytest.raises(OSError): room.clean()
    assert [place.name[:9] for place in places()] == ['.removed-'] and not room.old_copies()
    room.clean()
    assert not places()

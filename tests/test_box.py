"""A search box whose process is killed: what was done stays done, and the result is the same."""
import json, subprocess, sys
import pytest

# Each build dies at another place, in a process of its own; the next one goes on. The model is loaded once.
PROGRAM = '''
import json, os, sys
from pathlib import Path
from splade_nb import box as room, store, tokens
from splade_nb.data.records import toy_corpus
from splade_nb.config.files import ConfigError; from splade_nb.config.versions import resolve
from splade_nb.training.dataset import prepare
from splade_nb.training.dataset import save_model_folder
from splade_nb.serving.index import ExactIndex

folder = Path(sys.argv[1])

def child(work) -> int:
    process = os.fork()
    if not process: work(); os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

corpus, queries = toy_corpus(), ('한복 입고 경복궁', '제주 가는 배')

def read(): # the analyser takes longer to load than a box takes to build
    asked = [*corpus.texts.values(), *(query.text for query in corpus.queries.values()), *queries]
    (folder/'morphemes.json').write_text(json.dumps(dict(zip(asked, tokens.analysed(asked)))))

def make():
    global encoder
    save_model_folder(prepare(resolve('splade_ko', hidden=64, layers=1, vocabulary=300), corpus, seed=42, cache=folder/'cache'), folder/'run')
    encoder = room.open_encoder(folder/'run')
    result('whole')

def dying(owner, name, after):
    original, left = getattr(owner, name), [after]
    def call(*arguments, **named):
        found = original(*arguments, **named)
        left[0] -= 1
        if not left[0]: os.kill(os.getpid(), 9)
        return found
    setattr(owner, name, call)

def build(place, *death):
    room.texts.unread.__defaults__ = (3,)
    if death: dying(*death)
    return room.build_searcher(encoder, 'toy', folder/place)

def result(place):
    with build(place) as box: found = [[(hit.id, round(hit.score, 4), len(hit.terms)) for hit in box.ask(query)] for query in queries], box.store.postings.tolist()
    (folder/f'{place}.json').write_text(json.dumps(found))

assert child(read) == 0
known = json.loads((folder/'morphemes.json').read_text()); tokens.analysed = lambda texts: [known[text] for text in texts]
assert child(make) == 0
encoder = room.open_encoder(folder/'run')
deaths = [(store, 'write', 2), (ExactIndex, 'save', 1)]
told = []
for death in deaths:
    assert child(lambda: build('killed', *death)) == -9, death
    try: room.open_searcher(folder/'killed', encoder); told.append('')
    except ConfigError as error: told.append(str(error))
assert child(lambda: result('killed')) == 0
def delete(): dying(ExactIndex, 'delete', 1); room.open_searcher(folder/'killed', encoder).delete(['palace'])
def look():
    with room.open_searcher(folder/'killed', encoder) as box: (folder/'left.json').write_text(json.dumps([len(box), len(box.index), box.read('palace')]))

assert child(delete) == -9 and child(look) == 0
print(json.dumps(dict(told=told, **{name: json.loads((folder/f'{name}.json').read_text()) for name in ('killed', 'whole', 'left')})))
'''


@pytest.fixture(scope='module')
def done(tmp_path_factory) -> dict:
    found = subprocess.run([sys.executable, '-c', PROGRAM, str(tmp_path_factory.mktemp('box'))], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


def test_a_box_killed_at_every_step_ends_as_one_that_never_was(done): assert done['killed'] == done['whole'] and done['whole'][0][0][0][0] == 'palace'


def test_half_a_box_is_not_opened(done): assert all('half built' in said for said in done['told'])


def test_a_deletion_that_was_killed_is_finished(done): assert done['left'] == [13, 13, None]

"""A searcher whose process is killed while it is built: finished steps stay, and the result is the same."""
import json, subprocess, sys
import pytest

# Each build dies at another place, in a process of its own; the next one goes on. The model is loaded once.
PROGRAM = '''
import json, os, sys
from pathlib import Path
from splade_nb.data import tokenizer
from splade_nb.serving import document_store, searcher as searchers
from splade_nb.data.records import toy_corpus
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve
from splade_nb.training.dataset import as_searched, prepare, save_model_folder
from splade_nb.serving.index import ExactIndex

folder = Path(sys.argv[1])

def child(work) -> int:
    process = os.fork()
    if not process:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

corpus, queries = toy_corpus(), ('한복 입고 경복궁', '제주 가는 배')

def read(): # the analyser takes longer to load than a searcher takes to build
    texts = [*corpus.texts.values(), *(query.text for query in corpus.queries.values()), *queries]
    (folder/'morphemes.json').write_text(json.dumps(dict(zip(texts, tokenizer.analysed(texts)))))

def make():
    global encoder
    settings = resolve('splade_ko', hidden=64, layers=1, vocabulary=300, counted_terms=1024)
    save_model_folder(as_searched(prepare(settings, corpus, seed=42)), folder/'run')
    encoder = searchers.open_encoder(folder/'run')
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
    document_store.not_encoded.__defaults__ = (3,)
    if death: dying(*death)
    return searchers.build_searcher(encoder, 'toy', folder/place)

def result(place):
    with build(place) as searcher:
        hits = [searcher.search(query) for query in queries]
        postings = searcher.store.postings.tolist()
    results = [[(hit.id, round(hit.score, 4), len(hit.terms)) for hit in each] for each in hits]
    (folder/f'{place}.json').write_text(json.dumps((results, postings)))

assert child(read) == 0
known = json.loads((folder/'morphemes.json').read_text())
tokenizer.analysed = lambda texts: [known[text] for text in texts]
assert child(make) == 0
encoder = searchers.open_encoder(folder/'run')
deaths = [(document_store, 'write_vectors', 2), (ExactIndex, 'save', 1)]
errors = []
for death in deaths:
    assert child(lambda: build('killed', *death)) == -9, death
    try: searchers.open_searcher(folder/'killed', encoder)
    except ConfigError as error: errors.append(str(error))
assert child(lambda: result('killed')) == 0
def delete():
    dying(ExactIndex, 'delete', 1)
    searchers.open_searcher(folder/'killed', encoder).delete(['palace'])

def look():
    with searchers.open_searcher(folder/'killed', encoder) as searcher:
        sizes = len(searcher), len(searcher.index), searcher.read('palace')
    (folder/'left.json').write_text(json.dumps(sizes))

assert child(delete) == -9 and child(look) == 0
saved = {name: json.loads((folder/f'{name}.json').read_text()) for name in ('killed', 'whole', 'left')}
print(json.dumps(dict(errors=errors, **saved)))
'''


@pytest.fixture(scope='module')
def done(tmp_path_factory) -> dict:
    command = [sys.executable, '-c', PROGRAM, str(tmp_path_factory.mktemp('searcher'))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_searcher_killed_at_every_step_ends_as_one_that_never_was(done):
    assert done['killed'] == done['whole'] and done['whole'][0][0][0][0] == 'palace'


@pytest.mark.slow
def test_half_a_searcher_is_not_opened(done):
    assert ['half built' in message for message in done['errors']] == [True, True]


@pytest.mark.slow
def test_a_deletion_that_was_killed_is_finished(done): assert done['left'] == [13, 13, None]

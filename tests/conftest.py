"""What the tests share: the project's folders, its notebooks, real data or data made in its place, a browser."""
import functools, json, os, shutil, sys, tempfile
from contextlib import nullcontext
from pathlib import Path
import chromium
import pytest
pytest.register_assert_rewrite('faults')

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT/'docs'))
from checkout import tracked

SHARED = ROOT.parent/'shared'
NOTEBOOKS = [p for p in tracked('nbs/**/*.ipynb') if not any(part[0] in '._' for part in p.parts[p.parts.index('nbs'):])]
MODULES = tracked('splade_nb/**/*.py')


def name(notebook: Path) -> str: return notebook.relative_to(ROOT/'nbs').as_posix()


def read(notebook: Path) -> dict: return json.loads(notebook.read_text(encoding='utf-8'))


def text(cell: dict) -> str: return ''.join(cell['source'])


def injected(notebook: str, **given):
    "A notebook of `nbs/` with the parameters that papermill injects."
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook
    return parameterize_notebook(load_notebook_node(str(ROOT/'nbs'/notebook)), given)


def run_cells(notebook: str, **given) -> dict:  # the names that its cells define
    "Runs a notebook in this process: a kernel takes seconds to begin."
    names = {}
    for cell in injected(notebook, **given).cells:
        if cell.cell_type == 'code': exec(cell.source, names)
    return names


# Real collections, tokenizers and documents lie beside the project in ../shared; they are not the project's to publish.

SOURCES = {
    'data/tydiqa_ko_goldp': 'TyDi QA gold passages in Korean, github.com/sagorbrur/tydiqa-language-specific, in BEIR form',
    'data/question_pair': 'github.com/songys/Question_pair, in BEIR form',
    'data/ko_strategyqa_facts': 'github.com/sionic-ai/Data_StrategyQA, in BEIR form',
    'data/techdocs_ko': 'the Korean manuals of React, Vue and Rust, in BEIR form',
    'data/parakqc': 'github.com/warnikchow/paraKQC, in BEIR form',
    'data/korquad_v1': 'KorQuAD_v1.0_dev.json of korquad.github.io',
    'data/nli_ko.jsonl': 'XNLI and KLUE-NLI in Korean as lines of query, positive, negatives',
    'tokenizers': 'the two folders of tokenizers below',
    'tokenizers/xlm-roberta-base': 'hf download FacebookAI/xlm-roberta-base tokenizer.json tokenizer_config.json',
    'tokenizers/ax-encoder-base': 'hf download skt/A.X-Encoder-base tokenizer.json tokenizer_config.json',
    'seeds': 'the design documents, which are not published',
    'versions-and-errata.md': 'the table of versions of the design, which is not published'}


def why(path: str) -> str:
    "What a skipped test lacks, and where that comes from."
    known = next(name for name in sorted(SOURCES, reverse=True) if path.startswith(name))
    return f'../shared/{path} is missing: {SOURCES[known]}; put it beside the checkout'


def real(path: str) -> Path:
    "A file or folder beside the project. Skips the test where it is missing, and says what that is."
    if not (SHARED/path).exists(): pytest.skip(why(path))
    return SHARED/path


def is_real(path: str) -> bool: return (SHARED/path).exists()


def real_or_made(path: str) -> Path:
    "A folder beside the project, or a small one of the same form that is made in its place: no code goes untested for want of it."
    if is_real(path): return SHARED/path
    return {'data': made_collection, 'tokenizers': made_tokenizer}[path.split('/')[0]]()


@functools.cache
def workshop() -> tempfile.TemporaryDirectory: return tempfile.TemporaryDirectory(prefix='made-')  # until the tests are over


@functools.cache
def made_collection() -> Path:
    "The embedded set as a folder in BEIR form."
    from splade_nb.data.readers import load
    found, folder = load('mini'), Path(workshop().name)/'collection'
    folder.mkdir()
    def write(name: str, rows) -> None:
        (folder/name).write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    write('corpus.jsonl', (dict(_id=id, title=one.title, text=one.text) for id, one in found.documents.items()))
    write('queries.jsonl', (dict(_id=id, text=one.text, metadata=dict(split=one.split)) for id, one in found.queries.items()))
    for split in ('test', 'train'):
        rows = [f'{id}\t{document}\t{grade}' for id in found.split(split) for document, grade in found.qrels[id].items()]
        (folder/f'qrels_{split}.tsv').write_text('\n'.join(['query-id\tcorpus-id\tscore', *rows]) + '\n', encoding='utf-8')
    return folder


@functools.cache
def made_tokenizer() -> Path:
    "A tokenizer in XLM-R's form, Unigram with its special tokens, of the embedded set."
    from splade_nb.data.readers import load
    from splade_nb.data.tokenizer import train_unigram
    folder = Path(workshop().name)/'tokenizer'
    train_unigram(list(load('mini').texts.values()), 4000).save_pretrained(folder)
    return folder


@pytest.fixture(scope='session')
def tiny_encoder(tmp_path_factory) -> str:
    "A small random masked language model and its tokenizer in a folder, as the hub has them."
    from splade_nb.data.records import toy_corpus
    from splade_nb.training.check_settings import quiet, tiny_checkpoint
    with quiet(): return tiny_checkpoint(tmp_path_factory.mktemp('encoder'), [*toy_corpus().texts.values()], 0)


@pytest.fixture(scope='session', autouse=True)
def prepared_data(tmp_path_factory):
    "Prepared training data of the tests, in a folder of their own that all workers share: what one has made, none makes again."
    base = tmp_path_factory.getbasetemp()
    before, folder = os.environ.get('SPLADE_NB_PREPARED'), (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base)/'prepared'
    os.environ['SPLADE_NB_PREPARED'] = str(folder)
    yield folder
    if before is None: del os.environ['SPLADE_NB_PREPARED']
    else: os.environ['SPLADE_NB_PREPARED'] = before


@pytest.fixture(scope='session', autouse=True)
def analysed_morphemes():
    "Kiwi analyses no text twice in a process."
    tokenizer = sys.modules.get('splade_nb.data.tokenizer')  # where no test reads text, nothing is loaded for it
    with tokenizer.remembered({}) if tokenizer else nullcontext(): yield


@pytest.fixture(scope='session')
def texts():
    "A hundred: long documents and short questions, real ones where they lie beside the project."
    from splade_nb.data.readers import load
    found = load(str(real_or_made('data/tydiqa_ko_goldp')))
    return [*found.texts.values()][:50] + [query.text for query in found.queries.values()][:50]


@pytest.fixture(scope='session')
def browser(tmp_path_factory):
    "One Chromium without a network, for all pages."
    if not chromium.program(): pytest.skip('no browser: chromium or google-chrome is not on the path')
    browser = chromium.Chromium(tmp_path_factory.mktemp('chromium'))
    yield browser
    browser.close()


# Files of many seconds, the longest first: the short ones level the workers at the end.
LONG = '''faults check_settings browser processes house hub engines memory outputs site studies make gpu slim web board run
prune_vocabulary opensearch words containers formats provenance exact_search bm25_and_negatives rent benchmark api elasticsearch_model
vocabulary searcher pretraining vespa_model lab tuning cluster encoding units versions'''.split()
RANK = {f'test_{name}': number for number, name in enumerate(LONG)}
LEFT_OUT = pytest.StashKey[dict]()
RUN_BY = dict(slow='slow proofs were left out: `make test-all` runs them, and so does CI.', weekly='weekly proofs were left out: `make test-weekly` runs them.')


MEMORY = Path('/dev/shm')  # files that are not on a disk, on Linux


@pytest.hookimpl(tryfirst=True)  # before pytest reads its options about temporary files
def pytest_configure(config):
    "Several workers write where no disk is, if there is room: every fsync waits for all that the other worker has written."
    room = shutil.disk_usage(MEMORY).free if os.access(MEMORY, os.W_OK) else 0
    if getattr(config.option, 'numprocesses', None) and not config.option.basetemp and room > 8 * 2 ** 30:
        place = tempfile.mkdtemp(prefix='tests-', dir=MEMORY)
        os.chmod(place, 0o755)  # as the system's own folder: some children are other users
        config.option.basetemp = f'{place}/tests'
        config.option.override_ini = [*(config.option.override_ini or ()), 'tmp_path_retention_policy=none']
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    config.addinivalue_line('markers', 'weekly: a proof of a minute of which `make test-all` runs a part; `make test-weekly` runs it')


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    "Long files run first; a test that uses one of its module's `SLOW_FIXTURES` is slow."
    items.sort(key=lambda item: RANK.get(item.path.stem, len(LONG)))
    for item in items:
        if {*getattr(item.module, 'SLOW_FIXTURES', ())} & {*item.fixturenames}: item.add_marker(pytest.mark.slow)


def pytest_deselected(items):
    "Counts the slow and weekly proofs that are left out, here and in each worker."
    if not items: return
    known = items[0].config.stash.setdefault(LEFT_OUT, dict.fromkeys(RUN_BY, 0))
    for item in items:
        kind = next((kind for kind in ('weekly', 'slow') if item.get_closest_marker(kind)), None)
        if kind: known[kind] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    "A worker collects every test, so any of them knows the number; it goes to the process that prints."
    told = getattr(session.config, 'workeroutput', {})
    told['left_out'] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)  # known where xdist is
def pytest_testnodedown(node): node.config.stash[LEFT_OUT] = getattr(node, 'workeroutput', {}).get('left_out', {})


def pytest_terminal_summary(terminalreporter, config):
    for kind, number in config.stash.get(LEFT_OUT, {}).items():
        if number and config.option.markexpr: terminalreporter.write_line(f'{number} {RUN_BY[kind]}')

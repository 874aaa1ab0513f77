"""What the tests share: the project's folders, its notebooks, a browser."""
import json
from pathlib import Path
import chromium
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb')
                   if not any(part[0] in '._' for part in p.relative_to(ROOT/'nbs').parts))


def name(notebook: Path) -> str: return notebook.relative_to(ROOT/'nbs').as_posix()


def read(notebook: Path) -> dict: return json.loads(notebook.read_text(encoding='utf-8'))


def text(cell: dict) -> str: return ''.join(cell['source'])


def run_cells(notebook: str, **given) -> None:
    "Runs a notebook of `nbs/` in this process with the parameters that papermill injects: a kernel takes seconds to begin."
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook
    names = {}
    for cell in parameterize_notebook(load_notebook_node(str(ROOT/'nbs'/notebook)), given).cells:
        if cell.cell_type == 'code': exec(cell.source, names)


@pytest.fixture(scope='session')
def browser(tmp_path_factory):
    "One Chromium without a network, for all pages."
    if not chromium.program(): pytest.skip('no chromium')
    browser = chromium.Chromium(tmp_path_factory.mktemp('chromium'))
    yield browser
    browser.close()


# Files of many seconds, the longest first: the short ones level the workers at the end.
LONG = 'wires faults run memory neighbours cut_wires formats lexical surgery fullscale site'.split()
RANK = {f'test_{name}': number for number, name in enumerate(LONG)}
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: RANK.get(item.path.stem, len(LONG)))


def pytest_deselected(items):
    "Counts the slow proofs that are left out, here and in each worker."
    if not items: return
    known = items[0].config.stash
    known[LEFT_OUT] = known.get(LEFT_OUT, 0) + sum(item.get_closest_marker('slow') is not None for item in items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    "A worker collects every test, so any of them knows the number; it goes to the process that prints."
    told = getattr(session.config, 'workeroutput', {})
    told['left_out'] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)  # known where xdist is
def pytest_testnodedown(node): node.config.stash[LEFT_OUT] = getattr(node, 'workeroutput', {}).get('left_out', 0)


def pytest_terminal_summary(terminalreporter, config):
    number = config.stash.get(LEFT_OUT, 0)
    said = f'{number} slow proofs were left out: `make test-all` runs them, and so does CI.'
    if number and config.option.markexpr: terminalreporter.write_line(said)

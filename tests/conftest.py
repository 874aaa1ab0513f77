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


@pytest.fixture(scope='session')
def browser(tmp_path_factory):
    "One Chromium without a network, for all pages."
    if not chromium.program(): pytest.skip('no chromium')
    browser = chromium.Chromium(tmp_path_factory.mktemp('chromium'))
    yield browser
    browser.close()


LONG = {f'test_{name}' for name in 'run wires faults cut_wires memory neighbours fullscale formats lexical surgery site'.split()}


def pytest_collection_modifyitems(items):
    "Files of a minute first: the short ones level the workers at the end."
    items.sort(key=lambda item: item.path.stem not in LONG)

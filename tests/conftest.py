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


SINGLE = {'test_wires', 'test_cut_wires', 'test_faults'}  # long tests that share nothing: each by itself, at the end


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    "Each file on one worker, so that what its tests share is made once."
    items.sort(key=lambda item: item.path.stem in SINGLE)
    for item in items:
        if item.path.stem not in SINGLE: item.add_marker(pytest.mark.xdist_group(item.path.stem))

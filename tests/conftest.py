"""What the tests share: the project's folders, its notebooks, a browser."""
import json, shutil, subprocess
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb')
                   if not any(part[0] in '._' for part in p.relative_to(ROOT/'nbs').parts))


def name(notebook: Path) -> str: return notebook.relative_to(ROOT/'nbs').as_posix()


def read(notebook: Path) -> dict: return json.loads(notebook.read_text(encoding='utf-8'))


def text(cell: dict) -> str: return ''.join(cell['source'])


@pytest.fixture
def browser(tmp_path):
    "A function that opens an address without a network and gives the page as it stands after its scripts ran."
    chromium = shutil.which('chromium') or shutil.which('google-chrome')
    if not chromium: pytest.skip('no chromium')
    flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
             '--disable-background-networking', '--disable-component-update', '--host-resolver-rules=MAP * ~NOTFOUND',
             f'--user-data-dir={tmp_path}', '--virtual-time-budget=20000', '--dump-dom']
    return lambda address: subprocess.run([chromium, *flags, address], capture_output=True, text=True, timeout=120).stdout


SINGLE = {'test_wires', 'test_cut_wires', 'test_faults', 'test_memory'}  # long tests that share nothing


def pytest_collection_modifyitems(items):
    "Each file on one worker, so that what its tests share is made once; long tests that share nothing one by one."
    for item in items:
        if item.path.stem not in SINGLE: item.add_marker(pytest.mark.xdist_group(item.path.stem))

"""JupyterLab, as a person uses it: it opens a notebook and runs it from top to bottom."""
import json, os, shutil, subprocess, sys
from pathlib import Path
from urllib.request import urlopen
import pytest
from chromium import HANGS, until
from conftest import ROOT, read

TOKEN = 'tests'
NOTEBOOK = '00_text.ipynb'


def listening(runtime: Path) -> str | None:
    "The address of the server whose file lies in this folder; `None` while the file is half written or nothing answers there."
    for file in runtime.glob('jpserver-*.json'):
        try:
            address = json.loads(file.read_text())['url']
            if urlopen(f'{address}api', timeout=5).status == 200: return address
        except (json.JSONDecodeError, OSError): return None


def ran(notebook: Path) -> list:  # code cells; empty until all of them ran and are saved
    "What JupyterLab has saved, which may be half written."
    try: cells = [cell for cell in read(notebook)['cells'] if cell['cell_type'] == 'code']
    except json.JSONDecodeError: return []
    return cells if all(cell['execution_count'] for cell in cells) else []


@pytest.fixture
def lab(tmp_path):
    "A server over a copy of a module, at a free port; its address."
    shutil.copy(ROOT/'nbs'/'1_data'/NOTEBOOK, tmp_path)
    runtime = tmp_path/'runtime'
    environment = {**os.environ, 'JUPYTER_RUNTIME_DIR': str(runtime), 'JUPYTER_CONFIG_DIR': str(tmp_path/'config'), 'JUPYTER_PREFER_ENV_PATH': '1',
                   'PYTHONPATH': os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))}
    options = [f'--IdentityProvider.token={TOKEN}', '--port=0', '--ip=127.0.0.1', '--allow-root', '--no-browser', f'--ServerApp.root_dir={tmp_path}',
               '--LabApp.expose_app_in_browser=True', '--LabApp.news_url=None']
    process = subprocess.Popen([Path(sys.executable).parent/'jupyter', 'lab', *options], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = until(lambda: listening(runtime), 'JupyterLab')
        yield f'{address}lab/tree/{NOTEBOOK}?token={TOKEN}'
    finally:
        process.terminate()
        process.wait(HANGS)


@pytest.mark.slow
def test_lab_opens_and_runs_a_notebook(lab, browser, tmp_path):
    assert not [said for said in browser.open(lab) if 'Document' in said]
    browser.wait("window.jupyterapp?.shell?.currentWidget?.context?.isReady && window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status === 'idle'")
    browser.value("(async () => { for (const name of ['notebook:run-all-cells', 'docmanager:save']) await jupyterapp.commands.execute(name); })()")
    cells = until(lambda: ran(tmp_path/NOTEBOOK), 'a notebook whose cells all ran')
    assert not any(output['output_type'] == 'error' for cell in cells for output in cell['outputs'])
    assert any(cell['outputs'] for cell in cells)

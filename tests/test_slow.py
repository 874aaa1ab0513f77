"""What `make test` leaves out, `make test-all` runs; whoever reads the last line of pytest knows."""
import os, re, shutil, subprocess, sys
import pytest
from conftest import ROOT

TESTS = '''
import pytest
def test_quick(): pass
@pytest.mark.slow
@pytest.mark.parametrize('number', range(3))
def test_long(number): pass
@pytest.mark.slow
@pytest.mark.parametrize('every', [4, pytest.param(1, marks=pytest.mark.weekly)])
def test_part(every): pass
def test_without(): pytest.skip('no data beside the project')
'''


def said(folder, *options) -> str:
    program = [sys.executable, '-m', 'pytest', '-c', ROOT/'pyproject.toml', '--rootdir', folder, folder, '-p', 'no:cacheprovider']
    environment = os.environ | {'PYTHONPATH': str(ROOT/'docs')}  # where conftest finds the files of the checkout
    done = subprocess.run([*program, *options], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize('workers', ([], ['-n', '2']), ids=['alone', 'in workers'])
def test_what_was_left_out_and_skipped_is_said(workers, tmp_path):
    for name in ('conftest.py', 'chromium.py'): shutil.copy(ROOT/'tests'/name, tmp_path)
    (tmp_path/'test_some.py').write_text(TESTS, encoding='utf-8')
    short, long, whole = (said(tmp_path, *chosen, *workers) for chosen in (('-m', 'not slow and not weekly'), ('-m', 'not weekly'), ()))
    assert '1 passed, 1 skipped' in short and '4 slow proofs were left out: `make test-all` runs them' in short
    assert '5 passed, 1 skipped' in long and 'slow proofs' not in long
    assert all('1 weekly proofs were left out: `make test-weekly` runs them' in text for text in (short, long))
    assert '6 passed, 1 skipped' in whole and 'left out' not in whole
    assert all('no data beside the project' in text for text in (short, long, whole))


CHOSEN = {'test': 'not slow and not weekly', 'test-all': 'not weekly', 'test-weekly': 'weekly'}


@pytest.mark.parametrize('target', CHOSEN)
def test_each_proof_is_run_by_a_target_and_by_a_workflow(target):
    done = subprocess.run(['make', '-n', target], cwd=ROOT, capture_output=True, text=True)
    called = [line for line in done.stdout.splitlines() if '-m pytest' in line]
    assert done.returncode == 0 and len(called) == 1 and re.search(r"pytest.* -m ('[^']+'|\w+)", called[0])[1].strip("'") == CHOSEN[target]
    assert 'run: make test-weekly' in (ROOT/'.github/workflows/servers.yml').read_text(encoding='utf-8')
    assert (ROOT/'.ci'/'run').read_text(encoding='utf-8').splitlines()[-1] == 'exec make --no-print-directory test-all'

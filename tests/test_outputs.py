"""Stored outputs of notebooks are what their code gives. Any notebook by hand, with --write to store what differs (nbdev_clean afterwards):

    PYTHONPATH=.:tests python tests/test_outputs.py [--write] nbs/6_serving/08_searcher.ipynb ...
"""
import difflib, re, sys, tempfile
from pathlib import Path
import nbformat
import pytest
import faults
from conftest import NOTEBOOKS, name

QUICK = [notebook for notebook in NOTEBOOKS if notebook.parent.name in ('0_config', '1_data') and notebook.stem != '15_encoders']
TUTORIALS = 'add_a_version', 'coming_from_elsewhere', 'notebook_to_opensearch', 'read_a_vector'  # the others have widgets, or take a minute
TRAINED = [notebook for notebook in NOTEBOOKS if notebook.parent.name in ('2_model', '3_training', '4_evaluation', '5_hub', '6_serving') or notebook.stem in TUTORIALS]
NUMBER = re.compile(r'\b[0-9a-f]{16}\b|[-+]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?')  # and what is made of them
WIDGET, BAR = 'application/vnd.jupyter.widget', re.compile(r'(?m)^.*\d+%\|.*\n?|^.*\r')  # of progress
MASKS = {  # what changes from run to run
    r'\x1b\[[\d;]*m': '', BAR.pattern: '', r' at 0x[0-9a-f]{6,}': '', r'\n\s*\n': '\n', r'\b\d{4}-\d\d-\d\d\b(?:[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?)?': '<date>',
    r'/(?:tmp|work|home|root|var|opt|usr)/[^\s\'",:;)\]]*': '<path>', r'\b(?:127\.0\.0\.1|localhost):\d+': '<host>',
    r'\b\d+(?:[.,]\d+)* ?(?:ms|µs|us|s|seconds|minutes|min|GB|MB)\b(?:/\w+)?': '<amount>', r'\b[\d.,]+ ?(?:texts|it|pairs|documents)/s': '<rate>',
    r'\b[0-9a-f]{7}(?:-dirty)?\b(?=`|\'|"|$)': '<commit>', r'tmp[a-z0-9_]{8}\b': '<path>'}
SKIPPED = re.compile(r'^#\|\s*(?:eval:\s*false|slow|cuda|net)\b', re.M)


def masked(text: str) -> str:
    for pattern, mask in MASKS.items(): text = re.sub(pattern, mask, text)
    return '\n'.join(line.rstrip() for line in text.strip().splitlines())


def shown(cell) -> str:
    "What a cell shows, without progress bars and pictures."
    parts = [output.get('text', '') for output in cell.outputs if output.get('name') == 'stdout']
    for data in (output.data for output in cell.outputs if 'data' in output and not any(kind.startswith(('image/', WIDGET)) for kind in output.data)):
        parts.append(data.get('text/markdown') or data.get('text/plain', ''))
    return masked('\n'.join(''.join(part) for part in parts))


def in_a_kernel(notebook, folder: Path) -> None:
    from nbclient import NotebookClient
    NotebookClient(notebook, timeout=900, resources=dict(metadata=dict(path=str(folder)))).execute()


def words(text: str) -> str:
    "What stays on every processor: numbers of small trained models differ in how it rounds."
    return re.sub(r'[ \t]+|(?<=-)-+', '', NUMBER.sub('#', text))


def differences(path: Path, write: bool = False, run=faults.run_notebook, part=str) -> list:  # a text for each cell whose outputs are not those of the file
    "Run a notebook in its folder and compare; `write` stores the outputs of these cells alone. Raises what a cell raises."
    stored, fresh = (nbformat.read(path, 4) for _ in range(2))
    code = [number for number, cell in enumerate(stored.cells) if cell.cell_type == 'code']
    for number in code:
        if SKIPPED.search(fresh.cells[number].source): fresh.cells[number].source = ''
    run(fresh, path.parent)
    other = [(before, now) for before, now in zip(stored.cells, fresh.cells) if before.cell_type == 'code' and now.source
             and part(shown(before)) != part(shown(now))]
    told = ['\n'.join([f'{path.name}#{before.id}', *difflib.unified_diff(shown(before).splitlines(), shown(now).splitlines(), 'stored', 'now', lineterm='', n=0)])
            for before, now in other]
    for before, now in other:
        for output in now.outputs: output.update(text=BAR.sub('', output['text'])) if 'text' in output else None
        before.outputs = [output for output in now.outputs if output.get('name') != 'stderr' and output.get('text', 'no stream') and tempfile.gettempdir() not in output.get('text', '')
                          and WIDGET not in ' '.join(output.get('data', ()))]
    if write and other: nbformat.write(stored, path)
    return told


def test_what_changes_from_run_to_run_is_masked_and_nothing_else():
    first, other = '<f at 0x7f12ab34cd>, 3.2 s, /var/ab12cd34/x.json, 2026-11-26 10:02', '<f at 0x7f99ab34cd>, 14 s, /var/zz12cd34/y.json, 2026-11-27 11:40'
    assert masked(first) == masked(other) == '<f>, <amount>, <path>, <date>'
    assert masked('nDCG@10 0.569, 39.9 terms') == 'nDCG@10 0.569, 39.9 terms' != masked('nDCG@10 0.570, 39.9 terms')


@pytest.mark.slow
def test_the_notebook_of_encoders_runs():
    "What it shows depends on what the machine has."
    differences(next(notebook for notebook in NOTEBOOKS if notebook.stem == '15_encoders'))


@pytest.mark.slow
@pytest.mark.parametrize('notebook', QUICK, ids=name)
def test_stored_outputs_are_what_the_code_gives(notebook):
    assert not differences(notebook), 'run the notebook again, nbdev_clean, and look at the difference'


@pytest.mark.slow
@pytest.mark.parametrize('notebook', TRAINED, ids=name)
def test_the_words_of_stored_outputs_are_what_the_code_gives(notebook):
    assert not differences(notebook, part=words), 'run the notebook again, nbdev_clean, and look at the difference'


if __name__ == '__main__':
    write, paths = '--write' in sys.argv, [Path(given) for given in sys.argv[1:] if given != '--write']
    for path in paths: print(*differences(path, write, in_a_kernel) or [f'{path}: as stored'], sep='\n', flush=True)

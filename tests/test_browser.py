"""Copies of notebooks for Colab and Kaggle: what they hold, and that they run where there is no checkout."""
import ast, importlib, importlib.metadata, importlib.util, json, os, re, shutil, subprocess, sys, types
from contextlib import chdir
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from unittest.mock import patch
import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from conftest import NOTEBOOKS, ROOT, name, read, text, tracked
from packages import HIDE, brought

sys.path.insert(0, str(ROOT/'docs'))
with chdir(ROOT): import browser as copies  # nbdev looks for its settings from the working folder up
from build_site import DIRECTIVE, GUIDES, HOST, LINK, page

COPIES = {notebook.as_posix(): copies.copy(notebook, 'a1b2c3') for notebook in copies.COPIED}
each_copy = pytest.mark.parametrize('notebook', COPIES)
FORM = re.compile(r'^(\w+) = (.*) #@param \{type:"\w+"\}$', re.M)


def cell(notebook: dict, id: str) -> dict: return next(cell for cell in notebook['cells'] if cell['id'] == id)


def links_of(notebook: dict) -> list:
    return [match[1] + (match[2] or '') for each in notebook['cells'] if each['cell_type'] == 'markdown' for match in LINK.finditer(text(each))]


# What a copy holds

def test_each_notebook_leads_to_its_copy():
    found = {name(path): [text(each) for each in read(path)['cells'] if each['id'] == 'browser'] for path in NOTEBOOKS}
    wanted = {notebook.as_posix(): [copies.links(notebook)] for notebook in copies.COPIED}
    assert {notebook: cells for notebook, cells in found.items() if cells} == wanted, 'run python docs/browser.py --links'
    assert [name(path) for path in NOTEBOOKS if path.parent.name == 'tutorials' and name(path) not in wanted] == []


@each_copy
def test_a_copy_is_a_notebook_without_traces(notebook):
    made, original = COPIES[notebook], read(ROOT/'nbs'/notebook)
    nbformat.validate(nbformat.from_dict(made))
    code = [each for each in made['cells'] if each['cell_type'] == 'code']
    assert code[0]['id'] == 'install' and [each['id'] for each in code if each['outputs'] or DIRECTIVE.search(text(each))] == []
    assert [each['id'] for each in code[1:]] == [each['id'] for each in original['cells'] if each['cell_type'] == 'code']
    assert [link for link in links_of(made) if not re.match(r'https?:|#', link)] == []


@each_copy
def test_links_of_a_copy_lead_to_pages(notebook):
    pages = {page(name(path)).with_suffix('.html').as_posix() for path in NOTEBOOKS} | {Path(guide).with_suffix('.html').as_posix() for guide in GUIDES.values()}
    found = [link.removeprefix(HOST).partition('#')[0] for link in links_of(COPIES[notebook]) if link.startswith(HOST)]
    assert found and [link for link in found if link not in pages] == []


@pytest.mark.parametrize('notebook', ['train', 'evaluate', 'pretrain'])
def test_the_form_has_the_parameters(notebook):
    source = lambda found: text(cell(found, 'parameters'))
    values = lambda source: {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(source).body}
    form, original = source(COPIES[f'{notebook}.ipynb']), source(read(ROOT/f'nbs/{notebook}.ipynb'))
    assert values(form) == values(original) | copies.GIVEN[notebook]
    assert [field for field, _ in FORM.findall(form)] == [*values(original)]


def test_what_is_no_parameter_or_no_page_is_refused():
    with pytest.raises(copies.DataError, match=r"train.ipynb, parameters: found steps = 3; allowed: name = value  # type: str"):
        copies.form('steps = 3', Path('train.ipynb'))
    with pytest.raises(copies.DataError, match=r'train.ipynb, link: found nowhere.ipynb; allowed: a file of the project'):
        copies.absolute('[x](nowhere.ipynb)', Path('train.ipynb'))


def test_copies_name_the_commit(tmp_path):
    copies.write_copies(tmp_path, 'a1b2c3')
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob('*.ipynb')) == sorted(COPIES)
    assert 'a1b2c3' in (tmp_path/'README.md').read_text(encoding='utf-8')
    assert f"_install('{copies.CONFIG.git_url}', 'a1b2c3', 'train')" in text(cell(read(tmp_path/'train.ipynb'), 'install'))


def test_the_workflow_publishes_a_branch_of_copies(tmp_path):
    "Its own commands, twice, with a local repository in place of GitHub."
    step = next(step for step in yaml.safe_load((ROOT/'.github/workflows/pages.yml').read_text())['jobs']['notebooks']['steps'] if step.get('name') == 'publish')
    remote = tmp_path/'remote.git'
    git = lambda *arguments: subprocess.run(['git', '--git-dir', remote, *arguments], check=True, capture_output=True, text=True).stdout
    subprocess.run(['git', 'init', '--quiet', '--bare', remote], check=True)
    for number in ('1', '2'):
        folder = tmp_path/number/step['working-directory']
        copies.write_copies(folder, f'commit{number}')
        subprocess.run(['bash', '-euo', 'pipefail', '-c', step['run']], cwd=folder, env=os.environ | dict(REMOTE=str(remote), GITHUB_SHA=f'commit{number}'), check=True)
    assert git('log', '--format=%s', 'notebooks').splitlines() == ['Copies of the notebooks at commit2']
    held = git('ls-tree', '-r', '--name-only', 'notebooks').splitlines()
    assert sorted(held) == sorted(['README.md', *COPIES])
    address = copies.PLACES['Colab'].partition('/blob/')[2]
    assert address == 'notebooks' and 'commit2' in git('show', 'notebooks:tutorials/read_a_vector.ipynb')


# The installation

@pytest.fixture
def session(monkeypatch):
    "A session without the package: what pip was asked for, and the exit code that it gives."
    asked = types.SimpleNamespace(commands=[], code=0)
    def run(command): asked.commands.append(command); return types.SimpleNamespace(returncode=asked.code)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setattr(subprocess, 'run', run)
    return asked


def run_install(notebook: str) -> None:
    with patch.object(sys, 'path', [*sys.path]): exec(text(cell(COPIES[notebook], 'install')), {})


def test_pip_is_asked_for_what_is_missing(session, monkeypatch):
    monkeypatch.setattr('torch.__version__', '9.9+cu130')  # a build of one version, no other version
    run_install('evaluate.ipynb')
    [cloned, at, pip] = session.commands
    assert cloned[:2] == ['git', 'clone'] and copies.CONFIG.git_url in cloned and at[-1] == 'a1b2c3'
    assert pip == [sys.executable, '-m', 'pip', 'install', '--quiet', '--editable', 'splade_nb_repository[board]']


def test_nothing_is_installed_where_the_package_is(session, monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    run_install('evaluate.ipynb')
    assert session.commands == []


def test_a_failed_installation_ends_the_notebook(session):
    session.code = 1
    with pytest.raises(RuntimeError, match='failed: git clone .* Internet on'): run_install('train.ipynb')


def test_a_loaded_package_that_changed_needs_a_new_session(session, monkeypatch):
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: '2' if name == 'numpy' and session.commands else '1')
    with pytest.raises(RuntimeError, match='installed; numpy changed: restart the session'): run_install('train.ipynb')


# Without a checkout

SMALL = dict(steps=4, hidden=32, layers=1, vocabulary=300, batch_size=8)
TINY = {'train.ipynb': dict(data='toy', settings=SMALL),
        'pretrain.ipynb': dict(data='toy', tokens=2_000, settings=dict(hidden=32, layers=1, vocabulary=2000, segment='none', length=32, batch_size=4)),
        'evaluate.ipynb': dict(tasks='toy', split='all')}


@pytest.fixture(scope='module')
def installed(tmp_path_factory) -> Path:
    "The files of the repository as the first cell fetches them, where `sys.path` leads."
    goal = tmp_path_factory.mktemp('session')/'splade_nb_repository'
    for path in tracked('**/*'):
        if not path.is_relative_to(ROOT/'benchmarks') and path.is_file():
            (place := goal/path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return goal


def hidden_modules(notebook: str) -> set:
    "Modules of the extras' packages that are not installed by the first cell of the notebook."
    extras, *others = copies.NEEDS.get(Path(notebook).stem, ('train',))
    there = brought('splade_nb', {*extras.split(',')}, set()).union(*(brought(other, set(), set()) for other in others))
    hidden = {canonicalize_name(Requirement(each).name) for each in requires('splade_nb')} - there
    return {module for module, packages in packages_distributions().items() if {canonicalize_name(each) for each in packages} <= hidden}


RUN = [each for each in COPIES if not each.endswith('_ko.ipynb')]  # test_house: a twin has the same code


OFTEN = [each for each in RUN if each in TINY or Path(each).stem in ('bring_your_own_data', 'search_in_five_minutes')]  # all: once a week


def given_to(notebook: str, folder: Path):
    "The copy as a notebook, with small parameters; its last cell says which package it found."
    given = load_notebook_node(str(copies.write_json(folder/f'{Path(notebook).stem}.ipynb', COPIES[notebook])))
    if notebook in TINY: given = parameterize_notebook(given, TINY[notebook])
    given.cells.append(nbformat.v4.new_code_cell('import splade_nb; print(splade_nb.__file__)'))
    return given


def outside(*paths: Path) -> dict:
    "The environment of a person without a checkout."
    return {key: value for key, value in os.environ.items() if not key.startswith('SPLADE_NB')} | dict(PYTHONPATH=':'.join(map(str, paths)), HF_HUB_OFFLINE='1')


def assert_ran_outside(outputs: list, installed: Path) -> None:
    assert outputs[-1][0]['text'].startswith(str(installed))
    assert re.findall(r'\]\((?!https?:|#)[^)]*\)', json.dumps(outputs)) == []  # links in what the notebook computes


@pytest.fixture(scope='module')
def ran(installed, tmp_path_factory) -> dict:
    "What some copies give, or what went wrong: one process imports what all of them need, and is forked for each."
    folder, place = tmp_path_factory.mktemp('session'), tmp_path_factory.mktemp('ran')
    jobs = [dict(name=Path(notebook).stem, hidden=sorted(hidden_modules(notebook)),
                 sources=[each.source for each in given_to(notebook, place).cells if each.cell_type == 'code']) for notebook in OFTEN]
    copies.write_json(place/'jobs.json', jobs)
    program = [sys.executable, ROOT/'tests/notebooks.py', place/'jobs.json', place]
    done = subprocess.run(program, cwd=folder, env=outside(installed), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {notebook: read(place/f'{Path(notebook).stem}.json') for notebook in OFTEN}


@pytest.mark.slow
@pytest.mark.parametrize('notebook', OFTEN)
def test_a_copy_runs_without_a_checkout(notebook, ran, installed):
    assert not isinstance(ran[notebook], str), ran[notebook]
    assert_ran_outside(ran[notebook], installed)


@pytest.mark.slow
@pytest.mark.parametrize('notebook', RUN)
def test_a_copy_imports_what_is_installed(notebook):
    "Also of the copies that only run once a week: every name that a cell imports is there, in a package that the first cell installs."
    hidden = hidden_modules(notebook)
    assert {'nbdev', 'papermill', 'onnx'} <= hidden
    for each in (text(each) for each in COPIES[notebook]['cells'] if each['cell_type'] == 'code' and each['id'] != 'install'):
        for node in ast.walk(ast.parse(each)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition('.')[0] for name in names} & hidden
            if names and names[0].startswith('splade_nb'):
                module = importlib.import_module(names[0])
                assert isinstance(node, ast.Import) or all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.weekly
@pytest.mark.parametrize('notebook', RUN)
def test_a_copy_runs_in_a_kernel_of_its_own(notebook, installed, tmp_path):
    "With every setting checked, as on a person's machine."
    (tmp_path/'sitecustomize.py').write_text(HIDE.format(hidden=hidden_modules(notebook)), encoding='utf-8')
    given = given_to(notebook, tmp_path)
    NotebookClient(given, timeout=600, resources={'metadata': {'path': str(tmp_path)}}).execute(env=outside(tmp_path, installed))
    assert_ran_outside([each.outputs for each in given.cells if each.cell_type == 'code'], installed)

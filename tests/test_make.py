"""What people type after `make` reaches the programs as it was typed: stubs in place of the programs record what they
were given, and no text runs as a command."""
import json, os, re, shutil, subprocess, sys
from pathlib import Path
import pytest
from conftest import ROOT
from splade_nb.config.settings import read_overrides
from splade_nb.config.versions import resolve

# Writes its name and arguments; as `python -m venv --clear FOLDER` it makes an environment with itself as Python.
STUB = r'''#!/bin/sh
{ printf '%s\0' "$0" "$@" && printf '\1'
} >> "$RECORD"
[ "$2" != venv ] || { mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
}
'''
HOSTILE = {
    'price': '가격 $5 이하', 'make-shell': '$(shell touch X)', 'make-error': '$(error no)', 'command': '$(touch X)',
    'backticks': '`touch X`', 'apostrophe': "don't", 'quote': 'a "b', 'semicolon': 'a; touch X', 'and': 'a && touch X',
    'or': '| touch X || touch X', 'hash': 'a # b', 'percent': '50% %', 'backslash': 'a\\b\\', 'dollars': '${HOME} $$ $',
    'glob': '* ? ~ [a-z]', 'braces': '{a} {0}', 'redirect': '> X < X', 'out-of-quotes': '"; touch X; "',
    'out-of-apostrophes': "'; touch X; '", 'spaces': 'a  b   c', 'variable': '$(QUERY) ${typed_QUERY}'}
NAMES = re.search(r'^known\s*:= (.*)', (ROOT/'Makefile').read_text(encoding='utf-8'), re.M)[1].split()
TARGETS = 'train resume train-distributed resume-distributed report evaluate evaluate-full evaluate-board study leaderboard record data search serve export release bench gpu pretrain resume-pretrain fit'.split()

each_text = pytest.mark.parametrize('text', HOSTILE.values(), ids=HOSTILE)
FEW = {name: HOSTILE[name] for name in ('price', 'make-shell', 'out-of-quotes', 'out-of-apostrophes')}
FEW['all'] = ' '.join(HOSTILE.values())
few_texts = pytest.mark.parametrize('text', FEW.values(), ids=FEW)


class Workshop:
    "A folder with the Makefile and an environment whose programs record how they are called."
    def __init__(self, folder: Path, venv: str = '.venv', ready: bool = True):
        self.folder, self.tools, self.venv = folder/"it's $5 here", folder/'tools', venv
        self.record = self.tools/'record'
        for path in (self.folder, self.tools): path.mkdir()
        for name in ('Makefile', 'pyproject.toml', 'constraints.txt'): shutil.copy2(ROOT/name, self.folder)
        if ready: self.environment()

    def environment(self) -> None:
        for name in ('python', 'papermill', 'tensorboard', 'nbdev_export'): self.stub(self.folder/self.venv/'bin'/name)
        (self.folder/self.venv/'.ready').write_text(f'{self.folder.resolve()}\n', encoding='utf-8')

    def stub(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB, encoding='utf-8')
        path.chmod(0o755)
        return path

    def notebook(self, version: str) -> Path:
        "What a run leaves for its report."
        path = self.folder/'outputs'/version/'train.ipynb'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        of_make = ('MAKE', 'MFLAGS', 'typed_', *NAMES)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(of_make)}
        told = dict(RECORD=str(self.record), PATH=f'{self.tools}:{os.environ["PATH"]}') | environment
        return subprocess.run(['make', '--no-print-directory', *arguments], cwd=self.folder, env=clean | told,
                              capture_output=True, text=True)

    def calls(self) -> list[list[str]]:
        "The programs' names and arguments, in the order of the calls."
        if not self.record.exists(): return []
        found = [call.split('\0')[:-1] for call in self.record.read_text(encoding='utf-8').split('\1')[:-1]]
        bare = lambda program: program.removeprefix(f'{self.venv}/bin/').removeprefix(f'{self.tools}/')
        return [[bare(program), *rest] for program, *rest in found]

    def intruders(self) -> list: return [path for path in self.folder.parent.rglob('*') if path.name == 'X']


@pytest.fixture
def workshop(tmp_path): return Workshop(tmp_path)


EXPORT = ['nbdev_export']  # an edited notebook is what trains


def wanted(value: dict) -> list[list[str]]:
    "The calls of TARGETS, in their order."
    given = lambda **names: [f'--{option}={value[name]}' for option, name in names.items()]
    pairs = lambda flag, *names: [part for name in names for part in (flag, name.lower(), value[name])]
    notebook = lambda folder, name: f'{value[folder]}/{name}.ipynb'.replace('{', '{{').replace('}', '}}')
    papermill = ['papermill', '--log-output', '--no-progress-bar']
    train = [*papermill, 'nbs/train.ipynb', notebook('OUT', 'train'),
             *pairs('-r', 'VERSION', 'RECIPE', 'SCALE', 'DATA'), *pairs('-p', 'SEED'), *pairs('-r', 'OUT', 'SETTINGS')]
    pretrain = [*papermill, 'nbs/pretrain.ipynb', notebook('OUT', 'pretrain'), *pairs('-r', 'DATA', 'SCALE', 'BACKBONE'),
                *pairs('-p', 'TOKENS', 'SEED'), *pairs('-r', 'OUT', 'SETTINGS')]
    finished = [*train[:5], '-r', 'out', value['OUT'], '-p', 'finished', 'True']
    settings = [f'{name.lower()}={value[name]}' for name in 'RECIPE SCALE DATA SEED OUT SETTINGS SCALE_BATCH'.split()]
    torchrun = ['python', '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={value["PROCESSES"]}',
                '-m', 'splade_nb.training']
    distributed = lambda *resume: [[*torchrun, *resume, '--set', *settings, '--', value['VERSION']], finished]
    page = lambda folder, name: [f'{value[folder]}/{name}.ipynb', f'{value[folder]}/report.html']
    report = lambda folder, name: ['python', 'docs/report_html.py', *page(folder, name)]
    judge = [*papermill, 'nbs/evaluate_full.ipynb', notebook('FULL', 'evaluate_full'),
             *pairs('-r', 'MODEL', 'COLLECTIONS'), *pairs('-p', 'SAMPLE'), *pairs('-r', 'DENSE'),
             '-r', 'out', value['FULL']]
    on_board = [*papermill, 'nbs/evaluate.ipynb', notebook('BOARD', 'evaluate'), *pairs('-r', 'MODEL', 'TASKS', 'SPLIT'), '-r', 'out', value['BOARD']]
    braced = value['STUDY'].replace('{', '{{').replace('}', '}}')
    study = [*papermill, f'nbs/studies/{braced}.ipynb', f'outputs/studies/{braced}.ipynb', '-y', value['SETTINGS'],
             '-p', 'measure', 'True']
    board = [*papermill, 'nbs/studies/leaderboard.ipynb', 'outputs/studies/leaderboard.ipynb', '-p', 'measure', 'True',
             *pairs('-r', 'DATA', 'TEST', 'SYSTEMS', 'SEEDS', 'STEPS', 'RESULTS')]
    shown = lambda name: ['python', 'docs/report_html.py', *(f'outputs/studies/{name}.{kind}' for kind in ('ipynb', 'html'))]
    written = given(model='MODEL', to='TO', out='EXPORT', licence='LICENCE', push='PUSH', data='DATA')
    box = given(model='MODEL', data='DATA', engine='ENGINE', index='INDEX')
    return [
        EXPORT, train, report('OUT', 'train'), EXPORT, [*train, '-p', 'resume', 'True'], report('OUT', 'train'),
        EXPORT, *distributed(), report('OUT', 'train'), EXPORT, *distributed('--resume'), report('OUT', 'train'),
        finished, report('OUT', 'train'),
        ['python', '-m', 'splade_nb.cli', 'evaluate', *given(model='MODEL', data='DATA', split='SPLIT', what='WHAT', hybrid='HYBRID')],
        judge, report('FULL', 'evaluate_full'), on_board, report('BOARD', 'evaluate'),
        study, shown(value['STUDY']), board, shown('leaderboard'),
        ['python', 'docs/records_page.py', f'--entry={value["ENTRY"]}'],
        ['python', '-m', 'splade_nb.cli', 'data', f'--name={value["NAME"]}', f'--from={value["FROM"]}', *given(into='INTO', triplets='TRIPLETS')],
        ['python', '-m', 'splade_nb.serving.searcher', *box, *given(query='QUERY', hybrid='HYBRID')],
        ['python', '-m', 'splade_nb.serving.web', *box, *given(port='PORT', host='HOST', hybrid='HYBRID')],
        ['python', '-m', 'splade_nb.cli', 'export', *written],
        ['python', '-m', 'splade_nb.cli', 'release', *given(model='MODEL', licence='LICENCE', out='EXPORT')],
        ['python', 'benchmarks/run.py', '--force', '--', value['PART']],
        ['python', 'benchmarks/gpu.py', *given(minutes='MINUTES', device='DEVICE', stage='STAGE', pack='PACK'), '--force'],
        EXPORT, pretrain, report('OUT', 'pretrain'), EXPORT, [*pretrain, '-p', 'resume', 'True'], report('OUT', 'pretrain'),
        ['python', '-m', 'splade_nb.cli', 'fit', *given(data='DATA', out='OUT', seed='SEED', settings='SETTINGS')]]


def values(text: str) -> dict: return {name: f'{name} {text}' for name in NAMES}


def check_calls(shop: Workshop, done: subprocess.CompletedProcess, value: dict) -> None:
    assert done.returncode == 0, done.stderr
    assert shop.calls() == wanted(value)
    assert shop.intruders() == [] and {path.name for path in shop.folder.iterdir()} >= {value['OUT'], value['FULL'], value['BOARD']}


@each_text
def test_every_variable_reaches_the_programs_as_it_was_typed(text, tmp_path):
    value = values(text)
    shop = Workshop(tmp_path, venv=value['VENV'])
    check_calls(shop, shop.make(*TARGETS, *(f'{name}={told}' for name, told in value.items())), value)


def test_the_environment_says_only_where_python_is(tmp_path):
    "WSL sets NAME, a shell PORT or DATA, a CI VERSION: none of them trains, fetches or serves something else."
    typed, given = ('train', 'data', 'search', 'serve', 'export', 'gpu', 'QUERY=한복'), {name: 'other' for name in NAMES if name not in ('PYTHON', 'VENV')}
    calls = []
    for folder, environment in (('bare', {}), ('set', given)):
        (tmp_path/folder).mkdir()
        shop = Workshop(tmp_path/folder, venv="it's mine")
        done = shop.make(*typed, VENV="it's mine", **environment)
        assert done.returncode == 0, done.stderr
        calls.append(shop.calls())
    assert calls[0] == calls[1] and len(calls[0]) > len(typed)


def test_a_text_that_begins_with_a_dash_is_no_option(workshop):
    done = workshop.make('search', 'bench', 'QUERY=-5도 이하', 'PART=--force')
    assert done.returncode == 0, done.stderr
    search, bench = workshop.calls()
    assert '--query=-5도 이하' in search and bench[-2:] == ['--', '--force']


def test_defaults_follow_what_is_given(workshop):
    done = workshop.make('train', 'leaderboard', 'export', 'VERSION=v23', 'SEED=7')
    assert done.returncode == 0, done.stderr
    _, trained, _, board, _, export = workshop.calls()
    assert trained[5:] == ['-r', 'version', 'v23', '-r', 'recipe', 'corrected', '-r', 'scale', 'auto',
                           '-r', 'data', 'mini', '-p', 'seed', '7', '-r', 'out', 'outputs/v23', '-r', 'settings', '']
    written = 'outputs/v23/sentence-transformers'
    assert board[-5:] == ['measure', 'True', '-r', 'data', 'mini']
    assert export[4:] == ['--model=outputs/v23', '--to=sentence-transformers', f'--out={written}', '--licence=unknown']


def test_a_pretrained_backbone_has_a_folder_of_its_own(workshop):
    done = workshop.make('pretrain')
    assert done.returncode == 0, done.stderr
    _, pretrained, _ = workshop.calls()
    assert pretrained[3:] == ['nbs/pretrain.ipynb', 'outputs/pretrain/pretrain.ipynb', '-r', 'data', 'mini', '-r', 'scale', 'auto',
                              '-p', 'seed', '42', '-r', 'out', 'outputs/pretrain', '-r', 'settings', '']


def test_a_search_without_a_query_says_so(workshop):
    done = workshop.make('search')
    assert done.returncode and 'there is no QUERY' in done.stderr and workshop.calls() == []


def test_a_record_without_a_file_says_so(workshop):
    done = workshop.make('record')
    assert done.returncode and 'there is no ENTRY' in done.stderr and workshop.calls() == []


def test_a_study_without_a_name_says_so(workshop):
    done = workshop.make('study')
    assert done.returncode and 'there is no STUDY' in done.stderr and workshop.calls() == []


# Names in targets

@few_texts
def test_a_version_in_a_target_is_a_name(text, workshop):
    for name in ('tail', 'flock'): workshop.stub(workshop.tools/name)
    finished(workshop, 'v27')
    goals = [f'{goal}-{text}' for goal in ('train', 'resume', 'tensorboard', 'logs', 'after-v27')]
    done = workshop.make(*goals, f'QUERY={text}')
    assert done.returncode == 0, done.stderr
    calls = workshop.calls()
    trained = [call for call in calls if call[0] == 'papermill']
    assert [call[call.index('version') + 1] for call in trained] == [text] * 3
    assert [call[call.index('out') + 1] for call in trained] == [f'outputs/{text}'] * 3
    assert [call for call in calls if call[0] not in ('papermill', 'python', *EXPORT)] == [
        ['tensorboard', f'--logdir=outputs/{text}'], ['tail', '-n', '40', '-F', f'outputs/{text}/train.log'],
        ['flock', 'outputs/v27/.lock', 'true']]
    assert workshop.intruders() == []


@few_texts
def test_a_version_in_the_background_is_a_name(text, workshop):
    workshop.stub(workshop.tools/'nohup')
    os.mkfifo(workshop.record)  # reading waits until the background has written
    done = workshop.make(f'train-{text}-bg')
    assert done.returncode == 0 and f'make logs-{text}\n' in done.stdout, done.stderr
    begun = ['nohup', 'make', '--no-print-directory', 'train', f'VERSION={text}', f'OUT=outputs/{text}']
    assert workshop.calls() == [begun]
    assert workshop.intruders() == [] and (workshop.folder/'outputs'/text/'train.log').exists()


@pytest.mark.parametrize('typed, model', [((), 'splade_nb/released'), (('VERSION=v27',), 'outputs/v27'), (('OUT=here',), 'here'),
                                          (('MODEL=there',), 'there')])
def test_before_any_training_the_released_model_is_used(typed, model, workshop):
    (workshop.folder/'splade_nb'/'released').mkdir(parents=True)
    assert workshop.make('search', 'QUERY=제주', *typed).returncode == 0
    assert f'--model={model}' in workshop.calls()[-1]


def test_after_training_the_trained_model_is_used(workshop):
    for folder in ('splade_nb/released', 'outputs/v28/model'): (workshop.folder/folder).mkdir(parents=True)
    (workshop.folder/'outputs/v28/model/splade.json').touch()
    assert workshop.make('search', 'QUERY=제주').returncode == 0
    assert '--model=outputs/v28' in workshop.calls()[-1]


def finished(shop: Workshop, version: str, moment: int = 10**10) -> Path:
    "A run that began and ended: its lock, and its summary, written `moment` nanoseconds later."
    folder = shop.folder/'outputs'/version
    folder.mkdir(parents=True, exist_ok=True)
    for name in ('.lock', 'summary.json'): (folder/name).touch()
    began = (folder/'.lock').stat().st_mtime_ns
    os.utime(folder/'summary.json', ns=2 * (began + moment,))
    return folder


@pytest.mark.parametrize('goal, there, given, data', [
    ('v27', True, (), 'data/v24.0,data/v27.0'), ('v27', True, ('DATA=mine',), 'mine'), ('v27', False, (), 'mini'), ('v26', True, (), 'mini')])
def test_v27_learns_from_its_travel_data_too(goal, there, given, data, workshop):
    for name in ('v24.0', 'v27.0') if there else ('v24.0',): (workshop.folder/'data'/name).mkdir(parents=True)
    done = workshop.make(f'train-{goal}', *given)
    call = next(call for call in workshop.calls() if call[0] == 'papermill')
    assert done.returncode == 0 and call[call.index('data') + 1] == data, done.stderr


def test_a_version_is_trained_after_another_that_finished(workshop):
    finished(workshop, 'v27')
    done = workshop.make('after-v27-v28')
    assert done.returncode == 0, done.stderr
    assert ['papermill', 'python'] == [call[0] for call in workshop.calls()[1:]]


@pytest.mark.parametrize('state', ('nothing', 'failed', 'failed again', 'failed at its launch'))
def test_nothing_is_trained_after_a_version_that_failed(state, workshop):
    if state == 'failed': (finished(workshop, 'v27')/'summary.json').unlink()
    if state == 'failed again': finished(workshop, 'v27', -10**10)  # the summary is of an earlier run
    if state == 'failed at its launch':
        folder, papermill = finished(workshop, 'v27', -10**10), workshop.folder/'.venv'/'bin'/'papermill'
        papermill.write_text('#!/bin/sh\nexit 1\n', encoding='utf-8')
        assert workshop.make('train-v27').returncode
        workshop.stub(papermill)
        workshop.record.unlink()
        assert (folder/'.lock').stat().st_mtime_ns > (folder/'summary.json').stat().st_mtime_ns
    done = workshop.make('after-v27-v28')
    assert done.returncode and 'outputs/v27: its last run did not finish' in done.stderr and workshop.calls() == []


def test_after_waits_for_a_run_in_the_background_from_its_launch_on(workshop):
    "The run ends only when `after` already waits: it asks for a lock that is held before any program has begun."
    folder, waits = finished(workshop, 'v27', -10**10), workshop.tools/'waits'
    os.mkfifo(waits)
    flock = workshop.tools/'flock'  # says that it waits, then does
    flock.write_text(f'#!/bin/sh\ncase "$1" in *.launch) echo > "{waits}"\nesac\nexec {shutil.which("flock")} "$@"\n', encoding='utf-8')
    flock.chmod(0o755)
    papermill = workshop.folder/'.venv'/'bin'/'papermill'
    papermill.write_text(f'#!/bin/sh\ncase "$*" in *v27*) read line < "{waits}"; touch -d "+1 hour" outputs/v27/summary.json\nesac\n'
                         + STUB.partition('\n')[2], encoding='utf-8')
    assert workshop.make('train-v27-bg').returncode == 0
    second = workshop.make('train-v27-bg')
    assert second.returncode and 'is training in the background' in second.stderr
    done = workshop.make('after-v27-v28')
    assert done.returncode == 0, done.stderr
    trained = [call[call.index('version') + 1] for call in workshop.calls() if call[0] == 'papermill']
    assert trained == ['v27', 'v28'] and folder.exists()


def test_a_report_is_made_again_without_the_notebook_where_that_is_new(workshop):
    notebook, folder = workshop.notebook('v28'), finished(workshop, 'v28')
    assert workshop.make('report').returncode == 0 and workshop.calls()[0][0] == 'papermill', 'a later run has none'
    os.utime(folder/'summary.json', ns=2 * (notebook.stat().st_mtime_ns,))
    workshop.record.unlink()
    assert workshop.make('report').returncode == 0 and [call[0] for call in workshop.calls()] == ['python']


def test_after_needs_two_versions(workshop):
    done = workshop.make('after-v27')
    assert done.returncode and 'two versions' in done.stderr and workshop.calls() == []


# The environment

@few_texts
def test_the_environment_is_made_where_it_is_asked_for(text, tmp_path):
    shop = Workshop(tmp_path, venv=f'venv {text}', ready=False)
    python = shop.stub(shop.tools/f'python {text}')
    given = (f'VENV={shop.venv}', f'PYTHON={python}')
    shop.notebook('v28')
    done = shop.make('report', 'clean', *given)
    assert done.returncode == 0, done.stderr
    made, *installed, report = shop.calls()
    assert made == [python.name, '-m', 'venv', '--clear', shop.venv] and report[:2] == ['python', 'docs/report_html.py']
    assert installed[-1][-1] == '.[all]' and {call[0] for call in installed} == {'python'}
    assert (shop.folder/shop.venv/'.ready').read_text(encoding='utf-8') == f'{shop.folder.resolve()}\n'
    shop.record.unlink()
    assert shop.make('report', *given).returncode == 0 and len(shop.calls()) == 1, 'installed once'
    assert shop.intruders() == []


changes = [('newer constraints', False), ('newer project', False), ('copied from elsewhere', True)]


@pytest.mark.parametrize('change, again', changes)
def test_the_environment_is_made_again_where_it_is_old(change, again, workshop):
    ready = workshop.folder/'.venv'/'.ready'
    if change == 'copied from elsewhere': ready.write_text('elsewhere\n', encoding='utf-8')
    else:
        newer = workshop.folder/('constraints.txt' if 'constraints' in change else 'pyproject.toml')
        os.utime(newer, ns=2 * (ready.stat().st_mtime_ns + 10**10,))
    python = workshop.stub(workshop.tools/'python')
    if again: shutil.rmtree(workshop.folder/'.venv'/'bin')
    workshop.notebook('v28')
    assert workshop.make('report', f'PYTHON={python}').returncode == 0
    calls = workshop.calls()
    assert len(calls) == 2 + again and ([*calls[0][:3], *calls[0][4:]] == ['python', '-m', 'venv', '.venv']) == again


# Unknown variables

@pytest.mark.parametrize('name, said', [('VERISON', "did you mean 'VERSION'? Known: PYTHON"),
                                        ('version', "did you mean 'VERSION'?"),
                                        ('BANANA', 'no such variable: BANANA: Known: PYTHON'),
                                        ("VER'SION", "did you mean 'VERSION'?"),
                                        ('`touch>X`', 'Known: PYTHON'), ('VERSION;touch', 'Known: PYTHON')])
def test_a_misspelt_variable_is_told_what_is_near(name, said, workshop):
    (workshop.folder/'splade_nb').mkdir()
    shutil.copy(ROOT/'splade_nb'/'__init__.py', workshop.folder/'splade_nb')
    shutil.copytree(ROOT/'splade_nb'/'config', workshop.folder/'splade_nb'/'config')
    done = workshop.make('train', f'{name}=v23', f'PYTHON={sys.executable}')
    assert done.returncode and said in done.stderr and workshop.calls() == [] and workshop.intruders() == []


def test_without_python_the_variables_are_listed(workshop):
    done = workshop.make('train', 'VERISON=v23', 'PYTHON=$(touch X); touch X')
    assert done.returncode and 'no such variable: VERISON: Known: PYTHON' in done.stderr
    assert workshop.intruders() == []


# papermill itself

@pytest.mark.slow
def test_papermill_gives_the_notebook_what_was_typed(workshop):
    "The real papermill writes the notebook without running it; the cell of parameters is run here."
    (workshop.folder/'nbs').mkdir()
    shutil.copy(ROOT/'nbs'/'train.ipynb', workshop.folder/'nbs')
    papermill = workshop.folder/'.venv'/'bin'/'papermill'
    papermill.write_text('#!/bin/sh\nexec "$PAPERMILL" --prepare-only "$@"\n', encoding='utf-8')
    settings = '{"language_allows": ["don\'t", "$(touch X)", "`가격` \\"5\\" \\\\", "{a}"]}'
    out = f'out {HOSTILE["braces"]} {HOSTILE["apostrophe"]} {HOSTILE["price"]}'
    program = Path(sys.executable).with_name('papermill')
    done = workshop.make('train', f'SETTINGS={settings}', f'OUT={out}', PAPERMILL=str(program))
    assert done.returncode == 0, done.stderr
    notebook = json.loads((workshop.folder/out/'train.ipynb').read_text(encoding='utf-8'))
    injected, = (cell for cell in notebook['cells'] if 'injected-parameters' in cell['metadata'].get('tags', []))
    found = {}
    exec(''.join(injected['source']), found)
    assert found['settings'] == settings and found['out'] == out
    allowed = resolve('v28', 'corrected', 'mini', **read_overrides(found['settings'])).language_allows
    assert allowed == ("don't", '$(touch X)', '`가격` "5" \\', '{a}')


@pytest.mark.parametrize('part', ['language', 'context'])
def test_one_part_of_an_evaluation(part, workshop):
    "The model is that of the version's folder, or of OUT where it is given."
    for given, model in (([], 'outputs/v28'), (['OUT=outputs/mine'], 'outputs/mine')):
        assert (done := workshop.make(f'eval-v28-{part}', *given)).returncode == 0, done.stderr
        wanted = ['evaluate', f'--model={model}', '--data=mini', '--split=test', f'--what={part}']
        assert workshop.calls()[-1] == ['python', '-m', 'splade_nb.cli', *wanted]

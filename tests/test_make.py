"""What people type after `make` reaches the programs as it was typed: stubs in place of the programs record what they
were given, and no text runs as a command. And docs/run_notebook.py, which most targets call."""
import ast, json, os, re, shutil, subprocess, sys
from pathlib import Path
import pytest
from conftest import ROOT
from splade_nb import cli
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import read_overrides
from splade_nb.config.versions import resolve
from splade_nb.model.opened import RELEASED, model_place
from splade_nb.training.checkpoints import set_aside
sys.path.insert(0, str(ROOT/'docs'))
import run_notebook

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
PROGRAMS = {  # what a target calls, and the names that it takes
    **{target: (f'docs/run_notebook.py {target}', names) for target, names in {
        'train': 'VERSION RECIPE SCALE DATA SEED OUT SETTINGS', 'resume': 'VERSION RECIPE SCALE DATA SEED OUT SETTINGS',
        'train-distributed': 'VERSION DATA OUT SETTINGS PROCESSES SCALE_BATCH', 'resume-distributed': 'OUT PROCESSES', 'report': 'OUT',
        'pretrain': 'DATA SCALE BACKBONE TOKENS SEED OUT SETTINGS', 'resume-pretrain': 'OUT DATA', 'compare': 'RUNS',
        'evaluate-full': 'MODEL COLLECTIONS SAMPLE DENSE OUT', 'evaluate-board': 'MODEL TASKS SPLIT OUT', 'study': 'STUDY SETTINGS',
        'rehearse': 'DATA SETTINGS'}.items()},
    **{target: (f'-m splade_nb.cli {target}', names) for target, names in {
        'evaluate': 'MODEL DATA SPLIT WHAT HYBRID', 'search': 'MODEL DATA QUERY ENGINE INDEX HYBRID',
        'serve': 'MODEL DATA ENGINE INDEX HYBRID HOST PORT', 'data': 'NAME FROM INTO TRIPLETS', 'fit': 'DATA OUT SEED SETTINGS',
        'export': 'MODEL TO LICENCE PUSH DATA EXPORT', 'release': 'MODEL LICENCE EXPORT COUNTED_WEIGHT ROUNDED SEEN_ONLY',
        'clean-search': '', 'clean-prepared': 'DAYS'}.items()},
    'bench': ('benchmarks/run.py', 'PART FORCE'),
    'gpu': ('benchmarks/gpu.py', 'MINUTES STAGE DEVICE PACK FORCE')}
NAMES = sorted({name for _, names in PROGRAMS.values() for name in names.split()})

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
        for name in ('python', 'tensorboard', 'nbdev_export'): self.stub(self.folder/self.venv/'bin'/name)
        (self.folder/self.venv/'.ready').write_text(f'{self.folder.resolve()}\n', encoding='utf-8')

    def stub(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB, encoding='utf-8')
        path.chmod(0o755)
        return path

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        of_make = ('MAKE', 'MFLAGS', 'typed_', 'VENV', 'PYTHON', *NAMES)
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

    def asked(self) -> list: return [call for call in self.calls() if call != ['nbdev_export']]

    def intruders(self) -> list: return [path for path in self.folder.parent.rglob('*') if path.name == 'X']


@pytest.fixture
def workshop(tmp_path): return Workshop(tmp_path)


def option(name: str) -> str: return dict(EXPORT='out').get(name, name.lower().replace('_', '-'))


def options(call: list) -> dict:  # option -> text
    return dict(text.removeprefix('--').split('=', 1) for text in call if text.startswith('--'))


@few_texts
def test_every_variable_reaches_its_program_as_it_was_typed(text, tmp_path):
    shop = Workshop(tmp_path, venv=f'VENV {text}')
    for target, (program, names) in PROGRAMS.items():
        told = {name: f'{name} {text}' for name in names.split()}
        done = shop.make(target, f'VENV={shop.venv}', *(f'{name}={value}' for name, value in told.items()))
        assert done.returncode == 0, done.stderr
        wanted = {option(name): value for name, value in told.items()}
        call = shop.calls()[-1]
        assert call[:1 + len(program.split())] == ['python', *program.split()] and options(call) == wanted
    assert shop.intruders() == [] and len(shop.asked()) == len(PROGRAMS)
    assert len(shop.calls()) - len(PROGRAMS) == sum(target.startswith(('train', 'resume', 'pretrain')) for target in PROGRAMS)


def test_the_programs_know_the_names_that_make_tells_of():
    commands = cli.parser().commands.choices
    scripts = dict(bench='benchmarks/run.py', gpu='benchmarks/gpu.py')
    for target, (program, names) in PROGRAMS.items():
        if 'splade_nb.cli' in program: known = {name.removeprefix('--') for action in commands[target]._actions for name in action.option_strings}
        elif target in scripts: known = set(re.findall(r"add_argument\('--([\w-]+)'", (ROOT/scripts[target]).read_text(encoding='utf-8')))
        else: known = {*run_notebook.defaults({'study': 'studies/gates'}.get(target, run_notebook.TARGETS[target][0])), 'study', *run_notebook.DISTRIBUTED}
        assert {*map(option, names.split())} <= {name.replace('_', '-') for name in known} | {'settings'}, target
    said = {name for line in (ROOT/'Makefile').read_text(encoding='utf-8').splitlines() if line.split(':')[0] in PROGRAMS
            for name in re.findall(r'\b[A-Z_]{2,}\b', line.partition('## ')[2])}
    assert said - set(NAMES) <= {'JSON', 'BM25', 'MTEB', 'CPU', 'GPU', 'ONNX'}


def test_the_environment_says_only_where_python_is(tmp_path):
    "WSL sets NAME, a shell PORT or DATA, a CI VERSION: none of them trains, fetches or serves something else."
    targets = ('train', 'data', 'search QUERY=한복', 'serve', 'export', 'gpu', 'evaluate-full', 'fit')
    given = {name: 'other' for name in (*NAMES, 'other', 'by', 'run', 'model', 'texts')}
    calls = []
    for folder, environment in (('bare', {}), ('set', given)):
        (tmp_path/folder).mkdir()
        shop = Workshop(tmp_path/folder, venv="it's mine")
        for target in targets:
            done = shop.make(*target.split(), VENV="it's mine", **environment)
            assert done.returncode == 0, done.stderr
        calls.append(shop.asked())
    assert calls[0] == calls[1] and len(calls[0]) == len(targets)


def test_a_text_that_begins_with_a_dash_is_no_option(workshop):
    for typed in (('search', 'QUERY=-5도 이하'), ('bench', 'PART=--force')): assert workshop.make(*typed).returncode == 0
    search, bench = workshop.calls()
    assert '--query=-5도 이하' in search and bench[-1] == '--part=--force'


def test_what_is_empty_is_as_if_it_were_not_typed_but_in_a_notebook(workshop):
    for target in ('search QUERY=제주 HYBRID=', 'evaluate-full DENSE='): assert workshop.make(*target.split()).returncode == 0
    search, judged = map(options, workshop.calls())
    assert 'hybrid' not in search and judged['dense'] == ''


def test_an_export_is_of_the_model_that_is_named_or_trained(workshop):
    for typed in ((), ('VERSION=v23', 'TO=onnx'), ('OUT=here',), ('MODEL=mine', 'EXPORT=there')): assert workshop.make('export', *typed).returncode == 0
    assert [(call['model'], call.get('out')) for call in map(options, workshop.calls())] == [
        ('outputs/v28', None), ('outputs/v23', None), ('here', None), ('mine', 'there')]


@pytest.mark.parametrize('typed, out', [('outputs/mine', 'outputs/mine/onnx'), ('outputs/mine/model', 'outputs/mine/onnx'), ('released', 'outputs/released/onnx'),
                                        (str(RELEASED), 'outputs/released/onnx'), ('naver/splade-v3', 'outputs/splade-v3/onnx')])
def test_an_export_lies_in_the_folder_of_its_model(typed, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('outputs/mine/model').mkdir(parents=True)
    assert cli._export_folder(model_place(typed), 'onnx') == Path(out)


@pytest.mark.parametrize('target, name', [('search', 'QUERY'), ('study', 'STUDY')])
def test_what_is_needed_is_asked_for(target, name, workshop):
    for typed in ((), (f'{name}=',)):
        done = workshop.make(target, *typed)
        assert done.returncode and f'there is no {name}: make {target} {name}=' in done.stderr and workshop.calls() == []


def test_what_trains_is_exported_first(workshop):
    for target in ('train', 'resume-v28', 'train-v28-bg', 'after-v27-v28', 'pretrain'):
        assert workshop.make(target).returncode == 0
        assert [call[0] for call in workshop.calls()[-2:]] == ['nbdev_export', 'python'], target


def test_each_part_of_the_benchmark_takes_what_run_gives_it():
    "`make bench` calls `measure_missing(results, small, force)` of a part that has several files."
    parts = ast.literal_eval(re.search(r'^PARTS = (\(.*?\))', (ROOT/'benchmarks/run.py').read_text(encoding='utf-8'), re.M)[1])
    asked = {}
    for part in parts:
        body = ast.parse((ROOT/f'benchmarks/{part}.py').read_text(encoding='utf-8')).body
        functions = {node.name: node.args for node in body if isinstance(node, ast.FunctionDef)}
        assert {'measure', 'measure_missing'} & {*functions}, part
        if given := functions.get('measure_missing'): asked[part] = len(given.args) - len(given.defaults), len(given.args)
    assert asked and all(needed <= 3 <= most for needed, most in asked.values()), asked


def test_each_notebook_that_make_test_leaves_out_is_there():
    left_out = re.search(r"^test: .*--skip_file_re '\^\(\[_\.\]\|(.*?)\)'", (ROOT/'Makefile').read_text(encoding='utf-8'), re.M)[1].split('|')
    notebooks = [path.name for path in (ROOT/'nbs').glob('*/*.ipynb') if path.parent.name[0].isdigit()]
    assert {name: sum(each.startswith(name) for each in notebooks) for name in left_out} == dict.fromkeys(left_out, 1)


# Names in targets

@few_texts
def test_a_version_in_a_target_is_a_name(text, workshop):
    workshop.stub(workshop.tools/'tail')
    goals = [*(f'{goal}-{text}' for goal in ('train', 'resume', 'tensorboard', 'logs', 'after-v27')), f'train-{text}-bg']
    done = workshop.make(*goals, f'DATA={text}')
    assert done.returncode == 0, done.stderr
    calls, run = workshop.asked(), ['python', 'docs/run_notebook.py']
    of_version = dict(version=text, out=f'outputs/{text}', data=text)
    assert [(call[:3], options(call)) for call in calls if call[0] == 'python'] == [
        ([*run, 'train'], of_version), ([*run, 'resume'], of_version),
        ([*run, 'after'], dict(name=f'v27-{text}', data=text)), ([*run, 'background'], dict(name=text, data=text))]
    assert [call for call in calls if call[0] != 'python'] == [
        ['tensorboard', f'--logdir=outputs/{text}'], ['tail', '-n', '40', '-F', f'outputs/{text}/train.log']]
    assert workshop.intruders() == []


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


# Unknown variables

@pytest.mark.parametrize('name', ['version', "VER'SION", '`touch>X`', 'VERSION;touch'])
def test_a_name_that_is_not_in_capitals_is_none(name, workshop):
    done = workshop.make('train', f'{name}=v23', 'PYTHON=$(touch X); touch X')
    assert done.returncode and 'no such variable' in done.stderr and workshop.calls() == [] and workshop.intruders() == []


@pytest.mark.parametrize('typed, said', [
    ('train --verison=v23', "unknown parameter 'verison': did you mean 'version'?"), ('study --study=gate', "unknown study 'studies/gate': did you mean 'studies/gates'?"),
    ('background --name=v28 --scael=mini', "did you mean 'scale'?"), ('after --name=v27-v28 --scael=mini', "did you mean 'scale'?"),
    ('study --study=gates --settings=5', 'allowed: parameters as JSON'), ('study --study=gates --settings={"a":', 'which is no JSON'),
    ('train --full=there', "unknown parameter 'full'"), ('report --out=there', 'there: holds no finished run'), ('', "unknown target ''"),
    ('evaluate-full --sampel=10', "did you mean 'sample'?"), ('study --study=gates --seedz=4', "did you mean 'seeds'?"),
    ('study --study=gates --settings={"seedz":1}', "did you mean 'seeds'?"),
    ('train --processes=2', "unknown parameter 'processes'"), ('train v28', 'allowed: --name=value'), ('study', "unknown study 'studies/'"),
    ('trian', "did you mean 'train'?")])
def test_a_misspelt_name_is_told_what_is_near(typed, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_notebook.main(typed.split()) == 2 and said in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_a_misspelt_option_of_a_command_is_told_what_is_near(capsys):
    for typed, said in (('search --querry=제주 --data=mini', "'--querry': did you mean '--query'?"), ('train v28 --sett steps=1', "did you mean '--set'?")):
        with pytest.raises(SystemExit, match='2'): cli.main(typed.split())
        assert said in capsys.readouterr().err


# The environment

@few_texts
def test_the_environment_is_made_where_it_is_asked_for(text, tmp_path):
    shop = Workshop(tmp_path, venv=f'venv {text}', ready=False)
    python = shop.stub(shop.tools/f'python {text}')
    given = (f'VENV={shop.venv}', f'PYTHON={python}')
    done = shop.make('report', 'clean', *given)
    assert done.returncode == 0, done.stderr
    made, *installed, report = shop.calls()
    assert made == [python.name, '-m', 'venv', '--clear', shop.venv] and report[:3] == ['python', 'docs/run_notebook.py', 'report']
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
    assert workshop.make('report', f'PYTHON={python}').returncode == 0
    calls = workshop.calls()
    assert len(calls) == 2 + again and ([*calls[0][:3], *calls[0][4:]] == ['python', '-m', 'venv', '.venv']) == again


@pytest.mark.parametrize('part', ['language', 'context'])
def test_one_part_of_an_evaluation(part, workshop):
    "The model is that of the version's folder, or of OUT where it is given."
    for given, model in (([], 'outputs/v28'), (['OUT=outputs/mine'], 'outputs/mine')):
        assert (done := workshop.make(f'eval-v28-{part}', *given)).returncode == 0, done.stderr
        assert workshop.calls()[-1] == ['python', '-m', 'splade_nb.cli', 'evaluate', f'--model={model}', '--data=mini', f'--what={part}']


# What runs a notebook

@pytest.fixture
def desk(tmp_path, monkeypatch):
    "A folder in which papermill, the export and the report record what they are given."
    monkeypatch.chdir(tmp_path)
    calls = []
    def papermill(arguments, standalone_mode):
        calls.append(arguments)
        Path(arguments[3].replace('{{', '{').replace('}}', '}')).write_text('{"metadata": {}}')
    monkeypatch.setattr(run_notebook.papermill, 'papermill', papermill)
    monkeypatch.setattr(run_notebook.report_html, 'main', lambda notebook, report: calls.append(['report', str(notebook), str(report)]))
    return calls


def given(call: list) -> dict:  # of papermill: parameter -> (flag, text)
    assert call[:2] == ['--log-output', '--no-progress-bar']
    return {name: (flag, text) for flag, name, text in zip(call[4::3], call[5::3], call[6::3])}


@each_text
def test_the_notebook_is_given_what_was_typed(text, desk):
    out = f'out {text}'
    assert run_notebook.main(['train', f'--out={out}', f'--data={text}', '--seed=7', f'--settings={text}']) == 0
    call, report = desk
    assert report == ['report', f'{out}/train.ipynb', f'{out}/report.html']
    assert Path(call[2]) == ROOT/'nbs/train.ipynb' and call[3] == f'{out}/train.ipynb'.replace('{', '{{').replace('}', '}}')
    assert given(call) == dict(version=('-r', 'v28'), data=('-r', text), seed=('-p', '7'), settings=('-r', text), out=('-r', out))
    assert Path(out, '.lock').exists()


@pytest.mark.parametrize('typed, place, wanted', [
    ('train --version=v23', 'outputs/v23/train', dict(version='v23', out='outputs/v23', data='mini')),
    ('resume', 'outputs/v28/train', dict(resume='True', out='outputs/v28')), ('pretrain', 'outputs/pretrain/pretrain', dict(out='outputs/pretrain')),
    ('compare', 'outputs/compare', dict(runs='')), ('evaluate-board --board=there', 'there/evaluate', dict(out='there', tasks='')),
    ('study --study=gates --seeds=7', 'outputs/studies/gates', dict(measure='True', seeds='7')),
    ('rehearse', 'outputs/studies/rehearsal', dict(measure='True'))])
def test_each_target_has_its_notebook_and_its_folder(typed, place, wanted, desk):
    assert run_notebook.main(typed.split()) == 0
    call, report = desk[-2:]
    assert call[3] == f'{place}.ipynb' and report[1] == f'{place}.ipynb'
    assert {name: text for name, (_, text) in given(call).items() if name in wanted} == wanted


def test_a_run_goes_on_with_what_it_was_launched_with(desk):
    folder = Path('outputs/own'); folder.mkdir(parents=True)
    (folder/'config.json').write_text(json.dumps(dict(version='v26', recipe='original', scale='small', data='a b', seed=7, overridden=dict(steps=9, batch_size=8))))
    told = dict(version='v26', recipe='original', scale='small', data='a b', seed='7')
    for typed, wanted in ((['--seed=8'], told | dict(seed='8', settings='{"steps": 9, "batch_size": 8}')), (['--settings={}'], told | dict(settings='{}'))):
        assert run_notebook.main(['resume', '--out=outputs/own', *typed]) == 0
        assert {name: text for name, (_, text) in given(desk[-2]).items()} == wanted | dict(resume='True', out='outputs/own')
    assert 'batch_size' not in run_notebook.Job('resume-distributed', dict(out='outputs/own', scale_batch='True')).given['settings'], 'it is scaled again'
    (folder/'pretrain.ipynb').write_text(json.dumps(dict(metadata=dict(papermill=dict(parameters=dict(data='texts', tokens=9, max_steps=3, settings=dict(layers=2)))))))
    assert run_notebook.main(['resume-pretrain', '--out=outputs/own', '--tokens=10']) == 0
    assert {name: text for name, (_, text) in given(desk[-2]).items()} == dict(data='texts', tokens='10', settings='{"layers": 2}', resume='True', out='outputs/own')


def test_settings_of_a_study_are_its_parameters(desk):
    typed = '{"seeds": "7", "steps": 5}'
    assert run_notebook.main(['study', '--study=gates', f'--settings={typed}', '--data=toy']) == 0
    assert desk[0][4:] == ['-p', 'measure', 'True', '-r', 'data', 'toy', '-y', typed], 'no default stands against it'


def test_a_study_with_a_folder_of_its_own_is_written_where_studies_are(desk):
    assert run_notebook.main(['study', '--study=full_scale', '--settings=']) == 0
    assert desk[0][3] == 'outputs/studies/full_scale.ipynb' and desk[1][2] == 'outputs/studies/full_scale.html'
    assert 'out' not in given(desk[0])


def test_an_evaluation_does_not_replace_the_report_of_a_run(desk, capsys):
    report = finished('v28')/'report.html'
    report.touch()
    assert run_notebook.main(['evaluate-full', '--out=outputs/v28']) == 2 and 'MODEL=outputs/v28' in capsys.readouterr().err
    assert report.exists() and desk == []


def test_an_interrupt_ends_as_in_a_shell_and_a_make_inside_is_not_told_what_was_typed(desk, monkeypatch):
    def aborted(arguments, **options):
        desk.append({name for name in os.environ if name.startswith(('MAKE', 'typed_'))} - {'MAKELEVEL'})
        raise run_notebook.click.exceptions.Abort
    for name in ('MAKEFLAGS', 'typed_SIZES'): monkeypatch.setenv(name, ' -- SIZES=10')
    monkeypatch.setattr(run_notebook.papermill, 'papermill', aborted)
    assert run_notebook.main(['rehearse', '--sizes=10']) == 130 and desk == [set()]


def test_a_distributed_run_is_trained_by_torchrun_and_then_shown(desk, monkeypatch):
    import torch.distributed.run as torchrun
    monkeypatch.setattr(torchrun, 'main', lambda arguments: desk.append(arguments) or finished('v27'))
    assert run_notebook.main(['resume-distributed', '--version=v27', '--data=a b', '--scale-batch=True']) == 0
    assert desk[0][:3] == ['--standalone', '--nproc-per-node=auto', '-m'] and desk[0][4] == '--resume' and desk[0][-2:] == ['--', 'v27']
    assert desk[0][desk[0].index('--set') + 1:-2] == ['data=a b', 'scale_batch=True', 'out=outputs/v27']
    shown = given(desk[1])
    assert shown['finished'] == ('-p', 'True') and shown['out'] == ('-r', 'outputs/v27') and len(desk) == 3 and set(shown) == {'out', 'finished'}


@pytest.mark.parametrize('version, there, typed, data', [
    ('v27', True, (), 'data/v24.0,data/v27.0'), ('27', True, (), 'data/v24.0,data/v27.0'), ('v27', True, ('--data=mine',), 'mine'),
    ('v27', False, (), 'mini'), ('v26', True, (), 'mini')])
def test_v27_learns_from_its_travel_data_too(version, there, typed, data, desk):
    for name in ('v24.0', 'v27.0') if there else ('v24.0',): Path('data', name).mkdir(parents=True)
    assert run_notebook.main(['train', f'--version={version}', *typed]) == 0
    assert given(desk[0])['data'] == ('-r', data)


def finished(version: str, moment: int = 10**10) -> Path:
    "A run that began and ended: its lock, and its summary, written `moment` nanoseconds later."
    folder = Path('outputs')/version
    folder.mkdir(parents=True, exist_ok=True)
    for name in ('.lock', 'summary.json'): (folder/name).touch()
    began = (folder/'.lock').stat().st_mtime_ns
    os.utime(folder/'summary.json', ns=2 * (began + moment,))
    return folder


def test_a_report_is_made_again_without_the_notebook_where_that_is_new(desk):
    folder = finished('v28')
    assert run_notebook.main(['report']) == 0 and given(desk[0])['finished'] == ('-p', 'True'), 'a later run has none'
    os.utime(folder/'summary.json', ns=2 * ((folder/'train.ipynb').stat().st_mtime_ns,))
    desk.clear()
    assert run_notebook.main(['report']) == 0 and [call[0] for call in desk] == ['report']


def test_a_report_of_a_notebook_that_failed_is_not_shown(desk):
    folder = finished('v28')
    (folder/'train.ipynb').write_text('{"metadata": {"papermill": {"exception": true}}}')
    assert run_notebook.main(['report']) == 0 and len(desk) == 2, 'the notebook is run again'


@pytest.mark.parametrize('moved', (False, True), ids=('before the earlier run is moved', 'after that'))
def test_a_training_that_fails_leaves_the_earlier_report(moved, desk, monkeypatch, capsys):
    folder = finished('v28')
    for name in ('train.ipynb', 'report.html'): (folder/name).write_text('earlier')
    def fails(arguments, standalone_mode):
        if moved: set_aside(folder)
        Path(arguments[3]).write_text('failed')
        raise ConfigError('no such setting')
    monkeypatch.setattr(run_notebook.papermill, 'papermill', fails)
    assert run_notebook.main(['train']) == 2 and 'no such setting' in capsys.readouterr().err
    earlier, failed = (folder/'earlier/1', folder/'train.ipynb') if moved else (folder, folder/'train.failed.ipynb')
    assert [(earlier/name).read_text() for name in ('train.ipynb', 'report.html')] == ['earlier'] * 2 and failed.read_text() == 'failed'
    assert not (folder/'previous').exists()


def test_a_version_is_trained_after_another_that_finished(desk):
    finished('v27')
    assert run_notebook.main(['after', '--name=v27-v28']) == 0
    assert given(desk[0])['version'] == ('-r', 'v28') and given(desk[0])['out'] == ('-r', 'outputs/v28')


@pytest.mark.parametrize('state', ('nothing', 'failed', 'failed again', 'failed at its launch'))
def test_nothing_is_trained_after_a_version_that_failed(state, desk, capsys, monkeypatch):
    if state == 'failed': (finished('v27')/'summary.json').unlink()
    if state == 'failed again': finished('v27', -10**10)  # the summary is of an earlier run
    if state == 'failed at its launch':
        folder = finished('v27', -10**10)
        with monkeypatch.context() as broken:
            broken.setattr(run_notebook.papermill, 'papermill', lambda *arguments, **options: 1 / 0)
            with pytest.raises(ZeroDivisionError): run_notebook.main(['train', '--version=v27'])
        assert (folder/'.lock').stat().st_mtime_ns > (folder/'summary.json').stat().st_mtime_ns
        desk.clear()
    assert run_notebook.main(['after', '--name=v27-v28']) == 2
    assert 'outputs/v27: its last run did not finish' in capsys.readouterr().err and desk == []


def test_after_needs_two_versions(desk, capsys):
    assert run_notebook.main(['after', '--name=v27']) == 2 and 'two versions' in capsys.readouterr().err and desk == []


def test_after_waits_for_a_run_in_the_background_from_its_launch_on(desk, tmp_path, monkeypatch, capsys):
    "The run ends only when it is told to, and holds its lock from the launch on, before it has done anything."
    program, (told, began) = tmp_path/'program.py', (tmp_path/'told', tmp_path/'began')
    for path in (told, began): os.mkfifo(path)
    program.write_text(f'import os, pathlib, sys\nprint(sys.argv[1:])\nopen({str(began)!r}, "w").close()\nopen({str(told)!r}).close()\n'
                       'summary = pathlib.Path("outputs/v27/summary.json")\nsummary.touch()\nos.utime(summary, ns=2 * (2 * 10**18,))\n')
    monkeypatch.setattr(run_notebook, '__file__', str(program))
    assert run_notebook.main(['background', '--name=v27', '--seed=7']) == 0
    assert 'make logs-v27' in capsys.readouterr().out
    open(began).close()
    assert run_notebook.main(['background', '--name=v27']) == 2 and 'is training in the background' in capsys.readouterr().err
    waited, flock = [], run_notebook.fcntl.flock
    def wait(held, how):
        waited.append(Path(held.name).name)
        with pytest.raises(BlockingIOError): flock(held, how | run_notebook.fcntl.LOCK_NB)
        open(told, 'w').close()
        flock(held, how)
    monkeypatch.setattr(run_notebook.fcntl, 'flock', wait)
    assert run_notebook.main(['after', '--name=v27-v28']) == 0 and waited == ['.launch']
    assert given(desk[0])['version'] == ('-r', 'v28')
    assert Path('outputs/v27/train.log').read_text() == "['train', '--seed=7', '--version=v27', '--out=outputs/v27']\n"


@pytest.mark.slow
def test_papermill_gives_the_notebook_what_was_typed(tmp_path, monkeypatch):
    "The real papermill writes the notebook without running it; the cell of parameters is run here."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_notebook.report_html, 'main', lambda notebook, report: None)
    papermill = run_notebook.papermill.papermill
    monkeypatch.setattr(run_notebook.papermill, 'papermill', lambda arguments, **options: papermill(['--prepare-only', *arguments], **options))
    settings = '{"language_allows": ["don\'t", "$(touch X)", "`가격` \\"5\\" \\\\", "{a}"]}'
    out = f'out {HOSTILE["braces"]} {HOSTILE["apostrophe"]} {HOSTILE["price"]}'
    assert run_notebook.main(['train', f'--settings={settings}', f'--out={out}']) == 0
    notebook = json.loads((tmp_path/out/'train.ipynb').read_text(encoding='utf-8'))
    injected, = (cell for cell in notebook['cells'] if 'injected-parameters' in cell['metadata'].get('tags', []))
    found = {}
    exec(''.join(injected['source']), found)
    assert found['settings'] == settings and found['out'] == out
    allowed = resolve('v28', 'corrected', 'mini', **read_overrides(found['settings'])).language_allows
    assert allowed == ("don't", '$(touch X)', '`가격` "5" \\', '{a}')

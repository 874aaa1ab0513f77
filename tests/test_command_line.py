"""Nothing that is typed on a command line is lost in silence: lists add up, a second value is refused, and a misspelt
name is told what is near."""
import ast, re, subprocess, sys
import pytest
from conftest import ROOT, tracked
from splade_nb import cli as run
from splade_nb.serving import web as service
from splade_nb.model import prune_vocabulary as surgery
from splade_nb.config.files import ConfigError, nearest
from splade_nb.config.settings import cast, read_overrides
from splade_nb.config.versions import resolve
from splade_nb.experiment import SETTINGS, check_parameters
from splade_nb.cli import OPTIONS, sort_changes

PROGRAMS = [path.relative_to(ROOT).as_posix() for folder in ('splade_nb', 'benchmarks', 'docs') for path in tracked(f'{folder}/**/*.py')]


def options_of(program: str) -> list[ast.Call]:
    "The calls of a program that declare an option (not a positional)."
    tree = ast.parse((ROOT/program).read_text(encoding='utf-8'))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    declared = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == 'add_argument']
    return [call for call in declared if ast.unparse(call.args[0]).strip('f\'"').startswith('--')]


def given(call: ast.Call) -> dict: return {part.arg: ast.unparse(part.value).strip('\'"') for part in call.keywords}


@pytest.mark.parametrize('program', PROGRAMS)
def test_every_parser_refuses_or_adds_up(program):
    source = (ROOT/program).read_text(encoding='utf-8')
    if program != 'splade_nb/config/command_line.py': assert 'ArgumentParser' not in source, 'a CommandLine loses nothing'
    lists = [call for call in options_of(program) if given(call).get('nargs') in ('*', '+')]
    assert [ast.unparse(call) for call in lists if given(call).get('action') not in ('append', 'extend')] == []


def test_there_are_options_to_look_at():
    found = {program: len(options_of(program)) for program in PROGRAMS}
    known = ('splade_nb/cli', 'benchmarks/run')
    assert all(found[f'{name}.py'] for name in known)


# Settings of a run

def changes(*arguments: str) -> tuple: return sort_changes(run.parser().parse_args(['train', 'v28', *arguments]).set)


def test_several_sets_add_up():
    first, second = ('max_steps=60',), ('out=x', 'lambda_flops=0.01')
    found = changes('--set', *first, '--set', *second, '--resume', '--set', 'settings={"steps": 7}')
    assert found == (dict(max_steps=60, out='x'), dict(lambda_flops='0.01', steps=7))


@pytest.mark.slow
def test_the_module_of_training_takes_several_sets(tmp_path):
    arguments = ['--set', 'scale=mini', 'data=toy', '--set', f'out={tmp_path}', '--set', 'steps=1', '--set', 'steps=2']
    command = [sys.executable, '-m', 'splade_nb.training', 'v28', *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == "steps is given twice: '1' and '2'"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('arguments, said', [
    (['--set', 'out=a', '--set', 'out=b'], "out is given twice: 'a' and 'b'"),
    (['--set', 'seed=1', 'seed=2'], "seed is given twice: '1' and '2'"),
    (['--set', 'steps=6', 'settings={"steps": 7}'], "steps is given twice: 7 and '6'"),
    (['--set', 'settings={"steps": 6, "steps": 7}'], 'steps is given twice: 6 and 7'),
    (['--set', 'settings={"steps": 6}', '--set', 'settings={"top_k": 6}'], 'settings is given twice')])
def test_two_values_for_one_name_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=re.escape(said)): changes(*arguments)


def test_one_value_twice_is_one_value():
    whole = 'settings={"lambda_flops": 0.01, "clip": NaN}'
    found = changes('--set', 'steps=6', 'lambda_flops=0.010', '--set', 'steps=6', whole)
    assert found[0] == {} and found[1].keys() == {'steps', 'lambda_flops', 'clip'}


def test_json_that_names_a_setting_twice_is_refused(tmp_path):
    file = tmp_path/'settings.json'
    file.write_text('{"steps": 6, "steps": 7}', encoding='utf-8')
    for source in (str(file), file.read_text(encoding='utf-8')):
        with pytest.raises(ConfigError, match='steps is given twice: 6 and 7'): read_overrides(source)
    phases = '[{"first": 1, "first": 2}]'
    with pytest.raises(ConfigError, match='first is given twice: 1 and 2'): cast("phases", phases, ())
    file.write_bytes('{"backbone": "한글"}'.encode('cp949'))
    with pytest.raises(ConfigError, match='no JSON'): read_overrides(str(file))


# Options of every program

TWICE = {
    'search': (run.main, ['search', '--model', 'a', '--data', 'b', '--query', '가격', '--query', '값']),
    'serve': (run.main, ['serve', '--model', 'a', '--data', 'b', '--port', '1', '--port', '2']),
    'prune_vocabulary': (surgery.main, ['a', 'b', 'c', '--words', 'one', '--words', 'other']),
    'encode': (run.main, ['encode', '--model', 'a', '--data', 'b', '--out', 'c', '--parts', '2', '--parts', '4'])}


@pytest.mark.parametrize('main, typed', TWICE.values(), ids=TWICE)
def test_a_second_value_is_refused(main, typed, capsys):
    with pytest.raises(SystemExit, match='2'): main(typed)
    first, second = (value if not value.isdigit() else int(value) for value in typed[-3::2])
    assert f'argument {typed[-2]}: given twice: {first!r} and {second!r}' in capsys.readouterr().err


@pytest.mark.parametrize('part', run.PARTS)
@pytest.mark.parametrize('option, value, told', [('--windows', '4', 'windows=4'), ('--split', 'all', 'split=all'), ('--hybrid', '0.2', 'hybrid=0.2')])
def test_a_part_of_an_evaluation_refuses_what_it_does_not_take(part, option, value, told, capsys):
    given = ['evaluate', '--model', 'nowhere', '--data', 'toy', '--what', part]
    assert run.main([*given, option, value]) == 2
    assert capsys.readouterr().err == f'{told}: --what {part} does not take it, leave {option} out\n'
    for allowed in ([], ['--split', 'test', '--windows', '8', '--hybrid', '0']):
        run.main([*given, *allowed])
        assert 'does not take' not in capsys.readouterr().err


@pytest.mark.parametrize('port', (-1, 0, 99_999))
def test_a_number_that_is_no_port_is_refused_before_a_model_is_read(port, capsys):
    told = f'port={port}: must be from 1 to 65535'
    assert run.main(['serve', '--model', 'nowhere', '--data', 'toy', '--port', str(port)]) == 2
    assert capsys.readouterr().err == f'{told}\n'
    with pytest.raises(ConfigError, match=told): service.serve(None, port=port)


def test_kinds_of_pieces_add_up(monkeypatch):
    seen = []
    monkeypatch.setattr(surgery, 'read_texts', lambda source: [])
    monkeypatch.setattr(surgery, 'prune', lambda source, texts, out, kinds, *rest: seen.extend(kinds))
    monkeypatch.setattr(surgery, 'table', str)
    assert surgery.main(['--kinds', 'korean,english', 'a', 'b', 'c', '--kinds', 'number']) == 0
    assert seen == ['korean', 'english', 'number']


# What is proposed

@pytest.mark.parametrize('name, choices, near', [
    ('lambda_flop', SETTINGS, 'lambda_flops'), ('lambda_flop', OPTIONS, ''),
    ('VERISON', ['VERSION', 'DATA'], 'VERSION'),
    ('version', ['VERSION'], 'VERSION'), ('ot', OPTIONS, 'out'), ('lr', SETTINGS, ''),
    ('batchsize', SETTINGS, 'batch_size'), ('banana', SETTINGS, ''), ('', SETTINGS, ''), ('x', [], ''),
    ('nli', ['nli_entailment', 'travel'], 'nli_entailment'), ('trav', ['travel_term', 'travel_qa'], '')])
def test_what_is_near_is_proposed(name, choices, near): assert nearest(name, choices) == near


@pytest.mark.parametrize('setting', SETTINGS)
def test_a_letter_too_few_is_near(setting):
    assert nearest(setting[:-2] + setting[-1], SETTINGS) == setting


@pytest.mark.parametrize('given, said', [
    ('lambda_flop', "did you mean 'lambda_flops'? It is a setting, given as settings={\"lambda_flops\": ...}. Known"),
    ('lambda_flops', "did you mean 'lambda_flops'? It is a setting"), ('recipee', "did you mean 'recipe'? Known"),
    ('banana', "unknown parameter 'banana': Known: version, recipe")])
def test_an_unknown_parameter_of_a_notebook_is_told_what_there_is(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)): check_parameters({'version', given})


def test_a_notebook_without_settings_proposes_none():
    with pytest.raises(ConfigError, match="'lambda_flops': Known: model, out"):
        check_parameters({'lambda_flops'}, ('model', 'out'))


@pytest.mark.parametrize('given, said', [
    ('lambda_flop=1', "did you mean 'lambda_flops'? Known: recipe"), ('max_step=1', "did you mean 'max_steps'?"),
    ('banana=1', "unknown setting 'banana': Known: recipe"),
    ('settings={"banana": 1}', "unknown setting 'banana': Known: neg"),
    ('settings={"seed": 5}', 'seed: a parameter of a run and no setting'), ('settings={"data": "toy"}', "data='toy': data is a section of a settings file"),
    ('weight_averaging=0.5', 'weight_averaging=0.5: expected list, found float')])
def test_an_unknown_setting_is_told_what_there_is(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)): changes('--set', given)


def test_an_unknown_setting_of_a_version_is_told_what_there_is():
    with pytest.raises(ConfigError, match="unknown setting 'banana': Known: negatives"): resolve('v28', banana=1)




def test_what_to_type_is_there_where_it_is_said(tmp_path, monkeypatch):
    "An installed package has no Makefile."
    from splade_nb.config import files
    assert files.typed_command('data', name='a b', from_='x') == "make data NAME='a b' FROM=x" and files.typed_command('fit') == 'make fit'
    monkeypatch.setattr(files, 'embedded', tmp_path.joinpath)
    assert files.typed_command('data', name='a b', from_='x') == "splade-nb data --name 'a b' --from x" and files.typed_command('clean-search') == 'splade-nb clean-search'

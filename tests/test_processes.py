"""Several processes that train one model: the same numbers as one, whatever the shares, the time that a stage takes and
the process that dies."""
import json, math, os, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
import faults
import torch
from conftest import ROOT, injected
from faults import exit_code, in_processes, last_checkpoint, lines, toy, two_ranks
from splade_nb import experiment
from splade_nb.config.files import read_json
from splade_nb.config.versions import resolve
from splade_nb.model.load import load_encoder
from splade_nb.training import batch, checkpoints, dataset, memory, trainer
from splade_nb.training.losses import as_floats
from splade_nb.config.processes import ProcessGroup


# Shares

def exchange(folder: Path) -> None:
    group = experiment._processes()
    own = torch.arange(group.rank + 1.0)[:, None] + 10 * group.rank  # 1, 2, 3 rows
    found = dict(uneven=group.gather(own, [1, 2, 3]).tolist(), even=group.gather(own[:1]).tolist(),
                 values=group.collect({'부산': group.rank}), first=group.of_first(lambda: group.rank))
    (folder/f'{group.rank}.json').write_text(json.dumps(found), encoding='utf-8')


@pytest.mark.slow
def test_three_processes_exchange_rows_and_values(tmp_path):
    assert in_processes(3, exchange, tmp_path) == [0, 0, 0]
    wanted = dict(uneven=[[0.0], [10.0], [11.0], [20.0], [21.0], [22.0]], even=[[0.0], [10.0], [20.0]],
                  values=[{'부산': rank} for rank in range(3)], first=0)
    assert [read_json(tmp_path/f'{rank}.json') for rank in range(3)] == [wanted] * 3


DIVIDED = {'whole': {}, 'cached': dict(batch_size=4, accumulation=2, gradient_cache=True),
           'more passes than texts': dict(batch_size=1, accumulation=8, gradient_cache=True)}


def step_of(changes: dict, group=ProcessGroup()) -> tuple:  # loss, parts, gradient
    "Of a batch of eight pairs, with all the losses of V28."
    dataset.fix_seeds(42)
    torch.set_num_threads(1)
    (data, model), settings = dataset.toy_training_data(), faults.settings_of(**dict(batch_size=8) | changes)
    rows = batch.batch_at(12, 20, 0, data, settings, 42)
    passes = settings.accumulation if settings.gradient_cache else 1
    loss, parts, _ = memory.backward(model.eval(), rows, 12, 20, data, settings, None, group, passes=passes)
    return loss, as_floats(parts), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def keep_step(folder: Path, changes: dict) -> None:
    group = experiment._processes()
    torch.save(step_of(changes, group), folder/f'{group.rank}.pt')


@pytest.mark.slow
@pytest.mark.parametrize('way', DIVIDED)
@pytest.mark.parametrize('number', (2, 3))
def test_shares_that_do_not_divide_give_the_same_step(number, way, tmp_path):
    assert in_processes(number, keep_step, tmp_path, DIVIDED[way]) == [0] * number
    loss, parts, gradient = step_of({})
    assert {'infonce', 'flops', 'language', 'min_act', 'self', 'positive'} <= set(parts)
    for rank in range(number):
        found_loss, found_parts, found = torch.load(tmp_path/f'{rank}.pt')
        torch.testing.assert_close(found_loss, loss, atol=1e-6, rtol=1e-6)
        assert found_parts == pytest.approx(parts, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_more_processes_than_texts_share_a_step(tmp_path):
    only = dict(batch_size=2, negatives=0)
    assert in_processes(3, keep_step, tmp_path, only) == [0] * 3
    wanted = step_of(only)[2]
    for rank in range(3): torch.testing.assert_close(torch.load(tmp_path/f'{rank}.pt')[2], wanted, atol=1e-5, rtol=1e-4)


# Stages that take long

def patient(folder: Path, stage: str) -> None:
    "A stage of the first process that takes longer than the time-out of the group, then a step of all."
    group = experiment._processes(timeout=1 / 60)  # a second
    def slow():
        time.sleep(3)
        (folder/'prepared').touch()
    if stage == 'preparation':
        with experiment._first_before_others(group):
            if not group.rank: slow()
            assert (folder/'prepared').exists(), 'the others come after'
    if stage == 'validation': group.of_first(slow)
    group.wait()
    assert group.gather(torch.ones(1)).sum() == 2
    (folder/str(group.rank)).touch()


@pytest.mark.slow
@pytest.mark.parametrize('stage', ('preparation', 'validation'))
def test_a_stage_longer_than_the_time_out_ends_nothing(stage, tmp_path):
    assert in_processes(2, patient, tmp_path, stage) == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {'prepared', '0', '1'}


# Whole runs of the toy

CHANGES, OPTIONS = dict(batch_size=8, steps=12, dropout=0.0), dict(save_every=3, max_steps=9)


def losses(folder: Path) -> list: return [row['loss'] for row in lines(folder/'metrics.jsonl')]


def place(folder: Path, name: str) -> Path:
    "A run folder that has a folder to itself: the ranks write a gradient beside it."
    (folder/name).mkdir()
    return folder/name/'run'


@pytest.fixture(scope='module')
def whole(tmp_path_factory) -> Path:
    "A run of two processes that nothing happens to."
    folder = place(tmp_path_factory.mktemp('two'), 'whole')
    assert two_ranks(folder, CHANGES, OPTIONS) == [0, 0]
    return folder


@pytest.mark.slow
def test_a_run_is_the_same_in_one_two_and_three_processes(whole, tmp_path):
    alone, three = place(tmp_path, 'one'), place(tmp_path, 'three')
    assert exit_code(toy, alone, CHANGES, OPTIONS) == 0
    assert in_processes(3, faults.ranks, three, CHANGES, OPTIONS) == [0] * 3
    one = lines(alone/'metrics.jsonl')
    for number, folder in ((2, whole), (3, three)):
        for row, wanted in zip(lines(folder/'metrics.jsonl'), one, strict=True):
            assert row['parts'] == pytest.approx(wanted['parts'], rel=1e-4, abs=1e-6), (number, row['step'])
        assert len(list((folder/'tensorboard').iterdir())) == 1, 'one process writes'


def without_listing(folder: Path) -> None:
    group = experiment._processes()
    def listed(place): raise AssertionError('the first process may be clearing this folder')
    if group.rank: trainer.checkpoints = listed
    toy(folder, CHANGES, dict(max_steps=2, resume=True), None, group)


@pytest.mark.slow
def test_only_the_first_process_looks_for_checkpoints(tmp_path):
    checkpoints.new_part(tmp_path/'run'/'checkpoints'/'step-3')  # what a process that was killed leaves
    assert in_processes(2, without_listing, tmp_path/'run') == [0, 0]
    assert len(losses(tmp_path/'run')) == 2


@pytest.mark.slow
@pytest.mark.parametrize('moment', (0, 6, 13))
def test_the_first_process_dies_while_it_saves(moment, whole, tmp_path):
    "Resumed with as many processes it is the run that nothing happened to; with another number, up to rounding."
    killed = place(tmp_path, 'killed')
    first, second = two_ranks(killed, CHANGES, OPTIONS, ('save', moment, 0))
    assert first == -signal.SIGKILL and second, 'the other one ends too, with an error'
    for number in (1, 3):
        shutil.copytree(killed.parent, tmp_path/str(number))
        assert in_processes(number, faults.ranks, tmp_path/str(number)/'run', CHANGES, OPTIONS | dict(resume=True)) == [0] * number
        assert losses(tmp_path/str(number)/'run') == pytest.approx(losses(whole), rel=1e-4)
    assert two_ranks(killed, CHANGES, OPTIONS | dict(resume=True)) == [0, 0]
    assert last_checkpoint(killed) == last_checkpoint(whole) and losses(killed) == losses(whole)


# The batch

def small_run(folder: Path, name: str, **options) -> None:
    "A process of a run of the toy corpus; the settings check has tests of its own."
    experiment.require_acting_settings = lambda *given: ()
    torch.set_num_threads(1)
    small = dict(steps=3, hidden=64, layers=1, vocabulary=300, batch_size=4, dropout=0.0, gate_dropout=0.0, log_every=1)
    with open(folder/f'{name}.log', 'a', encoding='utf-8') as sys.stderr:
        experiment.run_version(scale='mini', source='toy', out=str(folder/name), settings=small | options.pop('settings', {}), **options)


def scaled_run(folder: Path) -> None: small_run(folder, 'scaled', scale_batch=True)


@pytest.mark.slow
def test_a_batch_is_shared_by_default_and_multiplied_on_request(tmp_path):
    larger = dict(batch_size=8, learning_rate=resolve('v28', 'corrected', 'mini').learning_rate * math.sqrt(2))
    assert in_processes(2, small_run, tmp_path, 'shared') == [0, 0]
    assert in_processes(2, scaled_run, tmp_path) == [0, 0]
    assert exit_code(small_run, tmp_path, 'one') == 0
    small_run(tmp_path, 'larger', settings=larger)
    for name, like in (('shared', 'one'), ('scaled', 'larger')):
        assert losses(tmp_path/name) == pytest.approx(losses(tmp_path/like), rel=1e-4), name
        assert read_json(tmp_path/name/'config.json')['settings'] == read_json(tmp_path/like/'config.json')['settings']
        assert read_json(tmp_path/name/'summary.json')['processes'] == 2


def test_a_scaled_batch_keeps_the_epochs():
    settings = resolve('v28', 'corrected', 'full')
    scaled = settings.but(**experiment.scaled_batch(settings, 8))
    pairs = 80 * settings.batch_size * settings.accumulation
    assert trainer.step_count(settings, pairs) == 80 * settings.epochs and trainer.step_count(scaled, pairs) == 10 * settings.epochs


# From the command to the report

def by_torchrun(folder: Path, arguments: list) -> str:  # what was printed
    program = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    done = subprocess.run([*program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def as_rank(folder: Path, arguments: list) -> None:
    rank = os.environ['RANK']
    faults.as_program(arguments, ROOT, folder/f'output-{rank}', folder/f'errors-{rank}')


def in_forks(folder: Path, arguments: list) -> str:  # what was printed
    "As torchrun starts them, without three times the imports."
    assert in_processes(2, as_rank, folder, arguments) == [0, 0], (folder/'errors-0').read_text(encoding='utf-8')[-3000:]
    return ''.join((folder/f'output-{rank}').read_text(encoding='utf-8') for rank in range(2))


@pytest.mark.slow
@pytest.mark.parametrize('run', [in_forks, pytest.param(by_torchrun, marks=pytest.mark.weekly)], ids=lambda run: run.__name__)
def test_a_run_of_two_processes_has_a_report_and_a_model(run, tmp_path):
    folder, small = tmp_path/'run', '{"steps": 6, "hidden": 64, "layers": 1, "vocabulary": 300, "batch_size": 7}'
    given = ['scale=mini', 'data=toy', f'out={folder}', f'settings={small}']
    printed = run(tmp_path, ['-m', 'splade_nb.training', '--set', *given, '--', 'v28'])
    summary = read_json(folder/'summary.json')
    assert summary['processes'] == 2 and summary['steps'] == 6 and json.loads(printed) == summary, 'printed once'
    assert load_encoder(folder/'checkpoints'/'best') and load_encoder(folder)
    assert len(list((folder/'tensorboard').iterdir())) == 1
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    shown = faults.run_notebook(injected('train.ipynb', out=str(folder), finished=True), ROOT)
    assert {name: (folder/name).read_bytes() for name in before} == before, 'nothing is trained, nothing written'
    assert 'best wrong document' in json.dumps(shown) and '7' in str(summary['changed']['batch_size'])


@pytest.mark.slow
def test_an_error_of_a_process_ends_all_and_is_seen(tmp_path):
    program = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    done = subprocess.run([*program, '-m', 'splade_nb.training', 'v28', '--set', 'data=./nowhere', f'out={tmp_path}'],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and './nowhere' in done.stderr

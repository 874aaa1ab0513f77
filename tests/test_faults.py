"""What happens to long runs: every fault really happens, and a resumed run is the run that was never interrupted."""
import os, shutil, signal
import pytest
import faults
from faults import kill_at_call, take_passes, steps_done, saved_checkpoints, lines, exit_code, toy, two_ranks, last_checkpoint
from moments import die_at_change, every_moment
from splade_nb.training import checkpoints
from splade_nb.training.curriculum import epoch_at, phase_at
from splade_nb.training.trainer import truncate_log


CHEAPER = {faults.kills: dict(stride=4), faults.collapse: dict(steps=3)}  # every fourth moment; the event comes at the first step


@pytest.mark.slow
@pytest.mark.parametrize('fault', faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_run_survives(fault, tmp_path):
    seen = fault(tmp_path, **CHEAPER.get(fault, {}))
    if not seen.tries: pytest.skip(seen.outcome)


@pytest.mark.weekly
@pytest.mark.parametrize('fault', CHEAPER, ids=lambda fault: fault.__name__)
def test_a_run_survives_every_moment(fault, tmp_path): fault(tmp_path)


# name: settings, step of the checkpoint, calls of the model in a step, calls until the kill, passes of a batch
MOMENTS = {'the middle of an epoch': (dict(steps=50), 13, 1, 0, 1),
           'a phase border': (dict(steps=25), 8, 1, 0, 1),
           'the middle of an accumulation': (dict(steps=25, accumulation=4, gradient_cache=False), 6, 4, 1, 1),
           'the middle of a cached accumulation': (dict(steps=25, accumulation=4, gradient_cache=True, dropout=0.1), 6, 7, 5, 4)}


@pytest.mark.slow
@pytest.mark.parametrize('moment', MOMENTS)
def test_resumed_equals_uninterrupted(moment, tmp_path):
    changes, step, calls, more, passes = MOMENTS[moment]
    settings, options = faults.settings_of(**changes), dict(save_every=step, max_steps=step + 5)
    if 'epoch' in moment: assert epoch_at(step, settings.steps, settings) % 1
    before, after = (phase_at(each, settings.steps, settings) for each in (step - 1, step))
    if 'phase' in moment: assert before != after
    assert exit_code(toy, tmp_path/'run', changes, options, (kill_at_call, step * calls + more, passes)) == -signal.SIGKILL
    assert steps_done(tmp_path/'run') == step and saved_checkpoints(tmp_path/'run')[-1].name == f'step-{step}'
    assert exit_code(toy, tmp_path/'run', changes, {**options, 'resume': True}) == 0
    assert exit_code(toy, tmp_path/'whole', changes, options, (take_passes, passes)) == 0
    assert last_checkpoint(tmp_path/'run') == last_checkpoint(tmp_path/'whole')
    losses = [[row['loss'] for row in lines(tmp_path/name/'metrics.jsonl')] for name in ('run', 'whole')]
    assert losses[0] == losses[1] and len(losses[0]) == step + 5


def test_two_ranks_of_eight_equal_one_of_sixteen(tmp_path):
    assert two_ranks(tmp_path/'run', dict(batch_size=16, steps=2), {}) == [0, 0]
    faults.check_gradient(tmp_path)


def test_a_request_to_end_that_reaches_one_rank_ends_both(tmp_path):
    assert two_ranks(tmp_path/'run', dict(batch_size=16, steps=faults.FOREVER), {}, ('interrupt', 3)) == [130, 130]
    assert steps_done(tmp_path/'run') == 4 and faults.steps_lost(tmp_path/'run') == 0


def test_what_follows_the_named_checkpoint_goes(tmp_path):
    target, changes = tmp_path/'run', dict(steps=9)
    assert exit_code(toy, target, changes, dict(save_every=2)) == 0
    first = saved_checkpoints(target)[0]
    last = checkpoints.step_of(first) + 1
    assert exit_code(toy, target, changes, dict(resume_from=str(first), max_steps=last)) == 0
    assert [path.name for path in saved_checkpoints(target)] == [first.name, f'step-{last}']
    assert steps_done(target) == last


def test_a_broken_checkpoint_that_nobody_loads_harms_nobody(tmp_path):
    target, changes = tmp_path/'run', dict(steps=20)
    assert exit_code(toy, target, changes, dict(save_every=2, max_steps=8)) == 0
    (saved_checkpoints(target)[0]/'state.json').write_bytes(b'\xff{')
    assert exit_code(toy, target, changes, dict(save_every=2, resume=True)) == 0
    assert saved_checkpoints(target)[-1].name == 'step-20'


def clear_away(folder, number: int) -> None:
    "A child that clears away what a kill left, and is killed at the `number`-th moment of it."
    die_at_change(number, checkpoints, 'tidy')
    checkpoints.tidy(folder)


@pytest.mark.slow
def test_a_clean_up_that_is_killed_anywhere_is_finished_by_the_next(tmp_path):
    target, left = tmp_path/'run', tmp_path/'left'
    assert exit_code(toy, target, dict(steps=9), dict(save_every=2, max_steps=6)) == 0
    whole, names = target/'checkpoints', [path.name for path in saved_checkpoints(target)]
    copies = {'part-step-8': 'step-6', 'part-step-0': 'step-2', 'old-step-4': 'step-4'}
    for name, like in copies.items(): shutil.copytree(whole/like, whole/name)
    (whole/'step-2').rename(whole/'old-step-2')  # its successor did not arrive
    for name in (*copies, 'old-step-2'): (whole/name/checkpoints.MARK).touch()
    def cleared(number: int) -> int:
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(whole, left/'checkpoints')
        code = exit_code(clear_away, left/'checkpoints', number)
        for path in saved_checkpoints(left): checkpoints.verify(path)
        checkpoints.tidy(left/'checkpoints')
        assert sorted(os.listdir(left/'checkpoints')) == [checkpoints.INITIAL, *names]
        for path in saved_checkpoints(left): checkpoints.verify(path)
        return code
    assert every_moment(cleared) >= 20


def test_a_line_that_was_cut_short_is_dropped(tmp_path):
    path = tmp_path/'metrics.jsonl'
    cut_short = '{"step": 2, "parts": {"infonce": 1.0}'  # ends as a whole line does
    path.write_text('{"step": 0}\n{"step": 1}\n' + cut_short, encoding='utf-8')
    truncate_log(path, 5)
    assert [row['step'] for row in lines(path)] == [0, 1]

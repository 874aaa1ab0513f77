"""Every declared setting of every version acts; what is listed as off does not."""
import tempfile
from pathlib import Path
import pytest
from splade_nb.training import check_settings as checks
from splade_nb.config.settings import as_dict, off
from splade_nb.config.versions import PARENTS, VERSIONS, resolve_quietly
from splade_nb.data.tokenizer import remembered


WHOLE = (('v22', 'corrected'), ('v22', 'original'), ('v28', 'corrected'), ('v28', 'original'), ('splade_v2', 'corrected'), ('splade_ko', 'corrected'))
FIRST = ('v28', 'corrected') # what `make train` runs: proven by the trial as well, and once for both
RUNS = [pytest.param(*run, marks=[pytest.mark.slow] * (run != FIRST)) for run in WHOLE]


@pytest.mark.parametrize('version, recipe', RUNS)
def test_every_setting_acts(version, recipe):
    settings = resolve_quietly(version, recipe, 'mini')
    found = checks.checked(settings)
    assert [check.name for check in found if check.state == 'dead'] == []
    assert {check.name for check in found if check.state == 'off'} == set(off(settings))


@pytest.mark.parametrize('version', [version for version in VERSIONS if (version, 'corrected') not in WHOLE])
def test_what_a_version_changes_acts(version):
    "Against its parent; what it shares is proven there, and for each run before its first step."
    settings, parent = resolve_quietly(version), resolve_quietly(PARENTS[version])
    changed = [name for name, value in as_dict(settings).items() if value != as_dict(parent)[name] and name != 'phases']
    if settings.phases != parent.phases: changed += [name for name in checks.phase_checks(settings) if name.endswith(('mix', 'temperature'))]
    assert changed, f'{version} is {PARENTS[version]}'
    assert [check.name for check in checks.check_settings(settings, changed, progress=False) if check.state == 'dead'] == []


@pytest.mark.slow
@pytest.mark.parametrize('version', ('v22', 'v28'))
def test_every_setting_acts_at_full_scale(version):
    "Backbone and teacher are read from folders, by the code that reads hub names."
    found = checks.checked(resolve_quietly(version, 'corrected', 'full'))
    assert [check.name for check in found if check.state == 'dead'] == []


def test_runs_that_are_equal_when_small_share_a_proof(monkeypatch, tmp_path):
    proven = []
    monkeypatch.setattr(checks, 'root', lambda: tmp_path)
    monkeypatch.setattr(checks, 'check_settings', lambda settings: proven.append(settings) or [checks.SettingCheck('hidden', settings.hidden, 'live')])
    runs = [resolve_quietly('v28', **changes) for changes in ({}, dict(hidden=64, steps=6), dict(top_k=7), dict(lambda_self=0.0))]
    assert [checks.checked(settings)[0].value for settings in runs] == [runs[0].hidden, 64, runs[0].hidden, runs[0].hidden]
    assert proven == [runs[0], *runs[2:]]


@pytest.mark.slow
def test_what_is_off_changes_nothing():
    "The reasons are true: a setting that is listed as off does not act."
    tried = set()
    for arguments in (('v22', 'original', 'mini'), ('v28', 'corrected', 'mini'), ('splade_v2', 'corrected', 'mini')):
        settings = resolve_quietly(*arguments)
        idle = [name for name in off(settings) if name not in tried]; tried.update(idle)
        with tempfile.TemporaryDirectory() as folder, checks.quiet(), remembered({}):
            corpus = checks.check_corpus()
            texts = [*corpus.texts.values(), *(query.text for query in corpus.queries.values())]
            first, second = (checks.tiny_checkpoint(Path(folder)/str(seed), texts, seed) for seed in (0, 1))
            looks, pairs = checks.Probes(corpus, Path(folder)/'cache'), checks.checks_of(checks.small(settings, first), second)
            acting = {name: checks.difference(looks, name, *pairs[name][1:]) for name in idle}
        assert {name: seen for name, seen in acting.items() if seen} == {}


def test_a_run_with_a_dead_setting_ends_by_name(monkeypatch):
    monkeypatch.setattr(checks, 'checked', lambda settings: (checks.SettingCheck('lambda_flops', 0.003, 'dead'), checks.SettingCheck('top_k', 5, 'live', 'loss')))
    with pytest.raises(checks.UnusedSetting, match='lambda_flops'): checks.require_acting_settings(resolve_quietly('v28'))


@pytest.mark.parametrize('state, code', (('live', 0), ('dead', 1)))
def test_the_command_line_says_so(monkeypatch, capsys, state, code):
    from splade_nb import cli as run
    monkeypatch.setattr(run, 'check_settings', lambda settings: [checks.SettingCheck('top_k', settings.top_k, state)])
    assert run.main(['train', 'v28', '--check-settings', '--set', 'top_k=7', 'scale=mini']) == code
    assert capsys.readouterr().out.startswith(f'{state}  top_k = 7')

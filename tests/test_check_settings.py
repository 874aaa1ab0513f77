"""Every setting of every version acts, what is listed as off does not, and a setting that nothing reads is found."""
import ast, inspect, sys, tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
import pytest
from splade_nb import experiment
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.settings import Settings, as_dict, off
from splade_nb.config.versions import PARENTS, VERSIONS, resolve_quietly, shipped
from splade_nb.training import check_settings as checks
from splade_nb.training import curriculum, objective

FIRST = ('v28', 'corrected', 'mini')  # what `make train` runs
FULL = ('v28', 'corrected', 'full')
WHOLE = FIRST, FULL
# A run that is like another: the two differ in a few settings. V28 has most.
LIKE = {FULL: FIRST, ('v22', 'corrected', 'mini'): FIRST, ('splade_v2', 'corrected', 'mini'): ('v22', 'corrected', 'mini'),
        ('v28', 'original', 'mini'): FIRST, ('v22', 'original', 'mini'): ('v28', 'original', 'mini'), ('v22', 'corrected', 'full'): FULL}
LIKE |= {run: (PARENTS[run[0]], *run[1:]) for version in VERSIONS
         if (run := (version, 'corrected', 'mini')) not in (*WHOLE, *LIKE)}


def identities(runs, *marks): return [pytest.param(run, id=' '.join(run), marks=marks if run != FIRST else ()) for run in runs]


@pytest.mark.parametrize('run', identities(WHOLE, pytest.mark.weekly))
def test_every_setting_acts(run):
    "At full scale, backbone and teacher are read from folders, by the code that reads hub names; what differs there is checked below, too."
    settings = resolve_quietly(*run)
    found = checks.check_settings(settings, progress=False)
    assert [check.name for check in found if check.state == 'dead'] == []
    assert {check.name for check in found if check.state == 'off'} == set(checks.idle_settings(settings))


@pytest.mark.slow
@pytest.mark.parametrize('run', identities(LIKE))
def test_what_differs_from_a_run_that_was_checked_acts(run):
    "Also what the other switches off. What they share is checked there."
    settings, other = resolve_quietly(*run), resolve_quietly(*LIKE[run])
    values, others, idle = as_dict(settings), as_dict(other), checks.idle_settings(settings)
    names = [name for name in values if name != 'phases' and name not in idle
             and (values[name] != others[name] or name in checks.idle_settings(other))]
    if settings.phases != other.phases:
        names += [name for name in checks.phase_checks(settings) if name.endswith(('mix', 'temperature'))]
    assert names, f'{run} is {LIKE[run]}'
    assert states(settings, names) == dict.fromkeys(names, 'live')


def phase(first: int, mix: dict) -> dict:  # of one epoch, and unlike the next one
    return dict(first=first, last=first, temperature=1 / first, lambda_infonce=1.0, learning_rate_factor=1 / first, lambda_kd=0.0, mix=mix)


VALID = [  # version, scale, its changes, settings that act
    ('v22', 'mini', dict(early_stopping=1), ['early_stopping']), ('v22', 'mini', dict(early_stopping=3), ['early_stopping']),
    ('splade_v2', 'mini', dict(checkpoint_epochs=25, keep_checkpoints=1), ['checkpoint_epochs', 'epochs', 'keep_checkpoints']),
    ('splade_v2', 'mini', dict(checkpoint_epochs=12), ['checkpoint_epochs', 'epochs']),
    ('splade_v2', 'mini', dict(epochs=2, checkpoint_epochs=5), ['checkpoint_epochs', 'epochs']),
    ('splade_v2', 'mini', dict(epochs=1, keep_checkpoints=1), ['epochs', 'keep_checkpoints']),
    ('splade_v2', 'mini', dict(epochs=2, phases=[phase(1, {'original': 1.0}), phase(2, {'original': 1.0, 'travel': 0.0})]), ['phase 1 mix', 'phase 2 mix']),
    ('splade_v2', 'full', dict(query_length=128), ['query_length']), ('v26', 'full', dict(top_k=400), ['top_k'])]


@pytest.mark.slow
@pytest.mark.parametrize('version, scale, changes, names', VALID, ids=lambda value: str(value)[:40])
def test_a_valid_value_is_not_taken_for_an_unused_one(version, scale, changes, names, reproducible):
    "Values at which the change that is tried, or the size of the small run, could hide that a setting acts."
    assert states(resolve_quietly(version, scale=scale, **changes), names) == dict.fromkeys(names, 'live')


def test_a_temperature_in_which_all_scores_are_measured_is_off():
    measured = resolve_quietly('splade_v2', scale='small', score_limit=0.0, score_spread=3.0)
    assert 'temperature' in off(measured) and 'temperature' not in off(measured.but(lambda_margin=1.0, negatives=1))
    assert 'temperature' in off(resolve_quietly('v28', scale='small'))


def test_how_often_checkpoints_are_saved_is_off_in_a_single_epoch():
    assert 'checkpoint_epochs' in off(resolve_quietly('splade_v2', epochs=1)) and 'checkpoint_epochs' not in off(resolve_quietly('splade_v2', epochs=2))


def changed_together(names: list, settings: Settings, pairs: dict) -> list: # (names, before, after)
    "As few pairs of settings as hold every change of a setting; of those that begin alike and can be changed together."
    groups = []
    for name in names:
        _, before, after = pairs[name]
        change = {field.name: getattr(after, field.name) for field in fields(after)
                  if getattr(after, field.name) != getattr(before, field.name)}
        for group in groups:
            if group[1] != before or set(change) & group[2].keys(): continue
            try: replace(before, **group[2] | change)
            except ConfigError: continue
            group[0].append(name)
            group[2].update(change)
            break
        else: groups.append(([name], before, change))
    return [(names, before, replace(before, **changes)) for names, before, changes in groups]


def seen_together(settings: Settings, names: list) -> list: # (names, what differs) where something does
    "A change that no probe sees among many is seen by none alone."
    with checks.probing(settings) as (probes, _, base, pairs):
        seen = []
        for together, before, after in changed_together(names, base, pairs):
            saving = [name for name in together if name in checks.SAVE_MEMORY]  # memory counts for these
            seen.append((together, checks.difference(probes, *saving or [''], before, after)))
    return [each for each in seen if each[1]]


@pytest.mark.slow
def test_what_is_off_changes_nothing():
    "The reasons are true: settings that are listed as off do not act, not even together."
    tried = set()
    for run in (('v22', 'original', 'mini'), ('v28', 'corrected', 'mini'), ('splade_v2', 'corrected', 'mini')):
        settings = resolve_quietly(*run)
        idle = [name for name in off(settings) if name not in tried]
        tried.update(idle)
        assert seen_together(settings, idle) == []


@pytest.mark.slow
def test_distillation_is_off_where_neither_of_its_parts_has_a_weight():
    settings = resolve_quietly('v28', alpha_kl=0.0, alpha_mse=0.0)
    idle = ['teacher', 'kd_temperature', 'kd_rows', 'phase 1 lambda_kd']
    assert states(settings, ['alpha_kl', 'alpha_mse', *idle]) == dict(alpha_kl='live', alpha_mse='live') | dict.fromkeys(idle, 'off')
    assert seen_together(settings, idle) == []


def test_a_run_is_checked_in_what_it_changes_and_refused_by_name(monkeypatch, tmp_path):
    "Also a loss of one's own; a run that changes nothing is not checked."
    asked = []
    def check(settings, names): return asked.extend(names) or [checks.SettingCheck(name, 1, 'dead' if name == 'top_k' else 'live') for name in names]
    monkeypatch.setattr(checks, 'check_settings', check)
    settings = resolve_quietly('v28', scale='mini', extra_losses={'own': 1.0, 'other': 1.0}, lambda_flops=0.1)
    changed = experiment.changed_settings('v28', 'corrected', 'mini', settings)
    assert len(checks.require_acting_settings(settings, changed, tmp_path)) == 4
    assert sorted(asked) == ['extra_losses', 'extra_losses other', 'extra_losses own', 'lambda_flops']
    assert [row['name'] for row in read_json(tmp_path/'settings_check.json')] == asked
    same = resolve_quietly('v28', scale='mini')
    assert checks.require_acting_settings(same, experiment.changed_settings('v28', 'corrected', 'mini', same)) == []
    with pytest.raises(checks.UnusedSetting, match='top_k'): checks.require_acting_settings(same.but(top_k=9), ['top_k'])


def test_a_version_of_ones_own_is_checked_in_what_it_changes(monkeypatch):
    for names in (VERSIONS, PARENTS): monkeypatch.setitem(names, 'v40', VERSIONS['v28'].but(idf_alpha=6.0) if names is VERSIONS else 'v28')
    for names in (VERSIONS, PARENTS): monkeypatch.setitem(names, 'v41', VERSIONS['v40'].but(top_k=9) if names is VERSIONS else 'v40')
    assert (shipped('v41'), shipped('v28a'), shipped('v99')) == ('v28', 'v28a', '')
    settings = resolve_quietly('v41', scale='mini')
    assert {*experiment.changed_settings(shipped('v41'), 'corrected', 'mini', settings)} == {'idf_alpha', 'top_k'}


@pytest.mark.parametrize('state, code', (('live', 0), ('dead', 1)))
def test_the_command_line_says_so(monkeypatch, capsys, state, code):
    from splade_nb import cli
    monkeypatch.setattr(checks, 'check_settings', lambda settings: [checks.SettingCheck('top_k', settings.top_k, state)])
    assert cli.main(['train', 'v28', '--check-settings', '--set', 'top_k=7', 'scale=mini']) == code
    assert capsys.readouterr().out.startswith(f'{state}  top_k = 7')


# Tuples of registered names: losses and term weights of one's own

@dataclass(frozen=True)
class OwnSettings(Settings):
    own_losses: tuple = ()


def own_settings(*names: str) -> OwnSettings:
    return OwnSettings(**vars(resolve_quietly('v28')) | dict(own_losses=names))


def with_own_losses(monkeypatch, read) -> None:
    "The objective adds the mean weight of the queries' vectors for each name that `read(settings)` gives."
    true = objective.objective
    def changed(out, rows, step, steps, training_data, settings, *more):
        loss, parts = true(out, rows, step, steps, training_data, settings, *more)
        return loss + sum(len(name) * out['query']['vectors'].mean() for name in read(settings)), parts
    monkeypatch.setattr(objective, 'objective', changed)


def states(settings: Settings, names: list) -> dict:
    return {check.name: check.state for check in checks.check_settings(settings, names, progress=False)}


@pytest.mark.slow
def test_own_losses_act_are_off_or_are_found_unused(monkeypatch):
    assert states(own_settings(), ['own_losses']) == {'own_losses': 'off'}
    with_own_losses(monkeypatch, lambda settings: settings.own_losses)
    both = ['own_losses', 'own_losses one', 'own_losses three']
    assert states(own_settings('one', 'three'), both) == dict.fromkeys(both, 'live')
    monkeypatch.undo()
    with_own_losses(monkeypatch, lambda settings: settings.own_losses[:1])
    assert states(own_settings('one', 'three'), both) == {both[0]: 'live', both[1]: 'live', both[2]: 'dead'}
    monkeypatch.undo()
    assert states(own_settings('one'), ['own_losses']) == {'own_losses': 'dead'}


# A setting that nothing reads: every reading of it is replaced by a constant, in the code itself

def readers() -> list[str]:
    "The modules that a training runs."
    packages = tuple(f'splade_nb.{package}.' for package in ('config', 'data', 'model', 'training'))
    return [name for name in sys.modules if name.startswith(packages) and not name.endswith('check_settings')]


# Settings that V28 switches off are tried in a version that uses them.
ELSEWHERE = {
    **dict.fromkeys(('gradient_cache', 'teacher_max_length', 'initial_filter'), ('v28', 'corrected', 'full')),
    **dict.fromkeys(('vocabulary_rows', 'initial_terms', 'counted_terms'), ('v28', 'corrected', 'small')),
    **dict.fromkeys(('temperature', 'lambda_infonce', 'lambda_kd'), ('splade_v2', 'corrected', 'mini')),
    'inference_free_query': ('v29', 'corrected', 'mini'),
    'margin': ('v22', 'corrected', 'mini'), 'special_penalty': ('v28', 'original', 'mini')}
PHASE_FIELDS = ('temperature', 'lambda_infonce', 'learning_rate_factor', 'lambda_kd', 'mix')
# No constant stands for a backbone, which is another folder in every check; tuples of names have a test above. No version has
# counted terms, so that their weight has a test in tests/test_counted_terms.py.
EXCEPT = 'phases', 'backbone', 'counted_weight', *checks.name_tuples(Settings())
NAMES = [field.name for field in fields(Settings) if field.name not in EXCEPT]


class Cut(ast.NodeTransformer):
    "Replaces every reading of settings, or of fields of a phase, by constants."
    def __init__(self, values: dict, of: str): self.values, self.of, self.found = values, of, set()

    def reads(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call): return self.of == 'phase' and getattr(node.func, 'id', '') == 'phase_at'
        return getattr(node, 'id', getattr(node, 'attr', '')) in ({'settings', 's'} if self.of == 'settings' else {'phase'})

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr not in self.values or not isinstance(node.ctx, ast.Load) or not self.reads(node.value): return node
        self.found.add(node.attr)
        return ast.copy_location(ast.Constant(self.values[node.attr]), node)


def functions(namespace: dict, module: str) -> dict:
    "name -> function, methods as Class.name, of what a module itself defines."
    found = {}
    for name, value in namespace.items():
        if getattr(value, '__module__', None) != module: continue
        parts = {f'{name}.{key}': part for key, part in vars(value).items()} if inspect.isclass(value) else {name: value}
        found.update({key: inspect.unwrap(part) for key, part in parts.items() if inspect.isfunction(part)})
    return found


@contextmanager
def cut(values: dict, of: str = 'settings'):
    "The package in which nothing reads these settings: the code of every function that does is swapped, and restored."
    swapped, found = [], set()
    for module in map(sys.modules.__getitem__, readers()):
        knife = Cut(values, of)
        tree = ast.fix_missing_locations(knife.visit(ast.parse(inspect.getsource(module))))
        found |= knife.found
        if not knife.found: continue
        scratch = {'__name__': module.__name__, '__package__': module.__package__, '__file__': module.__file__}
        exec(compile(tree, module.__file__, 'exec'), scratch)
        ours = functions(vars(module), module.__name__)
        for key, function in functions(scratch, module.__name__).items():
            if key not in ours or ours[key].__code__ == function.__code__: continue
            swapped.append((ours[key], ours[key].__code__))
            ours[key].__code__ = function.__code__
    assert found == set(values), f'no function reads {set(values) - found}'
    try: yield
    finally:
        for function, code in swapped: function.__code__ = code


def small_values(names: list, settings: Settings) -> dict:
    with tempfile.TemporaryDirectory() as folder: base = checks.small(settings, str(Path(folder)/'0'))
    return {name: getattr(base, name) for name in names}


def unread() -> list: # version, names cut together
    by_version = {}
    for name in NAMES: by_version.setdefault(ELSEWHERE.get(name, ('v28', 'corrected', 'mini')), []).append(name)
    return [pytest.param(version, names, id=' '.join(version)) for version, names in by_version.items()]


@pytest.fixture(autouse=True)
def analysed_once(monkeypatch):
    "Each check forgets the morphemes that it has analysed; those of the corpus are the same in all."
    monkeypatch.setattr(checks, 'remembered', nullcontext)


@pytest.fixture
def reproducible(monkeypatch):
    "That equal settings give equal results is tested with the versions, not a hundred times more."
    monkeypatch.setattr(checks, 'require_reproducible', lambda *arguments: None)


@pytest.mark.slow
@pytest.mark.parametrize('version, names', unread())
def test_a_setting_that_nothing_reads_is_found(version, names, reproducible):
    "Of all of them together; the check says so of the first."
    settings = resolve_quietly(*version)
    assert not set(names) & set(off(settings))
    with cut(small_values(names, settings)):
        assert seen_together(settings, names) == []
        assert states(settings, names[:1]) == dict.fromkeys(names[:1], 'dead')


@pytest.mark.slow
def test_a_field_of_a_phase_that_nothing_reads_is_found(reproducible):
    settings = resolve_quietly('v28')
    values = {name: getattr(settings.phases[0], name) for name in PHASE_FIELDS}
    with cut(values, of='phase'): found = states(settings, [f'phase 1 {name}' for name in PHASE_FIELDS])
    assert set(found.values()) == {'dead'}


@pytest.mark.slow
def test_a_phase_border_that_nothing_reads_is_found(monkeypatch, reproducible):
    settings, true, borders = resolve_quietly('v28'), curriculum.phase_of, curriculum.borders
    def deaf(epoch, given): # the phase of the borders as they were
        number = settings.phases.index(true(epoch, settings))
        return given.phases[number]
    monkeypatch.setattr(curriculum, 'phase_of', deaf)
    monkeypatch.setattr(curriculum, 'borders', lambda steps, given: borders(steps, settings))
    assert checks.check_settings(settings, ['phase 1 epochs'], progress=False)[0].state == 'dead'

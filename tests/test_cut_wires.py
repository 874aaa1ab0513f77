"""Wires that are cut in the code are found by name, every one."""
import ast, inspect, sys, tempfile
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
import pytest
from splade_nb.training import curriculum
from splade_nb.training import check_settings as checks
from splade_nb.config.settings import Settings, off
from splade_nb.config.versions import resolve_quietly

READERS = 'config curriculum idf lexical gate model start teacher losses checkpoints guard training data objective training'.split()
# Settings that V28 switches off are cut in a version that uses them.
ELSEWHERE = {'gradient_cache': ('v28', 'corrected', 'full'), 'teacher_max_length': ('v28', 'corrected', 'full'), 'teacher_normalise': ('v28', 'corrected', 'full'),
             'temperature': ('splade_v2', 'corrected', 'mini'), 'lambda_infonce': ('splade_v2', 'corrected', 'mini'), 'lambda_kd': ('splade_v2', 'corrected', 'mini'),
             **dict.fromkeys(('inference_free_query', 'hashed_bigrams', 'phonetic_keys', 'lead_boost', 'model1_threshold', 'bigram_query_weight', 'min_input_logit', 'idf_prior_documents', 'lambda_initialization'), ('splade_ko', 'corrected', 'mini')),
             'margin': ('v22', 'corrected', 'mini'), 'special_penalty': ('v28', 'seed', 'mini')}
PHASE_FIELDS = ('temperature', 'lambda_infonce', 'learning_rate_factor', 'lambda_kd', 'mix')
# A backbone is another folder in every check: no constant stands for it. Extra losses are cut in `test_own_loss`.
NAMES = [field.name for field in fields(Settings) if field.name not in ('phases', 'backbone', 'extra_losses')]


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
    "The package with wires cut: the code of every function that reads the settings is swapped, and put back."
    swapped, found = [], set()
    for module in (sys.modules[f'splade_nb.{reader}'] for reader in READERS):
        knife = Cut(values, of)
        tree = ast.fix_missing_locations(knife.visit(ast.parse(inspect.getsource(module))))
        found |= knife.found
        if not knife.found: continue
        scratch = {'__name__': module.__name__, '__package__': 'splade_nb', '__file__': module.__file__}
        exec(compile(tree, module.__file__, 'exec'), scratch)
        ours = functions(vars(module), module.__name__)
        for key, function in functions(scratch, module.__name__).items():
            if key in ours and ours[key].__code__ != function.__code__: swapped.append((ours[key], ours[key].__code__)); ours[key].__code__ = function.__code__
    assert found == set(values), f'no function reads {set(values) - found}'
    try: yield
    finally:
        for function, code in swapped: function.__code__ = code


def small_values(names: list, settings: Settings) -> dict:
    with tempfile.TemporaryDirectory() as folder: base = checks.small(settings, str(Path(folder)/'0'))
    return {name: getattr(base, name) for name in names}


def states(settings: Settings, names: list) -> dict: return {check.name: check.state for check in checks.check_settings(settings, names, progress=False)}


def batches() -> list: # (version, names cut together)
    by_version = {}
    for name in NAMES: by_version.setdefault(ELSEWHERE.get(name, ('v28', 'corrected', 'mini')), []).append(name)
    slow = lambda names: [pytest.mark.slow] * (len(names) > 20)
    return [pytest.param(version, names[first:first + 20], id=f'{version[0]} {version[1]} {version[2]} {names[first]}', marks=slow(names))
            for version, names in by_version.items() for first in range(0, len(names), 20)]


@pytest.fixture(autouse=True)
def steady_already(monkeypatch):
    "That equal settings give equal results is tested with the versions, not a hundred times more."
    monkeypatch.setattr(checks, 'require_steady', lambda *given: None)


@pytest.mark.parametrize('version, names', batches())
def test_cut_wires_are_found(version, names):
    settings = resolve_quietly(*version)
    assert not set(names) & set(off(settings))
    with cut(small_values(names, settings)): assert states(settings, names) == dict.fromkeys(names, 'dead')


def test_cut_wires_of_a_phase_are_found():
    settings = resolve_quietly('v28')
    with cut({name: getattr(settings.phases[0], name) for name in PHASE_FIELDS}, of='phase'): found = states(settings, [f'phase 1 {name}' for name in PHASE_FIELDS])
    assert set(found.values()) == {'dead'}


def test_a_phase_border_that_nothing_reads_is_found(monkeypatch):
    settings, true = resolve_quietly('v28'), curriculum.phase_of
    def deaf(epoch, given): # the phase of the borders as they were
        number = settings.phases.index(true(epoch, settings))
        return given.phases[number]
    monkeypatch.setattr(curriculum, 'phase_of', deaf)
    assert checks.check_settings(settings, ['phase 1 epochs'], progress=False)[0].state == 'dead'

"""A wire that is cut in the code, one after the other, is found by name."""
import ast, inspect, sys, tempfile
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
import pytest
from splade_nb import curriculum, wires
from splade_nb.config import Settings, off, resolve_quietly

READERS = 'config curriculum idf lexical gate model start teacher losses checkpoints guard material objective training'.split()
# Settings that V28 switches off are cut in a version that uses them.
ELSEWHERE = {'gradient_cache': ('v28', 'corrected', 'full'), 'backbone': ('v28', 'corrected', 'full'), 'teacher_max_length': ('v28', 'corrected', 'full'), 'teacher_normalise': ('v28', 'corrected', 'full'),
             'temperature': ('splade_v2', 'corrected', 'mini'), 'lambda_infonce': ('splade_v2', 'corrected', 'mini'), 'lambda_kd': ('splade_v2', 'corrected', 'mini'),
             **dict.fromkeys(('query_table', 'pair_columns', 'sounds', 'lead', 'pair_share', 'own_floor', 'index_share', 'lambda_pull'), ('splade_ko', 'corrected', 'mini')),
             'margin': ('v22', 'corrected', 'mini'), 'special_penalty': ('v28', 'seed', 'mini')}
PHASE_FIELDS = ('temperature', 'lambda_infonce', 'learning_rate_factor', 'lambda_kd', 'mix')
NAMES = [field.name for field in fields(Settings) if field.name != 'phases']


class Cut(ast.NodeTransformer):
    "Replaces every reading of a setting, or of a field of a phase, by a constant."
    def __init__(self, name: str, value, of: str): self.name, self.value, self.of, self.found = name, value, of, 0

    def reads(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call): return self.of == 'phase' and getattr(node.func, 'id', '') == 'phase_at'
        return getattr(node, 'id', getattr(node, 'attr', '')) in ({'settings', 's'} if self.of == 'settings' else {'phase'})

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr != self.name or not isinstance(node.ctx, ast.Load) or not self.reads(node.value): return node
        self.found += 1
        return ast.copy_location(ast.Constant(self.value), node)


def functions(namespace: dict, module: str) -> dict:
    "name -> function, methods as Class.name, of what a module itself defines."
    found = {}
    for name, value in namespace.items():
        if getattr(value, '__module__', None) != module: continue
        parts = {f'{name}.{key}': part for key, part in vars(value).items()} if inspect.isclass(value) else {name: value}
        found.update({key: inspect.unwrap(part) for key, part in parts.items() if inspect.isfunction(part)})
    return found


@contextmanager
def cut(name: str, value, of: str = 'settings'):
    "The package with one wire cut: the code of every function that reads the setting is swapped, and put back."
    swapped, total = [], 0
    for module in (sys.modules[f'splade_nb.{reader}'] for reader in READERS):
        knife = Cut(name, value, of)
        tree = ast.fix_missing_locations(knife.visit(ast.parse(inspect.getsource(module))))
        if not knife.found: continue
        scratch = {'__name__': module.__name__, '__package__': 'splade_nb', '__file__': module.__file__}
        exec(compile(tree, module.__file__, 'exec'), scratch)
        ours = functions(vars(module), module.__name__)
        for key, function in functions(scratch, module.__name__).items():
            if key in ours and ours[key].__code__ != function.__code__: swapped.append((ours[key], ours[key].__code__)); ours[key].__code__ = function.__code__
        total += knife.found
    assert total, f'no function reads {name}'
    try: yield
    finally:
        for function, code in swapped: function.__code__ = code


def small_value(name: str, settings: Settings):
    with tempfile.TemporaryDirectory() as folder:
        base = wires.small(settings, str(Path(folder)/'0'))
        return getattr(base, name)


@pytest.fixture(autouse=True)
def steady_already(monkeypatch):
    "That equal settings give equal results is tested with the versions, not a hundred times more."
    monkeypatch.setattr(wires, 'require_steady', lambda *given: None)


@pytest.mark.parametrize('name', NAMES)
def test_a_cut_wire_is_found(name):
    settings = resolve_quietly(*ELSEWHERE.get(name, ('v28', 'corrected', 'mini')))
    assert name not in off(settings)
    if name == 'backbone' or name == 'teacher' and settings.teacher != 'lsa': pytest.skip('a folder of its own in every check')
    with cut(name, small_value(name, settings)): found = wires.check_wires(settings, [name], progress=False)
    assert [wire.state for wire in found] == ['dead']


@pytest.mark.parametrize('name', PHASE_FIELDS)
def test_a_cut_wire_of_a_phase_is_found(name):
    settings = resolve_quietly('v28')
    with cut(name, getattr(settings.phases[0], name), of='phase'): found = wires.check_wires(settings, [f'phase 1 {name}'], progress=False)
    assert [wire.state for wire in found] == ['dead']


def test_a_phase_border_that_nothing_reads_is_found(monkeypatch):
    settings, true = resolve_quietly('v28'), curriculum.phase_of
    def deaf(epoch, given): # the phase of the borders as they were
        number = settings.phases.index(true(epoch, settings))
        return given.phases[number]
    monkeypatch.setattr(curriculum, 'phase_of', deaf)
    assert wires.check_wires(settings, ['phase 1 epochs'], progress=False)[0].state == 'dead'

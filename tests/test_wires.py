"""Every declared setting acts, and a wire that is cut in the code is found by name."""
import ast, inspect, sys, tempfile
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
import pytest
from splade_nb import curriculum, wires
from splade_nb.config import VERSIONS, Settings, off, resolve_quietly

READERS = 'config curriculum idf lexical gate model start teacher losses material objective training'.split()
# Settings that V28 switches off are cut in a version that uses them.
ELSEWHERE = {'backbone': ('v28', 'corrected', 'full'), 'teacher_max_length': ('v28', 'corrected', 'full'), 'teacher_normalise': ('v28', 'corrected', 'full'),
             'temperature': ('splade_v2', 'corrected', 'mini'), 'lambda_infonce': ('splade_v2', 'corrected', 'mini'), 'lambda_kd': ('splade_v2', 'corrected', 'mini'),
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


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.parametrize('recipe', ('seed', 'corrected'))
def test_every_setting_of_every_version_acts(version, recipe):
    settings = resolve_quietly(version, recipe, 'mini')
    found = wires.check_wires(settings, progress=False)
    assert [wire.name for wire in found if wire.state == 'dead'] == []
    assert {wire.name for wire in found if wire.state == 'off'} == set(off(settings))


@pytest.mark.parametrize('version', ('v22', 'v28'))
def test_every_setting_acts_at_full_scale(version):
    "Backbone and teacher are read from folders, by the code that reads hub names."
    found = wires.check_wires(resolve_quietly(version, 'corrected', 'full'), progress=False)
    assert [wire.name for wire in found if wire.state == 'dead'] == []


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


def test_what_is_off_changes_nothing():
    "The reasons are true: a setting that is listed as off does not act."
    for arguments in (('v22', 'seed', 'mini'), ('v28', 'corrected', 'mini'), ('splade_v2', 'corrected', 'mini')):
        settings = resolve_quietly(*arguments)
        with tempfile.TemporaryDirectory() as folder, wires.quiet():
            corpus = wires.wired_corpus()
            texts = [*corpus.texts.values(), *(query.text for query in corpus.queries.values())]
            first, second = (wires.tiny_checkpoint(Path(folder)/str(seed), texts, seed) for seed in (0, 1))
            looks, pairs = wires.Looks(corpus, Path(folder)/'cache'), wires.wires_of(wires.small(settings, first), second)
            acting = {name: wires.difference(looks, *pairs[name][1:]) for name in off(settings)}
        assert {name: seen for name, seen in acting.items() if seen} == {}


def test_a_run_with_a_dead_setting_ends_by_name(monkeypatch):
    monkeypatch.setattr(wires, 'checked', lambda settings: (wires.Wire('lambda_flops', 0.003, 'dead'), wires.Wire('top_k', 5, 'live', 'loss')))
    with pytest.raises(wires.DeadWire, match='lambda_flops'): wires.require_wires(resolve_quietly('v28'))


@pytest.mark.parametrize('state, code', (('live', 0), ('dead', 1)))
def test_the_command_line_says_so(monkeypatch, capsys, state, code):
    from splade_nb import run
    monkeypatch.setattr(run, 'check_wires', lambda settings: [wires.Wire('top_k', settings.top_k, state)])
    assert run.main(['train', 'v28', '--check-wires', '--set', 'top_k=7', 'scale=mini']) == code
    assert capsys.readouterr().out.startswith(f'{state}  top_k = 7')

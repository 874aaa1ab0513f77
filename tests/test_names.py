"""The page of the designs' names: what a row points to is there, and no name of the designs is missing."""
import ast, functools, importlib, re
from fnmatch import fnmatch
from pathlib import Path
import pytest
from conftest import ROOT, real, read, text, tracked

PAGE = ROOT/'docs'/'names.md'
LINK = re.compile(r'\[[^\]]+\]\(([^)#\s]+)\)(?:, cells? ((?:`[\w-]+`(?:, )?)+))?')
CODE = re.compile(r'`([^`]+)`')


def rows(page: str) -> list:  # (names in the designs, names here, [(file, its cells)]) of each row
    lines = [line.strip('| ').split(' | ') for line in page.splitlines() if line.startswith('| `')]
    def places(where): return [(file, CODE.findall(cells)) for file, cells in LINK.findall(where)]
    return [(CODE.findall(names), CODE.findall(here), places(where)) for names, here, where in lines]


ROWS = rows(PAGE.read_text(encoding='utf-8'))
LISTED = {name for names, *_ in ROWS for name in names}


# What a row points to

def parts_of(kind: ast.ClassDef) -> set:
    "Methods, fields, and what they set on `self`."
    stored = [node for node in ast.walk(kind) if isinstance(getattr(node, 'ctx', None), ast.Store)]
    fields = {node.id for node in stored if isinstance(node, ast.Name)}
    fields |= {node.attr for node in stored if isinstance(node, ast.Attribute)}
    return fields | {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}


def defined(code: str) -> set:
    "What code defines: functions, classes with `Class.part`, arguments, variables, strings that are no docstrings."
    nodes, found = list(ast.walk(ast.parse(re.sub(r'^#\|.*', '', code, flags=re.M)))), set()
    described = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module))]
    docstrings = {node.body[0].value for node in described if ast.get_docstring(node)}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)): found.add(node.name)
        elif isinstance(node, (ast.arg, ast.keyword)): found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store): found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            found |= {node.value, *node.value.split()}
        if isinstance(node, ast.ClassDef): found |= {f'{node.name}.{part}' for part in parts_of(node)}
    return found


def holds(path: Path, cells: list) -> tuple:  # what the file or the cells define, cells that it lacks
    said = path.read_text(encoding='utf-8')
    if path.suffix == '.py': return defined(said), []
    if path.suffix != '.ipynb': return set(re.findall(r'[\w.]+', said)), []
    sources = {cell['id']: cell for cell in read(path)['cells']}
    code = [text(sources[cell]) for cell in cells if sources.get(cell, {}).get('cell_type') == 'code']
    return set().union(*map(defined, code)), [cell for cell in cells if cell not in sources]


def is_target(name: str) -> bool:
    "Whether a rule of the Makefile makes it; % stands for any version."
    rules = re.findall(r'^([a-z][a-z% -]*):', (ROOT/'Makefile').read_text(encoding='utf-8'), re.M)
    return any(fnmatch(name, rule.replace('%', '*')) for line in rules for rule in line.split())


def is_there(name: str, known: set) -> bool:
    if name.startswith('make '): return is_target(name.removeprefix('make '))
    module = name.removeprefix('python -m ')
    if module != name: return (ROOT/module.replace('.', '/')/'__main__.py').is_file()
    return (ROOT/name).is_file() if name.startswith('splade_nb/') else name in known


def missing(here: list, places: list) -> list:  # names here, [(file, its cells)]
    "What a row points to and is not there."
    lost, known = [], set()
    for file, cells in places:
        path = PAGE.parent/file
        if not path.is_file(): lost.append(file); continue
        found, lacking = holds(path, cells)
        known |= found
        lost += [f'{file}#{cell}' for cell in lacking]
    return lost + [name for name in here if not is_there(name, known)]


@pytest.mark.parametrize('names, here, places', ROWS, ids=[names[0] for names, *_ in ROWS])
def test_what_a_row_points_to_is_there(names, here, places):
    assert places and missing(here, places) == []


def test_a_row_that_points_nowhere_fails():
    losses = '../nbs/3_training/01_losses.ipynb'
    assert missing(['flops', 'no_flops'], [(losses, ['flops', 'no-cell'])]) == [f'{losses}#no-cell', 'no_flops']
    assert missing(['make train-v28', 'make nothing'], [('nothing.md', [])]) == ['nothing.md', 'make nothing']
    assert missing(['python -m nothing', 'splade_nb/nothing.py'], []) == ['python -m nothing', 'splade_nb/nothing.py']


# What looks like a name in the designs

PATTERNS = {  # what it finds: (kind of fenced block, or nothing for the whole document; expression)
    'classes and functions as they are defined': ('', r'^\s*(?:class|def) (\w+)'),
    'parts of a class': ('', r'self\.(\w+) = '),
    'methods of a model': ('python', r'\bmodel\.(\w+)\('),
    'classes that are only named': ('', r'\b(SPLADE[A-Z]\w+|\w+Collator)\b'),
    'modules': ('', r'from (src[\w.]+)'),
    'modules that are run': ('', r'(python -m [\w.]+)'),
    'targets of make': ('bash', r'^(make [\w-]+)'),
    'options': ('bash', r' (--[a-z-]+)'),
    'files': ('', r'([\w./*-]*\w\.(?:py|sh|yaml|jsonl?|pt|md|log)|[\w./]+/\*\.\w+)\b'),
    'entries of a folder': ('', r'[├└]── (\S+)'),
    'folders of a run': ('', r'^(outputs/\w+)/$'),
    'keys of a settings file': ('yaml', r'^[ -]*(\w+):'),
    'keys of a line of data': ('json', r'"(\w+)":'),
    'keys of a dictionary': ('python', r'^[^#\n]*?"([a-z_]+)":'),
    'settings in a table': ('', r'^\| `(\w+)` \|'),
    'curves': ('', r'`((?:train|val)/\w+)`'),
    'metrics': ('', r'\b((?:NDCG|Recall)@\d+)'),
    'losses': ('', r'^## \d+\. (.+ (?:Loss|Distillation)\b)'),
    'versions': ('', r'\b(V2\d[ab]?)\b')}
LEFT_OUT = {  # name: why
    '__init__': "Python's", '__len__': "Python's", '__getitem__': "Python's",
    'eval': "torch's", 'half': "torch's", 'input_ids': "transformers'", 'attention_mask': "transformers'"}


def plain(name: str) -> str: return name.removeprefix('./').rstrip('/').removeprefix('outputs/train_v22/')


def named(design: str) -> set:
    "What the expressions find in a design."
    found = set()
    for kind, expression in PATTERNS.values():
        parts = re.findall(rf'^```{kind}\n(.*?)^```', design, re.M | re.S) if kind else [design]
        found |= {plain(name) for part in parts for name in re.findall(expression, part, re.M)}
    return found


DESIGNS = '1-architecture', '2-losses', '3-operation', '4-training-guide', '5-multi-head-pooling'


def design(name: str) -> str: return real(f'seeds/{name}.md').read_text(encoding='utf-8')


@pytest.mark.parametrize('name', DESIGNS)
def test_each_name_of_a_design_is_on_the_page(name):
    found = named(design(name))
    assert len(found) > 3 and sorted(found - LISTED - LEFT_OUT.keys()) == []


def test_the_page_names_nothing_else():
    "Every name of the first column stands in a design, and so does what is left out, which no row has."
    said = [design(name) for name in DESIGNS]
    assert [name for name in sorted(LISTED) if not any(name in one for one in said)] == []
    assert LEFT_OUT.keys() <= set().union(*map(named, said)) - LISTED


def test_the_expressions_find_names():
    made = ('class SPLADEOne:\n  def two(self):\n`src/three.py`\n├── four/\n| `five` | 1 |\n## 1. Six Loss\n'
            '```bash\nmake seven-v22\n```\n```yaml\n- eight: 1\n```\n')
    assert named(made) == {'SPLADEOne', 'two', 'src/three.py', 'four', 'five', 'Six Loss', 'make seven-v22', 'eight'}


# What pages, notebooks and cards call by its whole name

def resolves(name: str) -> bool:
    "Whether a module, or something in one, has this dotted name."
    for place in range(name.count('.') + 1, 0, -1):
        parts = name.split('.')
        try: found = importlib.import_module('.'.join(parts[:place]))
        except ImportError: continue
        try: return functools.reduce(getattr, parts[place:], found) is not None
        except AttributeError: return False
    return False


def test_what_is_called_by_its_whole_name_is_there():
    "In all that is written but the changelog, which tells of what went."
    pages = [path for kind in ('**/*.md', '**/*.ipynb', '**/*.py') for path in tracked(kind) if path.name != 'CHANGELOG.md' and 'tests' not in path.parts]
    named = {name for path in pages for name in re.findall(r'\b(splade_nb(?:[.]\w+)+)', path.read_text(encoding='utf-8'))}
    assert len(named) > 20 and [name for name in sorted(named) if not resolves(name)] == []
    assert resolves("splade_nb.model.encode") and not resolves('splade_nb.evaluation.retrieval.indexed')

"""The project's rules: notebooks and package in step, imports in one direction, notebooks of one form, commands that exist."""
import ast, importlib, json, os, re, shutil, statistics, subprocess, sys, tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
import faults
import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from conftest import MODULES, NOTEBOOKS, ROOT, name, read, text, tracked
from test_outputs import shown

# A package imports only packages before it, a module only modules before it in its package: the order of the notebooks.
PACKAGES = ('config', 'data', 'model', 'training', 'evaluation', 'hub', 'serving', 'experiment', 'cli', 'api', 'lab')
OUTSIDE = {'config.settings': 'yaml', 'config.versions': '', 'training.losses': 'torch',
           'evaluation.metrics': 'numpy pandas scipy pytrec_eval'}  # modules that need little else
FLAGS = {'slow', 'cuda', 'net'}
DIRECTIVES = FLAGS | {'default_exp', 'export', 'exports', 'exporti', 'hide', 'hide_line', 'eval:'}
PROGRAMS = Path(sys.executable).parent  # of the environment that runs the tests


def program(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    "Run a program in a folder as a person would; its own tests do not set nbdev's test flag."
    environment = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)


def project(folder: Path, *notebooks: Path) -> Path:
    "An nbdev project in `folder` with our settings and these notebooks."
    (folder/'splade_nb').mkdir()
    for source in (ROOT/'settings.ini', *notebooks):
        target = folder/source.relative_to(ROOT); target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return folder


def code_cells(notebook: Path) -> list[dict]: return [c for c in read(notebook)['cells'] if c['cell_type'] == 'code']


def directives(cell: dict) -> list[str]: return re.findall(r'^#\|\s*(\S+)', text(cell), re.M)


def parse(cell: dict) -> ast.Module: return ast.parse(re.sub(r'^\s*[%!].*$', '', text(cell), flags=re.M))


def default_export(notebook: Path) -> str | None:
    found = re.search(r'^#\|\s*default_exp\s+(\S+)', '\n'.join(map(text, code_cells(notebook))), re.M)
    return found[1] if found else None


def dotted(path: Path) -> str: return '.'.join(path.relative_to(ROOT/'splade_nb').with_suffix('').parts)


@lru_cache(None)
def modules() -> list[str]:
    "Every exported module: `model.head`. Written by hand: `__init__` and `__main__`."
    return sorted(dotted(p) for p in MODULES if p.name[0] != '_')


def order() -> dict[str, tuple]:
    "Where each module stands: by its package, then by the number of its notebook."
    places = {default_export(n): n.relative_to(ROOT/'nbs').as_posix() for n in NOTEBOOKS}
    return {module: (PACKAGES.index(module.split('.')[0]), places[module]) for module in modules()}


PARAMETERISED = ('train', 'pretrain', 'compare', 'evaluate', 'evaluate_full')  # what papermill runs
STUDIES = sorted(f'studies/{path.stem}' for path in NOTEBOOKS if path.parent.name == 'studies')  # and these, with their outputs


def parameters(notebook: str = 'train') -> dict:
    from papermill import inspect_notebook
    return inspect_notebook(str(ROOT/f'nbs/{notebook}.ipynb'))


def targets() -> set[str]: return set(re.findall(r'^([a-z][a-z-]*):', (ROOT/'Makefile').read_text(), re.M))


def commands(document: str) -> str:
    "The code of a Markdown document: fenced blocks and words in backticks."
    source = (ROOT/document).read_text(encoding='utf-8')
    return '\n'.join(re.findall(r'^```\w*\n(.*?)^```', source, re.M | re.S) + re.findall(r'(?<!`)`([^`\n]+)`(?!`)', source))


# The package is what the notebooks say

def test_each_module_has_its_notebook():
    assert sorted(filter(None, map(default_export, NOTEBOOKS))) == modules()


def test_export_gives_the_package(tmp_path):
    project(tmp_path, *NOTEBOOKS)
    done = program(str(PROGRAMS/'nbdev_export'), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    def contents(folder):
        exported = [p for p in (folder/'splade_nb').rglob('*.py') if p.name[0] != '_' or p.name == '_modidx.py']
        return {p.relative_to(folder).as_posix(): p.read_text(encoding='utf-8') for p in exported}
    made, kept = contents(tmp_path), contents(ROOT)
    assert made.keys() == kept.keys()
    assert [m for m in made if made[m] != kept[m]] == [], 'run nbdev_export'


def imported(module: str) -> set[str]:
    "Dotted names of everything that a module imports, also inside functions; ours begin with splade_nb."
    found, package = set(), ['splade_nb', *module.split('.')[:-1]]
    for node in ast.walk(ast.parse((ROOT/'splade_nb').joinpath(*module.split('.')).with_suffix('.py').read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join([*package[:len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else node.module
            found |= {f'{base}.{alias.name}' if f'{base}.{alias.name}'.removeprefix('splade_nb.') in modules() else base for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[-1] in ('import_module', '__import__'):
            found |= {a.value.lstrip('.') for a in node.args[:1] if isinstance(a, ast.Constant)}
    return found


@pytest.mark.parametrize('module', modules())
def test_a_module_imports_only_what_stands_before_it(module):
    places, found = order(), imported(module)
    ours = {f.removeprefix('splade_nb.') for f in found if f.split('.')[0] == 'splade_nb' and f != 'splade_nb'}
    assert ours <= places.keys(), f'{module} imports a package, not a module'
    assert [other for other in sorted(ours) if places[other] >= places[module]] == []
    others = {f.split('.')[0] for f in found} - set(sys.stdlib_module_names) - {'splade_nb'}
    assert not others & {'nbdev', 'fastcore', 'execnb'}
    if module in OUTSIDE: assert others <= set(OUTSIDE[module].split())


def is_there(module: str, name: str) -> bool:
    "Whether a module of the package has a name, or a package a module."
    return hasattr(importlib.import_module(module), name) or f'{module}.{name}'.removeprefix('splade_nb.') in modules()


def python_of(path: Path) -> list[str]:
    "The Python of a file: itself, a notebook's cells, a document's blocks."
    if path.suffix == '.ipynb': return [re.sub(r'^\s*[%!].*$', '', text(cell), flags=re.M) for cell in code_cells(path)]
    said = path.read_text(encoding='utf-8')
    return [said] if path.suffix == '.py' else re.findall(r'^```python\n(.*?)^```', said, re.M | re.S)


def test_what_a_module_lacks_is_found():
    assert is_there('splade_nb.serving.web', 'bounded') and is_there('splade_nb.serving', 'web') and is_there('splade_nb', 'load')
    assert not is_there('splade_nb.serving.web', 'main') and not is_there('splade_nb.serving', 'nothing')


def test_what_notebooks_scripts_and_documents_import_is_there():
    "Also where no test runs the code: a page that names what was removed fails here."
    missing, seen = [], 0
    for path in (p for p in tracked() if p.suffix in ('.py', '.ipynb', '.md') and p not in MODULES):
        nodes, imported = [node for code in python_of(path) for node in ast.walk(ast.parse(code))], {}  # short name -> module
        for node in nodes:
            if not isinstance(node, ast.ImportFrom) or node.level or node.module.split('.')[0] != 'splade_nb': continue
            for alias in node.names:
                seen += 1
                if not is_there(node.module, alias.name): missing.append((path.name, f'{node.module}.{alias.name}'))
                elif f'{node.module}.{alias.name}'.removeprefix('splade_nb.') in modules():
                    imported[alias.asname or alias.name] = f'{node.module}.{alias.name}'
        for node in nodes:
            if not isinstance(node, ast.Attribute) or getattr(node.value, 'id', '') not in imported: continue
            seen += 1
            if not is_there(imported[node.value.id], node.attr): missing.append((path.name, f'{imported[node.value.id]}.{node.attr}'))
    assert not missing and seen > 1000, (seen, missing)


@pytest.mark.slow
def test_import_loads_neither_the_tools_of_development_nor_torchs_compiler():
    "The package does without the first; the second takes as long to import as torch itself."
    script = ('import importlib, sys, splade_nb.cli\n'
              'assert "torch._dynamo" not in sys.modules\n'
              f'for name in {modules()!r}: importlib.import_module(f"splade_nb.{{name}}")\n'
              'print(sorted({"nbdev", "fastcore", "execnb"} & set(sys.modules)))')
    done = program(sys.executable, '-c', script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == '[]'


# Every notebook keeps the habits

each_notebook = pytest.mark.parametrize('notebook', NOTEBOOKS, ids=name)


@each_notebook
def test_title_and_one_line(notebook):
    first = next(text(c) for c in read(notebook)['cells'] if c['cell_type'] != 'raw')
    found = re.match(r'# \S.*\n\n> (.+)', first)
    assert found, f'the first cell is {first!r}'
    assert len(found[1].split()) <= 12


@each_notebook
def test_export_cells_are_small(notebook):
    sizes = {c['id']: sum(bool(line.strip()) and not line.startswith('#|') for line in text(c).splitlines())
             for c in code_cells(notebook) if {'export', 'exports', 'exporti'} & set(directives(c))}
    if not sizes: return
    long = {k: v for k, v in sizes.items() if v > 20}
    assert max(sizes.values()) <= 40, f'long cells: {long} of {len(sizes)}'
    assert statistics.median(sizes.values()) <= 8, f'median {statistics.median(sizes.values())}'
    assert len(long) <= len(sizes)/10, f'long cells: {long} of {len(sizes)}'


@each_notebook
def test_definitions_are_shown_in_use(notebook):
    "At most four export cells stand one after another without a cell that shows what they give."
    shown = ''.join('x' if 'export' in directives(cell) else ' ' for cell in code_cells(notebook))
    assert max(map(len, shown.split()), default=0) <= 4


def test_exported_lines_are_short():
    "At most 1 % of the library's lines exceed 120 characters."
    lines = [line for notebook in NOTEBOOKS for cell in code_cells(notebook) if 'export' in directives(cell)
             for line in text(cell).splitlines() if line.strip()]
    long = [line for line in lines if len(line) > 120]
    assert len(long) <= len(lines)/100, long[:3]


@each_notebook
def test_ids_speak(notebook):
    ids = [c.get('id', '') for c in read(notebook)['cells']]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    assert [i for i in ids if not re.fullmatch('[a-z][a-z0-9_-]*', i) or re.fullmatch('[0-9a-f]{8}', i)] == []


@each_notebook
def test_a_notebook_stays_small(notebook):
    assert len(read(notebook)['cells']) <= 120
    assert notebook.stat().st_size <= 200_000


@each_notebook
def test_imports_are_explicit_and_alone(notebook):
    for cell in code_cells(notebook):
        body = parse(cell).body
        imports = [s for s in body if isinstance(s, (ast.Import, ast.ImportFrom))]
        assert not any(a.name == '*' for s in imports for a in s.names), f'star import in {cell["id"]}'
        assert len(imports) in (0, len(body)), f'{cell["id"]} mixes imports with other code'


@each_notebook
def test_directives_are_known(notebook):
    unknown = {(c['id'], d) for c in code_cells(notebook) for d in directives(c) if d not in DIRECTIVES}
    assert not unknown, 'nbdev ignores a directive that it does not know'


@each_notebook
def test_no_cell_needs_a_flagged_one(notebook):
    def names(cell, context): return {n.id for n in ast.walk(parse(cell)) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    def defined(cell):
        return names(cell, ast.Store) | {s.name for s in parse(cell).body if hasattr(s, 'name')} | {
            (a.asname or a.name).split('.')[0] for s in parse(cell).body if isinstance(s, (ast.Import, ast.ImportFrom)) for a in s.names}
    known = set()
    flagged_only = set()
    for cell in code_cells(notebook):
        if FLAGS & set(directives(cell)): flagged_only |= defined(cell) - known
        else:
            known |= defined(cell); flagged_only -= known
            assert not names(cell, ast.Load) & flagged_only, cell['id']


@each_notebook
def test_outputs_hold_no_progress_and_no_network(notebook):
    said = [(cell['id'], ''.join(output['text'])) for cell in code_cells(notebook)
            for output in cell['outputs'] if output.get('name') == 'stderr']
    assert [id for id, words in said if '%|' in words or 'Retrying in' in words or not words.strip()] == []


@each_notebook
def test_kernel_and_language(notebook):
    kernel = read(notebook)['metadata']['kernelspec']
    assert (kernel['name'], kernel['language']) == ('python3', 'python')


# The training notebook

@pytest.mark.parametrize('notebook', PARAMETERISED)
def test_a_notebook_of_runs_is_committed_without_outputs(notebook):
    assert [c['id'] for c in code_cells(ROOT/f'nbs/{notebook}.ipynb') if c['outputs']] == []


def test_parameters_survive_cleaning(tmp_path):
    train = project(tmp_path, ROOT/'nbs/train.ipynb')/'nbs/train.ipynb'
    done = program(str(PROGRAMS/'nbdev_clean'), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert train.read_bytes() == (ROOT/'nbs/train.ipynb').read_bytes()
    assert [c['id'] for c in read(train)['cells'] if 'parameters' in c['metadata'].get('tags', [])] == ['parameters']


def test_nbdev_test_leaves_training_alone(tmp_path):
    train = project(tmp_path, ROOT/'nbs/train.ipynb')/'nbs/train.ipynb'
    trace = dict(cell_type='code', id='trace', metadata={}, outputs=[], execution_count=None, source="open('ran', 'w').close()")
    notebook = read(train)
    for cells, ran in ((notebook['cells'][:1] + [trace], False), ([trace], True)):
        train.write_text(json.dumps(dict(notebook, cells=cells)), encoding='utf-8')
        done = program(str(PROGRAMS/'nbdev_test'), '--n_workers', '0', folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path/'nbs/ran').exists() == ran


@pytest.mark.parametrize('notebook', [*PARAMETERISED, *STUDIES])
def test_parameters_are_a_manual(notebook):
    assert [p for p, said in parameters(notebook).items() if not said['help'] or said['inferred_type_name'] == 'None'] == []


@pytest.mark.parametrize('notebook', PARAMETERISED)
def test_the_report_of_a_notebook_is_a_valid_notebook(notebook, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT/'docs')
    report, ran = importlib.import_module('report_html'), nbformat.read(ROOT/f'nbs/{notebook}.ipynb', as_version=4)
    code = [cell for cell in ran.cells if cell.cell_type == 'code' and 'show-input' not in cell.metadata.get('tags', [])]
    for cell in code[::2]: cell.outputs = [nbformat.v4.new_output('stream', text='1')]
    nbformat.write(ran, tmp_path/'ran.ipynb')
    shown = report.read(tmp_path/'ran.ipynb', '')
    nbformat.validate(shown)
    assert {cell.id for cell in shown.cells if 'hide-input' in cell.metadata.tags} == {cell.id for cell in code[::2]}, 'the others would be gaps'


@pytest.mark.parametrize('notebook', STUDIES)
def test_a_study_reads_what_is_kept(notebook):
    "As committed it measures nothing, and every cell that shows something has its output."
    cells = code_cells(ROOT/f'nbs/{notebook}.ipynb')
    known = parameters(notebook)
    assert known['measure']['default'] == 'False' and known['results']['default'] == "''"
    shown = {kind for cell in cells for output in cell['outputs'] for kind in output.get('data', {})}
    assert shown & {'text/markdown', 'text/html'} and shown & {'image/png', 'image/svg+xml'}
    assert not [c['id'] for c in cells for output in c['outputs'] if output['output_type'] in ('stream', 'error')]


def test_reports_need_no_formula():
    for notebook in PARAMETERISED:
        cells = read(ROOT/f'nbs/{notebook}.ipynb')['cells']
        assert [c['id'] for c in cells if c['cell_type'] == 'markdown' and re.search(r'\$[^$]+\$', text(c))] == []


# What people type and read

DOCUMENTS = ['README.md', 'README.ko.md', 'CONTRIBUTING.md', 'CHANGELOG.md', *(f'docs/{name}.md' for name in (
    'commands', 'commands_ko', 'data', 'data_ko', 'rent_a_gpu', 'results', 'results_ko', 'versions', 'versions_ko', 'walks'))]


@pytest.mark.parametrize('document', DOCUMENTS)
def test_commands_that_are_named_exist(document):
    said = commands(document)
    patterns = re.findall(r'^([a-z][a-z% -]*%[a-z% -]*):', (ROOT/'Makefile').read_text(), re.M)
    known = [*targets(), *(pattern.replace('%', '*') for line in patterns for pattern in line.split())]
    assert [each for each in re.findall(r'\bmake ([a-z][a-z0-9-]*)', said) if not any(fnmatch(each, one) for one in known)] == []
    runnable = {dotted(path.parent if path.stem == '__main__' else path) for path in MODULES}
    assert {name.rstrip('.') for name in re.findall(r'python3? -m splade_nb\.([\w.]+)', said)} <= runnable
    for command in re.findall(r'papermill .*(?:\\\n.*)*', said):
        named = re.search(r'nbs/([\w/]+)\.ipynb', command)
        assert set(re.findall(r'-[rp] (\w+)', command)) <= parameters(named[1] if named else 'train').keys(), command
    assert [p for p in re.findall(r'\bnbs/[\w/]+\.ipynb', said) if not (ROOT/p).exists()] == []


@pytest.mark.parametrize('document', DOCUMENTS)
def test_links_lead_somewhere(document):
    links = re.findall(r'\]\((?![a-z]+:|#)([^)#\s]+)', (ROOT/document).read_text(encoding='utf-8'))
    assert [link for link in links if not ((ROOT/document).parent/link).exists()] == []


STEP = re.compile(r'\]\((?:\.\./)?(nbs/[\w/]+\.ipynb)\)(.*?)(?=\]\(|\|?$)')  # a notebook, and what is said of it


@pytest.mark.parametrize('document', ['docs/walks.md', 'CONTRIBUTING.md'])
def test_each_step_of_a_walk_is_there(document):
    steps = 0
    for line in (ROOT/document).read_text(encoding='utf-8').splitlines():
        for notebook, said in STEP.findall(line):
            cells = {cell['id']: text(cell) for cell in read(ROOT/notebook)['cells']}
            named = re.findall(r'(?:cells?|and|,) `([a-z][\w-]+)`(?:, function `(\w+)`)?', said)
            assert {cell for cell, _ in named} <= cells.keys(), f'{notebook}: {line}'
            assert [function for cell, function in named if function and not re.search(rf'^def {function}\b', cells[cell], re.M)] == [], line
            quoted = re.findall(r'`([\w.]+\()\.\.\.\)`', said)  # as in `V26.but(...)`
            assert [code for code in quoted if not any(code in cells[cell] for cell, _ in named)] == [], line
            steps += len(named)
    assert steps >= (15 if document.startswith('docs') else 4)


def first_page_words(document: str) -> int:
    "Words as people read them: no addresses, no lines of tables, no marks."
    said = re.sub(r'\]\([^)]*\)|<!--.*?-->', ' ', (ROOT/document).read_text(encoding='utf-8').split('Apache-2.0')[0])
    return sum(bool(re.search('[0-9A-Za-z가-힣]', word)) for word in said.split())


@pytest.mark.parametrize('document', ['README.md', 'README.ko.md'])
def test_the_first_page_is_short(document): assert first_page_words(document) <= 400


def test_the_first_pages_say_the_same(monkeypatch):
    "README.md is the index notebook; its Korean twin has the same headings, code, numbers and notebooks."
    monkeypatch.syspath_prepend(ROOT/'docs')
    made = importlib.import_module('readme_table')
    english, korean = ((ROOT/name).read_text(encoding='utf-8') for name in ('README.md', 'README.ko.md'))
    assert made.readme(read(ROOT/'nbs/index.ipynb')) == english
    blocks = lambda page: re.findall(r'^```python\n.*?^```', page, re.M | re.S)
    commands_of = lambda page: re.findall(r'^make \w+', page, re.M)
    numbers = lambda page: re.findall(r'\d+\.\d+', page.split(made.BEGIN)[1].split(made.END)[0])
    notebooks = lambda page: [name.replace('_ko.', '.') for name in re.findall(r'nbs/(?!korean/)[\w/]+\.ipynb', page)]  # pages that are Korean only
    for part in (blocks, commands_of, numbers, notebooks): assert part(english) == part(korean)
    assert english.count('\n## ') == korean.count('\n## ')


def test_constraints_fit_the_dependencies():
    project = tomllib.loads((ROOT/'pyproject.toml').read_text(encoding='utf-8'))['project']
    wanted = [Requirement(r) for r in sum(project['optional-dependencies'].values(), project['dependencies'])
              if Requirement(r).name not in ('triton', 'splade_nb')]  # torch's CUDA build says which, so make lock leaves it out
    pins = dict(line.split('==') for line in (ROOT/'constraints.txt').read_text().split())
    assert [str(r) for r in wanted if not r.specifier.contains(pins.get(canonicalize_name(r.name), '0'), prereleases=True)] == [], 'make lock'


def test_children_are_forked_from_one_server():
    "A second list of what the server imports takes the place of the first, and every child imports all by itself."
    sets = re.compile(r'set_forkserver_preload\(')
    assert [path.name for path in tracked('tests/*.py') if sets.search(path.read_text(encoding='utf-8'))] == ['moments.py']


def test_no_machine_in_a_file():
    machine = re.compile(r'(?<![\w.~}])/(?:work|root|home|Users|tmp)/[\w.-]+|file:/{2}'
                         r'|pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian|download\.pytorch')
    found = []
    for path in tracked():
        if path.is_relative_to(ROOT/'data'): continue  # the texts of the data may speak of folders
        try: found += [f'{path}: {hit}' for hit in machine.findall(path.read_text(encoding='utf-8'))]
        except UnicodeDecodeError: continue
    assert found == []


def test_no_merge_is_left_half_done():
    mark = re.compile(r'^\s*"?(?:<{7}|>{7}) ', re.M)  # in notebooks a line of source begins with a quote
    def marked(path):
        try: return mark.search(path.read_text(encoding='utf-8'))
        except UnicodeDecodeError: return None
    assert mark.search('<' * 7 + ' HEAD') and [path for path in tracked() if marked(path)] == []


@pytest.mark.parametrize('script', ['docs/readme_table.py', 'benchmarks/report.py'])
def test_tables_show_what_the_results_say(script):
    assert tracked('docs/results/*/summary.json') and tracked('benchmarks/results/*.json'), 'no kept result to read'
    done = faults.program(script, '--check', folder=ROOT)
    assert done.returncode == 0, done.stderr or f'run {script}'


def test_twins_in_korean_say_and_show_the_same():
    "So that running the originals runs both."
    korean = {path for path in NOTEBOOKS if path.stem.endswith('_ko')}
    originals = [path for path in NOTEBOOKS if path not in korean and (path.parent.name == 'tutorials' or path.with_stem(f'{path.stem}_ko') in korean)]
    code = lambda path: [(cell['id'], text(cell)) for cell in read(path)['cells'] if cell['cell_type'] == 'code']
    words = lambda path: [cell['id'] for cell in read(path)['cells'] if cell['cell_type'] == 'markdown']
    shows = lambda path: {cell.id: shown(cell) for cell in nbformat.read(path, 4).cells if cell.cell_type == 'code'}
    for path in originals:
        twin = path.with_stem(f'{path.stem}_ko')
        assert code(path) == code(twin) and words(path) == words(twin), twin.name
        assert shows(path) == shows(twin), f'{twin.name}: outputs are not those of the original'
        assert all(re.search('[가-힣]', text(cell)) for cell in read(twin)['cells'] if cell['cell_type'] == 'markdown'), twin.name

"""Turn nbs/ into the source of the site: notebooks that Sphinx reads, and the pages around them.

What `version_pages` writes is read from the versions and the kept summaries; `compare` is run over these.
nbdev's own processors do the documentation (`show_doc`, hidden cells, links of names in backticks).
What is left is to make plain Markdown of it, to point every link at the page that answers it, and to
put the code of each exported cell, folded, under its documentation.

    python docs/build_site.py docs/nbs
"""
import ast, gc, json, os, re, shutil, sys
from functools import lru_cache
from pathlib import Path
import nbformat
import version_pages
import versions_page
from checkout import tracked
from nbdev.config import get_config
from nbclient import NotebookClient
from nbdev.serve import proc_nbs
from splade_nb.config.versions import VERSIONS

CONFIG = get_config()
ROOT, NOTEBOOKS, PACKAGE = CONFIG.config_path, CONFIG.nbs_path, CONFIG.lib_path
REPOSITORY = f'{CONFIG.git_url}/blob/{CONFIG.branch}'
HOST = f'{CONFIG.doc_host}{CONFIG.doc_baseurl}'.rstrip('/') + '/'
GUIDES = {'README.ko.md': 'korean.md', **{f'docs/{path.name}': f'reference/{path.name}' for path in tracked('docs/*.md')},
          'docs/results.md': 'experiments/results.md', 'docs/versions.md': 'experiments/versions.md', 'docs/versions_ko.md': 'korean/versions.md',
          'docs/walks.md': 'walks.md', 'docs/commands.md': 'commands.md',
          'docs/names.md': 'reference/design_names.md',  # `reference` writes names.md, those of the library
          'data/mini/README.md': 'reference/mini.md', 'CONTRIBUTING.md': 'reference/contributing.md', 'CHANGELOG.md': 'reference/changelog.md'}  # file of the project: its page

COMPARE = Path('compare.ipynb')
TOUR = ('why', 'how', 'my_data')  # the Korean pages in the order to read them in
LESSONS = ('search_in_five_minutes', 'coming_from_elsewhere', 'read_a_vector', 'idf_and_stopwords', 'bring_your_own_data', 'add_a_version')  # the order to read them in; others follow
STUDIES = ('ways', 'one_index', 'encoder', 'searches', 'gates', 'vocabulary')  # likewise
LINK = re.compile(r'\]\((?!#)([^)\s#]+)(#[^)\s]*)?\)')
FENCE = re.compile(r'^(```|~~~).*?^\1', re.M | re.S)
HEADING = re.compile(r'^(#+) ', re.M)
SHOWN = re.compile(r'^show_doc\((\w+(?:\.\w+)*)', re.M)
EXPORTED = re.compile(r'^#\|\s*exporti?\s*$', re.M)
DIRECTIVE = re.compile(r'^#\|.*\n?', re.M)


def page(notebook: Path | str) -> Path:  # relative to the site's source
    "The page of a notebook: a number decides its place in the contents, not its address."
    parts = [re.subn(r'^\d+[a-z]?_', '', part) for part in Path(notebook).parts]
    goal = Path(*(part for part, _ in parts))
    if parts[0][1]: return Path('library', goal)
    if goal.parent != Path('.') or goal.name == 'index.ipynb': return goal
    return Path('reference' if goal.name == 'errata.ipynb' else 'experiments', goal)


def module_of(page: Path) -> str:
    "The module that a page of the library documents: `model.head`; other pages go by their own name."
    return '.'.join(page.with_suffix('').parts[1:]) if page.parts[0] == 'library' else page.stem


def source_of(module: str) -> Path: return PACKAGE.joinpath(*module.split('.')).with_suffix('.py')


def text(cell: dict) -> str: return ''.join(cell['source'])


def markdown(source: str, cell_id: str = '') -> dict:
    return dict(cell_type='markdown', id=cell_id, metadata={}, source=source)


def relink(source: str, folder: Path, here: Path) -> str:
    "Point the links of Markdown, written in `folder` of the project, from page `here` to pages of the site."
    def target(match):
        address, anchor = match[1], match[2] or ''
        if address.startswith(HOST):  # made by nbdev from a name in backticks
            unnumbered = re.sub(r'(^|/)\d+[a-z]?_', r'\1', address.removeprefix(HOST))
            return f'](#{module_of(Path("library", unnumbered))}.{anchor[1:]})'
        if re.match(r'[a-z]+:', address): return match[0]
        found = Path(os.path.normpath(ROOT/folder/address))
        if not found.exists() or not found.is_relative_to(ROOT): return match[0]  # Sphinx reports it
        name = found.relative_to(ROOT).as_posix()
        if name == 'README.md': goal = Path('index.ipynb')
        elif name in GUIDES: goal = Path(GUIDES[name])
        elif found.suffix == '.svg': goal = Path('reference', found.name)
        elif found.suffix == '.ipynb' and found.is_relative_to(NOTEBOOKS): goal = page(found.relative_to(NOTEBOOKS))
        else: return f']({REPOSITORY}/{name}{anchor})'
        return f']({Path(os.path.relpath(goal, here.parent)).as_posix()}{anchor})'
    return LINK.sub(target, source)


@lru_cache
def lines_of(module: str) -> dict:
    "Where a module defines its functions, classes and their methods; nbdev's own links take the first module that has the name."
    found = {}
    for node in ast.parse(source_of(module).read_text(encoding='utf-8')).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)): found[node.name] = node.lineno
        if isinstance(node, ast.ClassDef): found |= {f'{node.name}.{part.name}': part.lineno for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def target_of(module: str, name: str) -> str:
    "Where a name's documentation is linked to: in small letters, as nbdev does, unless another name of the module is spelt alike."
    alike = sorted(other for other in lines_of(module) if other.lower() == name.lower())
    return f'{module}.{name.lower()}' + '-class' * (len(alike) > 1 and name == alike[0])  # capitals sort first


def documentation(cell: dict, module: str, level: int) -> str:
    "What `show_doc` put out, as Markdown under a heading that other pages can link to."
    name = SHOWN.search(text(cell))[1]
    shown = ''.join(''.join(o.get('data', {}).get('text/markdown', '')) for o in cell['outputs'])
    shown = shown.replace('*Call self as a function.*', '')  # what nbdev says where there is no docstring
    shown = re.sub(r'\A---\s*', '', re.sub(r'\{target="_blank"[^}]*\}', '', shown))
    depth = level + 1 + name.count('.')
    shown = re.sub(r'^#+ .*$', lambda m: f'({target_of(module, name)})=\n{"#"*depth} `{name}`', shown, count=1, flags=re.M)
    link = f'[source]({REPOSITORY}/{PACKAGE.name}/{source_of(module).relative_to(PACKAGE).as_posix()}#L{line}){{.source}}\n\n' if (line := lines_of(module).get(name)) else ''
    return re.sub(r'\[source\]\(\S+\)\s*', lambda _: link, shown)


def code_of(cell: dict) -> dict | None:
    "An exported cell without its directives: folded where it defines something, nothing where it only imports."
    source = DIRECTIVE.sub('', text(cell)).strip()
    body = ast.parse(source).body
    if all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in body): return None
    fold = any(isinstance(s, (ast.FunctionDef, ast.ClassDef)) for s in body)
    return dict(cell, source=source, outputs=[], metadata={'tags': ['fold']*fold})


def code(cell: dict, folded: bool = False) -> dict:
    "A code cell as MyST-NB reads it; a cell that is hidden in the report is hidden here."
    tags = {'hide-input': 'remove-input', 'hide-cell': 'remove-cell', 'fold': 'hide-input'}
    kept = [tags.get(t, t) for t in cell['metadata'].get('tags', [])] + folded * ['hide-input']
    if re.search(r'^#\|\s*echo:\s*false', text(cell), re.M): kept.append('remove-input')
    return dict(cell, source=DIRECTIVE.sub('', text(cell)), execution_count=None, metadata={'tags': kept})


def described(cell: dict, said: str) -> dict:
    "Give a cell's pictures alternative texts: their own, else the caption below, else what is said before the cell."
    outputs = [dict(output) for output in cell['outputs']]
    captions = [''.join(output.get('data', {}).get('text/markdown', '')) for output in outputs] + ['']
    for place, output in enumerate(outputs):
        for kind in (kind for kind in output.get('data', {}) if kind.startswith('image/')):
            facts = output.get('metadata', {}).get(kind, {})
            alt = facts.get('alt') or plain(captions[place + 1]) or said
            output['metadata'] = output.get('metadata', {}) | {kind: facts | {'alt': alt}}
    return dict(cell, outputs=outputs)


def plain(source: str) -> str:
    "Markdown without headings, links, tables and marks, on one line."
    kept = [line for line in FENCE.sub('', source).splitlines() if not re.match(r'\||!\[|#+ ', line)]
    return ' '.join(re.sub(r'\[([^\]]*)\]\([^)]*\)|[`*$>\\]', r'\1', ' '.join(kept)).split())


def page_title(source: str, here: Path) -> str:  # '' where the page has no heading with a line below it
    "What a search engine shows: the heading and the line below it; of a library page its module."
    found = re.match(r'# (.+)\n\n> (.+)', source)
    if not found: return ''
    if here.parts[0] == 'library': return plain(f'{found[1]} ({PACKAGE.name}.{module_of(here)})')
    return plain(f'{found[1]}: {found[2]}'.replace('>', '')).rstrip('.')


def arrange(processed: dict, original: dict) -> list[dict]:
    "The processed cells, and each exported cell, which nbdev drops, back behind its documentation."
    order = {c['id']: i for i, c in enumerate(original['cells'])}
    home, placed = {}, []  # home: the place of the cell that defines a name
    for cell in original['cells']:
        if cell['cell_type'] != 'code' or not EXPORTED.search(text(cell)): continue
        place = order[cell['id']]
        home |= {s.name: place for s in ast.parse(DIRECTIVE.sub('', text(cell))).body if hasattr(s, 'name')}
        if shown := code_of(cell): placed.append((place, 1, shown))
    last = -1
    for cell in processed['cells']:
        source = text(cell)
        if cell['cell_type'] == 'raw' or source.startswith('<!-- WARNING: THIS FILE WAS AUTOGENERATED'): continue
        documented = SHOWN.search(source)
        last = order.get(cell['id'], home.get(documented[1].split('.')[0], last) if documented else last)
        placed.append((last, 0, cell))
    return [cell for *_, cell in sorted(placed, key=lambda entry: entry[:2])]


def origin(original: dict, notebook: Path) -> dict:
    "A line of links: the notebook, the module exported from it, its twin in the other language, its copy for a browser."
    module = re.search(r'^#\|\s*default_exp\s+(\S+)', '\n'.join(map(text, original['cells'])), re.M)
    links = [f'[notebook]({REPOSITORY}/{NOTEBOOKS.name}/{notebook.as_posix()})']
    twin = notebook.with_stem(notebook.stem.removesuffix('_ko') if notebook.stem.endswith('_ko') else f'{notebook.stem}_ko')
    if (NOTEBOOKS/twin).exists(): links.append(f'[{"English" if notebook.stem.endswith("_ko") else "한국어"}]({page(twin).name})')
    if module: links.append(f'[module]({REPOSITORY}/{PACKAGE.name}/{module[1].replace(".", "/")}.py)')
    links += [text(cell) for cell in original['cells'] if cell['id'] == 'browser']  # docs/browser.py writes them
    return markdown('{.origin}\n' + ' · '.join(links), 'site-origin')


def convert(processed: dict, original: dict, notebook: Path) -> dict:
    "A notebook processed by nbdev, as MyST-NB reads it."
    here, folder = page(notebook), (NOTEBOOKS/notebook).parent.relative_to(ROOT)
    title = next((c for c in original['cells'] if c['cell_type'] == 'markdown' and text(c).startswith('# ')), None)
    cells = [markdown(relink(text(title), folder, here), title['id']), origin(original, notebook)] if title else []
    level, heading, said = 1, '', ''
    for cell in arrange(processed, original):
        if cell['id'] == 'browser': continue
        source = text(cell)
        if cell['cell_type'] == 'code' and SHOWN.search(source): source = documentation(cell, module_of(here), level)
        elif cell['cell_type'] == 'code':
            shown = described(cell, ': '.join(filter(None, (heading, said))))
            cells.append(code(shown, folded=here.parts[0] == 'studies'))  # the page of a study shows tables and figures first
            continue
        elif found := HEADING.findall(FENCE.sub('', source)):
            level, heading = len(found[-1]), re.findall(r'^#+ (.+)', source, re.M)[-1]
        if cell['cell_type'] == 'markdown': said = plain(source)
        cells.append(markdown(relink(source, folder, here), cell['id']))
    facts = dict(processed['metadata'], page_title=page_title(text(title), here)) if title else processed['metadata']
    return dict(processed, cells=cells, metadata=facts)


def reference(targets: set[str], modules: list[str]) -> str:
    "A page that lists every public name of every module with the first line of its docstring."
    parts = ['# Names\n\nEvery public name of the library, package by package.\n']
    for module in modules:
        tree = ast.parse(source_of(module).read_text(encoding='utf-8'))
        rows = [f'## `{module}`\n\n{ast.get_docstring(tree) or ""}\n\n| name | what it is |\n|---|---|']
        for node in tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith('_'): continue
            target = target_of(module, node.name)
            first = (ast.get_docstring(node) or '').split('\n')[0].replace('|', r'\|')
            rows.append(f'| [`{node.name}`](#{target}) | {first} |' if target in targets else f'| `{node.name}` | {first} |')
        parts.append('\n'.join(rows) + '\n')
    return '\n'.join(parts)


def compared(processed: dict) -> dict:
    "The notebook `compare`, run over the kept summaries."
    source = {cell['id']: text(cell) for cell in processed['cells']} | {'parameters': 'Here it was run over the summaries kept in `docs/results`.'}
    runs = ','.join(path.relative_to(ROOT).as_posix() for path in version_pages.kept_folders())
    executed = nbformat.from_dict(processed | dict(cells=[dict(cell, source=text(cell)) for cell in processed['cells']]))
    for cell in executed.cells:
        if 'parameters' in cell.metadata.get('tags', []): cell.source = f'runs = {runs!r}'
    NotebookClient(executed, timeout=300, resources={'metadata': {'path': str(NOTEBOOKS)}}).execute()
    for cell in executed.cells:
        if cell.cell_type == 'code': cell.outputs = [output for output in cell.outputs if output.get('name') != 'stderr']
    told = lambda cell: markdown(source[cell['id']], cell['id']) if cell['id'] == 'parameters' else dict(cell, source=source[cell['id']])
    return processed | dict(cells=[told(cell) for cell in executed.cells])


def linked_versions(source: str, here: Path) -> str:
    "A version's name in the first column of a table leads to its page."
    def link(row): return f'| [{row[1]}]({os.path.relpath(f"experiments/{row[1].lower()}.md", here.parent)}) |' if row[1].lower() in VERSIONS else row[0]
    return re.sub(r'^\| (\w+) \|', link, source, flags=re.M)


def toctree(caption: str, pages: list[str]) -> str:
    return '\n'.join(['```{toctree}', ':hidden:', f':caption: {caption}', '', *pages, '```', '']) if pages else ''


def unlink_missing(source: str, targets: set[str]) -> str:
    "Keep the words of a link that nbdev made to a name without documentation, drop the link."
    def keep(match): return match[0] if match[2] in targets else match[1]
    return re.sub(r'\[(`[^`\]]+`)\]\(#([a-z_]\w*\.[\w.]+)\)', keep, source)


def main(destination: str):
    goal = Path(destination).resolve()
    shutil.rmtree(goal, ignore_errors=True)
    sys.path.append(str(ROOT/'tests'))  # nbdev runs a notebook's imports only, and one imports a server from there
    processed = Path(proc_nbs(NOTEBOOKS, n_workers=0, force=True))  # in this process: a worker would import everything again
    names = sorted(f.relative_to(processed) for f in processed.rglob('*.ipynb'))
    read = lambda path: json.loads(path.read_text(encoding='utf-8'))
    source = {n: read(processed/n) for n in names}
    source[COMPARE] = compared(source[COMPARE])
    pages = {n: convert(source[n], read(NOTEBOOKS/n), n) for n in names}
    pages[COMPARE]['metadata']['page_title'] = version_pages.kept_title('Compare versions')
    targets = {t for nb in pages.values() for c in nb['cells'] for t in re.findall(r'^\(([\w.]+)\)=$', text(c), re.M)}

    section = lambda folder: [n for n in names if page(n).parts[0] == folder]
    library = section('library')
    modules = [module_of(page(n)) for n in library]
    packages = {}
    for n in library: packages.setdefault(module_of(page(n)).split('.')[0] if len(page(n).parts) > 2 else 'what people type', []).append(n)
    files = {GUIDES[f]: relink((ROOT/f).read_text(encoding='utf-8'), Path(f).parent, Path(GUIDES[f]))
             for f in GUIDES if (ROOT/f).exists()}
    results = {'experiments/results.md': version_pages.kept_title('Results'), 'experiments/versions.md': versions_page.page_title('en'), 'korean/versions.md': versions_page.page_title('ko')}
    for name, body in files.items():
        if title := results.get(name) or page_title(body, Path(name)): body = f'{version_pages.titled(title)}\n\n{body}'
        files[name] = linked_versions(body, Path(name)) if name in results else body
    written = version_pages.pages(goal)
    files |= written | {'reference/names.md': reference(targets, modules)}

    def ordered(folder, first):
        place = lambda n: (first.index(stem) if (stem := n.stem.removesuffix('_ko')) in first else len(first), n)
        return sorted(section(folder), key=place)
    lessons = ordered('tutorials', LESSONS)
    studies = ordered('studies', STUDIES)
    korean = [n for n in (*lessons, *studies) if n.stem.endswith('_ko')]
    tour = sorted(section('korean'), key=lambda n: TOUR.index(n.stem))
    experiments = sorted(section('experiments'), key=lambda n: (n != COMPARE, n.stem != 'train'))
    address = lambda found: [Path(p).with_suffix('').as_posix() for p in found]
    told = lambda folder: address(p for p in files if Path(p).parts[0] == folder)
    trees = [toctree('Start', ['한국어 <korean>', 'walks', 'commands']), toctree('한국어', [*address(map(page, tour)), 'korean/versions']), toctree('Tutorials', address(map(page, [n for n in lessons if n not in korean]))),
             toctree('튜토리얼', address(map(page, korean))), *(toctree(package, address(map(page, found))) for package, found in packages.items()),
             toctree('Experiments', ['experiments/versions', *(p for p in told('experiments') if p != 'experiments/versions'), *address(map(page, experiments))]),
             toctree('Studies', address(map(page, [n for n in studies if n not in korean]))),
             toctree('Reference', ['reference/settings', *address(map(page, section('reference'))), *(p for p in told('reference') if p != 'reference/settings')])]
    index = pages.setdefault(Path('index.ipynb'), dict(
        cells=[markdown(f'# {CONFIG.title}\n\n> {CONFIG.description}', 'title')], metadata={}, nbformat=4, nbformat_minor=5))
    index['cells'].append(markdown('\n'.join(trees), 'site-contents'))

    for name, notebook in pages.items():
        for cell in notebook['cells']:
            if cell['cell_type'] == 'markdown': cell['source'] = unlink_missing(cell['source'], targets)
        files[page(name).as_posix()] = json.dumps(notebook, ensure_ascii=False, indent=1)
    for picture in tracked('docs/*.svg'): (goal/'reference').mkdir(parents=True, exist_ok=True); shutil.copy(picture, goal/'reference')
    for name, content in files.items():
        (goal/name).parent.mkdir(parents=True, exist_ok=True)
        (goal/name).write_text(content, encoding='utf-8')
    print(f'{len(pages)} notebooks, {len(written)} written pages, {len(targets)} documented names -> {destination}')


if __name__ == '__main__':
    main(sys.argv[1])
    gc.freeze()  # at exit IPython collects garbage once for each notebook: with all objects to look through that takes a minute

"""Copies of notebooks for Colab, Kaggle and any other Jupyter: their first cell fetches the repository and installs it.

    python docs/browser.py docs/_build/browser    write the copies; GitHub's branch `notebooks` holds those of main
    python docs/browser.py --links                write the cell `browser` of each notebook, which leads to its copy
"""
import ast, inspect, json, os, re, subprocess, sys
from pathlib import Path
from build_site import CONFIG, DIRECTIVE, HOST, LINK, NOTEBOOKS, ROOT, markdown, page, relink, text
from splade_nb.config.command_line import exit_codes
from splade_nb.config.files import DataError, read_json, replaced, write_json

LESSONS = sorted(path.relative_to(NOTEBOOKS) for path in (NOTEBOOKS/'tutorials').glob('*.ipynb'))
COPIED = [Path('train.ipynb'), Path('evaluate.ipynb'), Path('pretrain.ipynb'), *LESSONS]
NEEDS = {'evaluate': ('board',), 'search_in_five_minutes': ('train,engines',), 'idf_and_stopwords': ('train', 'ipywidgets'),
         'coming_from_elsewhere': ('train', 'sentence-transformers>=6.2')}  # extras, other packages; else train
GIVEN = {'train': dict(scale='mini'), 'pretrain': dict(scale='mini'), 'evaluate': dict(model='', tasks='mini')}  # minutes, also without a GPU
BRANCH = f'{CONFIG.git_url.removeprefix("https://github.com/")}/blob/notebooks'
PLACES = {'Colab': f'https://colab.research.google.com/github/{BRANCH}', 'Kaggle': f'https://kaggle.com/kernels/welcome?src=https://github.com/{BRANCH}'}
WORDS = {'en': ('Open in {}', 'The results of this notebook stand on [its page]({}). The next cell installs the package where it is missing.'),
         'ko': ('{}에서 열기', '이 노트북의 결과는 [이 페이지]({})에 있습니다. 다음 셀은 패키지가 없으면 설치합니다.')}
PARAMETER = re.compile(r'(\w+) = (.+?) +# type: (\w+), (.+)')
FIELDS = dict(str='{type:"string"}', int='{type:"integer"}', bool='{type:"boolean"}', dict='{type:"raw"}')
LIBRARY = re.compile(r'\{library\}/([\w/]+\.ipynb)#[^)]*')  # `train` computes links to the losses


def _install(address, revision, extras, *others):
    "Install a commit of the repository, once. Loaded packages whose version changes need a new session."
    import importlib.metadata, importlib.util, os, subprocess, sys
    if importlib.util.find_spec('splade_nb'): return
    loaded = {name: importlib.metadata.version(name) for name in ('numpy', 'pandas', 'matplotlib', 'torch') if name in sys.modules}
    cloned = os.path.exists('splade_nb_repository')  # by an installation that failed later
    for command in (*([] if cloned else [['git', 'clone', '--quiet', address, 'splade_nb_repository']]),
                    ['git', '-C', 'splade_nb_repository', 'checkout', '--quiet', revision],
                    [sys.executable, '-m', 'pip', 'install', '--quiet', '--editable', f'splade_nb_repository[{extras}]', *others]):
        if subprocess.run(command).returncode: raise RuntimeError(f'failed: {" ".join(command)}. On Kaggle: session options, Internet on.')
    sys.path.insert(0, os.path.abspath('splade_nb_repository'))  # until the session begins anew
    importlib.invalidate_caches()
    changed = [name for name, version in loaded.items() if importlib.metadata.version(name) != version]
    if changed: raise RuntimeError(f'installed; {", ".join(changed)} changed: restart the session and run all cells')


def language(notebook: Path) -> str: return 'ko' if notebook.stem.endswith('_ko') else 'en'


def links(notebook: Path) -> str:
    "The cell `browser`: links that open the copy."
    return ' · '.join(f'[{WORDS[language(notebook)][0].format(place)}]({address}/{notebook.as_posix()})' for place, address in PLACES.items())


def web_page(notebook: Path) -> str: return HOST + page(notebook).with_suffix('.html').as_posix()


def absolute(source: str, notebook: Path) -> str:
    "Markdown whose links lead to the site. Raises `DataError` for a link that leads nowhere."
    here, folder = page(notebook), (NOTEBOOKS/notebook).parent
    def target(match):
        address, anchor = match[1], match[2] or ''
        if re.match(r'[a-z]+:', address): return match[0]
        return f']({HOST}{Path(os.path.normpath(here.parent/address)).with_suffix(".html").as_posix()}{anchor})'
    for address, _ in LINK.findall(source):
        if not re.match(r'[a-z]+:', address) and not (folder/address).exists():
            raise DataError(notebook, None, 'link', address, 'a file of the project')
    return LINK.sub(target, relink(source, folder.relative_to(ROOT), here))


def form(source: str, notebook: Path) -> str:
    "The parameters as fields of a form on Colab. Raises `DataError` for a line that is none."
    lines = ['#@title Parameters']
    for line in source.splitlines():
        found = PARAMETER.fullmatch(line)
        if not found or found[3] not in FIELDS: raise DataError(notebook, None, 'parameters', line, f'name = value  # type: {", ".join(FIELDS)}, help')
        name, value, kind, told = found.groups()
        value = GIVEN.get(notebook.stem, {}).get(name, ast.literal_eval(value))
        shown = json.dumps(value, ensure_ascii=False) if kind == 'str' else repr(value)
        lines += [f'#@markdown {name}: {told}', f'{name} = {shown} #@param {FIELDS[kind]}']
    return '\n'.join(lines)


def code(source: str, id: str, **metadata) -> dict:
    return dict(cell_type='code', id=id, metadata=metadata, source=source, outputs=[], execution_count=None)


def install(notebook: Path, revision: str) -> dict:
    "The first code cell."
    extras, *others = NEEDS.get(notebook.stem.removesuffix('_ko'), ('train',))
    called = f'_install({", ".join(map(repr, (CONFIG.git_url, revision, extras, *others)))})'
    return code(f'#@title Install {CONFIG.lib_name}\n{inspect.getsource(_install)}\n{called}', 'install', cellView='form')


def copied(cell: dict, notebook: Path) -> dict:
    if cell['cell_type'] == 'markdown': return markdown(absolute(text(cell), notebook), cell['id'])
    tags = cell['metadata'].get('tags', [])
    source = DIRECTIVE.sub('', text(cell))
    if 'parameters' in tags: return code(form(source, notebook), cell['id'], tags=tags)
    return code(LIBRARY.sub(lambda link: web_page(Path(link[1])), source), cell['id'], tags=tags)


def copy(notebook: Path, revision: str) -> dict:
    "A notebook that runs anywhere: its title, where it comes from, the installation, and its cells without outputs."
    found = read_json(NOTEBOOKS/notebook)
    title, *cells = [cell for cell in found['cells'] if cell['cell_type'] != 'raw' and cell['id'] != 'browser']
    about = markdown(WORDS[language(notebook)][1].format(web_page(notebook)), 'about')
    return dict(cells=[copied(title, notebook), about, install(notebook, revision), *(copied(cell, notebook) for cell in cells)],
                metadata=dict(kernelspec=found['metadata']['kernelspec'], colab=dict(provenance=[], toc_visible=True)), nbformat=4, nbformat_minor=5)


def checked_out() -> str:
    "The commit of this checkout; without git the branch."
    if not (ROOT/'.git').exists(): return CONFIG.branch
    return subprocess.run(['git', '-C', str(ROOT), 'rev-parse', 'HEAD'], check=True, capture_output=True, text=True).stdout.strip()


def write_copies(folder: Path, revision: str) -> None:
    for notebook in COPIED:
        (folder/notebook).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder/notebook, copy(notebook, revision))
    said = f'Copies of the notebooks of [{CONFIG.title}]({CONFIG.git_url}), made at {revision}. `docs/browser.py` writes them: change the originals.\n'
    with replaced(folder/'README.md') as file: file.write(said)
    print(f'{len(COPIED)} copies that install {revision[:7]} -> {folder}')


def write_links() -> None:
    for notebook in COPIED:
        found = read_json(NOTEBOOKS/notebook)
        cells = [cell for cell in found['cells'] if cell['id'] != 'browser']
        place = 1 + next(n for n, cell in enumerate(cells) if cell['cell_type'] == 'markdown')
        cells.insert(place, dict(markdown([links(notebook)], 'browser'), metadata=dict(tags=['hide-cell'])))  # no report shows it
        with replaced(NOTEBOOKS/notebook) as file:
            file.write(json.dumps(found | dict(cells=cells), ensure_ascii=False, indent=1, sort_keys=True) + '\n')  # as nbdev_clean writes


@exit_codes
def main() -> None:
    if sys.argv[1:] == ['--links']: write_links()
    elif len(sys.argv) == 2: write_copies(Path(sys.argv[1]), checked_out())
    else: sys.exit(__doc__)


if __name__ == '__main__': sys.exit(main())

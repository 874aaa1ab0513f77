"""Every figure and every table of measurements says below it where it comes from: command, data, revision, date."""
import importlib, re
from html import unescape
import nbformat
import matplotlib.pyplot as plt
import pytest
from faults import run_notebook
from conftest import NOTEBOOKS, ROOT, name, read, tracked
from splade_nb.config.files import read_json

SOURCE = re.compile(r'^\*(?:Source|출처):\* `[^`]+`; (?:data|데이터) \S.*; (?:revision|커밋) \S.*; (?:undated|날짜 없음|\d{4}-\d\d-\d\d)', re.M)
CODE, LINK = re.compile(r'`[^`]*[^\W\d_][^`]*`'), re.compile(r'\]\([^)]*\)')  # code that holds a letter; the address of a link
DRAWN = re.compile(r'Source: \S[^;]*; data \S[^;]*; revision \S[^;]*; (?:undated|\d{4}-\d\d-\d\d)')  # the same as letters of an SVG
FIGURE = re.compile(r'!\[[^\]]*\]\((?!https?:)([^)\s]+)\)')
MEASURED = re.compile(r'^\W*\d[\d.,]*(?!\w)|\d\.\d|\d ?%')  # a cell that begins with a number, or holds a decimal or a percentage


def is_measured(rows: list) -> bool:
    "Whether a cell below the head holds a number that is no name, such as BM25 or `v28`."
    return any(MEASURED.search(CODE.sub('', LINK.sub(']', cell)).strip()) for row in rows for cell in row)


def blocks(page: str) -> list:  # (line, kind, text); kind: table, figure, heading, source, text
    found, fence = [], False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith(('```', '~~~')): fence = not fence
        kind = ('text' if fence else 'table' if line.startswith('|') else 'figure' if FIGURE.search(line) else
                'heading' if line.startswith('#') else 'source' if SOURCE.match(line) else 'text')
        if kind == 'table' and found and found[-1][1] == 'table' and found[-1][3] == number - 1: found[-1][2].append(line); found[-1][3] = number
        elif line.strip(): found.append([number, kind, [line], number])
    return found


def cells(line: str) -> list: return re.split(r'(?<!\\)\|', line.strip().strip('|'))


def says_itself(svg: str) -> bool:
    "Whether a line of source is drawn in an SVG: matplotlib writes each drawn text as a comment beside its outlines."
    return bool(DRAWN.search(' '.join(map(unescape, re.findall(r'<!-- (.*?) -->', svg, re.S)))))


def drawn_with_source(line: str, folder) -> bool:
    path = folder/FIGURE.search(line)[1]
    return path.suffix == '.svg' and path.exists() and says_itself(path.read_text(encoding='utf-8'))


def unsourced(page: str, folder=ROOT) -> list:  # of a Markdown page: (line, its text)
    "Figures and tables of measurements with no line of source before the next figure, table or heading."
    found, missing = blocks(page), []
    for place, (number, kind, lines, _) in enumerate(found):
        if kind == 'table' and not is_measured([cells(line) for line in lines[2:]]): continue
        if kind not in ('table', 'figure') or kind == 'figure' and drawn_with_source(lines[0], folder): continue
        below = next((other for _, other, _, _ in found[place + 1:] if other != 'text'), 'end')
        if below != 'source': missing.append((number, lines[0][:80]))
    return missing


def as_markdown(output: dict) -> str:
    "What a cell shows, in the form that `unsourced` reads."
    data = {kind: ''.join(value) for kind, value in output.get('data', {}).items() if isinstance(value, (str, list))}
    if says_itself(data.get('image/svg+xml', '')): return ''
    if {'image/png', 'image/svg+xml'} & data.keys(): return '![figure](figure)'
    if 'text/markdown' in data: return data['text/markdown']
    tables = re.findall(r'<table.*?</table>', data.get('text/html', ''), re.S)
    rows = [[re.findall(r'<t[dh][^>]*>(.*?)</t[dh]>', row, re.S) for row in re.findall(r'<tr.*?</tr>', table, re.S)] for table in tables]
    lines = lambda table: [f'| {" | ".join(re.sub("<.*?>|[|]", "", unescape(cell)).replace(chr(10), " ") for cell in row)} |' for row in table]
    return '\n\n'.join('\n'.join([*lines(table[:1]), '| --- |', *lines(table[1:])]) for table in rows)


def unsourced_cells(notebook: dict) -> dict:  # cell -> what is missing
    shown = {cell['id']: '\n\n'.join(map(as_markdown, cell['outputs'])) for cell in notebook['cells'] if cell['cell_type'] == 'code'}
    return {id: missing for id, page in shown.items() if (missing := unsourced(page))}


# ---- the pages

PAGES = [path.relative_to(ROOT).as_posix() for path in tracked('docs/*.md')]


@pytest.mark.parametrize('page', ['README.md', 'README.ko.md', *PAGES])
def test_a_page_says_where_its_figures_come_from(page):
    path = ROOT/page
    assert unsourced(path.read_text(encoding='utf-8'), path.parent) == []


@pytest.mark.parametrize('notebook', [path for path in NOTEBOOKS if path.parent.name == 'studies'], ids=name)
def test_a_study_says_where_its_figures_come_from(notebook):
    assert unsourced_cells(read(notebook)) == {}


@pytest.mark.slow
def test_the_pages_of_versions_say_where_their_figures_come_from(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT/'docs')
    made = importlib.import_module('version_pages')
    monkeypatch.setattr(made, 'write_svg', lambda figure, path: plt.close(figure))  # a drawing takes long and names no source
    pages = made.pages(tmp_path)
    assert '*Source:* `make train VERSION=v28 ' in pages['experiments/v28.md'] and '| setting |' in pages['reference/settings.md']
    assert {name: missing for name, page in pages.items() if (missing := unsourced(page, tmp_path/made.HERE))} == {}


@pytest.mark.slow
def test_a_report_says_where_its_figures_come_from(tmp_path, monkeypatch):
    "The cells of `train.ipynb` that show a finished run, over the example run, as the report shows them."
    found = read(ROOT/'nbs'/'train.ipynb')
    cells, place = found['cells'], {cell['id']: number for number, cell in enumerate(found['cells'])}
    begun = "done = read_run(root()/'data'/'example_run')\nsummary = done.summary\nshow = partial(show, source=run_source(summary, config=done.config))"
    assert begun.splitlines()[1:] == ''.join(cells[place['keep']]['source']).splitlines()[-2:], 'what the cell `keep` ends with'
    shown = [cells[place['imports']], cells[place['style']], nbformat.v4.new_code_cell(begun, id='done'), *cells[place['h-quality']:]]
    notebook = nbformat.from_dict(dict(found, cells=[dict(cell, source=''.join(cell['source'])) for cell in shown]))
    run_notebook(notebook, ROOT/'nbs')
    assert unsourced_cells(notebook) == {}
    nbformat.write(notebook, tmp_path/'train.ipynb')
    monkeypatch.syspath_prepend(ROOT/'docs')
    page = importlib.import_module('report_html').render(tmp_path/'train.ipynb')
    tables_and_figures = len(re.findall('<img |<table ', page))
    assert 15 < tables_and_figures == len(re.findall('<em>Source:</em> <code>make train VERSION=v28 ', page))


# ---- the rule itself

LINE = '*Source:* `make study STUDY=gates`; data `mini@1f13b313`; revision `e3536c4`; 2026-11-21.'
TABLE = '| version | nDCG@10 |\n| --- | --- |\n| v28 | 0.71 |'


@pytest.mark.parametrize('page, missing', {
    'a table without a line': (TABLE, 1), 'with a line': (f'{TABLE}\n\n{LINE}', 0), 'words between': (f'{TABLE}\n\nTest queries.\n\n{LINE}', 0),
    'a line of the next table': (f'{TABLE}\n\n{TABLE}\n\n{LINE}', 1), 'a line under another heading': (f'{TABLE}\n\n## More\n\n{LINE}', 1),
    'a line before': (f'{LINE}\n\n{TABLE}', 1), 'a figure': ('![BM25](bm25.svg)', 1), 'a figure with a line': (f'![BM25](bm25.svg)\n\n{LINE}', 0),
    'a line without data': (f'{TABLE}\n\n*Source:* `make`; revision `e3536c4`; 2026-11-21.', 1), 'a line without a date': (f'{TABLE}\n\n{LINE[:-13]}', 1),
    'numbers as code': (TABLE.replace('0.71', '`0.71`'), 1), 'numbers among words': (TABLE.replace('0.71', 'mean 0.71'), 1), 'whole numbers': (TABLE.replace('0.71', '71 terms'), 1),
    'options': ('| option | what |\n| --- | --- |\n| `--k 10` | the `k` best of BM25 and `v28` |', 0), 'a table in a fence': (f'```text\n{TABLE}\n```', 0)}.values())
def test_the_rule(page, missing): assert len(unsourced(page)) == missing


def test_only_results_that_are_listed_as_older_lack_a_revision_or_a_date():
    "`revisions.json` lists the commits of those; a new result says both itself."
    results = ROOT/'docs'/'results'
    listed = read_json(results/'studies'/'revisions.json')
    kept = [path for path in (*tracked('docs/results/*/summary.json'), *tracked('docs/results/studies/**/*.json')) if path.name != 'revisions.json']
    lacking = [path.relative_to(ROOT).as_posix() for path in kept if not {'revision', 'date'} <= read_json(path).keys()]
    assert len(kept) > 100 and [path for path in lacking if path not in listed] == []

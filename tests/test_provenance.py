"""Every figure and every table of measurements says below it where it comes from: command, data, revision, date."""
import re
from html import unescape
import pytest
from conftest import NOTEBOOKS, ROOT, name, read

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
    "Whether an SVG whose letters are text names its source."
    return bool(DRAWN.search(' '.join(map(unescape, re.findall(r'<text[^>]*>(.*?)</text>', svg, re.S)))))


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

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT/'docs').glob('*.md'))


@pytest.mark.parametrize('page', ['README.md', 'README.ko.md', *PAGES])
def test_a_page_says_where_its_figures_come_from(page):
    path = ROOT/page
    assert unsourced(path.read_text(encoding='utf-8'), path.parent) == []


@pytest.mark.parametrize('notebook', [path for path in NOTEBOOKS if path.parent.name == 'studies'], ids=name)
def test_a_study_says_where_its_figures_come_from(notebook):
    assert unsourced_cells(read(notebook)) == {}

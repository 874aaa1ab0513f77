"""Make one self-contained page of an executed notebook: nothing is fetched when it is read.

    python docs/report_html.py outputs/v28/train.ipynb outputs/v28/report.html
"""
import json, os, re, sys
from configparser import ConfigParser
from html import escape
from pathlib import Path
import nbformat
from nbconvert import HTMLExporter
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = Config(
    HTMLExporter=dict(
        embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True, exclude_raw=True,
        require_js_url='', mathjax_url='', mermaid_js_url='', mermaid_layout_elk_js_url='', jupyter_widgets_base_url=''),
    TagRemovePreprocessor=dict(enabled=True, remove_input_tags={'hide-input'}, remove_cell_tags={'hide-cell'}),
    CoalesceStreamsPreprocessor=dict(enabled=True))
# nbconvert's own page leaves out the alternative text that a picture has.
PAGE = '''{%- extends 'index.html.j2' -%}
{%- block data_png scoped -%}
<div class="jp-RenderedImage jp-OutputArea-output" data-mime-type="image/png">
<img src="data:image/png;base64,{{ output.data['image/png'] | trim }}" alt="{{ output | get_metadata('alt', 'image/png') or '' | escape_html }}"
     {%- if output | get_metadata('width', 'image/png') %} width="{{ output | get_metadata('width', 'image/png') }}"{% endif %}/>
</div>
{%- endblock -%}'''
STYLE = '''<style>
main { max-width: 60rem; margin: auto; word-break: keep-all; font-family: system-ui, "Noto Sans KR", "NanumGothic", "Malgun Gothic", sans-serif }
.jp-RenderedHTMLCommon, .jp-RenderedImage { overflow-x: auto }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th { min-width: 3rem; max-width: 24rem }
.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"] { background: none; opacity: .6 }
@media (max-width: 40rem) { .jp-RenderedImage img { width: 46rem; max-width: none } .jp-RenderedHTMLCommon td { min-width: 5rem } }
</style>'''
TITLE = re.compile(r'<title>.*?</title>', re.S)
SCRIPT = re.compile(r'<script\b.*?</script>', re.S)
LINKED = re.compile(r'href="(?![a-z]+:)[^"]*?(docs/[\w-]+\.md|(?:\d_\w+|studies|tutorials)/\w+\.ipynb)[^"]*"')  # files of the project; a report lies elsewhere
FETCHED = re.compile(r'<(?:script|link|img|iframe|video|audio|source)\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]*"'
                     r'|@import\s+(?:url\()?["\']?(?:https?:)?//[^"\');]+|url\(["\']?(?:https?:)?//[^)]+')


def repository() -> str:  # the project's files as a browser shows them
    settings = ConfigParser()
    settings.read(ROOT/'settings.ini', encoding='utf-8')
    return '{git_url}/blob/{branch}'.format(**settings['DEFAULT'])


def result_title(folder: Path) -> str:  # '' where the folder is no finished run of one version
    "Version, data and result of a run, from its `summary.json`."
    if not (folder/'summary.json').exists(): return ''
    summary = json.loads((folder/'summary.json').read_text(encoding='utf-8'))
    others = {'BM25': 'bm25', 'BM25 with bigrams': 'bm25_bigrams', 'before training': 'before_training'}
    beside = ', '.join(f'{name} {summary[key]["ndcg@10"]:.3f}' for name, key in others.items() if summary.get(key))
    stopped = ', stopped early' if summary.get('stopped') else ''
    name = summary['version'].upper() if re.fullmatch(r'v\d+\w?', summary['version']) else summary['version']
    return f'{name} on {summary["data"]["name"]}: nDCG@10 {summary["metrics"]["ndcg@10"]:.3f} ({beside}){stopped}'


MEASURED = ('ndcg@10', 'ndcg_at_10')  # in the rows that notebooks of evaluations print, one for each data set
GIVEN = ('version', 'model', 'data', 'collections', 'tasks', 'runs')  # parameters that a title names


def printed_rows(notebook) -> list:
    "The rows of JSON that the cell `summary` prints; none where it prints something else."
    shown = (output for cell in notebook.cells if cell.id == 'summary' for output in cell.get('outputs', []))
    text = ''.join(output.text for output in shown if output.get('name') == 'stdout').strip()
    return json.loads(text) if text.startswith('[') else []


def found_title(notebook) -> str:
    "Heading, data and result of a notebook that papermill ran."
    head = next((cell.source for cell in notebook.cells if cell.cell_type == 'markdown' and cell.source.startswith('# ')), '# ')
    given = notebook.metadata.get('papermill', {}).get('parameters', {})
    values = {}  # system, '' where only one was evaluated -> nDCG@10 of each data set
    for row in printed_rows(notebook):
        values.setdefault(row.get('system', ''), []).extend(row[name] for name in MEASURED if name in row)
    means = {system: sum(found) / len(found) for system, found in values.items() if found}
    best = max(means, key=means.get, default='')
    result = [f'nDCG@10 {means[best]:.3f}' + f' ({best}, highest of {len(means)})' * bool(best)] if means else []
    return ': '.join(filter(None, [head.splitlines()[0][2:], ', '.join(str(given[name]) for name in GIVEN if given.get(name)), *result]))


def answer_first(cells: list) -> list:
    "The sections whose heading is tagged `answer` stand behind the title; then how the answer came about."
    sections = [[]]
    for cell in cells:
        if cell.cell_type == 'markdown' and cell.source.startswith('## '): sections.append([])
        sections[-1].append(cell)
    head, *others = sections
    return sum(sorted(others, key=lambda section: 'answer' not in section[0].metadata.get('tags', [])), head)


def is_empty(cell) -> bool:  # in the report: it would be a gap
    return cell.cell_type == 'code' and 'hide-input' in cell.metadata.tags and not cell.outputs


def read(notebook: Path, title: str):
    "The notebook as the report shows it: the answer first, code hidden but for cells tagged `show-input`, its heading the result."
    found = nbformat.read(notebook, as_version=4)
    for cell in found.cells:
        tags = cell.metadata.setdefault('tags', [])
        if cell.cell_type == 'code' and not {'show-input', 'hide-input'} & set(tags): tags.append('hide-input')
    found.cells = answer_first([cell for cell in found.cells if not is_empty(cell)])
    first = next((cell for cell in found.cells if cell.cell_type == 'markdown' and cell.source.startswith('# ')), None)
    if first and title: first.source = f'# {title}\n\n> Trained, evaluated and written by `{notebook.name}`.'
    return found


def render(notebook: Path) -> str:
    "The notebook as HTML without scripts: a report has nothing to run."
    title = result_title(notebook.resolve().parent) if notebook.stem == 'train' else ''
    page, _ = HTMLExporter(config=SETTINGS, raw_template=PAGE).from_notebook_node(read(notebook, title))
    page = SCRIPT.sub('', page).replace('</head>', STYLE + '</head>', 1)
    page = TITLE.sub(lambda _: f'<title>{escape(title or found_title(nbformat.read(notebook, as_version=4)))}</title>', page, count=1)
    page = LINKED.sub(lambda found: f'href="{repository()}/{"" if found[1].startswith("docs/") else "nbs/"}{found[1]}"', page)
    if left := FETCHED.findall(page): raise ValueError(f'{notebook}: the page would fetch {left[:3]}')
    return page


def main(notebook: str, report: str):
    report = Path(report); beside = report.with_name(report.name + '.part')
    beside.write_text(render(Path(notebook)), encoding='utf-8')
    os.replace(beside, report)
    print(report)


if __name__ == '__main__': main(*sys.argv[1:])

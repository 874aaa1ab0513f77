"""Make one self-contained page of an executed notebook: nothing is fetched when it is read.

    python docs/report_html.py outputs/v28/train.ipynb outputs/v28/report.html
"""
import os, re, sys
from html import escape
from pathlib import Path
from nbconvert import HTMLExporter
from traitlets.config import Config

SETTINGS = Config(
    HTMLExporter=dict(
        embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True, exclude_raw=True,
        require_js_url='', mathjax_url='', mermaid_js_url='', mermaid_layout_elk_js_url='', jupyter_widgets_base_url=''),
    TagRemovePreprocessor=dict(enabled=True, remove_input_tags={'hide-input'}, remove_cell_tags={'hide-cell'}),
    CoalesceStreamsPreprocessor=dict(enabled=True))
STYLE = '''<style>
main { max-width: 60rem; margin: auto; word-break: keep-all; font-family: system-ui, "Noto Sans KR", "NanumGothic", "Malgun Gothic", sans-serif }
.jp-RenderedHTMLCommon, .jp-RenderedImage { overflow-x: auto }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th { min-width: 3rem; max-width: 24rem }
.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"] { background: none; opacity: .6 }
@media (max-width: 40rem) { .jp-RenderedImage img { width: 46rem; max-width: none } .jp-RenderedHTMLCommon td { min-width: 5rem } }
</style>'''
TITLE = re.compile(r'<title>.*?</title>', re.S)
SCRIPT = re.compile(r'<script\b.*?</script>', re.S)
FETCHED = re.compile(r'<(?:script|link|img|iframe|video|audio|source)\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]*"'
                     r'|@import\s+(?:url\()?["\']?(?:https?:)?//[^"\');]+|url\(["\']?(?:https?:)?//[^)]+')


def render(notebook: Path) -> str:
    "The notebook as HTML without scripts: a report has nothing to run."
    page, _ = HTMLExporter(config=SETTINGS).from_filename(str(notebook))
    page = SCRIPT.sub('', page).replace('</head>', STYLE + '</head>', 1)
    page = TITLE.sub(f'<title>{escape(notebook.resolve().parent.name)}: {escape(notebook.stem)}</title>', page, count=1)
    if left := FETCHED.findall(page): raise ValueError(f'{notebook}: the page would fetch {left[:3]}')
    return page


def main(notebook: str, report: str):
    report = Path(report); beside = report.with_name(report.name + '.part')
    beside.write_text(render(Path(notebook)), encoding='utf-8')
    os.replace(beside, report)
    print(report)


if __name__ == '__main__': main(*sys.argv[1:])

"""The built site, as a person sees it: complete, without a network, searchable in Korean, no broken link, readable on a phone."""
import importlib.util, json, os, re
from collections import Counter
from functools import cache, partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote, urlsplit
import pytest
from chromium import faults
from conftest import MODULES, NOTEBOOKS, ROOT, name, read, text, tracked
from splade_nb.config.versions import VERSIONS

SITE = ROOT/'docs/_build/html'
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (SITE/'index.html').exists(), reason='no site: make docs')]


class Page(HTMLParser):
    "The ids, links and assets of a page."
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.assets, self.pictures, self.title, self.language, self.reads_title = set(), [], [], [], '', '', False
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[k] for k in ('id', 'name') if values.get(k)}
        if tag == 'img': self.pictures.append(values.get('alt') or '')
        if tag == 'html': self.language = values.get('lang')
        self.reads_title = tag == 'title' and not self.title
        if tag == 'a' and values.get('href'): self.links.append(values['href'])
        elif tag == 'link' and values.get('href'): self.assets.append(values['href'])
        elif tag in ('script', 'img', 'iframe', 'source', 'video') and values.get('src'): self.assets.append(values['src'])


    def handle_data(self, text):
        if self.reads_title: self.title += text

    def handle_endtag(self, tag): self.reads_title = False


@pytest.fixture(scope='module')
def pages(): return {path: Page(path) for path in sorted(SITE.rglob('*.html'))}


@pytest.fixture(scope='module')
def index():
    source = (SITE/'searchindex.js').read_text(encoding='utf-8')
    return json.loads(source[source.index('{'):source.rindex('}') + 1])


@pytest.fixture(scope='module')
def served():
    "The site's address on this machine: its search reads pages, which a browser refuses to do from files."
    handler = type('Quiet', (SimpleHTTPRequestHandler,), {'log_message': lambda *_: None})
    with ThreadingHTTPServer(('127.0.0.1', 0), partial(handler, directory=SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.fixture(scope='module')
def page_of():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT); patch.syspath_prepend(ROOT/'docs')
        return page_finder()


def page_finder():
    spec = importlib.util.spec_from_file_location('build_site', ROOT/'docs/build_site.py')
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    return lambda notebook: SITE/module.page(name(notebook)).with_suffix('.html')


def korean_words(most: int = 3) -> list:
    "Long Korean words of some notebooks, each with two syllables from its inside."
    found = {}
    for notebook in NOTEBOOKS:
        for cell in read(notebook)['cells']:
            if cell['cell_type'] == 'markdown' and (word := re.search('[가-힣]{4,}', text(cell))): found.setdefault(word[0][1:3], (notebook, word[0]))
    if not found: pytest.skip('no notebook has a Korean word of four syllables in its text')
    return [(notebook, word, inside) for inside, (notebook, word) in list(found.items())[:most]]


def test_each_notebook_has_its_page(page_of):
    assert [name(n) for n in NOTEBOOKS if not page_of(n).exists()] == []


def test_nothing_is_fetched(pages):
    assert [(p.name, a) for p, page in pages.items() for a in page.assets if re.match(r'(https?:)?//', a)] == []
    styles = {p.name: re.findall(r'(?:@import\s+["\']|url\(["\']?)(?:https?:)?//[^)"\']+', p.read_text(encoding='utf-8'))
              for p in SITE.rglob('*.css')}
    assert {k: v for k, v in styles.items() if v} == {}


def test_each_link_leads_somewhere(pages):
    broken, exists = [], cache(Path.exists)
    for path, page in pages.items():
        for link in page.links + page.assets:
            parts = urlsplit(link)
            if parts.scheme or link.startswith('//'): continue
            goal = Path(os.path.normpath(path.parent/unquote(parts.path))) if parts.path else path
            if not exists(goal): broken.append((path.name, link))
            elif parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids: broken.append((path.name, link))
    assert broken == []


def test_each_name_is_listed(pages):
    listed = (SITE/'reference/names.html').read_text(encoding='utf-8')
    modules = ['.'.join(p.relative_to(ROOT/'splade_nb').with_suffix('').parts) for p in MODULES if p.name[0] != '_']
    assert [m for m in modules if f'<span class="pre">{m}</span>' not in listed] == []


def test_index_finds_a_word_inside_a_word(index, page_of):
    for notebook, word, inside in korean_words():
        found = index['terms'][inside]
        documents = {index['docnames'][i] for i in (found if isinstance(found, list) else [found])}
        assert page_of(notebook).relative_to(SITE).with_suffix('').as_posix() in documents, f'{inside} inside {word}'


def test_each_version_has_its_page():
    assert [version for version in VERSIONS if not (SITE/'experiments'/f'{version}.html').exists()] == []
    settings = (SITE/'reference/settings.html').read_text(encoding='utf-8')
    assert [version for version in VERSIONS if f'<p>{version}</p>' not in settings] == []


def test_each_study_shows_its_table_and_figure():
    contents = (SITE/'index.html').read_text(encoding='utf-8')
    for notebook in tracked('nbs/studies/*.ipynb'):
        page = (SITE/'studies'/f'{notebook.stem}.html').read_text(encoding='utf-8')
        assert '<table' in page and '<img ' in page and f'href="studies/{notebook.stem}.html"' in contents, notebook.stem


def test_the_comparison_shows_the_kept_runs():
    assert len(re.findall('<img ', (SITE/'experiments/compare.html').read_text(encoding='utf-8'))) >= 4


def test_exported_functions_link_to_their_source():
    wrong, count = [], 0
    for path in (SITE/'library').rglob('*.html'):
        for link in re.findall(r'class="source[^"]*" href="([^"]+)"', path.read_text(encoding='utf-8')):
            module, line = re.search(r'/blob/\w+/splade_nb/([\w/]+)\.py#L(\d+)$', link).groups()
            source = (ROOT/f'splade_nb/{module}.py').read_text(encoding='utf-8').splitlines()[int(line) - 1]
            count += 1
            if module != path.relative_to(SITE/'library').with_suffix('').as_posix() or not re.match(r'\s*(def|class|async) ', source): wrong.append(link)
    assert wrong == [] and count > 300, wrong[:5]


SOME = 4  # of so many pages one is opened, those of every folder among them; the others share their styles and scripts


@pytest.mark.parametrize('every', [SOME, pytest.param(1, marks=pytest.mark.weekly)])
def test_no_page_is_broken_in_the_browser(browser, pages, every):
    "Also every page with a diagram. Formulae and the files of pictures are checked on all pages, above and below."
    one_of = {path.parent: path for path in pages}  # a page of every folder
    chosen = [path for number, path in enumerate(pages) if number % every == 0 or path in one_of.values() or 'class="mermaid"' in path.read_text(encoding='utf-8')]
    found = {path.relative_to(SITE).as_posix(): faults(browser, path.as_uri()) for path in chosen}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


FORMULA = re.compile(r'class="math[^"]*">\s*\\([(\[])(.*?)\\[)\]]\s*</', re.S)
DRAW = """(formulae) => formulae.filter(([kind, formula]) => {
  try { return !katex.renderToString(formula, {displayMode: kind === '[', throwOnError: true}); } catch (error) { return true; }
}).map(([kind, formula]) => formula)"""


def test_every_formula_of_every_page_can_be_drawn(browser, pages):
    formulae = {(kind, unescape(formula)) for path in pages for kind, formula in FORMULA.findall(path.read_text(encoding='utf-8'))}
    browser.open((SITE/'library/training/losses.html').as_uri())
    broken = lambda formulae: browser.value(f'({DRAW})({json.dumps([*formulae])})')
    assert len(formulae) > 100 and broken(formulae) == [] and broken([('(', r'\frac{1')]) == [r'\frac{1']


def test_no_picture_was_drawn_without_hangul():
    assert [name(n) for n in NOTEBOOKS if 'missing from font' in n.read_text(encoding='utf-8')] == []


def test_no_function_is_described_by_a_phrase_of_the_tool():
    assert [path.name for path in (SITE/'library').rglob('*.html') if 'Call self as a function' in path.read_text(encoding='utf-8')] == []


def test_each_picture_says_what_it_shows(pages):
    "Alternative texts are sentences or captions, not names of files, and not empty."
    poor = [(path.name, alt) for path, page in pages.items() for alt in page.pictures if len(alt.split()) < 3 or re.search(r'\.(png|svg)$', alt)]
    assert poor == [] and sum(len(page.pictures) for page in pages.values()) > 60


def test_titles_tell_pages_apart(pages, page_of):
    "A page that a search engine shows is told from the others; a version's page and those of results name data and result."
    titles = {path: page.title for path, page in pages.items() if '_static' not in path.parts}
    assert [path.name for path, title in titles.items() if not title.strip()] == []
    assert [title for title, count in Counter(titles.values()).items() if count > 1] == []
    result = re.compile(r'mini|내장 데이터'), re.compile(r'nDCG@10.*\d\.?\d')
    measured = [path for path in (SITE/'experiments').glob('*.html') if path.stem in ('compare', 'results', 'versions') or (ROOT/f'docs/results/{path.stem}-corrected-mini-42').exists()]
    assert len(measured) > 10
    for path in [*measured, SITE/'korean/versions.html']: assert all(part.search(titles[path]) for part in result[path.stem == 'versions':]), titles[path]
    for notebook in NOTEBOOKS:
        page = page_of(notebook)
        if page.is_relative_to(SITE/'library'): assert f'(splade_nb.{".".join(page.relative_to(SITE/"library").with_suffix("").parts)})' in titles[page], titles[page]


def test_korean_pages_say_that_they_are_korean(pages):
    korean = {path for path in pages if path.stem.endswith('_ko') or path.stem == 'korean' or path.parent.name == 'korean'}
    assert len(korean) > 10 and {pages[path].language for path in korean} == {'ko'}
    assert {page.language for path, page in pages.items() if path not in korean and 'reports' not in path.parts} == {'en'}


def test_the_contents_go_by_package():
    contents = (SITE/'index.html').read_text(encoding='utf-8')
    packages = sorted(path.name for path in (SITE/'library').iterdir() if path.is_dir())
    captions = re.findall(r'class="caption-text">([^<]+)<', contents)
    assert set(packages) <= set(captions) and {'한국어', '튜토리얼'} <= set(captions)
    first = captions.index('config')
    assert captions[first:first + len(packages) + 1] == ['config', 'data', 'model', 'training', 'evaluation', 'hub', 'serving', 'what people type', 'lab']


def test_the_korean_tour_is_linked():
    entry = (SITE/'korean.html').read_text(encoding='utf-8')
    for name in ('why', 'how', 'my_data', 'versions'): assert f'href="korean/{name}.html"' in entry, name


@pytest.mark.parametrize('word', ['희소벡터', '형태소', '색인'])
def test_index_finds_korean_words(index, word):
    "Every pair of syllables of the word is in the index, and some page has them all."
    found = [index['terms'].get(pair, []) for pair in (word[i:i + 2] for i in range(len(word) - 1))]
    pages = [set(places if isinstance(places, list) else [places]) for places in found]
    assert set.intersection(*pages), word


FIRST_COLUMN = """(() => {
  const box = [...document.querySelectorAll('.table-wrapper, div.cell_output .text_html')].find((box) => box.scrollWidth > box.clientWidth + 40);
  if (!box) return 'no wide table';
  box.scrollLeft = box.scrollWidth;
  const cell = box.querySelector('tbody :is(th, td)'), last = box.querySelector('tbody tr').lastElementChild;
  return {moved: box.scrollLeft, cell: cell.getBoundingClientRect().left - box.getBoundingClientRect().left,
          last: last.getBoundingClientRect().right - box.getBoundingClientRect().right, share: cell.getBoundingClientRect().width / box.clientWidth};
})()"""


@pytest.mark.parametrize('page', ['korean/why', 'korean/versions', 'experiments/v28', 'experiments/results', 'reference/settings', 'studies/one_index', 'studies/searches_ko'])
def test_the_first_column_stays_in_sight_on_a_phone(browser, page):
    "A wide table scrolls in its own box; its first column stays, and takes at most half of the width."
    assert browser.open((SITE/f'{page}.html').as_uri(), 390) == []
    found = browser.value(FIRST_COLUMN)
    assert found != 'no wide table' and found['moved'] > 30 and abs(found['cell']) < 5 and abs(found['last']) < 5 and 0.15 < found['share'] <= 0.5, found


def test_the_first_page_fits_a_phone(browser):
    assert browser.open((SITE/'index.html').as_uri(), 390) == []
    assert browser.value(FIRST_COLUMN) == 'no wide table' and browser.value("document.querySelectorAll('tbody tr').length") > 3
    assert browser.value('document.documentElement.scrollWidth') <= 390


def test_search_in_the_browser(browser, page_of, served):
    for notebook, word, inside in korean_words():
        assert browser.open(f'{served}/search.html?q={quote(inside)}') == []
        browser.wait("/finished/.test(document.querySelector('#search-results').innerText)")
        shown = browser.value("[...document.querySelectorAll('#search-results a')].map((a) => a.href.split(/[?#]/)[0])")
        assert f'{served}/{page_of(notebook).relative_to(SITE).as_posix()}' in shown, f'{inside} inside {word}'


@pytest.mark.parametrize('word', ['희소벡터', '형태소', '색인'])
def test_a_korean_word_finds_pages(browser, served, word):
    assert browser.open(f'{served}/search.html?q={quote(word)}') == []
    browser.wait("/finished|did not match/.test(document.querySelector('#search-results').innerText)")
    assert browser.value("document.querySelectorAll('#search-results a').length") > 0


def test_the_first_page_asks_no_other_host(browser, served):
    browser.open(f'{served}/index.html')
    asked = [event['request']['url'] for event in browser.seen('Network.requestWillBeSent')]
    assert len(asked) > 3 and [url for url in asked if not url.startswith((served, 'data:'))] == []


def test_dark_is_dark_and_light_is_light(browser):
    bright = {}
    for dark in (True, False):
        browser.dark(dark); browser.open((SITE/'index.html').as_uri())
        colours = browser.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('article p')).color]")
        bright[dark] = [sum(map(int, re.findall(r'\d+', colour)[:3])) / 765 for colour in colours]
    assert bright[True][0] < 0.2 < 0.6 < bright[True][1] and bright[False][0] > 0.9 and bright[False][1] < 0.3

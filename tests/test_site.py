"""The built site, as a person sees it: complete, without a network, searchable in Korean, no broken link, readable on a phone."""
import importlib.util, json, re
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote, unquote, urlsplit
import pytest
from chromium import faults
from conftest import NOTEBOOKS, ROOT, name, read, text
from splade_nb.config.versions import VERSIONS

SITE = ROOT/'docs/_build/html'
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (SITE/'index.html').exists(), reason='no site: make docs')]


class Page(HTMLParser):
    "The ids, links and assets of a page."
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.assets = set(), [], []
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[k] for k in ('id', 'name') if values.get(k)}
        if tag == 'a' and values.get('href'): self.links.append(values['href'])
        elif tag == 'link' and values.get('href'): self.assets.append(values['href'])
        elif tag in ('script', 'img', 'iframe', 'source', 'video') and values.get('src'): self.assets.append(values['src'])


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


@pytest.fixture
def page_of(monkeypatch):
    monkeypatch.chdir(ROOT); monkeypatch.syspath_prepend(ROOT/'docs')
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
    broken = []
    for path, page in pages.items():
        for link in page.links + page.assets:
            parts = urlsplit(link)
            if parts.scheme or link.startswith('//'): continue
            goal = (path.parent/unquote(parts.path)).resolve() if parts.path else path
            if not goal.exists(): broken.append((path.name, link))
            elif parts.fragment and goal in pages and unquote(parts.fragment) not in pages[goal].ids: broken.append((path.name, link))
    assert broken == []


def test_each_name_is_listed(pages):
    listed = (SITE/'reference/names.html').read_text(encoding='utf-8')
    modules = ['.'.join(p.relative_to(ROOT/'splade_nb').with_suffix('').parts) for p in (ROOT/'splade_nb').rglob('*.py') if p.name[0] != '_']
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
    for notebook in (ROOT/'nbs/studies').glob('*.ipynb'):
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


def test_no_page_is_broken_in_the_browser(browser, pages):
    found = {path.relative_to(SITE).as_posix(): faults(browser, path.as_uri()) for path in pages}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_no_picture_was_drawn_without_hangul():
    assert [name(n) for n in NOTEBOOKS if 'missing from font' in n.read_text(encoding='utf-8')] == []


def test_search_in_the_browser(browser, page_of, served):
    for notebook, word, inside in korean_words():
        assert browser.open(f'{served}/search.html?q={quote(inside)}') == []
        browser.wait("/finished/.test(document.querySelector('#search-results').innerText)")
        shown = browser.value("[...document.querySelectorAll('#search-results a')].map((a) => a.href.split(/[?#]/)[0])")
        assert f'{served}/{page_of(notebook).relative_to(SITE).as_posix()}' in shown, f'{inside} inside {word}'


def test_dark_is_dark_and_light_is_light(browser):
    bright = {}
    for dark in (True, False):
        browser.dark(dark); browser.open((SITE/'index.html').as_uri())
        colours = browser.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('article p')).color]")
        bright[dark] = [sum(map(int, re.findall(r'\d+', colour)[:3])) / 765 for colour in colours]
    assert bright[True][0] < 0.2 < 0.6 < bright[True][1] and bright[False][0] > 0.9 and bright[False][1] < 0.3

"""The built site: complete, without a network, searchable in Korean, no broken link."""
import importlib.util, json, re
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urlsplit
import pytest
from conftest import NOTEBOOKS, ROOT, name, read, text

SITE = ROOT/'docs/_build/html'
pytestmark = pytest.mark.skipif(not (SITE/'index.html').exists(), reason='no site: make docs')


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


@pytest.fixture
def page_of(monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location('build_site', ROOT/'docs/build_site.py')
    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
    return lambda notebook: SITE/module.page(name(notebook)).with_suffix('.html')


def korean_word():
    "A long Korean word of some notebook, and two syllables from its inside."
    for notebook in NOTEBOOKS:
        for cell in read(notebook)['cells']:
            if cell['cell_type'] == 'markdown' and (found := re.search('[가-힣]{4,}', text(cell))):
                return notebook, found[0], found[0][1:3]
    pytest.skip('no notebook has a Korean word of four syllables in its text')


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
    modules = [p.stem for p in (ROOT/'splade_nb').glob('*.py') if p.name[0] != '_']
    assert [m for m in modules if f'<span class="pre">{m}</span>' not in listed] == []


def test_index_finds_a_word_inside_a_word(index, page_of):
    notebook, word, inside = korean_word()
    found = index['terms'][inside]
    documents = {index['docnames'][i] for i in (found if isinstance(found, list) else [found])}
    assert page_of(notebook).relative_to(SITE).with_suffix('').as_posix() in documents, f'{inside} inside {word}'


def test_search_in_the_browser(browser, page_of):
    notebook, word, inside = korean_word()
    shown = browser(f'{(SITE/"search.html").as_uri()}?q={quote(inside)}')
    assert page_of(notebook).relative_to(SITE).as_posix() in re.findall(r'href="([^"?#]+)', shown[shown.index('id="search-results"'):])


def test_formulae_and_diagrams_are_drawn(browser, pages):
    formula = next((p for p in pages if 'class="math' in p.read_text(encoding='utf-8')), None)
    diagram = next((p for p in pages if 'class="mermaid"' in p.read_text(encoding='utf-8')), None)
    if formula:
        shown = browser(formula.as_uri())
        assert 'class="katex"' in shown and 'katex-error' not in shown
    if diagram: assert re.search(r'<pre class="mermaid"[^>]*><svg', browser(diagram.as_uri()))
    if not formula and not diagram: pytest.skip('no formula and no diagram')

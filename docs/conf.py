"""The site over the notebooks: Sphinx, MyST-NB and furo. Nothing is fetched when a page is read."""
import re
from html import escape
from pathlib import Path
from docutils import nodes
from myst_nb.core.render import NbElementRenderer
from sphinx.search import SearchLanguage, languages
from sphinx.util.docutils import SphinxDirective

# Sphinx has no Korean splitter: it would index whole words with their particles, so that 벡터 would not
# find 희소벡터와. Pairs of neighbouring syllables, on both sides, find any run of two or more. Words are
# written together or apart, so that a pair across a space is indexed too: 희소벡터 finds 희소 벡터.
WORD = re.compile(r'[가-힣]+|[^\W가-힣]+')


class Bigrams(SearchLanguage):
    lang, language_name = 'ko', 'Korean'
    js_splitter_code = r'''
var splitQuery = (query) => [...query.matchAll(/[가-힣]+|(?:(?![가-힣])[\p{L}\p{N}_])+/gu)].flatMap(([word]) =>
  /^[가-힣]{3,}$/.test(word) ? Array.from({length: word.length - 1}, (_, i) => word.slice(i, i + 2)) : [word]);
'''

    def split(self, text):
        pairs = lambda word: [word[i:i + 2] for i in range(len(word) - 1)] if '가' <= word[0] <= '힣' and len(word) > 2 else [word]
        across = [''.join(pair) for pair in re.findall(r'([가-힣]) (?=([가-힣]))', text)]
        return [part for word in WORD.findall(text) for part in pairs(word)] + across

    def stem(self, word): return word.lower()
    def word_filter(self, word): return bool(word)


languages['ko'] = Bigrams


class Mermaid(SphinxDirective):
    "```mermaid fences, drawn in the browser by the vendored mermaid."
    has_content = True

    def run(self):
        self.env.metadata[self.env.docname]['mermaid'] = True
        return [nodes.raw('', f'<pre class="mermaid">{escape(chr(10).join(self.content))}</pre>', format='html')]


def load_mermaid(app, name, template, context, doctree):
    "Three megabytes of script: only on the pages that draw."
    if 'mermaid' in (context.get('meta') or {}):
        app.add_js_file('mermaid.min.js', loading_method='defer')
        app.add_js_file('mermaid-init.js', loading_method='defer')


def set_title(app, name, template, context, doctree):
    "The language of a page, and what a search engine and a tab show: `build_site` writes it, longer than the heading."
    title = (context.get('meta') or {}).get('page_title') or context.get('title', '')
    context['page_title'] = title if title.startswith(project) else f'{title} - {project}'
    if re.search(r'_ko$|^korean\b', name): context['language'] = 'ko'


undescribed = NbElementRenderer.render_image


def described(self, data):
    "MyST-NB drops the alternative text of a picture that a cell puts out."
    found, alt = undescribed(self, data), data.output_metadata.get(data.mime_type, {}).get('alt')
    for node in found: node['alt'] = alt or ''
    return found


NbElementRenderer.render_image = described


def setup(app):
    app.add_directive('mermaid', Mermaid)
    app.connect('html-page-context', load_mermaid)
    app.connect('html-page-context', set_title)


project = html_title = 'splade_nb'
author = copyright = 'splade_nb contributors'
language, html_search_language = 'en', 'ko'
extensions = ['myst_nb', 'sphinx.ext.mathjax']
nb_execution_mode = 'off'  # outputs come from the notebooks and from nbdev's show_doc
nb_merge_streams = True
nb_render_markdown_format = 'myst'  # tables in outputs
nb_ipywidgets_js = {}
nb_code_prompt_show, nb_code_prompt_hide = 'Source', 'Source'
myst_enable_extensions = ['dollarmath', 'amsmath', 'attrs_inline', 'attrs_block', 'colon_fence', 'deflist']
myst_fence_as_directive = ['mermaid']
myst_heading_anchors, myst_dmath_double_inline = 3, True
mathjax_path, mathjax_options = 'katex/katex.js', {'defer': 'defer'}  # the extension marks formulae up, KaTeX draws them
html_theme = 'furo'
html_static_path, templates_path = ['_static'], ['_templates']
html_css_files = ['katex/katex.min.css', 'site.css']
html_copy_source = html_show_sphinx = html_use_index = False
html_extra_path = ['nbs/_extra'] if Path(__file__).with_name('nbs').joinpath('_extra').exists() else []  # reports, as they are
exclude_patterns = ['_extra']
html_theme_options = {'navigation_with_keys': True}

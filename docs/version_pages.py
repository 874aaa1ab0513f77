"""Pages that code writes for the site: one page a version, the settings of all versions.

They read the versions as declared and the run summaries kept in docs/results, nothing else. Where a run of
this checkout left outputs/<version>/report.html, its version's page shows it.
"""
import inspect, json, re, shutil
from datetime import date
from pathlib import Path
import pandas as pd
import readme_table
from report_html import result_title
from splade_nb.config import settings as config
from splade_nb.config.files import read_json, revision
from splade_nb.evaluation import report
from splade_nb.evaluation.figures import escape, shorten, source_line, write_svg
from splade_nb.evaluation import compare as versions
from splade_nb.config.versions import ABOUT, PARENTS, SCALES, VERSIONS, differences, version_table
from splade_nb.evaluation.metrics import marked
from splade_nb.lab.study import KeptResults, revision_of
from splade_nb.evaluation.compare import markdown_table

ROOT = Path(__file__).resolve().parent.parent
HERE = Path('experiments')                     # of these pages in the site
SAID = re.compile(r'^ {4}(\w+): [\w.]+ *= .*?  # ?(.*)$', re.M)


def read(folder: Path) -> report.Run:
    "A kept run: its summary and evaluation; curves and texts stay in its own report."
    summary, evaluation = (report.read_part(folder/name) for name in ('summary.json', 'evaluation.json'))
    return report.Run(folder, summary, {}, None, [], report.numbers(evaluation), [], summary['guard'])


def cells(table: pd.DataFrame, most: int = 90, source: str = '') -> str:
    "A table as Markdown, its index as a column, long values cut; where it comes from below."
    def cell(value): return escape(value if len(value) <= most else shorten(value, most))
    return markdown_table(table.map(lambda value: cell(value) if isinstance(value, str) else value), source=source)


def declared() -> str: return source_line('make docs', 'none, settings as declared', [revision()], [date.today().isoformat()])


def source_of(run: report.Run) -> str: return report.run_source(run.summary, revision_of(run.folder/'summary.json', run.summary))


def source_of_all(runs: list) -> str:
    return source_line('make docs', {run.summary['data']['name']: run.summary['data']['hash'] for run in runs},
                       [revision_of(run.folder/'summary.json', run.summary) for run in runs], [run.summary.get('date', '') for run in runs])


def drawn(made: tuple, name: str, goal: Path, source: str) -> str:
    "A figure as a file beside the page, its finding and where it comes from below."
    figure, caption = made
    write_svg(figure, goal/HERE/name)
    return f'![{escape(caption)}]({name})\n\n{escape(caption)}\n\n{source}\n'


def figures(run: report.Run, goal: Path) -> list:
    "What a kept evaluation can show."
    name, found = run.folder.name, run.evaluation
    made = dict(quality=report.quality_bars(run))
    if all('difference' in row for row in found['by_kind'].values()): made['kinds'] = report.kind_bars(run)
    if found['context']: made['context'] = report.context_pairs(run)
    return [drawn(pair, f'{name}-{part}.svg', goal, source_of(run)) for part, pair in made.items()]


def unbroken(text: str) -> str: return text.replace(' ', '\u00a0')


def run_row(run: report.Run, sign: str) -> dict:  # sign: of `marked`
    row = versions.compare_row(run.summary)
    words, own = readme_table.words_of(row['data'], run.summary['bm25']['ndcg@10']), row['BM25 + bigrams']
    field, documents = words['BM25 + bigrams'] if pd.isna(own) else own, run.summary.get('documents', words['documents'])
    return {'recipe': row['recipe'], 'data': row['data'], 'seed': str(row['seed']), 'BM25': row['BM25'], 'BM25 + bigrams': '-' if pd.isna(field) else f'{field:.3f}',
            'before training': row['before'], 'trained': row['nDCG@10'], 'over BM25 [95 %]': unbroken(f'{readme_table.points(run.evaluation["difference"])} {sign}'),
            'terms': unbroken(f'{row["active query"]:.0f} / {row["active doc"]:.0f}'), 'index, MB': readme_table.megabytes(row['active doc'], documents),
            'Korean share': row['Korean share'], 'minutes': f'{row["minutes"]:.1f}', 'outcome': row['outcome'],
            'of': revision_of(run.folder/"summary.json", run.summary)}


def run_rows(runs: list) -> list:
    return [run_row(run, sign) for run, sign in zip(runs, marked([run.evaluation['difference'] for run in runs]))]


def changed(version: str) -> str:
    "What a version changes in its parent, under recipe earlier."
    if version not in PARENTS: return 'It has no parent: every setting stands in [the table of all versions](../reference/settings.md).'
    full, mini = versions.changes(version), versions.changes(version, 'mini')
    idle = {name: 'not at mini scale' for name in full if name not in mini}
    rows = [{'setting': name, PARENTS[version]: versions.short(old), version: versions.short(new)} | ({'acts': idle.get(name, 'yes')} if idle else {}) for name, (old, new) in full.items()]
    return f'With the additions of recipe `earlier`, beside [{PARENTS[version]}]({PARENTS[version]}.md):\n\n{cells(pd.DataFrame(rows), source=declared())}'


def mended(version: str) -> str:
    rows = pd.DataFrame([{'setting': row['setting'], 'as written': str(row['original']), 'corrected': str(row['corrected']), 'why': row['reason']} for row in differences(version)])
    return cells(rows, 200, declared()) if len(rows) else 'Nothing.'


def titled(title: str) -> str:
    "Front matter with the title that search engines and tabs show."
    return f'---\npage_title: {json.dumps(title, ensure_ascii=False)}\n---'


def kept_title(what: str) -> str:
    "What a page of all kept runs is called: their number, their data and the highest result."
    runs = readme_table.kept()
    best = runs[runs['data'] == 'mini'].sort_values('nDCG@10').iloc[-1]
    names = ', '.join(sorted(set(runs['data'])))
    return f'{what}: {len(runs)} runs of {runs["version"].nunique()} versions on {names}; highest nDCG@10 on mini {best["nDCG@10"]:.3f} ({best["version"]})'


def criteria(run: report.Run) -> pd.DataFrame:
    "V28's criteria, with what V26, which has no filter, measures in the run of the same recipe, data and seed."
    return report.criteria_table(run, report.unfiltered(run, read)).reset_index()


def shown_run(run: report.Run, goal: Path) -> str:
    summary = run.summary
    head = f'### Recipe {summary["recipe"]} on {summary["data"]["name"]}, seed {summary["seed"]}\n'
    about = f'{summary["parameters"]:,} parameters, {summary["data"]["train_pairs"]:,} training pairs (data {summary["data"]["hash"][:8]}), {summary["steps"]} steps, {summary["device"]}.\n'
    return '\n'.join([head, about, *figures(run, goal), cells(criteria(run), 200, source_of(run)), ''])


def rendered(version: str, goal: Path) -> str:
    "The report of this checkout's own run, where there is one."
    page = ROOT/'outputs'/version/'report.html'
    command = f'make train VERSION={version}'
    if not page.exists(): return f'`{command}` trains it on the embedded set and writes `outputs/{version}/report.html`: curves, terms before and after, the worst queries and why, what to try next.'
    target = goal/'_extra'/HERE/'reports'/f'{version}.html'
    target.parent.mkdir(parents=True, exist_ok=True); shutil.copy(page, target)
    return f'<a href="reports/{version}.html">The report of the run on the machine that built this site</a>, as `{command}` writes it.'


def expansions(version: str) -> str:
    "The heaviest terms of some queries before and after training from a pretrained encoder, of its first seed."
    study = KeptResults('encoder')
    runs = study.results(f'{version}-corrected-[0-9][0-9]')  # neither all rows nor open pairs
    if not runs: return ''
    first = min(runs, key=lambda name: (-len(runs[name]['data']), runs[name]['seed']))  # of those that were judged on most collections
    before, after = read_json(study.path(f'{Path(first).parent}/start'))['expansions'], runs[first]
    terms = lambda rows: ' '.join(term for term, _ in rows)
    rows = [{'query': query, 'before training': terms(before[query]), version: terms(found)} for query, found in after['expansions'].items()]
    source = source_line(after['command'], after['data'], [after['revision']], [after['date']])
    return f'## Expansions\n\nFrom {SCALES["small"]["backbone"]}, at scale `small`, seed {after["seed"]}: the heaviest terms of each query. [What it is worth](../studies/encoder.ipynb).\n\n{cells(pd.DataFrame(rows), 400, source)}'


def version_page(version: str, runs: list, goal: Path) -> str:
    title, backbone, data = ABOUT[version]
    mini = [run for run in runs if run.summary['data']['name'] == 'mini']
    first = {recipe: next(run for run in mini if run.summary['recipe'] == recipe) for recipe in dict.fromkeys(run.summary['recipe'] for run in mini)}
    table = cells(pd.DataFrame(run_rows(runs)), source=source_of_all(runs)) if runs else 'Not run.'
    result = result_title(first['corrected'].folder) if 'corrected' in first else f'{version}, not run'
    return '\n\n'.join([titled(f'{result}. {title}'), f'# {version}', f'> {title}', f'At full scale: {backbone}, on {data}. The runs below are small models from random weights, on a CPU.', rendered(version, goal),
                        '## What it changes', changed(version), '## Runs', table, *[shown_run(run, goal) for run in first.values()], *filter(None, [expansions(version)]),
                        '## What the corrected recipe mends', mended(version)]) + '\n'


def explained() -> dict:  # setting -> what its declaration says of it
    return {name: said for part in (*config.Settings.__mro__[:-1], config.Phase) for name, said in SAID.findall(inspect.getsource(part))}


def settings_table(recipe: str, scale: str) -> str:
    "Every setting of every version; bold where it differs from the parent's."
    said, rows = explained(), []
    for name, values in version_table(recipe=recipe, scale=scale).items():
        text = {version: escape(shorten(str(value), 40)) for version, value in values.items()}
        own = lambda version: version in PARENTS and str(values[version]).strip('()') != str(values[PARENTS[version]]).strip('()')
        rows.append({'setting': name} | {version: f'**{value}**' if own(version) else value for version, value in text.items()} | {'what it is': said.get(name.split(' ')[-1], '')})
    return markdown_table(pd.DataFrame(rows), source=declared())


def settings_page() -> str:
    return ('# Settings of all versions\n\nRead from the objects of [versions](../library/config/versions.ipynb). Bold: not as in the parent. In brackets: switched off by another setting.\n\n'
            f'## As written, full scale\n\n{settings_table("original", "full")}\n\n## Corrected, mini scale\n\nWhat `make train` runs on a CPU.\n\n{settings_table("corrected", "mini")}\n')


def kept_folders() -> list: return sorted(path.parent for path in readme_table.RESULTS.glob('*/summary.json'))


def pages(goal: Path) -> dict:  # address -> Markdown; pictures are written beside
    "Versions in order, settings."
    (goal/HERE).mkdir(parents=True, exist_ok=True)
    runs = [read(folder) for folder in kept_folders()]
    of = lambda version: sorted((run for run in runs if run.summary['version'] == version), key=lambda run: (list(versions.RECIPES)[::-1].index(run.summary['recipe']), run.summary['data']['name'], run.summary['seed']))
    return {**{(HERE/f'{version}.md').as_posix(): version_page(version, of(version), goal) for version in VERSIONS},
            'reference/settings.md': settings_page()}

"""Write README's table of results from the run summaries kept in docs/results.

    python docs/readme_table.py            rewrite the table
    python docs/readme_table.py --check    exit 1 if it is not what the summaries say
    python docs/readme_table.py --keep outputs/v28 ...   copy the summaries of these runs first
"""
import json, shutil, sys
from pathlib import Path
import pandas as pd
from splade_nb.config import ABOUT, VERSIONS
from splade_nb.versions import compare_row, markdown_table

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT/'experiments'))
import report
RESULTS, README = ROOT/'docs'/'results', ROOT/'README.md'
BEGIN, END = '<!-- results: docs/readme_table.py -->', '<!-- /results -->'


def keep(folder: Path) -> None:
    "Copy a run's summary and evaluation under the name of its version, recipe, data and seed."
    summary = json.loads((folder/'summary.json').read_text(encoding='utf-8'))
    target = RESULTS/f'{summary["version"]}-{summary["recipe"]}-{summary["data"]["name"]}-{summary["seed"]}'
    target.mkdir(parents=True, exist_ok=True)
    for name in ('summary.json', 'evaluation.json'): shutil.copy(folder/name, target/name)


def kept() -> pd.DataFrame:
    "Every kept run: its summary and the difference to BM25."
    rows = []
    for path in sorted(RESULTS.glob('*/summary.json')):
        summary = json.loads(path.read_text(encoding='utf-8'))
        gain = json.loads((path.parent/'evaluation.json').read_text(encoding='utf-8'))['difference']
        rows.append(compare_row(summary) | {'queries': summary['metrics']['queries'], 'gain': f'{gain["mean"]:+.3f} [{gain["low"]:+.3f}, {gain["high"]:+.3f}]'})
    return pd.DataFrame(rows)


def said(runs: pd.DataFrame) -> str:
    "nDCG@10 of one version and recipe, the mean over seeds; what became of failed runs."
    if not len(runs): return 'not run'
    spread = f' ({len(runs)} seeds, {runs["nDCG@10"].min():.3f} to {runs["nDCG@10"].max():.3f})' if len(runs) > 1 else ''
    failed = next((outcome for outcome in runs['outcome'] if outcome), '')
    return f'{runs["nDCG@10"].mean():.3f}{spread}' + (f', {failed}' if failed else '')


def versions_table(runs: pd.DataFrame) -> pd.DataFrame:
    "The versions on the embedded set, a row each."
    runs = runs[runs['data'] == 'mini']
    of = lambda version, recipe: runs[(runs['version'] == version) & (runs['recipe'] == recipe)]
    terms = lambda found: f'{found["active query"].mean():.0f} / {found["active doc"].mean():.0f}' if len(found) else '-'
    return pd.DataFrame([{'version': version, 'what changed': ABOUT[version][0], 'as written': said(of(version, 'seed')), 'corrected': said(of(version, 'corrected')),
                          'terms': terms(of(version, 'corrected')), 'minutes': f'{of(version, "corrected")["minutes"].mean():.1f}' if len(of(version, 'corrected')) else '-'}
                         for version in VERSIONS])


def public_table(runs: pd.DataFrame) -> pd.DataFrame:
    "Public collections, a row a run."
    runs = runs[runs['data'] != 'mini'].sort_values(['data', 'seed'])
    return pd.DataFrame([{'version': r['version'], 'data': r['data'], 'seed': str(r['seed']), 'BM25': r['BM25'], 'untrained': r['before'], 'trained': r['nDCG@10'],
                          'over BM25 [95 %]': r['gain'], 'terms': f'{r["active query"]:.0f} / {r["active doc"]:.0f}', 'minutes': f'{r["minutes"]:.1f}'} for _, r in runs.iterrows()])


def table() -> str:
    "The block between the marks."
    runs = kept(); mini = runs[runs['data'] == 'mini']
    told = f'Embedded set `mini`, {mini["queries"].max()} test queries: BM25 {mini["BM25"].mean():.3f}, corrected start {mini[mini["recipe"] == "corrected"]["before"].mean():.3f}.'
    return (f'{BEGIN}\n{told}\n\n{markdown_table(versions_table(runs))}\n\nPublic collections, test queries, nDCG@10 in percent. {report.tested(report.trained_results())}\n\n'
            f'V28 corrected, a model a collection:\n\n{markdown_table(public_table(runs))}\n{END}')


def main(arguments: list[str]) -> int:
    if arguments[:1] == ['--keep']:
        for folder in arguments[1:]: keep(Path(folder))
    text = README.read_text(encoding='utf-8')
    before, rest = text.split(BEGIN); after = rest.split(END)[1]
    new = before + table() + after
    if arguments == ['--check']: return int(new != text)
    README.write_text(new, encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main(sys.argv[1:]))

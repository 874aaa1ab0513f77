"""Write README's table of results from the run summaries kept in docs/results.

    python docs/readme_table.py            rewrite the table
    python docs/readme_table.py --check    exit 1 if it is not what the summaries say
    python docs/readme_table.py --keep outputs/v28 ...   copy the summaries of these runs first
"""
import json, shutil, sys
from pathlib import Path
import pandas as pd
from splade_nb.versions import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS, README = ROOT/'docs'/'results', ROOT/'README.md'
BEGIN, END = '<!-- results: docs/readme_table.py -->', '<!-- /results -->'


def keep(folder: Path) -> None:
    "Copy a run's summary and evaluation under the name of its version, recipe, data and seed."
    summary = json.loads((folder/'summary.json').read_text(encoding='utf-8'))
    target = RESULTS/f'{summary["version"]}-{summary["recipe"]}-{summary["data"]["name"]}-{summary["seed"]}'
    target.mkdir(parents=True, exist_ok=True)
    for name in ('summary.json', 'evaluation.json'): shutil.copy(folder/name, target/name)


def row(path: Path) -> dict:
    "One kept run as one row."
    s = json.loads(path.read_text(encoding='utf-8'))
    gain = json.loads((path.parent/'evaluation.json').read_text(encoding='utf-8'))['difference']
    return {'version': s['version'], 'data': s['data']['name'], 'seed': str(s['seed']), 'BM25': s['bm25']['ndcg@10'],
            'untrained': s['before_training']['ndcg@10'], 'trained': s['metrics']['ndcg@10'],
            'over BM25 [95 %]': f'{gain["mean"]:+.3f} [{gain["low"]:+.3f}, {gain["high"]:+.3f}]',
            'terms query / document': f'{s["active_terms"]["query"]:.0f} / {s["active_terms"]["doc"]:.0f}', 'minutes': f'{s["seconds"] / 60:.1f}'}


def table() -> str:
    "The block between the marks: nDCG@10 of every kept run."
    rows = pd.DataFrame([row(path) for path in sorted(RESULTS.glob('*/summary.json'))])
    return f'{BEGIN}\n{markdown_table(rows.sort_values(["data", "seed"], key=lambda c: c.map(str)))}\n{END}'


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

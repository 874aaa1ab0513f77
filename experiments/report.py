"""Write docs/experiments.md from experiments/results/*.json.

    python experiments/report.py [--check]
"""
import sys
import numpy as np
import pandas as pd
from splade_nb.config import read_json
from splade_nb.versions import markdown_table
from start import HERE

PAGE = HERE.parent/'docs'/'experiments.md'
TEXT = """# What helps, and what does not

Written by `experiments/report.py` from `experiments/results/`. nDCG@10 in percent. A fifth of the training queries judges, by hash of the query id; no test query was seen while choosing.
Brackets: 95 % interval of the paired difference to BM25 over Kiwi morphemes (bootstrap over queries).

## Before anything is learned

`{command}`, {date}. BM25's formula over {pieces:,} pieces of morphemes, and pairs of neighbouring characters beside them, in hashed columns. Where a row says nothing else: pairs in 8,192 columns at weight 0.4, IDF and mean length of the collection itself.

{start}

## Training

One model on all collections' training queries but the held-out fifth. Corpus text is used unlabelled for vocabulary, IDF and the start's directions.

{trained}
"""


def percent(value: float) -> str: return f'{100 * value:.1f}'


def gained(difference: dict) -> str: return f'[{100 * difference["low"]:+.1f}, {100 * difference["high"]:+.1f}]'


def start_table(result: dict) -> pd.DataFrame:
    found, rows = result['found'], []
    for system in next(iter(found.values())):
        values = {name: rows_[system] for name, rows_ in found.items()}
        rows.append({'ranking': system, **{name: f'{percent(row["ndcg"])} {gained(row["difference"])}' if system != 'BM25, morphemes' else percent(row['ndcg']) for name, row in values.items()},
                     'mean': percent(np.mean([row['ndcg'] for row in values.values()]))})
    return pd.DataFrame(rows)


def trained_table(results: list) -> str:
    rows = []
    for result in results:
        before = {row['collection']: row['metrics']['ndcg@10']['mean'] for row in result['start']}
        for row in result['found']:
            rows.append({'version': result['version'], 'variant': result['name'], 'seed': str(result['seed']), 'collection': row['collection'], 'queries': f'{row["queries"]:,} {row["split"]}',
                         'BM25': percent(row['bm25']['ndcg@10']['mean']), 'untrained': percent(before[row['collection']]) if row['split'] == 'dev' else '', 'trained': percent(row['metrics']['ndcg@10']['mean']),
                         'over BM25': f'{100 * row["difference"]["mean"]:+.1f} {gained(row["difference"])}', 'terms': f'{row["terms"]["query"]:.0f} / {row["terms"]["doc"]:.0f}',
                         'minutes': f'{result["seconds"] / 60:.1f}'})
    return markdown_table(pd.DataFrame(rows)) if rows else 'Not run yet: `python experiments/train.py`.'


def page() -> str:
    result = read_json(HERE/'results'/'start.json')
    trained = [read_json(path) for path in sorted((HERE/'results').glob('train-*.json'))]
    return TEXT.format(**{name: result[name] for name in ('command', 'date', 'pieces')}, start=markdown_table(start_table(result)), trained=trained_table(trained))


if __name__ == '__main__':
    if '--check' not in sys.argv: PAGE.write_text(page(), encoding='utf-8')
    elif PAGE.read_text(encoding='utf-8') != page(): sys.exit('docs/experiments.md is not what the results say: run python experiments/report.py')

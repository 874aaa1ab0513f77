"""Write docs/experiments.md from experiments/results/*.json.

    python experiments/report.py [--check]
"""
import sys
import numpy as np
import pandas as pd
from splade_nb.config import read_json
from splade_nb.evaluation import paired_difference
from splade_nb.report import canvas, palette, write_svg
from splade_nb.versions import markdown_table, percent
from start import COLUMNS, HERE, SHARE
from train import LATER

IN_ENGLISH = 'koen_'  # collections that `bilingual.py` made
PAGE, PICTURE = HERE.parent/'docs'/'experiments.md', HERE.parent/'docs'/'over-bm25.svg'
TEXT = """# What helps, and what does not

Written by `experiments/report.py` from `experiments/results/`. nDCG@10 in percent. A fifth of the training queries judges, by hash of the query id; no test query was seen while choosing.
Brackets: 95 % interval of the paired difference to BM25 over Kiwi morphemes (bootstrap over queries).

## Before anything is learned

`{command}`, {date}. BM25's formula over {pieces:,} pieces of morphemes, and pairs of neighbouring characters beside them, in hashed columns. Where a row says nothing else: pairs in {columns:,} columns at weight {share}, IDF and mean length of the collection itself.

{start}

## Training

One model on all collections' training queries but the held-out fifth. Corpus text is used unlabelled for vocabulary, IDF and the start's directions.
The held-out fifth flatters what is learned from pairs: in `techdocs_ko` it asks for sections of pages whose other sections were trained on, while the test queries ask for other pages.
`koen_terms` and `koen_parallel` ask Korean texts in English (`experiments/bilingual.py`); where they have a number they were trained along. `mean` is over the collections of all rows; `untrained`: what a variant begins with, no step of gradient descent.
`translate`: a document also counts as what questions say in place of its pieces, by [Model 1](../nbs/08_translation.ipynb) over the same training pairs.

{variants}

## Documents cut short

`python experiments/prune.py MODEL COLLECTION ...`: each document keeps its heaviest terms only, by weight or by weight times what a query gives. In brackets: active terms of a document. `as-declared-100` has no translations, which weigh as own pieces do and take their place.

{cut}

## Test queries

Judged once, after the choice. Intervals: over queries, of the mean of the seeds.
`make evaluate MODEL=... DATA=...` gives each figure of a model that `experiments/train.py --out FOLDER` kept; `SPLIT=all` for a collection without training queries.

![splade_ko and BM25 on public Korean collections](over-bm25.svg)

{tested}
"""


def gained(difference: dict) -> str: return f'[{100 * difference["low"]:+.1f}, {100 * difference["high"]:+.1f}]'


def start_table(result: dict) -> pd.DataFrame:
    found, rows = result['found'], []
    for system in next(iter(found.values())):
        values = {name: rows_[system] for name, rows_ in found.items()}
        rows.append({'ranking': system, **{name: f'{percent(row["ndcg"])} {gained(row["difference"])}' if system != 'BM25, morphemes' else percent(row['ndcg']) for name, row in values.items()},
                     'mean': percent(np.mean([row['ndcg'] for row in values.values()]))})
    return pd.DataFrame(rows)


def by_variant(results: list) -> list:  # lists of results that differ in the seed only
    "The seeds of each variant together."
    variants = {}
    for result in results: variants.setdefault((result['version'], result['name']), []).append(result)
    return list(variants.values())


def rows_of(runs: list, *splits: str) -> dict:  # collection: its row of each seed
    "What each seed found on the collections of some splits."
    found = {}
    for run in runs:
        for row in run['found']:
            if row['split'] in splits: found.setdefault(row['collection'], []).append(row)
    return found


def mean_of(rows: list, system: str = 'metrics') -> float: return np.mean([row[system]['ndcg@10']['mean'] for row in rows])


def terms_of(found: dict) -> str:
    sides = [np.mean([row['terms'][side] for rows in found.values() for row in rows]) for side in ('query', 'doc')]
    return ' / '.join(f'{side:.0f}' for side in sides)


def variant_row(runs: list, common: list) -> dict:
    found, first = rows_of(runs, 'dev'), runs[0]
    gains = [mean_of(found[name]) - mean_of(found[name], 'bm25') for name in common]
    return {'version': first['version'], 'variant': first['name'], 'changes': ', '.join(f'{name} {value}' for name, value in first['changes'].items()), 'seeds': str(len(runs)),
            **{name: percent(mean_of(rows)) for name, rows in found.items()}, 'mean': percent(np.mean([mean_of(found[name]) for name in common])),
            'over BM25': percent(np.mean(gains), '+'), 'terms': terms_of(found), 'minutes': f'{np.mean([run["seconds"] for run in runs]) / 60:.1f}'}


def starts(results: list) -> list:  # lists of results that differ in the seed only
    "What the variants began with."
    found = {}
    for result in results:
        changes = {name: value for name, value in result['changes'].items() if name not in LATER}
        seeds = found.setdefault(str((changes, [row['collection'] for row in result['start']])), {})
        seeds.setdefault(result['seed'], result | dict(name='untrained', changes=changes, seconds=0, found=result['start']))
    return [list(seeds.values()) for seeds in found.values()]


def variants_table(results: list) -> str:
    "The starts, and what each variant made of its own."
    common = [name for name in rows_of(results[:1], 'dev') if all(name in rows_of([result], 'dev') for result in results)]
    rows = [variant_row(runs, common) for runs in (*starts(results), *by_variant(results))]
    found = rows_of(results, 'dev')
    bm25 = {'variant': 'BM25 over Kiwi morphemes', **{name: percent(mean_of(rows, 'bm25')) for name, rows in found.items()}, 'mean': percent(np.mean([mean_of(found[name], 'bm25') for name in common]))}
    return markdown_table(pd.DataFrame([*rows, bm25]))


def over_bm25(rows: list) -> dict:  # mean, low, high
    "The mean of the seeds query by query, so that the interval is over queries."
    gains = np.mean([np.array(row['gains'].split(), dtype=float) for row in rows], axis=0)
    return paired_difference(gains, np.zeros_like(gains))


def test_row(collection: str, rows: list) -> dict:
    values, found = [row['metrics']['ndcg@10']['mean'] for row in rows], over_bm25(rows)
    return {'collection': collection, 'queries': f'{rows[0]["queries"]:,}', 'BM25': percent(mean_of(rows, 'bm25')), 'mean of seeds': percent(np.mean(values)),
            'lowest to highest': f'{percent(min(values))} to {percent(max(values))}', 'over BM25': percent(found, '+'),
            'significant': 'yes' if found['low'] > 0 else 'no', 'terms': terms_of({collection: rows})}


def widest_first(results: list) -> list:  # of `by_variant`
    return sorted(by_variant(results), key=lambda runs: -len(rows_of(runs, 'test', 'all')))


def tested(results: list) -> str:
    "A table for each variant whose test queries were judged, the most widely judged first."
    tables = []
    for runs in widest_first(results):
        found = rows_of(runs, 'test', 'all')
        if not found: continue
        rows = [test_row(*item) for item in found.items()]
        korean = [each for name, each in found.items() if not name.startswith(IN_ENGLISH)]
        values, gains = [mean_of(each) for each in korean], [mean_of(each) - mean_of(each, 'bm25') for each in korean]
        rows.append({'collection': 'mean of those asked in Korean', 'mean of seeds': percent(np.mean(values)), 'over BM25': percent(np.mean(gains), '+')})
        seeds = ', '.join(str(run['seed']) for run in runs)
        tables.append(f'`{runs[0]["version"]}` as `{runs[0]["name"]}`, {runs[0]["steps"]} steps on all train splits together, seeds {seeds}, {np.mean([run["seconds"] for run in runs]) / 60:.1f} minutes of training with {runs[0]["threads"]} thread:\n\n'
                      + markdown_table(pd.DataFrame(rows)))
    return '\n\n'.join(tables) or 'Not judged yet.'


def picture(results: list):  # figure
    "BM25 and the model judged on most collections: their test queries, with the interval of the difference."
    runs = widest_first(results)[0]
    found = rows_of(runs, 'test', 'all')
    gains = dict(sorted(((name, over_bm25(rows)) for name, rows in found.items()), key=lambda pair: pair[1]['mean']))
    bm25, (mean, low, high) = (100 * np.array(values) for values in ([mean_of(found[name], 'bm25') for name in gains], [[gain[part] for gain in gains.values()] for part in ('mean', 'low', 'high')]))
    places = np.arange(len(gains))
    figure, axis = canvas(width=8, height=0.42 * len(gains) + 1)
    axis.hlines(places, bm25, bm25 + mean, color='#999999', linewidth=1.4, zorder=1)
    axis.errorbar(bm25 + mean, places, xerr=[mean - low, high - mean], color=palette['blue'], marker='o', linestyle='none', capsize=3, label=f'{runs[0]["version"]}, 95 % of the difference')
    axis.plot(bm25, places, color=palette['orange'], marker='D', linestyle='none', label='BM25 over Kiwi morphemes')
    for x, y, gain in zip(bm25 + high, places, mean): axis.annotate(f'{gain:+.1f}', (x, y), (7, 0), textcoords='offset points', va='center')
    axis.set(yticks=places, yticklabels=gains, xlabel=f'nDCG@10 of test queries, percent; mean of {len(runs)} seeds', ylim=(-0.6, len(gains) - 0.4))
    axis.margins(x=0.08); axis.legend(frameon=False, loc='lower center', bbox_to_anchor=(0.5, 1), ncol=2)
    return figure


def cut_table(result: dict) -> str:
    "nDCG@10 of each collection by the terms that the documents of a model keep."
    names = list(next(iter(result['found'].values())))
    rows = [{'kept': name, **{collection: f'{percent(found[name]["ndcg"])} ({found[name]["terms"]:.0f})' for collection, found in result['found'].items()},
             'mean': percent(np.mean([found[name]['ndcg'] for found in result['found'].values()]))} for name in names]
    return f'{result["date"]}, `{result["model"]}`:\n\n{markdown_table(pd.DataFrame(rows))}'


def trained_results() -> list: return [read_json(path) for path in sorted((HERE/'results').glob('train-*.json'))]


def page() -> str:
    result, trained = read_json(HERE/'results'/'start.json'), trained_results()
    pruned = [read_json(path) for path in sorted((HERE/'results').glob('prune-*.json'))]
    return TEXT.format(**{name: result[name] for name in ('command', 'date', 'pieces')}, start=markdown_table(start_table(result)), variants=variants_table(trained), tested=tested(trained), cut='\n\n'.join(map(cut_table, pruned)), columns=COLUMNS, share=SHARE)


if __name__ == '__main__':
    if '--check' not in sys.argv: PAGE.write_text(page(), encoding='utf-8'); write_svg(picture(trained_results()), PICTURE)
    elif PAGE.read_text(encoding='utf-8') != page(): sys.exit('docs/experiments.md is not what the results say: run python experiments/report.py')

"""Write docs/experiments.md from experiments/results/*.json.

    python experiments/report.py [--check]
"""
import sys
import numpy as np
import pandas as pd
import baselines
from revisions import revision_of, told
from splade_nb.config.files import read_json
from splade_nb.config.settings import RENAMED
from splade_nb.evaluation.metrics import index_bytes, marked, paired_difference
from splade_nb.evaluation.report import canvas, palette, write_svg
from splade_nb.evaluation.compare import markdown_table, percent
from start import COLUMNS, HERE, SHARE
from train import LATER

IN_ENGLISH = 'koen_'  # collections that `bilingual.py` made
PAGE, PICTURE = HERE.parent/'docs'/'experiments.md', HERE.parent/'docs'/'over-bm25.svg'
TEXT = """# What helps, and what does not

Written by `experiments/report.py` from `experiments/results/`. nDCG@10 in percent. A fifth of the training queries judges, by hash of the query id, up to the last section.
Brackets: 95 % interval of the paired difference to BM25 over Kiwi morphemes (bootstrap over queries).
BM25 + bigrams: the same plus 0.4 times BM25 over [pairs of characters](../nbs/1_data/07_bm25.ipynb), nothing trained (`python experiments/baselines.py COLLECTION ...`, {baselines}).
Index: postings of eight bytes (`metrics.index_bytes`), from terms a document and the number of documents. `-`: not kept. "Of" names the commit whose files the figures are; none was run again since.

## Before anything is learned

`{command}`, {date}. BM25's formula over {tokens:,} tokens of morphemes, and pairs of neighbouring characters beside them, in hashed columns. Where a row says nothing else: pairs in {columns:,} columns at weight {share}, IDF and mean length of the collection itself. How many terms the mixtures have was not kept. Of {start_of}.

{start}

## Training

One model on all collections' training queries but the held-out fifth. Corpus text is used unlabelled for vocabulary, IDF and the start's directions.
The held-out fifth flatters what is learned from pairs: in `techdocs_ko` it asks for sections of pages whose other sections were trained on, while the test queries ask for other pages.
`koen_terms` and `koen_parallel` ask Korean texts in English (`experiments/bilingual.py`); where they have a number they were trained along. `mean` is over the collections of all rows; `untrained`: what a variant begins with, no step of gradient descent.
`translate`: a document also counts as what questions say in place of its tokens, by [Model 1](../nbs/1_data/08_model1.ipynb) over the same training pairs. Index: of the four collections together. Of {variants_of}.

{variants}

## Documents cut short

`python experiments/prune.py MODEL COLLECTION ...`: each document keeps its heaviest terms only, by weight or by weight times what a query gives. In brackets: active terms of a document, MB of its index. `as-declared-100` has no translations, which weigh as input tokens do and take their place.

{cut}

## Test queries

{judged} A choice among these is not blind any more. Intervals: over queries, of the mean of the seeds. ▲ above, ▼ below: p of the paired t-test, corrected by Holm over all differences of a table, is below 0.05; ≈: neither can be claimed. Document terms and index: of BM25 / BM25 + bigrams / the model.
{floor} {equal}
Untrained: the model before its first step, where it was judged; of `final` the leaderboard's start of seed 42, which counted the four Korean train splits and no English pairs. `parakqc` and `KorQuAD_v1.0_dev` have no train split, nothing was learned from them, and all their queries are asked.
`make evaluate MODEL=... DATA=...` gives each figure of a model that `experiments/train.py --out FOLDER` kept; `SPLIT=all` for a collection without training queries.

![splade_ko and BM25 on public Korean collections](over-bm25.svg)

{tested}
"""


def gained(difference: dict) -> str: return f'[{100 * difference["low"]:+.1f}, {100 * difference["high"]:+.1f}]'


def splits_of(split: str) -> dict:  # collection -> its baselines
    return {name: found['splits'][split] for name, found in baselines.known().items() if split in found['splits']}


def bigram_cell(name: str, split: str) -> str:
    "nDCG@10 of BM25 with a bigram field and the interval of its difference to BM25."
    found = splits_of(split).get(name)
    return f'{percent(found["bm25_bigrams"]["ndcg@10"]["mean"])} {gained(found["difference"])}' if found else '-'


def size_of(system: str, name: str) -> str:  # terms a document and MB, of a baseline
    found = baselines.known().get(name)
    return f'{found["index"][system]["terms"]:.0f} / {found["index"][system]["bytes"] / 1e6:.2f}' if found else '-'


def start_table(result: dict) -> pd.DataFrame:
    found, rows = result['found'], []
    plain = 'BM25, morphemes'
    cell = lambda system, row: percent(row['ndcg']) + ('' if system == plain else f' {gained(row["difference"])}')
    for system in next(iter(found.values())):
        values = {name: rows_[system] for name, rows_ in found.items()}
        rows.append({'ranking': system, **{name: cell(system, row) for name, row in values.items()},
                     'mean': percent(np.mean([row['ndcg'] for row in values.values()]))})
    fields = [splits_of('dev')[name]['bm25_bigrams']['ndcg@10']['mean'] for name in found if name in splits_of('dev')]
    whole = len(fields) == len(found)
    rows.insert(1, {'ranking': 'BM25 + bigrams', **{name: bigram_cell(name, 'dev') for name in found},
                    'mean': percent(np.mean(fields)) if whole else '-'})
    for system, row in (('bm25', 'BM25, morphemes'), ('bm25_bigrams', 'BM25 + bigrams')):
        rows.append({'ranking': f'{row}: terms / MB', **{name: size_of(system, name) for name in found}})
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


def over_bigrams(found: dict, common: list, split: str) -> str:  # found: of `rows_of`
    "Mean points above BM25 with a bigram field, where that is known of all."
    known = splits_of(split)
    if not all(name in known for name in common): return '-'
    gains = [mean_of(found[name]) - known[name]['bm25_bigrams']['ndcg@10']['mean'] for name in common]
    return percent(np.mean(gains), '+')


def megabytes(rows: dict) -> float:  # collection: its rows; of their indexes together, NaN where documents are not known
    documents = {name: found['documents'] for name, found in baselines.known().items()}
    terms = lambda name: np.mean([row['terms']['doc'] for row in rows[name]])
    return sum(index_bytes(terms(name), documents[name]) / 1e6 if name in documents else np.nan for name in rows)


def size_text(rows: dict) -> str:
    found = megabytes(rows)
    return '-' if np.isnan(found) else f'{found:.1f}'


def variant_row(runs: list, common: list) -> dict:
    found, first = rows_of(runs, 'dev'), runs[0]
    gains = [mean_of(found[name]) - mean_of(found[name], 'bm25') for name in common]
    return {'version': first['version'], 'variant': first['name'], 'changes': ', '.join(f'{name} {value}' for name, value in first['changes'].items()), 'seeds': str(len(runs)),
            **{name: percent(mean_of(rows)) for name, rows in found.items()}, 'mean': percent(np.mean([mean_of(found[name]) for name in common])),
            'over BM25': percent(np.mean(gains), '+'), 'over BM25 + bigrams': over_bigrams(found, common, 'dev'),
            'terms': terms_of(found), 'index, MB': size_text({name: found[name] for name in common}), 'minutes': f'{np.mean([run["seconds"] for run in runs]) / 60:.1f}'}


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
    field = {'variant': 'BM25 + bigrams', **{name: bigram_cell(name, 'dev').split(' ')[0] for name in found}}
    values = [splits_of('dev')[name]['bm25_bigrams']['ndcg@10']['mean'] for name in common if name in splits_of('dev')]
    if len(values) == len(common): field['mean'] = percent(np.mean(values))
    for row, system in ((bm25, 'bm25'), (field, 'bm25_bigrams')):
        sizes = [baselines.known()[name]['index'][system]['bytes'] for name in common if name in baselines.known()]
        if len(sizes) == len(common): row['index, MB'] = f'{sum(sizes) / 1e6:.1f}'
    return markdown_table(pd.DataFrame([*rows, bm25, field]))


def gains_of(rows: list) -> np.ndarray:  # a value a query
    "The mean of the seeds query by query, so that an interval is over queries."
    return np.mean([np.array(row['gains'].split(), dtype=float) for row in rows], axis=0)


def over(rows: list, less: np.ndarray | None = None) -> dict:  # mean, low, high, p
    "What the model is above BM25, or above BM25 and `less` of each query."
    gains = gains_of(rows)
    return paired_difference(gains, np.zeros_like(gains) if less is None else less)


def bigram_gains(collection: str, split: str, rows: list) -> np.ndarray | None:
    "What the bigram field adds to BM25 query by query; None where it was measured on other queries or documents."
    found = baselines.known().get(collection, {}).get('splits', {}).get(split)
    if not found or found['queries'] != rows[0]['queries']: return None
    same = abs(found['bm25']['ndcg@10']['mean'] - mean_of(rows, 'bm25')) < 5e-4
    return np.array(found['gains'].split(), dtype=float) if same else None


def untrained_of(results: list) -> dict:  # collection -> rows of the start on test queries, a seed each
    found = {}
    for result in results:
        for row in result['untrained']: found.setdefault(row['collection'], []).append(row)
    return found


def board_record(system: str) -> dict:  # of the leaderboard of public sets; empty where it is not kept
    paths = sorted((HERE/'results'/'leaderboard').glob(f'*+*/{system}-42.json'))
    return read_json(paths[0]) if paths else {}


def untrained_results(runs: list) -> list:
    "What `train.py --untrained` kept of the same variant, else the leaderboard's start where the variant changes nothing before training."
    names = [f'untrained-{run["version"]}-{run["name"]}-{run["seed"]}.json' for run in runs]
    own = [read_json(HERE/'results'/name) for name in names if (HERE/'results'/name).exists()]
    if own or not {RENAMED.get(name, name) for name in runs[0]['changes']} <= {RENAMED.get(name, name) for name in LATER}: return own
    found = board_record(f'{runs[0]["version"]}-untrained').get('collections', {})
    return [dict(untrained=[dict(one, collection=name) for name, one in found.items()])]


def sizes_of(collection: str, rows: list) -> dict:
    "Terms a document and MB of BM25, BM25 with a bigram field, and the model."
    index = baselines.known().get(collection, {}).get('index', {})
    own = np.mean([row['terms']['doc'] for row in rows])
    words = [index[system] for system in ('bm25', 'bm25_bigrams') if system in index]
    terms = [*(f'{found["terms"]:.0f}' for found in words), f'{own:.0f}']
    size = [*(f'{found["bytes"] / 1e6:.1f}' for found in words), size_text({collection: rows})]
    return {'document terms': ' / '.join(terms), 'index, MB': ' / '.join(size)}


def test_row(collection: str, rows: list, untrained: dict, english: bool) -> tuple:  # row, differences
    "One collection of a variant; differences are left out where English asks."
    values, less = [row['metrics']['ndcg@10']['mean'] for row in rows], bigram_gains(collection, rows[0]['split'], rows)
    start, bm25 = untrained.get(collection), mean_of(rows, 'bm25')
    row = {'collection': collection, 'queries': f'{rows[0]["queries"]:,}', 'BM25': percent(bm25),
           'BM25 + bigrams': '-' if less is None else percent(bm25 + less.mean()),
           'untrained': percent(mean_of(start)) if start else '-', 'mean of seeds': percent(np.mean(values)),
           'lowest to highest': f'{percent(min(values))} to {percent(max(values))}'}
    differences = {} if english else {'over BM25': over(rows)} | ({} if less is None else {'over BM25 + bigrams': over(rows, less)})
    return row | {'query terms': f'{np.mean([row["terms"]["query"] for row in rows]):.0f}', **sizes_of(collection, rows)}, differences


def with_marks(rows: list) -> list:  # of `test_row` -> rows of texts
    "Differences as texts, marked by Holm over all of the table."
    every = [(place, name, found) for place, (_, differences) in enumerate(rows) for name, found in differences.items()]
    signs = marked([found for _, _, found in every])
    texts = {(place, name): f'{percent(found, "+")} {sign}' for (place, name, found), sign in zip(every, signs)}
    names = dict.fromkeys(name for _, name, _ in every)
    return [row | {name: texts.get((place, name), '-') for name in names} for place, (row, _) in enumerate(rows)]


def mean_row(found: dict, untrained: dict) -> dict:
    "Means over the collections, each counted once; of the others only where all have the figure."
    whole = lambda values: percent(np.mean(values)) if values and None not in values else '-'
    less = {name: bigram_gains(name, rows[0]['split'], rows) for name, rows in found.items()}
    bm25 = {name: mean_of(rows, 'bm25') for name, rows in found.items()}
    field = [None if less[name] is None else bm25[name] + less[name].mean() for name in found]
    starts = [mean_of(untrained[name]) if name in untrained else None for name in found]
    values = [mean_of(rows) for rows in found.values()]
    gain = lambda others: percent(np.mean(values) - np.mean(others), '+') if others and None not in others else '-'
    return {'collection': 'mean', 'BM25': whole(list(bm25.values())), 'BM25 + bigrams': whole(field), 'untrained': whole(starts),
            'mean of seeds': whole(values), 'over BM25': gain(list(bm25.values())), 'over BM25 + bigrams': gain(field)}


def widest_first(results: list) -> list:  # of `by_variant`
    return sorted(by_variant(results), key=lambda runs: -len(rows_of(runs, 'test', 'all')))


def parted(found: dict) -> tuple:  # collections asked in Korean, in English
    english = {name: rows for name, rows in found.items() if name.startswith(IN_ENGLISH)}
    return {name: rows for name, rows in found.items() if name not in english}, english


def files_of(runs: list) -> list: return [HERE/'results'/f'train-{run["version"]}-{run["name"]}-{run["seed"]}.json' for run in runs]


def tested_one(runs: list) -> str:
    "The tables of one variant: Korean questions, and English ones apart."
    (korean, english), untrained = parted(rows_of(runs, 'test', 'all')), untrained_of(untrained_results(runs))
    seeds = ', '.join(str(run['seed']) for run in runs)
    rows = with_marks([test_row(*item, untrained, False) for item in korean.items()]) + [mean_row(korean, untrained)]
    minutes = np.mean([run['seconds'] for run in runs]) / 60
    text = (f'`{runs[0]["version"]}` as `{runs[0]["name"]}`, {runs[0]["steps"]} steps on all train splits together, seeds {seeds}, '
            f'{minutes:.1f} minutes of training with {runs[0]["threads"]} thread, of {told(files_of(runs))}:\n\n{markdown_table(pd.DataFrame(rows))}')
    if not english: return text
    rows = [test_row(*item, untrained, True)[0] for item in english.items()]
    return f'{text}\n\nThe same models, Korean texts asked in English: BM25 shares hardly a word with the question, so nothing is measured against it.\n\n{markdown_table(pd.DataFrame(rows))}'


def tested(results: list) -> str:
    "A table for each variant whose test queries were judged, the most widely judged first."
    tables = [tested_one(runs) for runs in widest_first(results) if rows_of(runs, 'test', 'all')]
    return '\n\n'.join(tables) or 'Not judged yet.'


def judged_often(results: list) -> str:
    "For how many recipes the test queries were judged, as far as results were kept."
    recipes = [f'`{runs[0]["name"]}`' for runs in by_variant(results) if rows_of(runs, 'test', 'all')]
    board = {path.name.rpartition('-')[0] for path in (HERE/'results'/'leaderboard').glob('*+*/*.json')}
    return (f'The test queries were judged for {len(recipes)} recipes of `splade_ko` here ({", ".join(recipes)}) '
            f'and for {len(board)} systems of the [leaderboard](leaderboard.md).')


def board_means() -> tuple:  # nDCG@10 of the public board's `splade_ko`, of its start; NaN where it is not kept
    "Means over the collections of the leaderboard of public sets, all asked in Korean."
    def mean(system):
        found = board_record(system).get('collections', {})
        return np.mean([row['metrics']['ndcg@10']['mean'] for row in found.values()]) if found else np.nan
    return mean('splade_ko'), mean('splade_ko-untrained')


def equal_start() -> str:
    "What training adds to `splade_ko` on the public sets."
    trained, start = board_means()
    if np.isnan(trained + start): return ''
    return (f'On the public sets `splade_ko` is its untrained start: {percent(trained)} trained and {percent(start)} untrained, mean over the '
            'collections of the [leaderboard](leaderboard.md). It is a lexical index of tokens, character bigrams, phonetic keys and Model 1 expansions.')


def picture(results: list):  # figure
    "Both BM25, the untrained and the trained model: test queries asked in Korean, with the interval of the difference to BM25."
    runs = widest_first(results)[0]
    found, untrained = parted(rows_of(runs, 'test', 'all'))[0], untrained_of(untrained_results(runs))
    gains = dict(sorted(((name, over(rows)) for name, rows in found.items()), key=lambda pair: pair[1]['mean']))
    bm25, (mean, low, high) = (100 * np.array(values) for values in ([mean_of(found[name], 'bm25') for name in gains], [[gain[part] for gain in gains.values()] for part in ('mean', 'low', 'high')]))
    less = {name: bigram_gains(name, found[name][0]['split'], found[name]) for name in gains}
    field = np.array([np.nan if value is None else 100 * value.mean() for value in less.values()])
    start = np.array([100 * mean_of(untrained[name]) if name in untrained else np.nan for name in gains])
    places = np.arange(len(gains))
    figure, axis = canvas(width=8, height=0.5 * len(gains) + 1.2)
    axis.hlines(places, bm25, bm25 + mean, color='#cccccc', linewidth=1.4, zorder=1)
    axis.plot(bm25, places, color=palette['orange'], marker='D', linestyle='none', label='BM25 over Kiwi morphemes')
    axis.plot(bm25 + field, places, color='#8A5A00', marker='s', linestyle='none', label='BM25 + bigrams')
    if not np.isnan(start).all(): axis.plot(start, places, color=palette['sky'], marker='o', markersize=9, linestyle='none', label=f'{runs[0]["version"]}, untrained')
    axis.errorbar(bm25 + mean, places, xerr=[mean - low, high - mean], color=palette['blue'], marker='o', markersize=4, linestyle='none', capsize=3, label=f'{runs[0]["version"]}, trained; 95 % of the difference to BM25')
    for x, y, gain, other in zip(bm25 + high, places, mean, field):
        text = f'{gain:+.1f}' + ('' if np.isnan(other) else f', {gain - other:+.1f} over bigrams')
        axis.annotate(text, (x, y), (9, 0), textcoords='offset points', va='center')
    axis.set(yticks=places, yticklabels=gains, xlabel=f'nDCG@10 of test queries, percent; mean of {len(runs)} seeds', ylim=(-0.6, len(gains) - 0.4))
    axis.margins(x=0.16); axis.legend(frameon=False, loc='lower center', bbox_to_anchor=(0.45, 1), ncol=2)
    return figure


def cut_table(result: dict) -> str:
    "nDCG@10 of each collection by the terms that the documents of a model keep, both BM25 first."
    names, known, dev = list(next(iter(result['found'].values()))), baselines.known(), splits_of('dev')
    def cell(collection, ndcg, terms):
        size = f'; {index_bytes(terms, known[collection]["documents"]) / 1e6:.1f}' if collection in known else ''
        return f'{percent(ndcg)} ({terms:.0f}{size})'
    def words(label, system):
        of = lambda collection: cell(collection, dev[collection][system]['ndcg@10']['mean'], known[collection]['index'][system]['terms'])
        if not all(collection in dev for collection in result['found']): return {'kept': label}
        mean = np.mean([dev[collection][system]['ndcg@10']['mean'] for collection in result['found']])
        return {'kept': label, **{collection: of(collection) for collection in result['found']}, 'mean': percent(mean)}
    rows = [words('BM25', 'bm25'), words('BM25 + bigrams', 'bm25_bigrams')]
    rows += [{'kept': name, **{collection: cell(collection, found[name]['ndcg'], found[name]['terms']) for collection, found in result['found'].items()},
              'mean': percent(np.mean([found[name]['ndcg'] for found in result['found'].values()]))} for name in names]
    path = HERE/'results'/f'prune-{result["model"]}.json'
    return f'{result["date"]}, `{result["model"]}`, of `{revision_of(path, result)}`:\n\n{markdown_table(pd.DataFrame(rows))}'


def trained_results() -> list: return [read_json(path) for path in sorted((HERE/'results').glob('train-*.json'))]


def floor_sentence(results: list) -> str:
    "What the widest judged variant has beside BM25 with a bigram field."
    runs = widest_first(results)[0]
    korean = parted(rows_of(runs, 'test', 'all'))[0]
    row = mean_row(korean, untrained_of(untrained_results(runs)))
    if row['BM25 + bigrams'] == '-': return ''
    return f'Over the collections asked in Korean, BM25 with a bigram field has {row["BM25 + bigrams"]}, `{runs[0]["name"]}` {row["mean of seeds"]}.'


def baselines_of() -> str:  # revisions
    return ', '.join(dict.fromkeys(f'`{found["revision"]}`' for found in baselines.known().values())) or 'not run'


def page() -> str:
    start, trained = HERE/'results'/'start.json', trained_results()
    result = read_json(start)
    pruned = [read_json(path) for path in sorted((HERE/'results').glob('prune-*.json'))]
    return TEXT.format(**{name: result[name] for name in ('command', 'date')}, tokens=result['pieces'], columns=COLUMNS, share=SHARE,
                       start=markdown_table(start_table(result)), start_of=told([start]), baselines=f'of {baselines_of()}',
                       variants=variants_table(trained), variants_of=told(files_of(trained)), cut='\n\n'.join(map(cut_table, pruned)),
                       judged=judged_often(trained), floor=floor_sentence(trained), equal=equal_start(), tested=tested(trained))


if __name__ == '__main__':
    if '--check' not in sys.argv: PAGE.write_text(page(), encoding='utf-8'); write_svg(picture(trained_results()), PICTURE)
    elif PAGE.read_text(encoding='utf-8') != page(): sys.exit('docs/experiments.md is not what the results say: run python experiments/report.py')

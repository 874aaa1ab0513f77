"""What BM25 and dense vectors add to a sparse model: reciprocal ranks and weighted scores, tested against the model alone.

    python experiments/hybrid.py COLLECTION ... --models MODEL-SEED ...
    python experiments/hybrid.py --page | --check
"""
import itertools, sys
from datetime import date
from pathlib import Path
import numpy as np
import pandas as pd
from tqdm import tqdm
from splade_nb.evaluation import metrics as evaluation
from splade_nb.data.records import resplit
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import read_json, write_json
from splade_nb.config.files import revision
from splade_nb.model.load import load_encoder
from splade_nb.evaluation.benchmark import metrics_per_query
from splade_nb.evaluation.systems import Hybrid, dense_system, fitted_on, narrowed, sparse_system, words_system
from splade_nb.data.tokenizer import remembered
from splade_nb.evaluation.compare import markdown_table, percent
import baselines
from revisions import told
from start import HERE
from train import questions

PAGE = HERE.parent/'docs'/'hybrid.md'
PARTS = {'sparse': 'splade_ko', 'bm25': 'BM25', 'dense': 'dense'}
MOST = 200  # held-out queries that choose weights
JOINED = [names for size in (2, 3) for names in itertools.combinations(PARTS, size) if 'sparse' in names]
TEXT = """# Sparse, words and dense together

Written by `experiments/hybrid.py` from `experiments/results/hybrid-*.json`. {date}; models of seeds {seeds}, `splade_ko` trained on these collections' training queries together. Test queries; nDCG@10 in percent, mean of the seeds.

Reciprocal ranks: `metrics.fuse`, k 60. Weighted: `metrics.blend`, scores scaled to 0 to 1 a query; the weights are those of the highest nDCG@10 on up to {most} training queries that neither the model nor the dense teacher learned from, a tenth at a time. BM25: over Kiwi morphemes. Dense: the embedded teacher, latent semantic analysis fitted on the collection; no pretrained dense model was at hand.
BM25 + bigrams: BM25 with [a second field of character pairs](../nbs/1_data/07_bm25.ipynb), which learns nothing. Terms and index: of documents, postings of eight bytes. `-`: not kept; what `splade_ko` has untrained, and its terms, stand in the [leaderboard](leaderboard.md). Of {revisions}.

## Quality

{quality}

## Gain over the model alone

In points, with the 95 % interval of the paired difference (bootstrap over queries of the seeds' mean). ▲ above, ▼ below: p of the paired t-test, corrected by Holm over the table, is below 0.05.

{gains}

{finding}

## Weights

{weights}
"""


def systems(model, tokenizer, collection, fitted) -> dict:
    texts = collection.texts
    return dict(sparse=sparse_system(model, tokenizer, texts), bm25=words_system(texts), dense=dense_system(fitted, texts))


def joined(parts: dict, weights: dict) -> dict:  # name -> system
    ranks = {'+'.join(names): Hybrid([parts[name] for name in names]) for names in JOINED}
    return ranks | {f'weighted {name}': Hybrid(hybrid.parts, weights[name]) for name, hybrid in ranks.items()}


def chosen(parts: dict, collection, ids) -> dict:  # hybrid -> weights
    "The best weights of every hybrid on queries that nothing else is claimed on."
    queries, qrels = {id: collection.queries[id].text for id in ids}, {id: collection.qrels[id] for id in ids}
    runs = {name: part.run(queries) for name, part in parts.items()}
    return {'+'.join(names): evaluation.best_weights([runs[name] for name in names], qrels) for names in JOINED}


def measured(source: str, folder: Path, seed: int) -> dict:
    "One model on one collection."
    (collection, held, _), (model, tokenizer) = questions(source, 'dev'), load_encoder(folder)
    fitted, held = fitted_on(resplit(collection, dict.fromkeys(held, 'dev'), 'held out'), seed), held[:MOST]
    weights = chosen(systems(model, tokenizer, narrowed(collection, held), fitted), collection, held)
    parts, ids = systems(model, tokenizer, collection, fitted), list(collection.split('test'))
    qrels, queries = {id: collection.qrels[id] for id in ids}, {id: collection.queries[id].text for id in ids}
    ndcg = {name: metrics_per_query(system, qrels, queries)['ndcg@10'] for name, system in (parts | joined(parts, weights)).items()}
    return dict(seed=seed, date=date.today().isoformat(), revision=revision(), queries=len(ids), held=len(held), weights=weights,
                found={name: ' '.join(f'{value:.4g}' for value in values) for name, values in ndcg.items()})


def results() -> dict:  # collection -> its runs, a seed each
    found = {}
    for path in sorted((HERE/'results').glob('hybrid-*.json')):
        row = read_json(path); found.setdefault(row['collection'], []).append(row)
    return found


def label(name: str) -> str:
    weighted, names = name.startswith('weighted '), name.removeprefix('weighted ').split('+')
    return ' + '.join(PARTS[part] for part in names) + (', weighted' if weighted else ', ranks' if len(names) > 1 else '')


def mean(runs: list, name: str) -> np.ndarray: return np.mean([np.array(run['found'][name].split(), dtype=float) for run in runs], axis=0)  # of the seeds, a value a query


def gains_table(found: dict, hybrids: list) -> tuple:  # table, names of those that gain on all collections together
    differences = {(name, collection): evaluation.paired_difference(mean(runs, name), mean(runs, 'sparse')) for name in hybrids for collection, runs in found.items()}
    corrected = dict(zip(differences, evaluation.holm([each['p'] for each in differences.values()])))
    sign = lambda key: '' if corrected[key] >= 0.05 else ' ▲' if differences[key]['mean'] > 0 else ' ▼'
    overall = {name: evaluation.pooled([differences[name, collection] for collection in found]) for name in hybrids}
    rows = [{'hybrid': label(name), **{collection: percent(differences[name, collection], '+') + sign((name, collection)) for collection in found}, 'mean': percent(overall[name], '+')} for name in hybrids]
    return pd.DataFrame(rows), overall


def words_rows(collections) -> list:
    "Both BM25 of `experiments/baselines.py`, with their terms and index."
    known, rows = baselines.known(), []
    if not all('test' in known.get(name, {}).get('splits', {}) for name in collections): return rows
    value = lambda name, system: known[name]['splits']['test'][system]['ndcg@10']['mean']
    for said, system in (('BM25', 'bm25'), ('BM25 + bigrams', 'bm25_bigrams')):
        size = lambda name: f'{known[name]["index"][system]["terms"]:.0f} / {known[name]["index"][system]["bytes"] / 1e6:.1f}'
        if system != 'bm25':
            values = [value(name, system) for name in collections]
            rows.append({'system': said, **dict(zip(collections, map(percent, values))), 'mean': percent(np.mean(values))})
        rows.append({'system': f'{said}: terms / MB', **{name: size(name) for name in collections}})
    return rows


def page() -> str:
    found = results()
    if not found: return '# Sparse, words and dense together\n\nNot run yet: `python experiments/hybrid.py`.\n'
    runs = [run for rows in found.values() for run in rows]
    names = list(runs[0]['found']); hybrids = names[len(PARTS):]
    quality = pd.DataFrame([{'system': label(name), **{collection: percent(mean(rows, name).mean()) for collection, rows in found.items()},
                             'mean': percent(np.mean([mean(rows, name).mean() for rows in found.values()]))} for name in names] + words_rows(list(found)))
    gains, overall = gains_table(found, hybrids)
    weights = pd.DataFrame([{'hybrid': label(f'weighted {name}'), **{collection: '; '.join(' / '.join(f'{weight:.1f}' for weight in row['weights'][name]) for row in rows) for collection, rows in found.items()}} for name in runs[0]['weights']])
    best, worst = (choose(overall, key=lambda name: overall[name]['mean']) for choose in (max, min))
    finding = f'Best over all collections: {label(best)}, {percent(overall[best], "+")} points; worst: {label(worst)}, {percent(overall[worst], "+")}.'
    return TEXT.format(most=MOST, date=', '.join(sorted({run['date'] for run in runs})), seeds=', '.join(str(seed) for seed in sorted({run['seed'] for run in runs})), finding=finding,
                       revisions=told((HERE/'results').glob('hybrid-*.json')),
                       quality=markdown_table(quality), gains=markdown_table(gains), weights=markdown_table(weights))


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='*', metavar='COLLECTION', help='with train and test queries')
    reader.add_argument('--models', type=Path, nargs='*', action='extend', default=[], metavar='MODEL-SEED',
                        help='folders whose names end in their seed')
    mode = reader.add_mutually_exclusive_group()
    mode.add_argument('--page', action='store_true')
    mode.add_argument('--check', action='store_true', help='whether the page is what the results say')
    options = reader.parse_args()
    if options.check: sys.exit(None if PAGE.read_text(encoding='utf-8') == page() else 'docs/hybrid.md is not what the results say: run python experiments/hybrid.py --page')
    with remembered({}):
        for folder, source in tqdm(list(itertools.product(options.models, options.collections)), desc='hybrids', unit=' runs'):
            seed, collection = int(folder.name.rsplit('-', 1)[1]), Path(source).name
            kept = HERE/'results'/f'hybrid-{collection}-{seed}.json'
            if not kept.exists(): write_json(kept, dict(collection=collection) | measured(source, folder, seed))
    PAGE.write_text(page(), encoding='utf-8')


if __name__ == '__main__': main()

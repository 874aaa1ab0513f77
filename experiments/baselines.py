"""BM25 over Kiwi morphemes, alone and with a bigram field, on every collection: for tables of results kept before.

    python experiments/baselines.py COLLECTION ... [--results experiments/results]
"""
from datetime import date
from pathlib import Path
from splade_nb.data import readers as data
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import read_json, write_json
from splade_nb.evaluation.metrics import paired_difference, summarise
from splade_nb.config.files import revision
from splade_nb.evaluation.retrieval import baselines, index_facts
from splade_nb.data.tokenizer import remembered
from start import HERE, held_out

PLACE = HERE/'results'/'baselines.json'


def asked_of(collection) -> dict:  # split -> ids
    "Test queries and the held-out fifth of the training queries; all queries of a collection without a train split."
    taught = collection.split('train')
    drawn = any(note.startswith('no train') for note in collection.notes)
    if drawn or not taught: return {'all': list(collection.qrels)}
    return {'test': list(collection.split('test')), 'dev': [id for id in taught if held_out(f'{collection.name}/{id}')]}


def measured(collection) -> dict:
    "Each split's figures, and the bigram field's gain query by query, in the order of the collection."
    parts, asked = {}, asked_of(collection)
    for split, ids in asked.items():
        found, terms = baselines(collection, ids)
        plain, field = (found[name]['ndcg@10'] for name in ('bm25', 'bm25_bigrams'))
        parts[split] = dict(queries=len(ids), **{name: summarise(rows) for name, rows in found.items()},
                            difference=paired_difference(field, plain), gains=' '.join(f'{gain:.5g}' for gain in field - plain))
    documents = len(collection.texts)
    return dict(hash=collection.hash, documents=documents, index=index_facts(terms, documents), splits=parts)


def known(place: Path = PLACE) -> dict:  # collection -> what `measured` found
    return read_json(place)['found'] if place.exists() else {}


@remembered({})
def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='+', metavar='COLLECTION')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    place = options.results/PLACE.name
    found = known(place)
    for source in options.collections:
        collection = data.load(source)
        found[collection.name] = dict(measured(collection), revision=revision(), date=date.today().isoformat())
        told = {split: {name: round(100 * part[name]['ndcg@10']['mean'], 1) for name in ('bm25', 'bm25_bigrams')}
                for split, part in found[collection.name]['splits'].items()}
        print(collection.name, told, flush=True)
        write_json(place, dict(command='python experiments/baselines.py COLLECTION ...', revision=revision(), found=found))


if __name__ == '__main__': main()

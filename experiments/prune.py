"""How many terms of a document are worth keeping: the heaviest alone, by weight or by weight times what a query gives.

    python experiments/prune.py MODEL COLLECTION ...
"""
from datetime import date
from pathlib import Path
import numpy as np
from scipy import sparse
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import write_json
from splade_nb.model.encode import prune
from splade_nb.evaluation.metrics import active_terms, paired_difference, rank, retrieval_metrics
from splade_nb.model.splade_doc import query_weights
from splade_nb.config.files import revision
from splade_nb.model.load import load_encoder
from splade_nb.evaluation.retrieval import encode_queries, encode_collection
from start import HERE
from train import questions

SAVED_SETTINGS = (20, 40, 60, 80, 120)


def heaviest(rows: sparse.csr_matrix, worth: np.ndarray, most: int) -> sparse.csr_matrix:
    "The entries of each row that weigh most, each multiplied by what its column is worth."
    return rows.multiply(prune(rows.multiply(worth).tocsr(), most) > 0).tocsr()


def judge(model, tokenizer, source: str) -> dict:
    "nDCG@10 by how many terms are kept, and by which order."
    collection, ids, bm25 = questions(source, 'dev')
    documents, factor = encode_collection(model, tokenizer, collection.texts)
    queries = encode_queries(model, tokenizer, [collection.queries[id].text for id in ids], factor)
    worth = query_weights(model).detach().cpu().numpy() * (1 if factor is None else factor)

    def measured(rows):
        found = retrieval_metrics({id: collection.qrels[id] for id in ids}, rank(queries @ rows.T, ids, list(collection.documents)))['ndcg@10']
        return dict(ndcg=float(found.mean()), terms=active_terms(rows), difference=paired_difference(found, bm25['ndcg@10']))
    cut = {f'{order}, {most}': measured(heaviest(documents, by, most)) for most in SAVED_SETTINGS for order, by in (('weight', np.ones_like(worth)), ('weight for a query', worth))}
    print(collection.name, {name: round(row['ndcg'], 4) for name, row in cut.items()}, flush=True)
    return dict(whole=measured(documents), **cut)


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('model', type=Path, help='a folder that `train.py --out` kept, of a version with a table of queries')
    reader.add_argument('collections', nargs='+', metavar='COLLECTION')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    model, tokenizer = load_encoder(options.model)
    found = {Path(source).name: judge(model, tokenizer, source) for source in options.collections}
    name = options.model.resolve().name
    write_json(options.results/f'prune-{name}.json', dict(date=date.today().isoformat(), model=name, revision=revision(), found=found))


if __name__ == '__main__': main()

"""What a start retrieves before anything is learned: no forward pass, a fifth of the training queries, none of the test queries.

    python experiments/start.py COLLECTION ... [--results experiments/results]
"""
import zlib
from collections import Counter
from datetime import date
from itertools import chain
from pathlib import Path
import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from splade_nb.data import readers as data
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import write_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.encode import counted, saturated
from splade_nb.evaluation.metrics import paired_difference, rank, retrieval_metrics
from splade_nb.data.idf import Frequencies, count, idf
from splade_nb.data.bm25 import BM25
from splade_nb.config.files import revision
from splade_nb.training.dataset import make_tokenizer
from splade_nb.model.term_weights import collection_factor
from splade_nb.data.tokenizer import bigrams, bigram_column, remembered, phonetic_names

HERE = Path(__file__).resolve().parent
KO = resolve_quietly('splade_ko')
COLUMNS, SHARE = KO.hashed_bigrams, KO.bigram_query_weight


def held_out(id: str) -> bool:  # collection/query
    "Whether a training query judges instead of teaching: one in five."
    return zlib.crc32(id.encode()) % 5 == 0


class Judged:
    "A collection, the fifth of its training queries that is asked here, and everything as tokens and pairs."
    def __init__(self, source: str):
        self.collection = data.load(source)
        self.name, self.texts = self.collection.name, list(self.collection.texts.values())
        self.queries = {id: query.text for id, query in self.collection.split('train').items() if held_out(f'{self.name}/{id}')}
        self.taught = [query.text for id, query in self.collection.split('train').items() if id not in self.queries]

    def cut(self, tokenizer) -> None:
        asked = list(self.queries.values())
        self.tokenizer = tokenizer.ids(self.texts), tokenizer.ids(asked)
        self.pairs = bigrams(self.texts), bigrams(asked)
        self.phonetic_keys = [[phonetic_names(tokenizer.words, row) for row in rows] for rows in self.tokenizer]

    def measure(self, scores) -> list:  # nDCG@10 of each query
        "Scores [Q, N], or a run."
        run = scores if isinstance(scores, dict) else rank(scores, list(self.queries), list(self.collection.documents))
        return retrieval_metrics({id: self.collection.qrels[id] for id in self.queries}, run)['ndcg@10'].tolist()


class Views:
    "Tokens and pairs of one collection as one bag, and what the training texts of all say of its columns."
    def __init__(self, judged: Judged, everything: list, size: int, column, columns: int, phonetic_keys: bool = False, lead_boost: float = 0.0):
        placed = lambda names: [size + column(name) for name in names if column(name) is not None]
        parts = lambda side: zip(judged.tokenizer[side], map(placed, judged.pairs[side]), map(placed, judged.sounds[side] if sounds else [()] * len(judged.tokenizer[side])))
        bags = lambda side: [[column for part in each for column in (*part, *part[:int(len(part) * lead)])] for each in parts(side)]
        rows = bags(0)
        self.documents, asked = counted(rows, size + columns), counted(bags(1), size + columns)
        self.queries, self.own, self.size = (asked > 0).astype(float), count(rows, size + columns), size
        self.mean = float(np.mean([len(ids) + len(pairs) for one in everything for ids, pairs in zip(one.tokenizer[0], one.pairs[0])]))

    def scores(self, share: float = SHARE, trained: Frequencies | None = None, joined: int = 0, alone: bool = False, mean: float = 0.0):
        "Own statistics, or the training texts' beside them, or these alone."
        weights = idf(trained or self.own)
        if trained and not alone: weights = weights * collection_factor(self.own.counts, self.own.documents, trained, joined)
        weights = weights * np.where(np.arange(self.documents.shape[1]) < self.size, 1, share)
        return (self.queries.multiply(weights).tocsr() @ saturated(self.documents, mean).T).tocsr()


def semantic(judged: Judged, dimensions: int = 256):  # [Q, N] cosines
    "Latent semantic analysis of the collection's input tokens."
    size = 1 + max(max(ids, default=0) for ids in chain(*judged.tokenizer))
    documents, queries = (counted(rows, size) for rows in judged.tokenizer)
    weights = idf(count(judged.tokenizer[0], size))
    documents, queries = (normalize(rows.multiply(weights).tocsr()) for rows in (saturated(documents), (queries > 0).astype(float)))
    axes = randomized_svd(documents, min(dimensions, documents.shape[0] - 1), n_iter=3, random_state=0)[2].T
    return normalize(queries @ axes) @ normalize(documents @ axes).T


def neighbours(views: Views, number: int = 5) -> sparse.csr_matrix:  # [N, N] cosines with the nearest others
    weighted = normalize(saturated(views.documents).multiply(idf(views.own)).tocsr())
    near = (weighted @ weighted.T).tolil(); near.setdiag(0); near = near.tocsr()
    for row in range(near.shape[0]):
        values = near.data[near.indptr[row]:near.indptr[row + 1]]
        if len(values) > number: values[values < np.partition(values, -number)[-number]] = 0
    near.eliminate_zeros()
    return near


def systems(judged: Judged, everything: list, size: int) -> dict:  # name -> scores or a run
    "All that is compared."
    bm25 = lambda words: BM25(judged.collection.texts, words).run(judged.queries)
    of = lambda column, columns: Views(judged, everything, size, column, columns)
    hashed = lambda columns: of(lambda pair: bigram_column(pair, columns), columns)
    commonest = Counter(pair for one in everything if one is not judged for pair in chain.from_iterable(map(set, one.pairs[0])))
    listed = {pair: place for place, (pair, _) in enumerate(commonest.most_common(COLUMNS))}
    every = {pair: place for place, pair in enumerate(dict.fromkeys(chain.from_iterable(chain(*judged.pairs))))}
    views, also = hashed(COLUMNS), lambda **more: Views(judged, everything, size, lambda pair: bigram_column(pair, COLUMNS), COLUMNS, **more).scores()
    trained = sum((hashed_of(one, size).own for one in everything[1:]), hashed_of(everything[0], size).own)
    return {
        'BM25, morphemes': bm25('kiwi'), 'BM25, pairs of characters': bm25('bigrams'), 'BM25, words between spaces': bm25('whitespace'),
        'tokenizer': of(lambda pair: None, 1).scores(), 'tokens and all pairs': of(every.get, len(every)).scores(),
        **{f'tokens and pairs in {columns:,} columns': hashed(columns).scores() for columns in (2048, 8192, 32768)},
        f'tokens and the {COLUMNS:,} commonest pairs of the others': of(listed.get, COLUMNS).scores(),
        'and sounds': also(phonetic_keys=True), **{f'and the first {lead:.0%} twice': also(lead_boost=lead) for lead in (0.05, 0.1, 0.2)}, f'and sounds, and the first {KO.lead:.0%} twice': also(phonetic_keys=True, lead_boost=KO.lead),
        **{f'weight of a pair {share}': views.scores(share) for share in (0.2, 0.8)},
        'mean length of all training texts': views.scores(mean=views.mean), 'IDF of all training texts': views.scores(trained=trained, alone=True),
        **{f'own IDF and {joined:,} documents like the training texts': views.scores(trained=trained, joined=joined) for joined in (500, 2000, 5000)},
        'with LSA, weight 5': views.scores().toarray() + 5 * semantic(judged), 'with five neighbours, weight 0.1': views.scores() + 0.1 * (views.scores() @ neighbours(views).T),
    }


def hashed_of(judged: Judged, size: int) -> Views: return Views(judged, [judged], size, lambda pair: bigram_column(pair, COLUMNS), COLUMNS)


@remembered({})
def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='+', metavar='COLLECTION', help='with a train split')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    everything = [Judged(source) for source in options.collections]
    tokenizer = make_tokenizer(KO, [text for one in everything for text in (*one.texts, *one.taught)])
    for one in everything: one.cut(tokenizer)
    found, size = {}, len(tokenizer.backend)
    for one in everything:
        measured = {name: one.measure(scores) for name, scores in systems(one, everything, size).items()}
        base = measured['BM25, morphemes']
        found[one.name] = {name: dict(ndcg=float(np.mean(values)), difference=paired_difference(values, base)) for name, values in measured.items()}
        print(one.name, len(one.queries), {name: round(row['ndcg'], 4) for name, row in found[one.name].items()}, flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    write_json(options.results/'start.json', dict(date=date.today().isoformat(), command='python experiments/start.py ' + ' '.join(one.name for one in everything),
                                                 revision=revision(), queries={one.name: len(one.queries) for one in everything}, pieces=size, found=found))


if __name__ == '__main__': main()

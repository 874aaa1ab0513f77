"""As many documents as wanted, with the terms and the lengths of real ones.

The first are the real documents of the collections, in a random order. Each further one is the first half of one document and the second half of
another of the same collection, so a term stands in the same share of documents, lengths keep their mean and their order, and words that go together in a text still do.
Vectors: untrained `splade_ko`, a document's own pieces, pairs and sounds with BM25's count factor, a query's with their IDF.
"""
import json
from pathlib import Path
import numpy as np
from scipy import sparse
from splade_nb import data
from splade_nb.config import resolve_quietly, root, write_json
from splade_nb.encoding import counted, saturated
from splade_nb.idf import Frequencies, idf
from splade_nb.lexical import split
from splade_nb.material import make_pieces
from splade_nb.tokens import remembered
from measure import say

SHARED = root().parent/'shared'/'data'
COLLECTIONS = ('question_pair', 'parakqc', 'ko_strategyqa_facts', 'tydiqa_ko_goldp', 'techdocs_ko', 'korquad_v1/KorQuAD_v1.0_dev.json')
KO = resolve_quietly('splade_ko', lead=0.0)  # the beginning of a half is no beginning
QUERIES = 200


def halves(text: str) -> tuple:
    words = text.split(); cut = -(-len(words) // 2)
    return ' '.join(words[:cut]), ' '.join(words[cut:])


@remembered({})
def prepare(folder: Path, small: bool) -> None:
    "Read the collections once: halves as counts and as words, queries as lists of columns and as words."
    sources = [str(SHARED/name) for name in COLLECTIONS if (SHARED/name).exists()] if not small else []
    collections = [data.load(source) for source in sources or ['mini']]
    texts = [half for one in collections for text in one.texts.values() for half in halves(text)]
    queries = [query.text for one in collections for query in list(one.split('test').values())[::max(1, len(one.split('test')) * len(collections) // QUERIES)]][:QUERIES]
    say(f'  {len(texts) // 2:,} documents of {", ".join(one.name for one in collections)}')
    pieces = make_pieces(resolve_quietly('splade_ko', lead=0.0, vocabulary=2000) if small else KO, texts)
    sparse.save_npz(folder/'halves.npz', counted(pieces.bags(texts), len(pieces)))
    write_json(folder/'source.json', dict(names=[one.name for one in collections], sizes=[len(one.texts) for one in collections], pieces=len(pieces.tokenizer), words=split(texts), asked_words=split(queries),
                                          asked=[sorted({*map(int, bag)}) for bag in pieces.bags(queries, document=False)]))


class Source:
    "What `prepare` wrote; prepared where it is not there."
    def __init__(self, folder: Path, small: bool = False):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder/'source.json').exists(): prepare(folder, small)
        self.halves = sparse.load_npz(folder/'halves.npz')
        found = json.loads((folder/'source.json').read_text(encoding='utf-8'))
        self.names, self.sizes, self.words, self.asked, self.asked_words, self.pieces = (found[name] for name in ('names', 'sizes', 'words', 'asked', 'asked_words', 'pieces'))

    def pairs(self, size: int) -> tuple:  # [size] documents whose first half is taken, [size] whose second is
        rng, real = np.random.default_rng(size), sum(self.sizes)
        first = np.concatenate([rng.permutation(real), rng.integers(real, size=max(0, size - real))])[:size]
        collection = np.repeat(np.arange(len(self.sizes)), self.sizes)[first]
        begins = np.cumsum([0, *self.sizes])[collection]
        second = np.where(np.arange(size) < real, first, begins + rng.integers(np.asarray(self.sizes)[collection]))
        return first, second

    def vectors(self, size: int) -> tuple:  # [size, V], [Q, V] float32
        first, second = self.pairs(size)
        counts = (self.halves[2 * first] + self.halves[2 * second + 1]).tocsr()
        weights = idf(Frequencies(size, counts.getnnz(axis=0))) * np.where(np.arange(counts.shape[1]) < self.pieces, 1, KO.pair_share)
        ends = np.cumsum([0, *map(len, self.asked)])
        columns = np.concatenate([np.asarray(row, np.int32) for row in self.asked])
        return saturated(counts), sparse.csr_matrix((weights[columns].astype(np.float32), columns, ends), shape=(len(self.asked), counts.shape[1]))

    def texts(self, size: int) -> dict:  # {id: words between spaces}
        return {name(i): ' '.join(self.words[2 * a] + self.words[2 * b + 1]) for i, (a, b) in enumerate(zip(*self.pairs(size)))}


def name(row: int) -> str: return f'문서 {row}'

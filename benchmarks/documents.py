"""As many documents as wanted, with the vectors that today's default makes of real ones.

`splade_ko` as it starts, with all that it counts from texts and training pairs: tokens, pairs, sounds and Model 1's
expansions. Training leaves the number of its terms and its quality on these collections as they are
(nbs/studies/leaderboard.ipynb). It encodes passages, for collections of single sentences would halve the number of terms. The
first documents are these, in a random order. Each further one is resampled: the columns are parted into two halves
once, by chance, and it has one half of the columns from one document and the other half from another of the same
collection. So a term stands in the same share of documents with the same weights, and terms keep their number. Its
words are the first half of the one and the second half of the other. Queries are real test queries, their weights by
the document frequencies of the enlarged collection.
"""
import json
from pathlib import Path
import numpy as np
from scipy import sparse
from splade_nb.data import readers as data
from splade_nb.config.files import root, write_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.encode import encode
from splade_nb.data.idf import Frequencies
from splade_nb.data.bm25 import split
from splade_nb.model.term_weights import collection_factor
from splade_nb.evaluation.retrieval import encode_collection
from splade_nb.evaluation.systems import model_in
from splade_nb.data.tokenizer import remembered
from measure import say

SHARED = root().parent/'shared'/'data'
TAUGHT = ('ko_strategyqa_facts', 'tydiqa_ko_goldp', 'techdocs_ko')
OTHERS = ('korquad_v1/KorQuAD_v1.0_dev.json',)  # no train split
QUERIES, SEED = 200, 42
VECTORS = 'splade_ko at its start, with Model 1, of passages'  # what a kept result was measured with


def halves(text: str) -> tuple:
    words = text.split()
    cut = -(-len(words) // 2)
    return ' '.join(words[:cut]), ' '.join(words[cut:])


def found_sources(small: bool) -> tuple:  # what is learned from, what is only encoded; `mini` where nothing is there
    there = lambda names: [] if small else [str(SHARED/name) for name in names if (SHARED/name).exists()]
    return there(TAUGHT) or ['mini'], there(OTHERS)


def asked_queries(collections: list) -> list:  # texts, evenly from each collection's judged queries
    most = -(-QUERIES // len(collections))
    of = lambda one: [query.text for query in (one.split('test') or one.queries).values()]
    return [text for one in collections for text in of(one)[::max(1, len(of(one)) // most)][:most]][:QUERIES]


@remembered({})
def prepare(folder: Path, small: bool) -> None:
    "Read the collections, count, encode: rows of documents and queries, and words by halves of a document."
    taught, others = found_sources(small)
    collections = [data.load(source) for source in (*taught, *others)]
    settings = resolve_quietly('splade_ko', 'corrected', 'mini', **(dict(vocabulary=2000) if small else {}))
    say(f'  the start of splade_ko on {", ".join(Path(source).name for source in taught)}')
    together = data.load(','.join(taught))
    model, tokenizer, _ = model_in(folder/'model', settings, together, SEED, folder/'cache', learns=False)
    texts = {(one.name, id): text for one in collections for id, text in one.texts.items()}
    documents, queries = encode_collection(model, tokenizer, texts, progress=True)[0], asked_queries(collections)
    say(f'  {len(texts):,} documents of {", ".join(one.name for one in collections)}')
    sparse.save_npz(folder/'documents.npz', documents)
    sparse.save_npz(folder/'queries.npz', encode(model, tokenizer, queries, document=False))
    np.save(folder/'frequencies.npy', model.frequencies.numpy())
    write_json(folder/'setup.json', dict(
        names=[one.name for one in collections], sizes=[len(one.texts) for one in collections],
        taught=[one.name for one in collections[:len(taught)]], idf_prior_documents=settings.idf_prior_documents,
        words=split([half for text in texts.values() for half in halves(text)]), asked_words=split(queries)))


class Source:
    "What `prepare` wrote; prepared where it is not there."
    def __init__(self, folder: Path, small: bool = False):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder/'setup.json').exists(): prepare(folder, small)
        rows = (sparse.load_npz(folder/f'{name}.npz') for name in ('documents', 'queries'))
        self.documents, self.queries = (one.tocsr() for one in rows)
        *counts, self.trained_on = np.load(folder/'frequencies.npy').tolist()
        self.frequencies = Frequencies(int(self.trained_on), np.array(counts))
        found = json.loads((folder/'setup.json').read_text(encoding='utf-8'))
        self.names, self.sizes, self.words, self.asked_words, self.taught, self.idf_prior_documents = (
            found[name] for name in ('names', 'sizes', 'words', 'asked_words', 'taught', 'idf_prior_documents'))

    def pairs(self, size: int) -> tuple:  # [size] documents that give one half, [size] that give the other
        rng, real = np.random.default_rng(size), sum(self.sizes)
        first = np.concatenate([rng.permutation(real), rng.integers(real, size=max(0, size - real))])[:size]
        collection = np.repeat(np.arange(len(self.sizes)), self.sizes)[first]
        begins = np.cumsum([0, *self.sizes])[collection]
        second = np.where(np.arange(size) < real, first, begins + rng.integers(np.asarray(self.sizes)[collection]))
        return first, second

    def vectors(self, size: int) -> tuple:  # [size, V], [Q, V] float32
        first, second = self.pairs(size)
        side = (np.random.default_rng(SEED).random(self.documents.shape[1]) < 0.5).astype(np.float32)
        one, other = (drop_zeros(self.documents @ sparse.diags_array(part)) for part in (side, 1 - side))
        found = (one[first] + other[second]).tocsr().astype(np.float32)
        factor = collection_factor(found.getnnz(axis=0), size, self.frequencies, self.idf_prior_documents)
        return found, drop_zeros(self.queries @ sparse.diags_array(factor)).astype(np.float32)

    def texts(self, size: int) -> dict:  # {id: words between spaces}
        of = lambda place, other: ' '.join(self.words[2 * place] + self.words[2 * other + 1])
        return {name(i): of(*pair) for i, pair in enumerate(zip(*self.pairs(size)))}


def drop_zeros(rows) -> sparse.csr_matrix:
    found = sparse.csr_matrix(rows)
    found.eliminate_zeros()
    return found


def name(row: int) -> str: return f'문서 {row}'

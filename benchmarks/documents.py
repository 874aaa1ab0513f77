"""As many documents as needed, with vectors like those of the released model on public collections.

The collections are those with passages, since single sentences would halve the number of terms. The first documents
are the real ones, in a random order. Every further one is resampled: the columns are divided at random into two halves
once, and a document has one half of the columns from one real document and the other half from another of the same
collection. So a term is in the same share of documents with the same weights, and documents keep their number of terms.
The words of a resampled document are the first half of the one and the second half of the other. Queries are test
queries, weighted by the document frequencies of the enlarged collection.
"""
from pathlib import Path
import numpy as np
from scipy import sparse
from splade_nb.config.files import read_json, root, write_json
from splade_nb.data.bm25 import split
from splade_nb.data.idf import Frequencies, collection_factor
from splade_nb.data.readers import load
from splade_nb.data.tokenizer import remembered
from splade_nb.evaluation.retrieval import encode_collection
from splade_nb.model.encode import encode
from splade_nb.model.opened import open_model
from measure import say

SHARED = root().parent/'shared'/'data'
COLLECTIONS = 'ko_strategyqa_facts', 'tydiqa_ko_goldp', 'techdocs_ko', 'korquad_v1/KorQuAD_v1.0_dev.json'
QUERIES, SEED = 200, 42
VECTORS = 'the released model, of passages'  # in every result: what it was measured with


def halves(text: str) -> list:
    words = text.split()
    middle = -(-len(words) // 2)
    return [' '.join(words[:middle]), ' '.join(words[middle:])]


def sources(small: bool) -> list:  # `mini` where no public collection is there
    return ([] if small else [str(SHARED/name) for name in COLLECTIONS if (SHARED/name).exists()]) or ['mini']


def test_queries(collections: list) -> list:  # texts, equally many from each collection
    each, chosen = -(-QUERIES // len(collections)), []
    for collection in collections:
        texts = [query.text for query in (collection.split('test') or collection.queries).values()]
        chosen += texts[::max(1, len(texts) // each)][:each]
    return chosen[:QUERIES]


@remembered({})
def prepare(folder: Path, small: bool) -> None:
    "Read the collections and encode; writes vectors of documents and queries, and the words of half documents."
    collections, (model, tokenizer) = [*map(load, sources(small))], open_model('released')
    texts = {(each.name, id): text for each in collections for id, text in each.texts.items()}
    say(f'  {len(texts):,} documents of {", ".join(each.name for each in collections)}')
    queries = test_queries(collections)
    sparse.save_npz(folder/'documents.npz', encode_collection(model, tokenizer, texts, progress=True)[0])
    sparse.save_npz(folder/'queries.npz', encode(model, tokenizer, queries, document=False))
    np.save(folder/'frequencies.npy', model.frequencies)
    write_json(folder/'setup.json', dict(
        data={each.name: each.hash for each in collections}, sizes=[len(each.texts) for each in collections],
        words=split([half for text in texts.values() for half in halves(text)]), asked_words=split(queries)))


class Source:
    "What `prepare` wrote, prepared first where it is missing."
    def __init__(self, folder: Path, small: bool = False):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder/'setup.json').exists(): prepare(folder, small)
        self.documents, self.queries = (sparse.load_npz(folder/f'{name}.npz').tocsr()
                                        for name in ('documents', 'queries'))
        *counts, number = np.load(folder/'frequencies.npy').tolist()
        self.frequencies = Frequencies(int(number), np.array(counts))
        vars(self).update(read_json(folder/'setup.json'))  # data, sizes, words, asked_words, ...

    def pairs(self, size: int) -> tuple:  # [size] documents that give one half, [size] that give the other
        generator, real = np.random.default_rng(size), sum(self.sizes)
        more = generator.permutation(real), generator.integers(real, size=max(0, size - real))
        first = np.concatenate(more)[:size]
        collection = np.repeat(np.arange(len(self.sizes)), self.sizes)[first]
        starts = np.cumsum([0, *self.sizes])[collection]
        other = starts + generator.integers(np.asarray(self.sizes)[collection])
        return first, np.where(np.arange(size) < real, first, other)

    def vectors(self, size: int) -> tuple:  # [size, V], [Q, V] float32
        first, second = self.pairs(size)
        side = (np.random.default_rng(SEED).random(self.documents.shape[1]) < 0.5).astype(np.float32)
        one, other = (scaled(self.documents, part) for part in (side, 1 - side))
        documents = (one[first] + other[second]).tocsr().astype(np.float32)
        factor = collection_factor(documents.getnnz(axis=0), size, self.frequencies)
        return documents, scaled(self.queries, factor).astype(np.float32)

    def texts(self, size: int) -> dict:  # {id: words separated by spaces}
        return {document_id(row): ' '.join(self.words[2 * first] + self.words[2 * second + 1])
                for row, (first, second) in enumerate(zip(*self.pairs(size)))}


def scaled(rows, factor: np.ndarray) -> sparse.csr_matrix:  # [N, V], [V]
    "Every column multiplied by its factor, without stored zeros."
    product = sparse.csr_matrix(rows @ sparse.diags_array(factor))
    product.eliminate_zeros()
    return product


def document_id(row: int) -> str: return f'문서 {row}'

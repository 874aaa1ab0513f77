"""Write docs/opensearch.md: the requests, as the module makes them, what they find, and what the tests' server refuses.

    python docs/opensearch_page.py            search the embedded set on a server in every way, then write
    python docs/opensearch_page.py --check    exit 1 if the page differs from the code and the saved results
"""
import json, sys
from importlib.metadata import version
from pathlib import Path
import numpy as np
from scipy import sparse

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT/'tests'))
import fake_opensearch
from splade_nb.data import readers as data
from splade_nb.config.files import read_json, write_json
from splade_nb.model.encode import encode
from splade_nb.model.opened import open_model
from splade_nb.serving.formats import feature_name
from splade_nb.evaluation.figures import source_line
from splade_nb.evaluation.metrics import retrieval_metrics
from splade_nb.lab.study import data_of, known_baselines, revision_of, stamp
from splade_nb.serving.opensearch import (
    Layout, OpenSearchIndex, SearchOptions, index_body, neural_sparse, operation, rank_feature, request, weights_of,
    with_text)
from splade_nb.serving.index import ExactIndex, Label
from splade_nb.data.tokenizer import vocabulary_hash

PAGE, RESULTS = ROOT/'docs'/'opensearch.md', ROOT/'docs'/'results'/'opensearch.json'
TEXT = """# OpenSearch

Written by `python docs/opensearch_page.py`; the module is [opensearch](../nbs/6_serving/04_opensearch.ipynb). OpenSearch 2.14 to {server}, opensearch-py {client}; `sparse_vector` from 3.3 on.

```text
make opensearch    # a server for a trial on this machine, {url}
```

```python
from splade_nb.serving.opensearch import Layout, OpenSearchIndex, ingest
from splade_nb.serving.index import label_of

index = OpenSearchIndex.new('{url}/docs', label_of(model, tokenizer), Layout(terms='names', analyser='nori'), names=tokenizer.names)
report = ingest(index, ((id, vector, texts[id]) for id, vector in zip(texts, vectors)), progress='ingest.json')
index.search(encode_queries(model, tokenizer, ['제주도 여행 어디가 좋아요'], factor), k=10)
```

`open_model` of `splade_nb.model.opened` gives `model` and `tokenizer`; `encode_collection` of `splade_nb.model.encode` gives the `vectors` of all texts of a collection, with its mean length, and the `factor`, its document frequencies, which `encode_queries` takes. `encode` alone takes both from the training texts: with counted terms that is another ranking ([retrieval](../nbs/4_evaluation/04_retrieval.ipynb)).

## Whose documents

Ids are not told apart by collection, so an index holds one collection: the name at the end of the address is yours to choose, and a searcher writes the name of its collection into the mapping. Another collection, or an index that does not say whose it is, is refused before anything is written.

```text
curl -s {url}/_all/_mapping?filter_path=*.mappings._meta    # which index is which: texts, vocabulary, model
curl -X DELETE {url}/docs                                   # when it is not needed any more
```

## Requests

With tokens by name, which people can read; by default an index has their ids, and `sparse_vector` takes nothing else.

{requests}

## What they find

{asked} test queries of the embedded set over {documents} documents: the learned terms of the packaged model, {terms} a document, searched on the tests' server. The exact product is SciPy's. Lucene stores nine significant bits of each weight; "same product" has its weights cut the same way. The segment of clusters is one that skips none of them (`heap_factor` is not modelled), searched by its {top_n} heaviest terms, with OpenSearch's ceilings.

{figures}

A feature is *saturated* unless the query says `linear`: w / (w + pivot), the pivot being the mean in the index. The sum is no dot product any more, which is what the last row shows.

## What the tests' server refuses and scores

`tests/fake_opensearch.py` stands for the server in CI; no OpenSearch runs there. With `OPENSEARCH_URL` set, the same tests run against a real one: `OPENSEARCH_URL={url} python -m pytest tests/test_opensearch.py`.

{refused}
"""


def learned_vectors(texts: list, queries: list) -> tuple:  # [N, V], [Q, V], tokenizer
    "The learned terms of the packaged model."
    model, tokenizer = open_model('released')
    sides = (encode(model, tokenizer, part, document=document) for part, document in ((texts, True), (queries, False)))
    return *(rows[:, :len(tokenizer.backend)].tocsr() for rows in sides), tokenizer


def cut(vectors: sparse.csr_matrix) -> sparse.csr_matrix:
    "Weights as Lucene stores them."
    return sparse.csr_matrix(((vectors.data.view(np.int32) >> 15 << 15).view(np.float32), vectors.indices, vectors.indptr), shape=vectors.shape)


def saturating(index: OpenSearchIndex, row: sparse.csr_matrix, k: int) -> list:
    "The ranking of `rank_feature` queries that do not say `linear`."
    query = rank_feature(weights_of(row, index.names))
    for clause in query['bool']['should']: del clause['rank_feature']['linear']
    return [(hit['_id'], hit['_score']) for hit in index.server.client.search(index=index.server.name, body=dict(query=query, size=k, _source=False))['hits']['hits']]


def shared(found: list, wanted: list, k: int = 10) -> float:  # wanted: more than k a query
    "Share of the best k that were found, over queries; of equal scores at the end any will do."
    def one(mine, theirs):
        limit = theirs[:k][-1][1] * (1 - 1e-6)
        return len(dict(mine).keys() & {id for id, score in theirs if score >= limit}) / len(theirs[:k])
    return float(np.mean([one(mine, theirs) for mine, theirs in zip(found, wanted) if theirs]))


WAYS = {'`rank_features`, `neural_sparse`': (Layout(), SearchOptions('neural_sparse'), ()),
        '`rank_features`, `rank_feature` linear': (Layout(), SearchOptions('rank_feature'), ()),
        '`sparse_vector`, `neural_sparse`': (Layout('sparse_vector'), SearchOptions(), ()),
        '`rank_features`, two phases': (Layout(), SearchOptions(two_phase={}), ()),
        '`sparse_vector`, approximate': (Layout('sparse_vector', seismic=dict(approximate_threshold=0)), SearchOptions(approximate=dict(top_n=10)), ()),
        '`rank_features`, `rank_feature` saturating, the default': (Layout(), SearchOptions('rank_feature'), (saturating,))}


def exact(label: Label, ids: list, vectors, queries, k: int = 50) -> list:
    index = ExactIndex(label); index.add(ids, vectors)
    return index.search(queries, k)


def found_by(place: str, label: Label, ids: list, vectors, queries, layout: Layout, options: SearchOptions, by=(), k: int = 10) -> list:
    "The rankings of an index that is filled, searched and deleted."
    with OpenSearchIndex.new(place, label, layout, options=options, timeout=300) as index:
        try:
            index.add(ids, vectors)
            return [by[0](index, row, k) for row in queries] if by else index.search(queries, k)
        finally: index.server.client.indices.delete(index=index.server.name)


def measure() -> dict:
    collection = data.load('mini')
    asked = collection.split('test')
    vectors, queries, tokenizer = learned_vectors(list(collection.texts.values()), [query.text for query in asked.values()])
    label, ids = Label(vocabulary_hash(tokenizer), vectors.shape[1], 'released'), list(collection.texts)
    wanted, same = exact(label, ids, vectors, queries), exact(label, ids, cut(vectors), queries)
    ndcg = lambda run: float(retrieval_metrics({id: collection.qrels[id] for id in asked}, dict(zip(asked, (dict(row[:10]) for row in run))))['ndcg@10'].mean())
    found = {'exact product': dict(exact=1.0, same=shared([row[:10] for row in wanted], same), ndcg=ndcg(wanted))}
    with fake_opensearch.serving() as server:
        for name, how in WAYS.items():
            run = found_by(f'{server.url}/mini', label, ids, vectors, queries, *how)
            found[name] = dict(exact=shared(run, wanted), same=shared(run, same), ndcg=ndcg(run))
            print(name, found[name], flush=True)
    return stamp('python docs/opensearch_page.py', [collection]) | dict(queries=len(asked), documents=len(ids), terms=float(np.diff(vectors.indptr).mean()), tokenizer=vectors.shape[1], found=found)


def block(method: str, path: str, body) -> str:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)
    return f'```text\n{method} /{path}\n{text}\n```'


def requests() -> str:
    "One of each, for a vocabulary of three tokens."
    names = [feature_name(name) for name in ('▁제주', '여행', '3.14')]
    label, document, query = Label('3f2a', 3, '9c1e'), sparse.csr_matrix(np.array([[1.62, 0.9, 0.25]], np.float32)), sparse.csr_matrix(np.array([[2.5, 1.1, 0]], np.float32))
    index = type('Shown', (), dict(label=label, names=names))
    body = lambda **how: request(query, 10, SearchOptions('neural_sparse', **how), names)[0]
    parts = {'An index, searched exactly, with BM25 beside': ('PUT', 'docs', index_body(label, Layout(terms='names', analyser='nori'))),
             'An index that is searched by clusters where it is large': ('PUT', 'docs', index_body(label, Layout('sparse_vector', seismic=dict(n_postings=4000, quantization_ceiling_ingest=4)))),
             'Documents': ('POST', 'docs/_bulk', operation(index, '문서 1', document, '제주 올레길을 걷는 여행')[1].decode().strip()),
             'A query': ('POST', 'docs/_search', body()), 'The same on a server without the neural-search plugin': ('POST', 'docs/_search', dict(body(), query=rank_feature(weights_of(query, names)))),
             'Heavy terms first, light ones for the best documents only': ('POST', 'docs/_search', body(two_phase=dict(prune_ratio=0.4))),
             'By clusters': ('POST', 'docs/_search', request(query, 10, SearchOptions('neural_sparse', approximate=dict(top_n=10, heap_factor=1.2)))[0]),
             'With BM25 of title and text': ('POST', 'docs/_search', dict(query=with_text(neural_sparse(weights_of(query, names)), '제주 여행', 0.5), size=10))}
    return '\n\n'.join(f'{title}:\n\n{block(*part)}' for title, part in parts.items())


def source(results: dict) -> str:  # the embedded set is part of every revision
    return source_line('python docs/opensearch_page.py', data_of(results) or {'mini': known_baselines()['mini']['hash']}, [revision_of(RESULTS, results)], [results['date']])


def figures(found: dict) -> str:
    rows = [f'| {name} | {row["exact"]:.1%} | {row["same"]:.1%} | {row["ndcg"]:.3f} |' for name, row in found.items()]
    return '\n'.join(['| index and query | top 10 as the exact product | as the same product | nDCG@10 |', '| --- | --: | --: | --: |', *rows])


def refusals() -> str:
    parts = [(name, ' '.join(part.__doc__.split())) for name, part in vars(fake_opensearch).items()
            if callable(part) and part.__module__ == 'fake_opensearch' and part.__doc__ and not part.__doc__.startswith(part.__name__ + '(')]
    return '\n'.join(['| part | after |', '| --- | --- |', *(f'| `{name}` | {text.replace("|", "/")} |' for name, text in parts)])


def page(results: dict) -> str:
    image = next(line for line in (ROOT/'deploy'/'compose.yaml').read_text().splitlines() if 'FROM opensearchproject/' in line)
    return TEXT.format(server=image.split(':')[-1], client=version('opensearch-py'), url='http://localhost:9200', requests=requests(), figures=f'{figures(results["found"])}\n\n{source(results)}', asked=results['queries'],
                       documents=results['documents'], terms=f'{results["terms"]:.0f}', top_n=10, refused=refusals())


def main() -> None:
    if '--check' in sys.argv: sys.exit(PAGE.read_text(encoding='utf-8') != page(read_json(RESULTS)))
    write_json(RESULTS, measure())
    PAGE.write_text(page(read_json(RESULTS)), encoding='utf-8')


if __name__ == '__main__': main()

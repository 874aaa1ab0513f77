"""Small runs on half of the embedded set, and what their vectors and steps show."""
import functools, json, time
from dataclasses import fields
from pathlib import Path
import numpy as np
import torch
from scipy import sparse
from scipy.special import logsumexp
from splade_nb.data import readers as data
from splade_nb.evaluation import metrics as evaluation
from splade_nb.data.records import collect, resplit
from splade_nb.config.settings import ModelSettings, StartSettings
from splade_nb.training.dataset import prepare
from splade_nb.training.objective import batch_at, encoded, objective, weights_at
from splade_nb.evaluation.retrieval import bm25_metrics, evaluate_queries
from splade_nb.data.tokenizer import token_kind
from splade_nb.training.trainer import texts_in_step, train
from start import held_out

ENDS = 5  # the first and last steps that a mean is taken over


@functools.cache
def half_set(): # Collection
    "Every second document of the embedded set and the queries that it answers; a fifth of the training queries judges, no test query is asked."
    whole = data.load('mini')
    documents = {id: text for place, (id, text) in enumerate(sorted(whole.documents.items())) if place % 2 == 0}
    qrels = {q: right for q, right in whole.qrels.items() if whole.queries[q].split == 'train' and right.keys() <= documents.keys()}
    queries = {q: whole.queries[q] for q in qrels}
    part = collect('mini, every second document', documents, queries, qrels, [triplet for triplet in whole.triplets if triplet.query_id in queries], (), whole.notes)
    return resplit(part, {id: 'dev' for id in queries if held_out(id)}, 'a fifth of the training queries is the development split')


def same_start(settings, seed: int) -> str:
    "What decides an untrained model and how it is judged."
    names = [field.name for kind in (ModelSettings, StartSettings) for field in fields(kind) if field.name != 'dropout']
    return json.dumps([seed, *(getattr(settings, name) for name in (*names, 'similarity', 'dot_scale', 'temperature'))])


def held_loss(asked, documents, settings) -> float:
    "Cross-entropy of the judging queries' right documents against all others."
    scores = (asked @ documents.T).toarray() / settings.temperature * (settings.dot_scale if settings.similarity == 'dot' else 1)
    right = [[d in half_set().qrels[q] for d in half_set().documents] for q in half_set().split('dev')]
    return float((logsumexp(scores, axis=1) - logsumexp(np.where(right, scores, -np.inf), axis=1)).mean())


def judge(model, tokenizer, settings) -> dict:
    "nDCG@10, held-out loss, and the vectors they come from."
    found = evaluate_queries(model, tokenizer, half_set(), list(half_set().split('dev')))
    return dict(found, held=held_loss(*found['vectors'], settings))


def result_row(rows: list, width: int) -> sparse.csr_array: # [n, width] ones where a token stands in a text
    counts = sparse.csr_array((np.ones(sum(map(len, rows))), np.concatenate(rows).astype(int), np.cumsum([0, *map(len, rows)])), shape=(len(rows), width))
    counts.sum_duplicates(); counts.data[:] = 1
    return counts


def heaviest(vectors, marked: np.ndarray, number: int = 10) -> float: # marked [V] bool
    "Share of marked tokens among the heaviest terms of a text."
    rows = [row.indices[np.argsort(-row.data)[:number]] for row in vectors]
    return float(np.mean([marked[row].mean() for row in rows if len(row)] or [np.nan]))


def key_weight(vectors, own, rarity: np.ndarray, number: int = 3) -> float:
    "Weight of each text's rarest input tokens beside its heaviest term; 0 for an empty text."
    rare = [row.indices[np.argsort(-rarity[row.indices])[:number]] for row in own]
    return float(np.mean([vector[ids].mean() / max(vector.max(), 1e-9) for vector, ids in zip(vectors.toarray(), rare) if len(ids)]))


@torch.no_grad()
def bridges(setup, settings, seed: int, batches: int = 6) -> float:
    "Terms that pairs of the last batches share but not by their words, less those that strangers share."
    met = lambda left, right: float(((left['vectors'] > 0) & (right['vectors'] > 0) & ~(left['own'] & right['own'])).sum(1).float().mean())
    found = []
    for step in range(settings.steps - batches, settings.steps):
        out = encoded(setup.model, batch_at(step, settings.steps, 0, setup.training_data, settings, seed), settings)
        right = {name: out['document'][name][:len(out['same'])] for name in ('vectors', 'own')}
        found.append(met(out['query'], right) - met(out['query'], {name: rows.roll(1, 0) for name, rows in right.items()}))
    return float(np.mean(found))


def looked_at(setup, found: dict) -> dict:
    "What the vectors of a trained model show."
    asked, documents = map(sparse.csr_array, found['vectors'])
    texts, masks, size = list(half_set().texts.values()), setup.masks, documents.shape[1]
    ids = [setup.training_data.tokenizer.ids(rows) for rows in ([q.text for q in half_set().split('dev').values()], texts)]
    own_asked, own_documents = (result_row(rows, size) for rows in ids)
    korean = [row for row, text in enumerate(texts) if token_kind(text) == 'korean']
    both, own = sparse.vstack([asked, documents]), sparse.vstack([own_asked, own_documents])
    terms = {side: evaluation.active_terms(rows) for side, rows in (('query', asked), ('doc', documents))}
    return dict(ndcg=found['metrics']['ndcg@10'], held=found['held'], dead=evaluation.dead_rows(both), query_terms=terms['query'], doc_terms=terms['doc'],
                ratio=terms['doc'] / max(terms['query'], 1e-9), stopwords=heaviest(documents, masks['stopword']),
                key=key_weight(asked, own_asked, setup.training_data.idf.numpy()), recall=float(((both > 0).multiply(own).sum(1) / np.maximum(own.sum(1), 1)).mean()),
                special=documents[:, masks['special']].sum() / max(documents.sum(), 1e-9),
                noise=float((documents[korean][:, ~(masks['korean'] | masks['neutral'])] > 0).sum() / max((documents[korean] > 0).sum(), 1)))


def mean_of(rows: list, read) -> float: return float(np.mean([read(row) for row in rows]))


def followed(rows: list, settings) -> dict: # rows of metrics.jsonl
    "What the steps of a run show."
    first, last = rows[:ENDS], rows[-ENDS:]
    part = lambda name: lambda row: row['parts'].get(name, 0.0)
    infonce = np.array([row['parts']['infonce'] for row in rows[len(rows) // 3:]])
    trend = np.polyval(np.polyfit(np.arange(len(infonce)), infonce, 1), np.arange(len(infonce)))
    own = mean_of(first, part('self')), mean_of(last, part('self'))
    candidates = np.exp(rows[0]['chance_loss'] / weights_at(0, settings.steps, settings)['infonce'])
    pairs = settings.batch_size * settings.accumulation
    return dict(chance=mean_of(last, lambda row: row['parts']['infonce'] / row['chance_loss']), wobble=float((infonce - trend).std() / infonce.mean()),
                lowest=min(mean_of(last, part(name)) for name in last[0]['parts']), margin=mean_of(last, part('margin')) / (settings.lambda_margin or 1),
                self_moved=abs(own[1] - own[0]) / max(abs(own[0]), 1e-9), seen=float(candidates / (texts_in_step(settings) - pairs)))


def pull(setup, settings, seed: int, term: str = 'kd') -> float:
    "A term's share of the summed gradient norms, halfway through the schedule."
    rows, norms = batch_at(settings.steps // 2, settings.steps, 0, setup.training_data, settings, seed), {}
    weights = weights_at(settings.steps // 2, settings.steps, settings)
    if not weights[term]: return 0.0
    for name in (name for name, weight in weights.items() if weight):
        setup.model.zero_grad()
        others = {other: 0.0 for other in weights if other != name}
        total, _ = objective(encoded(setup.model, rows, settings), rows, settings.steps // 2, settings.steps, setup.training_data, settings, others)
        if torch.is_tensor(total) and total.requires_grad: total.backward()
        norms[name] = sum(float(p.grad.square().sum()) for p in setup.model.parameters() if p.grad is not None) ** 0.5
    return norms[term] / max(sum(norms.values()), 1e-9)


class Bench:
    "Trains small runs one after another, and knows what a start was worth without judging it again."
    def __init__(self, folder: Path): self.folder, self.starts = folder, {}

    def start(self, setup, settings, seed: int) -> dict: # ndcg, held
        key = same_start(settings, seed)
        if key not in self.starts:
            found = judge(setup.model, setup.training_data.tokenizer, settings)
            self.starts[key] = dict(ndcg=found['metrics']['ndcg@10'], held=found['held'])
        return self.starts[key]

    def run(self, settings, seed: int) -> dict:
        "One run's numbers."
        began = time.process_time()
        setup = prepare(settings, half_set(), seed, self.folder/'cache')
        start = self.start(setup, settings, seed)
        watch = lambda model: {name: value for name, value in judge(model, setup.training_data.tokenizer, settings).items() if name in ('metrics', 'held')}
        run = train(setup.model, setup.training_data, settings, self.folder/'run', watch if settings.validations else None, seed=seed, quiet=True, patience=settings.steps + 1)
        rows = [json.loads(line) for line in (self.folder/'run'/'metrics.jsonl').read_text(encoding='utf-8').splitlines()]
        found = looked_at(setup, judge(setup.model, setup.training_data.tokenizer, settings))
        held = [row['held'] for row in run.history] or [start['held'], found['held']]
        curve = dict(loss=[row['loss'] for row in rows[::3]], doc_terms=[row['active_doc'] for row in rows[::3]], ndcg=[row['metrics']['ndcg@10'] for row in run.history])
        return rounded(dict(start=start['ndcg'], **found, **followed(rows, settings), drop=start['ndcg'] - found['ndcg'], held_fall=1 - found['held'] / start['held'], rise=found['held'] / min(*held, found['held']) - 1,
                            bridges=bridges(setup, settings, seed), kd_pull=pull(setup, settings, seed), steps=run.step, share=run.share, guard=sorted({f'{event["name"]} ({event["level"]})' for event in run.events}),
                            curve=curve, seconds=time.process_time() - began))


def rounded(value, digits: int = 5):
    if isinstance(value, dict): return {name: rounded(part, digits) for name, part in value.items()}
    if isinstance(value, list): return [rounded(part, digits) for part in value]
    return float(f'{value:.{digits}g}') if isinstance(value, (float, np.floating)) else value


def setting_out() -> dict:
    "What is judged on, and BM25 on it."
    ids = list(half_set().split('dev'))
    return dict(threads=torch.get_num_threads(), queries=len(ids), documents=len(half_set().documents), bm25=float(bm25_metrics(half_set(), ids)['ndcg@10'].mean()))

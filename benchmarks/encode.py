"""Texts to sparse vectors: this project's `encode` against `SparseEncoder.encode` and against full logits."""
import functools, statistics
import numpy as np
import torch
from scipy import sparse
from splade_nb.model.encode import encode, prepared_decoder
from splade_nb.data.tokenizer import batch, load_tokenizer, vocabulary_kinds
from measure import alternately, peak, ratios, say, spread, weigh
from models import FULL, LONGEST, SMALL, folder_of, sparse_encoder, splade, texts

NUMBER, BATCH, PADDED, BUDGET = 32, 16, 128, 1024  # texts; texts of a rival's batch; tokens that one of them pads to; tokens of our batch
WEIGHED = ('pooling', 'sorted', 'exact', 'screened', 'korean bf16')


OURS = {'exact': {}, 'screened': dict(screen=True), 'korean': dict(korean=True), 'korean screened': dict(korean=True, screen=True),
        'bf16': dict(precision='bf16'), 'korean bf16': dict(korean=True, precision='bf16')}
RIVALS = ('pooling', 'pooling chunks', 'padded', 'sorted')


class Encoders:
    "Every way from the same texts to vectors [N, V]; models and decoders are made when first asked for, once."
    def __init__(self, folder, number=NUMBER, device='cpu'):
        self.tokenizer = load_tokenizer(folder)
        self.texts = texts(number, self.tokenizer)
        self.korean = np.flatnonzero(np.isin(vocabulary_kinds(self.tokenizer), ('korean', 'mixed', 'number')))
        self.their = functools.cache(lambda: sparse_encoder(folder, device))
        self.our = functools.cache(lambda: splade(folder, device).eval())
        self.decoder = functools.cache(lambda way: self.prepare(**OURS[way]))

    def prepare(self, korean=False, **options): return prepared_decoder(self.our(), self.korean if korean else None, **options)

    def run(self, way: str) -> sparse.csr_matrix:  # [N, V]
        if way == 'padded': return self.naive(PADDED)
        if way == 'sorted': return self.naive(None)
        if way in RIVALS: return self.pooling(16 if way == 'pooling chunks' else None)
        return encode(self.our(), self.tokenizer, self.texts, budget=BUDGET, decoder=self.decoder(way), precision=OURS[way].get('precision', 'fp32'))

    def pooling(self, chunk_size):
        model = self.their(); model[1].chunk_size = chunk_size
        found = model.encode(self.texts, batch_size=BATCH, show_progress_bar=False, save_to_cpu=True).coalesce()
        return sparse.csr_matrix((found.values().numpy(), found.indices().numpy()), found.shape)

    @torch.inference_mode()
    def naive(self, padded):
        "Full logits [B, L, V]: in order and padded to one width, or long texts first."
        ids, model = self.tokenizer.ids(self.texts), self.our()
        order = list(range(len(ids))) if padded else sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        found = []
        for start in range(0, len(order), BATCH):
            rows = batch(self.tokenizer, [ids[i] for i in order[start:start + BATCH]], LONGEST)
            if padded: rows = {name: torch.nn.functional.pad(value, (0, padded - value.shape[1]), value=self.tokenizer.pad * (name == 'input_ids')) for name, value in rows.items()}
            states = model.backbone(**rows).logits  # of the head's last layer but one: the decoder was taken
            scores = torch.log1p(torch.relu(torch.nn.functional.linear(states, model.decoder.weight, model.decoder.bias))) * rows['attention_mask'][..., None]
            found.append(sparse.csr_matrix(scores.max(dim=1).values.numpy()))
        return sparse.vstack(found).tocsr()[np.argsort(order)]


def agreement(found, expected, kept=None) -> dict:
    "Vectors against vectors; `kept`: the tokens that may stand in them."
    if kept is not None:
        allowed = np.zeros(expected.shape[1], np.float32); allowed[kept] = 1
        expected = expected.multiply(allowed).tocsr()
    expected.eliminate_zeros(); found.eliminate_zeros()
    mine, right = found > 0, expected > 0
    norm = lambda rows: np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    together = norm(found) * norm(expected)
    cosine = np.where(together > 0, np.asarray(found.multiply(expected).sum(1)).ravel() / together.clip(1e-12), norm(found) == norm(expected)) # two empty vectors are equal
    return dict(terms=expected.nnz / expected.shape[0], value=float(abs(found - expected).max()), support=(mine != right).nnz == 0,
                cosine=float(cosine.min()), jaccard=mine.multiply(right).nnz / (mine + right).nnz)


def peak_of(folder, way) -> int:  # bytes above the model and what is made of it once
    encoders = Encoders(folder)
    every, encoders.texts = encoders.texts, encoders.texts[:1]
    encoders.run(way); encoders.texts = every
    return peak(lambda: encoders.run(way))


def rates(rows=2048, hidden=768, tokens=512) -> dict:  # operations a second
    "Of one product as large as a chunk of the head, by type of number: what the machine has to offer."
    left, right = torch.randn(rows, hidden), torch.randn(hidden, tokens)
    kinds = {'float32': (left, right), 'bfloat16': (left.bfloat16(), right.bfloat16()), 'int8': (left.mul(30).to(torch.int8), right.mul(30).to(torch.int8))}
    calls = {name: functools.partial(torch._int_mm if name == 'int8' else torch.mm, *pair) for name, pair in kinds.items()}
    for call in calls.values(): call()
    taken = alternately(calls, 15)
    return {name: 2 * rows * hidden * tokens / statistics.median(r['wall'] for r in taken[name]) for name in calls}


def measure(small=False) -> dict:
    with folder_of(SMALL if small else FULL) as folder:
        encoders, ways = Encoders(folder), (*RIVALS, *OURS)
        lengths = [len(ids) + 2 for ids in encoders.tokenizer.ids(encoders.texts)]
        found = {way: encoders.run(way) for way in ways}
        agreed = {way: agreement(vectors, found['pooling'], encoders.korean if way.startswith('korean') else None) for way, vectors in found.items()}
        say(f'  {len(lengths)} texts of {statistics.mean(lengths):.0f} tokens, {agreed["pooling"]["terms"]:.0f} terms each, {len(encoders.korean):,} Korean tokens')
        taken = alternately({way: lambda way=way: encoders.run(way) for way in ways})
        for way in ways:
            ratio = spread(ratios(taken, 'pooling', way))
            say(f'  {way}: {ratio["median"]:.2f} times as fast as sentence-transformers ({ratio["low"]:.2f} to {ratio["high"]:.2f}); '
                f'largest difference {agreed[way]["value"]:.0e}, cosine at least {agreed[way]["cosine"]:.4f}, Jaccard {agreed[way]["jaccard"]:.3f}')
        peaks = {way: weigh('encode', 'peak_of', folder=folder, way=way) for way in WEIGHED}
        say('  peak: ' + ', '.join(f'{way} {taken_ / 1e6:,.0f} MB' for way, taken_ in peaks.items()))
        return dict(texts=len(lengths), lengths=lengths, korean=len(encoders.korean), vocabulary=len(encoders.tokenizer), agreement=agreed, rounds=taken, peaks=peaks, rates=rates())

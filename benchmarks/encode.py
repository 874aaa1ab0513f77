"""Texts to sparse vectors: this project's `encode` beside `SparseEncoder.encode` and full logits."""
import functools, statistics
import numpy as np
import torch
from scipy import sparse
from torch.nn import functional as F
from splade_nb.model.encode import encode, prepared_decoder
from splade_nb.data.tokenizer import batch, load_tokenizer, vocabulary_kinds
from measure import alternately, in_process, peak, ratios, say, spread
from models import FULL, LONGEST, SMALL, korean_texts, model_folder, sparse_encoder, splade

NUMBER = 32               # texts
BATCH, PADDED = 16, 128   # of the other methods: texts of a batch; tokens to which one of them pads
BUDGET = 1024             # tokens of a batch of `encode`
OURS = {'exact': {}, 'screened': dict(screen=True), 'korean': dict(korean=True),
        'korean screened': dict(korean=True, screen=True), 'bf16': dict(precision='bf16'),
        'korean bf16': dict(korean=True, precision='bf16')}
OTHERS = ('pooling', 'pooling chunks', 'padded', 'sorted')
WEIGHED = ('pooling', 'sorted', 'exact', 'screened', 'korean bf16')  # whose memory is measured


class Encoders:
    "Every method from the same texts to vectors [N, V]; models and decoders are made once, when they are first needed."
    def __init__(self, folder, number=NUMBER, device='cpu'):
        self.tokenizer = load_tokenizer(folder)
        self.texts = korean_texts(number, self.tokenizer)
        self.korean = np.flatnonzero(np.isin(vocabulary_kinds(self.tokenizer), ('korean', 'mixed', 'number')))
        self.their = functools.cache(lambda: sparse_encoder(folder, device))
        self.our = functools.cache(lambda: splade(folder, device).eval())
        self.decoder = functools.cache(lambda method: self.prepare(**OURS[method]))

    def prepare(self, korean=False, **options):
        return prepared_decoder(self.our(), self.korean if korean else None, **options)

    def run(self, method: str) -> sparse.csr_matrix:  # [N, V]
        if method in ('padded', 'sorted'): return self.full_logits(PADDED if method == 'padded' else None)
        if method in OTHERS: return self.pooling(16 if method == 'pooling chunks' else None)
        return encode(self.our(), self.tokenizer, self.texts, budget=BUDGET, decoder=self.decoder(method),
                      precision=OURS[method].get('precision', 'fp32'))

    def pooling(self, chunk_size: int | None) -> sparse.csr_matrix:
        model = self.their()
        model[1].chunk_size = chunk_size
        rows = model.encode(self.texts, batch_size=BATCH, show_progress_bar=False, save_to_cpu=True).coalesce()
        return sparse.csr_matrix((rows.values().numpy(), rows.indices().numpy()), rows.shape)

    @torch.inference_mode()
    def full_logits(self, padded: int | None) -> sparse.csr_matrix:
        "All logits [B, L, V]: in order and padded to one length, or long texts first."
        ids, model, parts = self.tokenizer.ids(self.texts), self.our(), []
        order = list(range(len(ids))) if padded else sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        for start in range(0, len(order), BATCH):
            rows = batch(self.tokenizer, [ids[i] for i in order[start:start + BATCH]], LONGEST)
            if padded: rows = {name: self.pad(name, value, padded) for name, value in rows.items()}
            states = model.backbone(**rows).logits  # hidden states: the decoder was taken from the backbone
            logits = F.linear(states, model.decoder.weight, model.decoder.bias)
            vectors = (torch.log1p(torch.relu(logits)) * rows['attention_mask'][..., None]).max(dim=1).values
            parts.append(sparse.csr_matrix(vectors.numpy()))
        return sparse.vstack(parts).tocsr()[np.argsort(order)]

    def pad(self, name: str, value: torch.Tensor, length: int) -> torch.Tensor:
        return F.pad(value, (0, length - value.shape[1]), value=self.tokenizer.pad * (name == 'input_ids'))


def cosines(rows, others) -> np.ndarray:  # [N]; 1 for two empty vectors
    def dot(x, y): return np.asarray(x.multiply(y).sum(1)).ravel()
    norms, other_norms = (np.sqrt(dot(each, each)) for each in (rows, others))
    product = norms * other_norms
    return np.where(product > 0, dot(rows, others) / product.clip(1e-12), norms == other_norms)


def agreement(vectors, expected, kept=None) -> dict:
    "Vectors beside the expected ones; `kept`: the only tokens that may be active."
    if kept is not None: expected = expected.multiply(np.isin(np.arange(expected.shape[1]), kept)).tocsr()
    expected.eliminate_zeros()
    vectors.eliminate_zeros()
    active, right = vectors > 0, expected > 0
    return dict(terms=expected.nnz / expected.shape[0], value=float(abs(vectors - expected).max()),
                support=(active != right).nnz == 0, cosine=float(cosines(vectors, expected).min()),
                jaccard=active.multiply(right).nnz / (active + right).nnz)


def peak_of(folder, method) -> int:  # bytes above the model and the prepared decoder
    encoders = Encoders(folder)
    texts, encoders.texts = encoders.texts, encoders.texts[:1]
    encoders.run(method)
    encoders.texts = texts
    return peak(lambda: encoders.run(method))


def rates(rows=2048, hidden=768, columns=512) -> dict:  # operations a second
    "Of one product of the size of a chunk of the head, by data type: what the machine can do."
    left, right = torch.randn(rows, hidden), torch.randn(hidden, columns)
    calls = {name: functools.partial(torch.mm, left.to(kind), right.to(kind))
             for name, kind in dict(float32=torch.float32, bfloat16=torch.bfloat16).items()}
    calls['int8'] = functools.partial(torch._int_mm, left.mul(30).to(torch.int8), right.mul(30).to(torch.int8))
    for call in calls.values(): call()
    times = alternately(calls, 15)
    seconds = {name: statistics.median(each['wall'] for each in rounds) for name, rounds in times.items()}
    return {name: 2 * rows * hidden * columns / seconds[name] for name in calls}


def say_method(method: str, times: dict, agreed: dict) -> None:
    ratio = spread(ratios(times, 'pooling', method))
    say(f'  {method}: {ratio["median"]:.2f} times as fast as sentence-transformers ({ratio["low"]:.2f} to '
        f'{ratio["high"]:.2f}); largest difference {agreed["value"]:.0e}, cosine at least {agreed["cosine"]:.4f}, '
        f'Jaccard {agreed["jaccard"]:.3f}')


def measure(small=False) -> dict:
    with model_folder(SMALL if small else FULL) as folder:
        encoders, methods = Encoders(folder), (*OTHERS, *OURS)
        lengths = [len(ids) + 2 for ids in encoders.tokenizer.ids(encoders.texts)]
        vectors = {method: encoders.run(method) for method in methods}
        agreed = {method: agreement(rows, vectors['pooling'], encoders.korean if method.startswith('korean') else None)
                  for method, rows in vectors.items()}
        say(f'  {len(lengths)} texts of {statistics.mean(lengths):.0f} tokens, {agreed["pooling"]["terms"]:.0f} terms '
            f'each, {len(encoders.korean):,} Korean tokens')
        times = alternately({method: functools.partial(encoders.run, method) for method in methods})
        for method in methods: say_method(method, times, agreed[method])
        peaks = {method: in_process('encode', 'peak_of', folder=folder, method=method) for method in WEIGHED}
        say('  peak: ' + ', '.join(f'{method} {value / 1e6:,.0f} MB' for method, value in peaks.items()))
        return dict(texts=len(lengths), lengths=lengths, korean=len(encoders.korean),
                    vocabulary=len(encoders.tokenizer), agreement=agreed, rounds=times, peaks=peaks, rates=rates())

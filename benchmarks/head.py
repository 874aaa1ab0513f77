"""The head alone: forward and backward from hidden states to [B, V]; time, memory and how both grow."""
import functools, statistics
import torch
from torch.nn import functional as F
from splade_nb.model import head
from measure import alternately, exponent, in_process, peak, ratios, relative_error, say, spread

VOCABULARY, HIDDEN = 250_002, 768
TINY = dict(vocabulary=2_000, hidden=32)
SHAPES = ((16, 8), (8, 16), (4, 64), (8, 192))  # texts, tokens of each
ACTIVITIES = (0.001, 0.1, 1.0)                  # share of positive logits


# Methods: a case in, vectors [B, V] out

def naive(case):
    "The code of the design documents."
    logits = F.linear(case.hidden, case.weight, case.bias)
    return (torch.log1p(torch.relu(logits)) * case.mask[..., None]).max(dim=1).values


def pooling(case, chunk_size=None):
    "sentence-transformers, which takes the logits."
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    module = SpladePooling(chunk_size=chunk_size).train()
    logits = F.linear(case.hidden, case.weight, case.bias)
    return module(dict(token_embeddings=logits, attention_mask=case.mask))['sentence_embedding']


def dense(case, as_rows=False):
    states = case.hidden[case.mask.bool()]
    return head.max_logits(states, case.weight, case.bias, case.lengths, as_rows=as_rows).relu().log1p()


METHODS = dict(naive=naive, pooling=pooling, pooling_chunks=functools.partial(pooling, chunk_size=16), dense=dense,
               rows=functools.partial(dense, as_rows=True))
FAST = ('pooling', 'dense', 'rows')


def threshold(values, activity: float) -> float:
    "A number that about this share of the values exceeds, in the widest gap nearby: rounding moves no value across."
    ordered, number = values.sort().values, round(activity * len(values))
    below = len(values) - number
    if not below: return float(ordered[0]) - 1.0
    near = ordered[max(0, below - number // 50 - 1):below + number // 50 + 1]
    gap = near.diff().argmax()
    return float(near[gap] + near[gap + 1]) / 2


class Case:
    "Random hidden states and weights, the bias shifted until a given share of the vectors is positive."
    def __init__(self, texts, length, activity=1.0, vocabulary=VOCABULARY, hidden=HIDDEN, ragged=False):
        torch.manual_seed(0)
        self.lengths = torch.linspace(length / 4, length, texts).long().tolist() if ragged else [length] * texts
        self.mask = (torch.arange(length) < torch.tensor(self.lengths)[:, None]).long()
        self.hidden, self.weight = torch.randn(texts, length, hidden), torch.randn(vocabulary, hidden) / hidden ** 0.5
        self.bias, self.slope = torch.zeros(vocabulary), torch.randn(texts, vocabulary)
        with torch.no_grad():
            largest = head.max_logits(self.hidden[self.mask.bool()], self.weight, self.bias, self.lengths)
        self.bias -= threshold(largest.flatten(), activity)
        self.leaves = dict(hidden=self.hidden, weight=self.weight, bias=self.bias)
        for leaf in self.leaves.values(): leaf.requires_grad_()

    @torch.no_grad()
    def ignore_ties(self):
        "No incoming gradient where two tokens of a text tie up to rounding: `max` may take either."
        for low in range(0, len(self.weight), 2_048):
            logits = torch.einsum('blh,vh->bvl', self.hidden, self.weight[low:low + 2_048])
            best = logits.topk(2).values
            self.slope[:, low:low + 2_048] *= best[..., 0] - best[..., 1] > 1e-5

    def run(self, method: str) -> torch.Tensor:  # [B, V]
        "Forward and backward."
        for leaf in self.leaves.values(): leaf.grad = None
        vectors = METHODS[method](self)
        vectors.backward(self.slope)
        return vectors.detach()

    def gradients(self) -> dict:
        gradients = {name: leaf.grad for name, leaf in self.leaves.items()}
        return {name: grad.to_dense() if grad.is_sparse else grad.clone() for name, grad in gradients.items()}


def agreement(case: Case) -> dict:
    "Values, active terms and gradients of `rows` beside those of `pooling`."
    expected, gradients = case.run('pooling'), case.gradients()
    vectors = case.run('rows')
    errors = {name: relative_error(gradient, gradients[name]) for name, gradient in case.gradients().items()}
    return dict(value=float((vectors - expected).abs().max()), support=torch.equal(vectors > 0, expected > 0),
                active=float((expected > 0).float().mean()), gradient=errors)


# Time

def times(texts, length, activity, methods=FAST, rounds=3, ragged=False, **size) -> dict:
    "Forward and backward of each method, alternately."
    case = Case(texts, length, activity, ragged=ragged, **size)
    if activity > 0.01: case.ignore_ties()
    agreed = agreement(case)
    measured = alternately({method: functools.partial(case.run, method) for method in methods}, rounds)
    seconds = ', '.join(f'{method} {statistics.median(each["cpu"] for each in measured[method]):.2f} s'
                        for method in methods)
    ratio = spread(ratios(measured, 'pooling', 'rows'))['median']
    say(f'  B{texts} L{length}{" ragged" * ragged} {activity:.1%} active: {seconds}; pooling / rows {ratio:.2f}, '
        f'gradient error {max(agreed["gradient"].values()):.0e}')
    return dict(texts=texts, length=length, activity=activity, ragged=ragged, agreement=agreed, rounds=measured)


def all_times(size: dict) -> list:
    results = []
    for texts, length in SHAPES:
        for activity in ACTIVITIES:
            sparsest = activity == ACTIVITIES[0]
            methods = tuple(METHODS) if sparsest and length < 192 else FAST
            results.append(times(texts, length, activity, methods, 2 if length == 192 and not sparsest else 3, **size))
    return [*results, times(8, 192, 0.001, ragged=True, rounds=2, **size)]


def growth_of_time(vocabulary=VOCABULARY, hidden=HIDDEN) -> dict:
    "Forward and backward of `rows` by the number of tokens and by the size of the vocabulary, sizes alternately."
    shapes = dict(tokens=[(8, length, vocabulary) for length in (24, 48, 96, 192)],
                  vocabulary=[(8, 96, vocabulary // part) for part in (8, 4, 2, 1)])
    results = {}
    for axis, each in shapes.items():
        sizes = [texts * length if axis == 'tokens' else tokens for texts, length, tokens in each]
        cases = {size: Case(texts, length, 0.001, tokens, hidden) for size, (texts, length, tokens) in zip(sizes, each)}
        for case in cases.values(): case.run('rows')
        rounds = alternately({size: functools.partial(case.run, 'rows') for size, case in cases.items()})
        seconds = [statistics.median(one['cpu'] for one in rounds[size]) for size in sizes]
        results[axis] = dict(sizes=sizes, rounds=list(rounds.values()), exponent=exponent(sizes, seconds))
        say(f'  time grows with {axis} to the power {results[axis]["exponent"]:.2f}')
    return results


# Memory

def peak_of(method, texts, length, activity, vocabulary=VOCABULARY, hidden=HIDDEN, forward=False) -> int:  # bytes
    Case(1, 2, vocabulary=50, hidden=8).run(method)  # what the first call loads does not count
    case = Case(texts, length, activity, vocabulary, hidden)
    return peak(lambda: METHODS[method](case) if forward else case.run(method))


def forward_peaks(method, shapes, hidden) -> list:  # bytes, of each (texts, length, vocabulary) in one process
    return [peak_of(method, texts, length, 0.001, tokens, hidden, forward=True) for texts, length, tokens in shapes]


def memory(size: dict) -> list:
    "The peak of forward and backward above what was held before, each in a fresh process."
    shapes = ((4, 64, 0.001, METHODS), (8, 192, 0.001, FAST), (8, 192, 1.0, ('dense', 'rows')),
              (24, 192, 0.001, ('dense', 'rows')))
    results = []
    for texts, length, activity, methods in shapes:
        shape = dict(texts=texts, length=length, activity=activity)
        peaks = {method: in_process('head', 'peak_of', method=method, **shape, **size) for method in methods}
        results.append(dict(shape, peaks=peaks))
        shown = ', '.join(f'{method} {value / 1e6:,.0f} MB' for method, value in peaks.items())
        say(f'  B{texts} L{length} {activity:.1%} active: {shown}')
    return results


def growth_of_memory(vocabulary=VOCABULARY, hidden=HIDDEN) -> dict:
    "Forward memory by length and by vocabulary."
    shapes = dict(length=[(8, length, vocabulary) for length in (24, 64, 96, 192)],
                  vocabulary=[(8, 64, vocabulary // part) for part in (8, 4, 2, 1)])
    results = {}
    for axis, each in shapes.items():
        sizes = [length if axis == 'length' else tokens for _, length, tokens in each]
        peaks = {method: in_process('head', 'forward_peaks', method=method, shapes=each, hidden=hidden)
                 for method in ('pooling', 'rows')}
        results[axis] = dict(sizes=sizes, peaks=peaks)
        shown = '; '.join(f'{method} {[round(value / 1e6) for value in values]} MB' for method, values in peaks.items())
        say(f'  forward memory by {axis} {sizes}: {shown}')
    return results


# The backward pass: gather or multiply

def gather_cost(vocabulary=VOCABULARY, hidden=HIDDEN, texts=8) -> dict:
    "How many multiplied logits take the time of one gathered entry: where both kinds of backward pass are equal."
    results = []
    for length in (8, 16, 32):
        tokens = texts * length
        states, weight, chunk = torch.randn(tokens, hidden), torch.randn(vocabulary, hidden), head.rows_in_cache(tokens)
        at = (torch.randint(length, (vocabulary, texts)) + torch.arange(texts) * length).int()
        slope = torch.randn(vocabulary, texts)
        calls = dict(gather=lambda: head._sparse_gradients(slope, at, states, weight, False),
                     product=lambda: head._dense_gradients(slope, at, states, weight, chunk))
        for call in calls.values(): call()
        rounds = alternately(calls)
        cost = spread([ratio * tokens / texts for ratio in ratios(rounds, 'gather', 'product')])
        results.append(dict(tokens=tokens, cost=cost, rounds=rounds))
        say(f'  a gathered entry takes the time of {cost["median"]:.1f} multiplied logits (T = {tokens})')
    return dict(used=head.GATHER_COST, measured=results)


def measure(small=False) -> dict:
    size = TINY if small else {}
    return dict(times=all_times(size), memory=memory(size), growth_of_time=growth_of_time(**size),
                growth_of_memory=growth_of_memory(**size), gather_cost=gather_cost(**size))

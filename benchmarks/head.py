"""The head alone: forward and backward from hidden states to [B, V], in time, memory and growth."""
import statistics
import torch
from torch.nn import functional as F
from splade_nb.model import head
from measure import alternately, apart, exponent, peak, ratios, say, spread, weigh

VOCABULARY, HIDDEN = 250_002, 768
SHAPES = ((16, 8), (8, 16), (4, 64), (8, 192))  # texts, tokens of each
ACTIVITIES = (0.001, 0.1, 1.0)                  # share of positive logits


# The rivals: a case in, vectors [B, V] out

def naive(case):
    "The design documents' own lines."
    logits = F.linear(case.hidden, case.weight, case.bias)
    return (torch.log1p(torch.relu(logits)) * case.mask[..., None]).max(dim=1).values


def pooling(case, chunk_size=None):
    "sentence-transformers, which is given the logits."
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    module = SpladePooling(chunk_size=chunk_size).train()
    logits = F.linear(case.hidden, case.weight, case.bias)
    return module(dict(token_embeddings=logits, attention_mask=case.mask))['sentence_embedding']


def pooling_chunks(case): return pooling(case, chunk_size=16)


def dense(case, as_rows=False):
    return head.max_logits(case.hidden[case.mask.bool()], case.weight, case.bias, case.lengths, as_rows=as_rows).relu().log1p()


def rows(case): return dense(case, as_rows=True)


RIVALS = dict(naive=naive, pooling=pooling, pooling_chunks=pooling_chunks, dense=dense, rows=rows)


def threshold(values, activity: float) -> float:
    "What about so large a share of the values is above: the middle of the widest gap nearby, so that rounding puts none on the other side."
    ordered, number = values.sort().values, round(activity * len(values))
    below = len(values) - number
    near = ordered[max(0, below - number // 50 - 1):below + number // 50 + 1]
    if not below: return float(ordered[0]) - 1.0
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
        with torch.no_grad(): largest = head.max_logits(self.hidden[self.mask.bool()], self.weight, self.bias, self.lengths).flatten()
        self.bias -= threshold(largest, activity)
        self.leaves = self.hidden, self.weight, self.bias
        for leaf in self.leaves: leaf.requires_grad_()

    @torch.no_grad()
    def spare_ties(self):
        "No slope where two tokens of a text are as large but for rounding: there `max` may take either."
        for low in range(0, len(self.weight), 2_048):
            logits = torch.einsum('blh,vh->bvl', self.hidden, self.weight[low:low + 2_048])
            largest, at = logits.max(-1, keepdim=True)
            second = logits.scatter_(-1, at, float('-inf')).amax(-1)
            self.slope[:, low:low + 2_048] *= largest[..., 0] - second > 1e-5

    def run(self, rival):
        "Forward and backward."
        for leaf in self.leaves: leaf.grad = None
        vectors = RIVALS[rival](self); vectors.backward(self.slope)
        return vectors.detach()

    def forward(self, rival): return RIVALS[rival](self)


def agreement(case, found='rows', expected='pooling') -> dict:
    "One way held against another."
    right = case.run(expected), *(leaf.grad.clone() for leaf in case.leaves)
    mine = case.run(found), *(leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad for leaf in case.leaves)
    return dict(value=float((mine[0] - right[0]).abs().max()), support=torch.equal(mine[0] > 0, right[0] > 0), active=float((right[0] > 0).float().mean()),
                gradient={name: apart(a, b) for name, a, b in zip(('hidden', 'weight', 'bias'), mine[1:], right[1:])})


# Parts of this benchmark

def times(texts, length, activity, rivals=('pooling', 'dense', 'rows'), rounds=3, **options) -> dict:
    "Forward and backward of each rival, in turns."
    case = Case(texts, length, activity, **options)
    if activity > 0.01: case.spare_ties()
    agreed = agreement(case)
    taken = alternately({rival: lambda rival=rival: case.run(rival) for rival in rivals}, rounds)
    say(f'  B{texts} L{length}{" ragged" if options.get("ragged") else ""} {activity:.1%} active: ' + ', '.join(
        f'{rival} {statistics.median(each["cpu"] for each in taken[rival]):.2f} s' for rival in rivals) +
        f'; pooling / rows {spread(ratios(taken, "pooling", "rows"))["median"]:.2f}, gradients {max(agreed["gradient"].values()):.0e} apart')
    return dict(texts=texts, length=length, activity=activity, ragged=bool(options.get('ragged')), agreement=agreed, rounds=taken)


def growth_of_time(small=False) -> dict:
    "Our own forward and backward against the number of tokens and of tokens, each size in turns with the others."
    vocabulary, hidden = (2_000, 32) if small else (VOCABULARY, HIDDEN)
    sizes = dict(tokens=[(8, length, vocabulary) for length in (24, 48, 96, 192)], vocabulary=[(8, 96, vocabulary // part) for part in (8, 4, 2, 1)])
    found = {}
    for axis, shapes in sizes.items():
        cases = {f'{shape}': Case(shape[0], shape[1], 0.001, shape[2], hidden) for shape in shapes}
        for case in cases.values(): case.run('rows')
        taken = alternately({name: lambda case=case: case.run('rows') for name, case in cases.items()})
        x = [shape[0] * shape[1] if axis == 'tokens' else shape[2] for shape in shapes]
        found[axis] = dict(sizes=x, rounds=list(taken.values()), exponent=exponent(x, [statistics.median(r['cpu'] for r in taken[name]) for name in cases]))
        say(f'  time grows with {axis} to the power {found[axis]["exponent"]:.2f}')
    return found


def peak_of(rival, texts, length, activity, vocabulary=VOCABULARY, hidden=HIDDEN, forward=False) -> int:  # bytes
    Case(1, 2, vocabulary=50, hidden=8).run(rival)  # what a first call loads is not its memory
    case = Case(texts, length, activity, vocabulary, hidden)
    return peak(lambda: case.forward(rival) if forward else case.run(rival))


def peaks_of_forward(rival, shapes, activity=0.001, hidden=HIDDEN) -> list:  # bytes, of each (texts, length, vocabulary) in one process
    return [peak_of(rival, texts, length, activity, vocabulary, hidden, forward=True) for texts, length, vocabulary in shapes]


def memory(small=False) -> list:
    "Peak above what was held before, forward and backward, a fresh process each."
    size = dict(vocabulary=2_000, hidden=32) if small else {}
    shapes = ((4, 64, 0.001, RIVALS), (8, 192, 0.001, ('pooling', 'dense', 'rows')), (8, 192, 1.0, ('dense', 'rows')), (24, 192, 0.001, ('dense', 'rows')))
    found = []
    for texts, length, activity, rivals in shapes:
        peaks = {rival: weigh('head', 'peak_of', rival=rival, texts=texts, length=length, activity=activity, **size) for rival in rivals}
        found.append(dict(texts=texts, length=length, activity=activity, peaks=peaks))
        say(f'  B{texts} L{length} {activity:.1%} active: ' + ', '.join(f'{rival} {taken / 1e6:,.0f} MB' for rival, taken in peaks.items()))
    return found


def growth_of_memory(small=False) -> dict:
    "Forward memory against length and vocabulary."
    vocabulary, hidden = (2_000, 32) if small else (VOCABULARY, HIDDEN)
    shapes = dict(length=[(8, length, vocabulary) for length in (24, 64, 96, 192)], vocabulary=[(8, 64, vocabulary // part) for part in (8, 4, 2, 1)])
    found = {}
    for axis, each in shapes.items():
        peaks = {rival: weigh('head', 'peaks_of_forward', rival=rival, shapes=each, hidden=hidden) for rival in ('pooling', 'rows')}
        found[axis] = dict(sizes=[shape[1] if axis == 'length' else shape[2] for shape in each], peaks=peaks)
        say(f'  forward memory by {axis} {found[axis]["sizes"]}: ' + '; '.join(f'{rival} {[round(p / 1e6) for p in taken]} MB' for rival, taken in peaks.items()))
    return found


def gather_cost(texts=8, lengths=(8, 16, 32), vocabulary=VOCABULARY, hidden=HIDDEN) -> dict:
    "How much dearer an operation of the gathers is than one of the products: where the two ways back cost the same."
    found = []
    for length in lengths:
        tokens = texts * length
        states, weight, chunk = torch.randn(tokens, hidden), torch.randn(vocabulary, hidden), head.rows_in_cache(tokens)
        at = (torch.randint(length, (vocabulary, texts)) + torch.arange(texts) * length).int()
        slope = torch.randn(vocabulary, texts)
        calls = dict(gather=lambda: head._sparse_gradients(slope, at, states, weight, False), product=lambda: head._dense_gradients(slope, at, states, weight, chunk))
        for call in calls.values(): call()
        taken = alternately(calls)
        found.append(dict(tokens=tokens, cost=spread([ratio * tokens / texts for ratio in ratios(taken, 'gather', 'product')]), rounds=taken))
        say(f'  an entry gathered costs {found[-1]["cost"]["median"]:.1f} logits multiplied (T = {tokens})')
    return dict(used=head.GATHER_COST, measured=found)


def measure(small=False) -> dict:
    size = dict(vocabulary=2_000, hidden=32) if small else {}
    how = lambda length, activity: dict(rivals=tuple(RIVALS) if activity == ACTIVITIES[0] and length < 192 else ('pooling', 'dense', 'rows'),
                                        rounds=2 if length == 192 and activity != ACTIVITIES[0] else 3)
    compared = [times(texts, length, activity, **how(length, activity), **size) for texts, length in SHAPES for activity in ACTIVITIES]
    compared.append(times(8, 192, 0.001, ragged=True, rounds=2, **size))
    return dict(times=compared, memory=memory(small), growth_of_time=growth_of_time(small), growth_of_memory=growth_of_memory(small),
                gather_cost=gather_cost(**size))

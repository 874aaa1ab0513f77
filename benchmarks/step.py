"""One training step, encoder and all: AdamW in float32 over SpladeLoss(SparseMultipleNegativesRankingLoss)."""
import statistics
from contextlib import ExitStack
import torch
from torch.nn import functional as F
from splade_nb.model.splade import accumulated_rows
from measure import alternately, free, peak, ratios, say, spread, status, weigh
from models import FULL, SMALL, folder_of, random_rows, sparse_encoder, splade

QUERY = 16                                 # tokens of a query
RATE = 0.0                                 # every round does the same work, and every loss is the same
WEIGHTS = dict(document=3e-3, query=5e-3)  # of the FLOPS regularisers
TIMES, MEMORY = ((4, 64), (4, 192)), ((4, 192), (8, 192), (12, 192))
GOAL = (24, 192)                      # pairs, tokens of a document


def batch(tokenizer: int, pairs: int, length: int, device: str = 'cpu') -> tuple:  # queries, documents
    return random_rows(tokenizer, pairs, QUERY, 1, device), random_rows(tokenizer, pairs, length, 2, device)


def objective(queries, documents):
    "What SpladeLoss over SparseMultipleNegativesRankingLoss says of vectors [B, V]."
    flops = lambda vectors: vectors.mean(0).square().sum()
    return (F.cross_entropy(queries @ documents.t(), torch.arange(len(queries), device=queries.device))
            + WEIGHTS['document'] * flops(documents) + WEIGHTS['query'] * flops(queries))


def mine(folder, stack: ExitStack, device='cpu', half=False, **settings):
    "A step of this project: batch in, loss out."
    model = splade(folder, device, **settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)
    stack.enter_context(accumulated_rows(model))
    def step(sides):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(device, torch.bfloat16, enabled=half): loss = objective(*(model(**side)[0] for side in sides))
        loss.backward(); optimizer.step()
        return loss.detach()
    return step


def theirs(folder, stack: ExitStack, device='cpu', half=False):
    "A step of sentence-transformers."
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
    model = sparse_encoder(folder, device).train()
    loss_of = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), WEIGHTS['document'], WEIGHTS['query'])
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)
    def step(sides, chunk_size=None):
        model[1].chunk_size = chunk_size
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half): loss = sum(loss_of([dict(side) for side in sides]).values())
        loss.backward(); optimizer.step()
        return loss.detach()
    return step


def times(folder, size, shapes) -> list:
    found = []
    with ExitStack() as stack:
        our, their = mine(folder, stack), theirs(folder, stack)
        for pairs, length in shapes:
            sides = batch(size['vocabulary'], pairs, length)
            losses = dict(pooling=float(their(sides)), rows=float(our(sides)))
            calls = dict(pooling=lambda: their(sides), pooling_chunks=lambda: their(sides, 16), rows=lambda: our(sides))
            if length != shapes[0][1]: del calls['pooling_chunks']
            taken = alternately(calls, 3 if length == shapes[0][1] else 2)
            found.append(dict(pairs=pairs, length=length, loss=losses, rounds=taken))
            ratio = spread(ratios(taken, 'pooling', 'rows'))
            say(f'  {pairs} pairs, L{length}: {ratio["median"]:.2f} times faster ({ratio["low"]:.2f} to {ratio["high"]:.2f}), '
                f'losses {losses["pooling"]:.6f} and {losses["rows"]:.6f}')
    return found


def peak_of(folder, side, pairs, length, vocabulary, **options) -> int:  # bytes: weights, gradients, moments and all
    base = status('VmRSS')
    with ExitStack() as stack:
        step = dict(mine=mine, theirs=theirs)[side](folder, stack, **options)
        step(batch(vocabulary, 2, 8))  # the optimizer's moments are there from the second step on
        return peak(lambda: step(batch(vocabulary, pairs, length)), base)


def through(weighed: list, pairs: int) -> float:  # bytes
    "The line through what was weighed, at a number of pairs."
    x, y = [each['pairs'] for each in weighed], [each['peak'] for each in weighed]
    slope, offset = statistics.linear_regression(x, y)
    return slope * pairs + offset


def memory(folder, size, shapes, goal) -> dict:
    "Whole process above its start. What does not fit is the line through what does, and is called so."
    weighed = lambda side, pairs, length, **options: weigh('step', 'peak_of', folder=folder, side=side, pairs=pairs, length=length, vocabulary=size['vocabulary'], **options)
    found = dict(goal=goal, mine=weighed('mine', *goal), mine_checkpointing=weighed('mine', *goal, gradient_checkpointing=True), theirs=[])
    for pairs, length in (*shapes, goal):
        expected = through(found['theirs'], pairs) if len(found['theirs']) > 1 else 0
        if expected > 0.8 * free(): continue
        found['theirs'].append(dict(pairs=pairs, length=length, peak=weighed('theirs', pairs, length), mine=weighed('mine', pairs, length)))
    extrapolated = found['theirs'][-1]['pairs'] != goal[0]
    found |= dict(extrapolated=extrapolated, theirs_at_goal=through(found['theirs'], goal[0]) if extrapolated else found['theirs'][-1]['peak'])
    say(f'  B{goal[0]} L{goal[1]}: theirs {found["theirs_at_goal"] / 1e9:.1f} GB{" (extrapolated)" * extrapolated}, mine {found["mine"] / 1e9:.1f} GB, '
        f'with checkpointing {found["mine_checkpointing"] / 1e9:.1f} GB')
    return found


def measure(small=False) -> dict:
    size = SMALL if small else FULL
    with folder_of(size) as folder:
        found = dict(memory=memory(folder, size, MEMORY, GOAL))
        return found | dict(times=times(folder, size, TIMES))

"""One training step with the encoder: AdamW in float32 over SpladeLoss(SparseMultipleNegativesRankingLoss)."""
import statistics
from contextlib import ExitStack
from pathlib import Path
import torch
from torch.nn import functional as F
from splade_nb.model.splade import accumulated_rows
import step_revision
from measure import alternately, available_memory, in_process, measure_once, peak, process_memory, ratios, say, spread
from models import FULL, SMALL, model_folder, random_rows, sparse_encoder, splade

QUERY = 16                                 # tokens of a query
RATE = 0.0                                 # learning rate: every round has the same weights and the same loss
WEIGHTS = dict(document=3e-3, query=5e-3)  # of the FLOPS regularizers
TIMES, MEMORY = ((4, 64), (4, 192)), ((4, 192), (8, 192), (12, 192))  # pairs, tokens of a document
GOAL = (24, 192)


def batch(vocabulary: int, pairs: int, length: int, device: str = 'cpu') -> tuple:  # queries, documents
    return random_rows(vocabulary, pairs, QUERY, 1, device), random_rows(vocabulary, pairs, length, 2, device)


def objective(queries, documents):  # [B, V] each
    "The value of SpladeLoss over SparseMultipleNegativesRankingLoss."
    def flops(vectors): return vectors.mean(0).square().sum()
    return (F.cross_entropy(queries @ documents.t(), torch.arange(len(queries), device=queries.device))
            + WEIGHTS['document'] * flops(documents) + WEIGHTS['query'] * flops(queries))


def stepper(model, loss_of, device: str, half: bool, keep_gradients: bool = False):  # batch -> loss
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)
    def step(sides):
        optimizer.zero_grad(set_to_none=not keep_gradients)
        with torch.autocast(device, torch.bfloat16, enabled=half): loss = loss_of(sides)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def mine(folder, stack: ExitStack, device='cpu', half=False, **settings):
    "A step of this project: batch in, loss out."
    model = splade(folder, device, **settings).train()
    stack.enter_context(accumulated_rows(model))
    return stepper(model, lambda sides: objective(*(model(**side)[0] for side in sides)), device, half, True)


def theirs(folder, stack: ExitStack, device='cpu', half=False, pooling=None):
    "A step of sentence-transformers, also with its logits in chunks."
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
    model = sparse_encoder(folder, device, pooling).train()
    loss_of = SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), WEIGHTS['document'], WEIGHTS['query'])
    step = stepper(model, lambda sides: sum(loss_of([dict(side) for side in sides]).values()), device, half)
    def chunked_step(sides, chunk_size=None):
        model[1].chunk_size = chunk_size
        return step(sides)
    return chunked_step


def drop_in(folder, stack: ExitStack, device='cpu', half=False):
    "A step of sentence-transformers with `SpladeMaxPooling` in place of its pooling."
    from splade_nb.hub.pooling import SpladeMaxPooling
    return theirs(folder, stack, device, half, SpladeMaxPooling())


def times(folder, size: dict) -> list:
    results = []
    with ExitStack() as stack:
        our, their = mine(folder, stack), theirs(folder, stack)
        for pairs, length in TIMES:
            sides, first = batch(size['vocabulary'], pairs, length), length == TIMES[0][1]
            losses = dict(pooling=float(their(sides)), rows=float(our(sides)))
            calls = dict(pooling=lambda: their(sides), rows=lambda: our(sides))
            if first: calls['pooling_chunks'] = lambda: their(sides, 16)
            rounds = alternately(calls, 3 if first else 2)
            results.append(dict(pairs=pairs, length=length, loss=losses, rounds=rounds))
            ratio = spread(ratios(rounds, 'pooling', 'rows'))
            say(f'  {pairs} pairs, L{length}: {ratio["median"]:.2f} times faster ({ratio["low"]:.2f} to '
                f'{ratio["high"]:.2f}), losses {losses["pooling"]:.6f} and {losses["rows"]:.6f}')
    return results


def peak_of(folder, side, pairs, length, vocabulary, **options) -> int:  # bytes
    "Weights, gradients, optimizer and activations."
    base = process_memory('VmRSS')
    with ExitStack() as stack:
        step = dict(mine=mine, theirs=theirs, drop_in=drop_in)[side](folder, stack, **options)
        step(batch(vocabulary, 2, 8))  # the first step allocates the optimizer's moments
        return peak(lambda: step(batch(vocabulary, pairs, length)), base)


def extrapolated_peak(rows: list, pairs: int) -> float:  # bytes
    "The regression line through the measured peaks, at a number of pairs."
    slope, offset = statistics.linear_regression([row['pairs'] for row in rows], [row['peak'] for row in rows])
    return slope * pairs + offset


def memory(folder, size: dict) -> dict:
    "The whole process above its start. What does not fit into memory is extrapolated from the smaller shapes."
    def measured(side, pairs, length, **options):
        return in_process('step', 'peak_of', folder=folder, side=side, pairs=pairs, length=length,
                          vocabulary=size['vocabulary'], **options)
    result = dict(goal=GOAL, mine=measured('mine', *GOAL),
                  mine_checkpointing=measured('mine', *GOAL, gradient_checkpointing=True))
    rows = []
    for pairs, length in (*MEMORY, GOAL):
        if len(rows) > 1 and extrapolated_peak(rows, pairs) > 0.8 * available_memory(): continue
        peaks = dict(peak=measured('theirs', pairs, length), mine=measured('mine', pairs, length))
        rows.append(dict(pairs=pairs, length=length, **peaks))
    extrapolated = rows[-1]['pairs'] != GOAL[0]
    at_goal = extrapolated_peak(rows, GOAL[0]) if extrapolated else rows[-1]['peak']
    say(f'  B{GOAL[0]} L{GOAL[1]}: theirs {at_goal / 1e9:.1f} GB{" (extrapolated)" * extrapolated}, mine '
        f'{result["mine"] / 1e9:.1f} GB, with checkpointing {result["mine_checkpointing"] / 1e9:.1f} GB')
    return result | dict(theirs=rows, extrapolated=extrapolated, theirs_at_goal=at_goal)


def measure_missing(results: Path, small: bool, force: bool) -> None:
    "Both parts: `SpladeLoss` with random weights, and the trainer's step with an encoder (`step_revision.py`)."
    for name, part in dict(step=measure, step_revision=step_revision.measure).items():
        measure_once(results/f'{name}.json', part, small, force)


def measure(small=False) -> dict:
    size = SMALL if small else FULL
    with model_folder(size) as folder: return dict(memory=memory(folder, size), times=times(folder, size))

"""One training step of sentence-transformers, with its `SpladePooling` and with `SpladeMaxPooling`."""
from contextlib import ExitStack
from measure import alternately, in_process, ratios, say, spread
from models import FULL, SMALL, model_folder
from step import batch, drop_in, theirs

SHAPES = ((4, 64), (4, 192), (8, 192))  # pairs, tokens of a document


def times(folder, size: dict) -> list:
    results = []
    with ExitStack() as stack:
        steps = dict(pooling=theirs(folder, stack), drop_in=drop_in(folder, stack))
        for pairs, length in SHAPES[:2]:
            sides = batch(size['vocabulary'], pairs, length)
            losses = {name: float(step(sides)) for name, step in steps.items()}
            calls = {name: lambda step=step: step(sides) for name, step in steps.items()}
            rounds = alternately(calls, 3 if length == SHAPES[0][1] else 2)
            results.append(dict(pairs=pairs, length=length, loss=losses, rounds=rounds))
            ratio = spread(ratios(rounds, 'pooling', 'drop_in'))
            say(f'  {pairs} pairs, L{length}: {ratio["median"]:.2f} times faster ({ratio["low"]:.2f} to '
                f'{ratio["high"]:.2f}), losses {losses["pooling"]:.6f} and {losses["drop_in"]:.6f}')
    return results


def memory(folder, size: dict) -> list:
    "Peaks of the whole process above its start: weights, gradients, optimizer and activations."
    rows = []
    for pairs, length in SHAPES:
        peaks = {side: in_process('step', 'peak_of', folder=folder, side=side, pairs=pairs, length=length,
                                  vocabulary=size['vocabulary']) for side in ('theirs', 'drop_in')}
        rows.append(dict(pairs=pairs, length=length, peaks=peaks))
        say(f'  B{pairs} L{length}: theirs {peaks["theirs"] / 1e9:.2f} GB, drop-in {peaks["drop_in"] / 1e9:.2f} GB')
    return rows


def measure(small=False) -> dict:
    size = SMALL if small else FULL
    with model_folder(size) as folder: return dict(memory=memory(folder, size), times=times(folder, size))

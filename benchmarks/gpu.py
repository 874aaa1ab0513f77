"""On a GPU: encoding and the training step in bfloat16, beside what the GPU's arithmetic allows."""
from contextlib import ExitStack
from functools import partial
import torch
from splade_nb.model.encode import encode, prepared_decoder
from encode import Encoders
from measure import alternately, once, ratios, say, spread
from models import FULL, SMALL, model_folder
from step import QUERY, batch, mine, theirs

NUMBER, BATCH, BUDGET = 2_000, 64, 32_768  # texts; texts of their batch; tokens of ours
PAIRS, LENGTH = 24, 192


def rate(device: str, side: int) -> float:  # operations a second
    "Of a large product in bfloat16, the best of ten."
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    left @ left
    return 2 * side ** 3 / min(once(lambda: left @ left)['wall'] for _ in range(10))


def operations(size: dict, tokens: int) -> float:
    "Of a forward pass without the attention itself: two for each weight and token."
    hidden = size['hidden']
    return 2 * tokens * (size['layers'] * 12 * hidden ** 2 + hidden ** 2 + size['vocabulary'] * hidden)


def peak_of(call, device: str) -> int:  # bytes allocated at once on the GPU, with models; 0 on a processor
    if device == 'cpu':
        call()
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def encoding(folder, size: dict, device: str, number: int) -> dict:
    "Texts a second."
    encoders = Encoders(folder, number, device)
    texts, their = encoders.texts, encoders.their().bfloat16()
    calls = dict(pooling=partial(their.encode, texts, batch_size=BATCH, show_progress_bar=False, save_to_cpu=True))
    for name, keep in dict(all=None, korean=encoders.korean).items():
        decoder = prepared_decoder(encoders.our(), keep, precision='bf16')
        calls[name] = partial(encode, encoders.our(), encoders.tokenizer, texts, budget=BUDGET, decoder=decoder,
                              precision='bf16')
    peaks = {name: peak_of(call, device) for name, call in calls.items()}
    times, tokens = alternately(calls), sum(len(ids) + 2 for ids in encoders.tokenizer.ids(texts))
    for name in calls:
        seconds = spread([each['wall'] for each in times[name]])['median']
        say(f'  {name}: {len(texts) / seconds:,.0f} texts a second, {peaks[name] / 1e9:.1f} GB')
    return dict(texts=len(texts), tokens=tokens, rounds=times, peaks=peaks, operations=operations(size, tokens))


def stepping(folder, size: dict, device: str, pairs: int, length: int) -> dict:
    "One step under autocast; one side after the other on the GPU, so that each peak is of one side."
    sides, result = batch(size['vocabulary'], pairs, length, device), dict(peaks={}, rounds={}, loss={})
    for name, side in dict(pooling=theirs, rows=mine).items():
        with ExitStack() as stack:
            step = side(folder, stack, device, half=True)
            result['loss'][name] = float(step(sides))
            result['peaks'][name] = peak_of(lambda: step(sides), device)
            result['rounds'] |= alternately({name: lambda: step(sides)}, 5)
        del step
    peaks, ratio = result['peaks'], spread(ratios(result['rounds'], 'pooling', 'rows', 'wall'))['median']
    say(f'  step B{pairs} L{length}: {ratio:.2f} times faster, {peaks["pooling"] / 1e9:.1f} and '
        f'{peaks["rows"] / 1e9:.1f} GB, losses {result["loss"]}')
    return result | dict(pairs=pairs, length=length, operations=3 * operations(size, pairs * (length + QUERY)))


def measure(small=False) -> dict | None:
    "None without a GPU; with `small` the processor takes its place."
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if device == 'cpu' and not small: return say('  no CUDA device: left out')
    size, shape = (SMALL, (2, 16)) if small else (FULL, (PAIRS, LENGTH))
    with model_folder(size) as folder:
        return dict(rate=rate(device, 256 if small else 8_192),
                    encode=encoding(folder, size, device, 32 if small else NUMBER),
                    step=stepping(folder, size, device, *shape))

"""On a CUDA card: encoding and the training step in bfloat16, and how far they are from what the card's arithmetic allows."""
from contextlib import ExitStack
import torch
from splade_nb.model.encode import encode, prepared_decoder
from encode import Encoders
from measure import alternately, clock, ratios, say, spread
from models import FULL, SMALL, folder_of
from step import batch, mine, theirs

NUMBER, BATCH, BUDGET = 2_000, 64, 32_768  # texts, texts of their batch, tokens of ours
PAIRS, LENGTH, QUERY = 24, 192, 16


def rate(device: str, side: int) -> float:  # operations a second
    "Of a large product in bfloat16: the best of ten."
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    left @ left
    taken = []
    for _ in range(10):
        before = clock()[1]; left @ left; taken.append(clock()[1] - before)
    return 2 * side ** 3 / min(taken)


def operations(size: dict, tokens: int) -> float:
    "Of one way forward, attention's own left out: two for each weight and token."
    return 2 * tokens * (size['layers'] * 12 * size['hidden'] ** 2 + size['hidden'] ** 2 + size['vocabulary'] * size['hidden'])


def peak_of(call, device: str) -> int:  # bytes allocated at once, all that is on the card
    if device == 'cpu': call(); return 0
    torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); call()
    return torch.cuda.max_memory_allocated()


def encoding(folder, size, device, number) -> dict:
    "Texts a second."
    encoders = Encoders(folder, number, device)
    decoders = {name: prepared_decoder(encoders.our(), keep, precision='bf16') for name, keep in (('all', None), ('korean', encoders.korean))}
    their = encoders.their().bfloat16()
    calls = dict(pooling=lambda: their.encode(encoders.texts, batch_size=BATCH, show_progress_bar=False, save_to_cpu=True),
                 **{name: lambda decoder=decoder: encode(encoders.our(), encoders.tokenizer, encoders.texts, budget=BUDGET, decoder=decoder, precision='bf16')
                    for name, decoder in decoders.items()})
    peaks = {name: peak_of(call, device) for name, call in calls.items()}
    taken, tokens = alternately(calls), sum(len(ids) + 2 for ids in encoders.tokenizer.ids(encoders.texts))
    for name in calls: say(f'  {name}: {len(encoders.texts) / spread([r["wall"] for r in taken[name]])["median"]:,.0f} texts a second, {peaks[name] / 1e9:.1f} GB')
    return dict(texts=len(encoders.texts), tokens=tokens, rounds=taken, peaks=peaks, operations=operations(size, tokens))


def stepping(folder, size, device, pairs, length) -> dict:
    "One step under autocast, each side alone on the card: its peak is its own."
    sides, found = batch(size['vocabulary'], pairs, length, device), dict(peaks={}, rounds={}, loss={})
    for name, side in dict(pooling=theirs, rows=mine).items():
        with ExitStack() as stack:
            step = side(folder, stack, device, half=True)
            found['loss'][name] = float(step(sides)); found['peaks'][name] = peak_of(lambda: step(sides), device)
            found['rounds'] |= alternately({name: lambda: step(sides)}, 5)
        del step
    say(f'  step B{pairs} L{length}: {spread(ratios(found["rounds"], "pooling", "rows", "wall"))["median"]:.2f} times faster, '
        f'{found["peaks"]["pooling"] / 1e9:.1f} and {found["peaks"]["rows"] / 1e9:.1f} GB, losses {found["loss"]}')
    return found | dict(pairs=pairs, length=length, operations=3 * operations(size, pairs * (length + QUERY)))


def measure(small=False) -> dict | None:
    "Nothing where there is no card; small, the processor stands in for it."
    if not torch.cuda.is_available() and not small: say('  no CUDA device: left out'); return None
    size, device = SMALL if small else FULL, 'cuda' if torch.cuda.is_available() else 'cpu'
    with folder_of(size) as folder:
        return dict(rate=rate(device, 256 if small else 8_192), encode=encoding(folder, size, device, 32 if small else NUMBER),
                    step=stepping(folder, size, device, *((2, 16) if small else (PAIRS, LENGTH))))

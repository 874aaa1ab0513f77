"""Where the time of a stage goes: its largest operations, and what share of the card's best rate its useful work is."""
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from measure import once


def rate(device: str, side: int) -> float:  # operations a second
    "Of a large product in bfloat16, the best of ten."
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    left @ left
    return 2 * side ** 3 / min(once(lambda: left @ left)['wall'] for _ in range(10))


def profiled(call, device: str, most: int = 10) -> dict:
    "Seconds, the share of the best rate that the products reach which torch counts (those of the kernel it does not), and the largest operations."
    with FlopCounterMode(display=False) as counter: call()
    seconds, kinds = once(call)['wall'], [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == 'cuda')
    with profile(activities=kinds) as recorded: once(call)
    def own(event): return event.self_device_time_total if device == 'cuda' else event.self_cpu_time_total
    events = sorted(recorded.key_averages(), key=own, reverse=True)
    whole = sum(map(own, events)) or 1
    reached = counter.get_total_flops() / seconds / rate(device, 8_192 if device == 'cuda' else 256)
    return dict(seconds=seconds, products=counter.get_total_flops(), share=reached, operations=sum(event.count for event in events),
                top=[dict(name=event.key[:80], times=event.count, milliseconds=own(event) / 1e3, share=own(event) / whole) for event in events[:most]])

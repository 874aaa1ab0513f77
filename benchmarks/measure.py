"""How everything here is measured: times taken alternately in one process, memory in processes of their own.

CPU time is the process's, over all its threads: other work on the machine disturbs it less than the wall clock.
"""
import importlib, json, math, os, platform, re, statistics, subprocess, sys, time
from datetime import date
from importlib.metadata import version
from pathlib import Path
import torch
from splade_nb.config.files import write_json

HERE = Path(__file__).resolve().parent
PACKAGES = ('torch', 'transformers', 'sentence-transformers', 'tokenizers', 'numpy', 'scipy')
# Memory that is given back goes back at once: what is measured is what tensors take.
PLAIN = dict(MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
CHILD = 'import sys; sys.path.insert(0, sys.argv[1]); import measure; measure.weigh_here(*sys.argv[2:])'


# Time

def clock() -> tuple:  # seconds: of this process's threads, of the wall
    if torch.cuda.is_available(): torch.cuda.synchronize()
    return time.process_time(), time.perf_counter()


def once(call) -> dict:
    before = clock(); call(); after = clock()
    return dict(zip(('cpu', 'wall'), (b - a for a, b in zip(before, after))))


def alternately(calls: dict,     # name -> what is timed; each was called before
                rounds: int = 3
                ) -> dict:       # name -> [{'cpu', 'wall'}] one for each round
    "Each call once a round, every round beginning with the next of them."
    names, taken = list(calls), {name: [] for name in calls}
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]: taken[name].append(once(calls[name]))
    return taken


def ratios(taken: dict, slow: str, fast: str, clock: str = 'cpu') -> list:  # one for each round
    return [a[clock] / b[clock] for a, b in zip(taken[slow], taken[fast])]


def spread(values: list) -> dict:
    return dict(median=statistics.median(values), low=min(values), high=max(values))


def exponent(sizes: list, seconds: list) -> float:
    "Slope of the line through the logarithms."
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(taken) for taken in seconds]).slope


# Tables

def table(heads: list, rows: list) -> str:  # Markdown, numbers to the right
    line = lambda cells: f'| {" | ".join(cells)} |'
    return '\n'.join([line(heads), line(['---', *['--:'] * (len(heads) - 1)]), *map(line, rows)])


# Memory

def status(name: str) -> int:  # bytes
    return int(re.search(name + r':\s+(\d+)', Path('/proc/self/status').read_text())[1]) * 1024


def peak(call, base: int | None = None) -> int:  # bytes above `base`, or above what was held just before
    base = status('VmRSS') if base is None else base
    Path('/proc/self/clear_refs').write_text('5'); kept = call()
    return status('VmHWM') - base


def weigh_here(module: str, function: str, options: str) -> None:
    print(json.dumps(getattr(importlib.import_module(module), function)(**json.loads(options))))


def weigh(module: str, function: str, **options) -> object:
    "What a function of a script here returns, called in a fresh process."
    done = subprocess.run([sys.executable, '-c', CHILD, str(HERE), module, function, json.dumps(options)],
                          capture_output=True, text=True, env=os.environ | PLAIN)
    if done.returncode: raise RuntimeError(f'{module}.{function}({options}) ended with {done.returncode}: {done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def free() -> int:  # bytes that a process may still take
    return int(re.search(r'MemAvailable:\s+(\d+)', Path('/proc/meminfo').read_text())[1]) * 1024


# Agreement

def apart(found, expected) -> float:
    "Norm of the difference, relative to the norm."
    return float((found - expected).norm() / expected.norm())


# What is kept

def machine() -> dict:
    model = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text())
    memory = int(re.search(r'MemTotal:\s+(\d+)', Path('/proc/meminfo').read_text())[1]) * 1024
    return dict(processor=model[1] if model else platform.machine(), cores=os.cpu_count(), threads=torch.get_num_threads(), memory=memory,
                system=f'{platform.system()} {platform.machine()}', device=torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def keep(path: Path, began: float, **found) -> None:
    "The figures of one part, with all that is needed to judge them."
    packages = {name: version(name) for name in PACKAGES}
    write_json(path, dict(part=path.stem, date=date.today().isoformat(), command=f'make bench PART={path.stem}', machine=machine(),
                          versions=dict(python=platform.python_version(), **packages), seconds=round(time.monotonic() - began), **found))


def say(text: str) -> None: print(text, flush=True)

"""How the benchmarks measure: time alternately in one process, memory in separate processes.

CPU time is that of the process, over all its threads: other work on the machine disturbs it less than wall time.
"""
import importlib, json, math, os, platform, re, statistics, subprocess, sys, time
from datetime import date
from pathlib import Path
import torch
from splade_nb.config.files import revision, versions_of, write_json
from splade_nb.evaluation.figures import source_line

HERE = Path(__file__).resolve().parent
PACKAGES = ('torch', 'transformers', 'sentence-transformers', 'tokenizers', 'numpy', 'scipy')
# Freed memory goes back to the system at once, so that the peak is that of the tensors in use.
ALLOCATOR = dict(MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
CHILD = 'import sys; sys.path.insert(0, sys.argv[1]); import measure; measure.print_result(*sys.argv[2:])'


# Time

def once(call) -> dict:  # {'cpu', 'wall'}: seconds
    if torch.cuda.is_available(): torch.cuda.synchronize()
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    if torch.cuda.is_available(): torch.cuda.synchronize()
    return dict(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall)


def alternately(calls: dict,     # name -> function to time, called at least once before
                rounds: int = 3,
                timed=once       # function -> {'cpu', 'wall'}
                ) -> dict:       # name -> [{'cpu', 'wall'}], one for each round
    "Every function once a round; each round starts with the next one."
    names, times = list(calls), {name: [] for name in calls}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]: times[name].append(timed(calls[name]))
    return times


def ratios(times: dict, slow: str, fast: str, clock: str = 'cpu') -> list:  # one for each round
    return [a[clock] / b[clock] for a, b in zip(times[slow], times[fast])]


def spread(values: list) -> dict: return dict(median=statistics.median(values), low=min(values), high=max(values))


def exponent(sizes: list, seconds: list) -> float:
    "The slope of the regression line through the logarithms."
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, seconds))).slope


# Memory, in bytes

def from_proc(file: str, name: str) -> int:
    return int(re.search(name + r':\s+(\d+)', Path('/proc', file).read_text())[1]) * 1024


def process_memory(name: str) -> int: return from_proc('self/status', name)


def available_memory() -> int: return from_proc('meminfo', 'MemAvailable')


def peak(call, base: int | None = None) -> int:  # above `base`, or above what the process held just before
    base = process_memory('VmRSS') if base is None else base
    Path('/proc/self/clear_refs').write_text('5')
    result = call()  # alive until the peak is read
    return process_memory('VmHWM') - base


def print_result(module: str, function: str, options: str) -> None:
    print(json.dumps(getattr(importlib.import_module(module), function)(**json.loads(options))))


def in_process(module: str, function: str, **options) -> object:
    "The result of a function of a script in this folder, called in a fresh process."
    command = [sys.executable, '-c', CHILD, str(HERE), module, function, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ALLOCATOR)
    if done.returncode:
        raise RuntimeError(f'{module}.{function}({options}) ended with {done.returncode}: {done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])


# Results

def relative_error(values, expected) -> float:
    "The norm of the difference relative to the norm."
    return float((values - expected).norm() / expected.norm())


def machine() -> dict:
    linux = Path('/proc/cpuinfo').exists()
    model = linux and re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text())
    return dict(processor=model[1] if model else platform.machine(), cores=os.cpu_count(),
                threads=torch.get_num_threads(), memory=from_proc('meminfo', 'MemTotal') if linux else None,
                system=f'{platform.system()} {platform.machine()}',
                device=torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def write_result(path: Path, began: float, **result) -> None:
    "The result of one part, then with date, machine, versions and revision: describing it cannot lose it."
    write_json(path, result)
    versions = dict(python=platform.python_version(), **versions_of(PACKAGES))
    about = dict(part=path.stem, date=date.today().isoformat(), command=f'make bench PART={path.stem}')
    about |= dict(machine=machine(), versions=versions, seconds=round(time.monotonic() - began), revision=revision())
    write_json(path, about | result)


def measure_once(path: Path, measure, small: bool, force: bool) -> None:
    "A result that is there stays, unless it is forced."
    began = time.monotonic()
    if path.exists() and not force: return say(f'  {path.name} is there; FORCE=1 measures again')
    if result := measure(small):
        write_result(path, began, **result)
        say(f'  {time.monotonic() - began:.0f} seconds, {path.name}')


def say(text: str) -> None: print(text, flush=True)


# Pages

def table(columns: list, rows) -> str:  # Markdown, numbers to the right
    def line(cells): return f'| {" | ".join(cells)} |'
    return '\n'.join([line(columns), line(['---', *['--:'] * (len(columns) - 1)]), *map(line, rows)])


def source(*results: dict, data: dict | str = 'random weights') -> str:
    "Where the figures of some parts come from."
    commands = ' and '.join(dict.fromkeys(result['command'] for result in results))
    return source_line(commands, data, [result.get('revision') or result.get('of', '') for result in results], [result['date'] for result in results])


def megabytes(value: float) -> str: return f'{value / 1e6:,.0f} MB'


def gigabytes(value: float) -> str: return f'{value / 1e9:.1f} GB'


def log_axes(axis, sizes: list, x: str, y: str) -> None:
    "Name the axes of a log-log plot and write the measured sizes in full."
    from matplotlib.ticker import LogLocator
    axis.set_xticks(sizes, [f'{size:,}' for size in sizes])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f'{value:g}')
    axis.set_xlabel(x)
    axis.set_ylabel(y)

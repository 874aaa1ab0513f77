"""Measure the parts of the benchmark that have no result yet, then write the pages.

    python benchmarks/run.py [--part PARTS] [--force] [--small --results FOLDER]
"""
import importlib, re
from pathlib import Path
from splade_nb.config.command_line import CommandLine
from measure import HERE, measure_once, say

PARTS = ('head', 'step', 'pooling', 'start', 'encode', 'int8', 'engines')  # `gpu.py` measures on a GPU, stage by stage


def options():
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--part', default='', help=f'of {", ".join(PARTS)}, separated by spaces or commas; all by default')
    reader.add_argument('--force', action='store_true', help='measure again what has a result')
    reader.add_argument('--small', action='store_true', help='tiny shapes, to see whether it runs')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    given = reader.parse_args()
    given.parts = re.findall(r'[^,\s]+', given.part) or PARTS
    if unknown := set(given.parts) - set(PARTS):
        reader.error(f'no such part: {", ".join(sorted(unknown))}. Parts: {", ".join(PARTS)}')
    return given


def run_part(part: str, results: Path, small: bool, force: bool) -> None:
    script = importlib.import_module(part)
    if hasattr(script, 'measure_missing'): return script.measure_missing(results, small, force)  # several files
    measure_once(results/f'{part}.json', script.measure, small, force)


def main() -> None:
    given = options()
    given.results.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        say(f'{part}:')
        run_part(part, given.results, given.small, given.force)
    importlib.import_module('report').main(given.results)


if __name__ == '__main__': main()

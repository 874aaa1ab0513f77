"""Run the parts of the benchmark that are still to be measured, then write the page.

    python benchmarks/run.py [PART ...] [--force] [--small --results FOLDER]
"""
import importlib, re, time
from pathlib import Path
from splade_nb.config.command_line import CommandLine
from measure import HERE, keep, say

PARTS = ('head', 'step', 'encode', 'gpu', 'engines')


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('parts', nargs='*', metavar='PART', 
                        help=f'out of {", ".join(PARTS)}, also joined by commas; none for all')
    reader.add_argument('--force', action='store_true', help='measure again what is there')
    reader.add_argument('--small', action='store_true', help='tiny shapes: whether it runs, not how fast')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    options.parts = [part for text in options.parts for part in re.split(r'[,\s]+', text) if part]
    if unknown := set(options.parts) - set(PARTS): reader.error(f'no such part: {", ".join(sorted(unknown))}. There are: {", ".join(PARTS)}')
    options.results.mkdir(parents=True, exist_ok=True)
    for part in options.parts or PARTS:
        path, began, script = options.results/f'{part}.json', time.monotonic(), importlib.import_module(part)
        if hasattr(script, 'go_on'): say(f'{part}:'); script.go_on(options.results, options.small, options.force); continue
        if path.exists() and not options.force: say(f'{part}: there already, FORCE=1 measures it again'); continue
        say(f'{part}:')
        found = script.measure(options.small)
        if found: keep(path, began, **found); say(f'{part}: {time.monotonic() - began:.0f} seconds, {path.name}')
    importlib.import_module('report').main(options.results)


if __name__ == '__main__': main()

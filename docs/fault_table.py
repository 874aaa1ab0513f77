"""Let every fault of tests/faults.py happen and write what became of the runs into docs/faults.md.

    python docs/fault_table.py
"""
import os, platform, sys, tempfile, time
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tests'))
import faults

PAGE = """# What happens to long runs

Written by `make faults` (`python docs/fault_table.py`) on {day}: {machine}, {cores} cores, Python {python}, torch {torch}, {seconds} seconds.
Every fault really happened, in processes of its own, to the notebooks' toy model or to V28 at mini scale; what must hold is asserted in
`tests/faults.py`, which the tests run as well. "Lost steps" are those that the worst try did again. "Equals" means bit for bit: weights,
optimizer, random state.

| fault | tries | lost steps | outcome |
|---|--:|--:|---|
{rows}
"""


def row(fault) -> str:
    "Let one fault happen."
    with tempfile.TemporaryDirectory() as folder: seen = fault(Path(folder))
    print(f'{fault.__name__}: {seen.outcome}', flush=True)
    return f'| {fault.__doc__} | {seen.tries} | {"-" if seen.lost is None else seen.lost} | {seen.outcome} |'


def main() -> None:
    began = time.monotonic()
    rows = '\n'.join(map(row, faults.FAULTS))
    (ROOT/'docs'/'faults.md').write_text(PAGE.format(day=date.today().isoformat(), machine=f'{platform.system()} {platform.machine()}', cores=os.cpu_count(),
        python=platform.python_version(), torch=version('torch'), seconds=round(time.monotonic() - began), rows=rows), encoding='utf-8')


if __name__ == '__main__': main()

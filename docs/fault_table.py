"""Run the fault injection tests of tests/faults.py and write their table to docs/faults.md.

    python docs/fault_table.py
"""
import os, platform, sys, tempfile, time
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tests'))
import faults
from splade_nb.config.files import revision
from splade_nb.lab.study import known_baselines
from splade_nb.training import collapse_guard as guard
from splade_nb.evaluation import figures

PAGE = """# What happens to long runs

Written by `make faults` (`python docs/fault_table.py`) on {day}: {machine}, {cores} cores, Python {python},
torch {torch}, {seconds} seconds. Every fault was injected into a run in processes of its own: the notebooks' toy model,
or V28 at mini scale. `tests/faults.py` asserts what must hold, and the tests run it as well. "Lost steps" are those
that the worst try repeated. "Equals" means bit for bit: weights, optimizer, rng state.

| fault | tries | lost steps | outcome |
|---|--:|--:|---|
{rows}

{source}

## The collapse of V28, as the guard sees it

![V28 as written and corrected](collapse.svg)

{caption}

{source}
"""
STEPS = 60


def row(fault) -> str:
    "Let one fault happen."
    with tempfile.TemporaryDirectory() as folder: seen = fault(Path(folder))
    print(f'{fault.__name__}: {seen.outcome}', flush=True)
    return f'| {fault.__doc__} | {seen.tries} | {"-" if seen.lost is None else seen.lost} | {seen.outcome} |'


def draw_collapse() -> str:  # its caption
    "The first steps of V28 on the embedded set, in both recipes, into docs/collapse.svg."
    with tempfile.TemporaryDirectory() as folder:
        runs = {recipe: faults.start_of(Path(folder), recipe, STEPS) for recipe in ('original', 'corrected')}
        rows = {recipe: faults.lines(Path(folder)/recipe/'metrics.jsonl') for recipe in runs}
    figure, (share, active) = figures.canvas(1, 2, width=11)
    red, blue = figures.palette['red'], figures.palette['blue']
    labels = ('설계 문서 그대로 (original)', red), ('교정판 (corrected)', blue)
    for found, (name, colour) in zip(rows.values(), labels):
        steps = [row['step'] for row in found]
        share.plot(steps, [guard.regularization_share(row['parts']) for row in found], color=colour, label=name)
        active.plot(steps, [row['active_doc'] for row in found], color=colour, label=name)
    named = next(event for event in runs['original'].events if event['name'] == 'imbalance')
    warning = f'경고: imbalance, {named["step"]}단계'
    share.plot(named['step'], named['value'], 'o', color=red, markersize=9, label=warning)
    share.axhline(guard.LIMITS['imbalance'][0], color='grey', linestyle='--')
    share.set_title('손실 가운데 FLOPS와 언어 항의 몫')
    active.set_title('문서의 활성 단어 수')
    for axis in (share, active):
        axis.axvline(runs['original'].steps * 0.05, color='grey', linestyle=':')
        axis.set_xlabel('단계 (점선: 전체의 5 %)')
        axis.legend()
    active.set_yscale('log')
    figure.savefig(ROOT/'docs'/'collapse.svg')
    first = rows['original'][named['step']]
    return (f'As written, the language term is {first["parts"]["language"]:,.0f} of a loss of {first["loss"]:,.0f} '
            f'at step {named["step"]} of {runs["original"].steps}; the collapse guard warns there '
            f'({named["message"]}). The corrected recipe triggers no event.')


def source(commit: str, day: str) -> str:
    return figures.source_line('make faults', {'mini': known_baselines()['mini']['hash']}, [commit], [day])


def main() -> None:
    began = time.monotonic()
    rows, caption = '\n'.join(map(row, faults.FAULTS)), draw_collapse()
    page = PAGE.format(
        day=date.today().isoformat(), machine=f'{platform.system()} {platform.machine()}', cores=os.cpu_count(),
        python=platform.python_version(), torch=version('torch'), seconds=round(time.monotonic() - began), rows=rows,
        caption=caption, source=source(revision(), date.today().isoformat()))
    (ROOT/'docs'/'faults.md').write_text(page, encoding='utf-8')


if __name__ == '__main__': main()

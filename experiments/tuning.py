"""A tuning guide in which every line was tried: a symptom is produced, a setting changed, the effect measured.

    python experiments/tuning.py [CASE ...] [--seeds 42 43 44]
    python experiments/tuning.py --page | --check
"""
import json, re, sys, tempfile
from datetime import date
from pathlib import Path
import pandas as pd
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import choose, read_json, write_json
from splade_nb.config.settings import current_names, as_dict
from splade_nb.config.versions import current_recipe, resolve_quietly
from splade_nb.evaluation.report import palette
from splade_nb.evaluation.compare import markdown_table
from symptoms import CASES, MEASURES, SMALL, Case

HERE = Path(__file__).resolve().parent
RESULTS, DOCS, SEEDS = HERE/'results'/'tuning', HERE.parent/'docs', (42, 43, 44)
PAGE = DOCS/'tuning.md'


# Runs

def settings_of(case: Case, changes: dict): # Settings
    return resolve_quietly(case.version, case.recipe, 'mini', **{**SMALL, **case.settings, **changes})


def wanted(case: Case) -> list: # changes beside the symptom's own settings
    return [{}, *(changes for _, changes in case.tries)]


def identity(settings, recipe: str, seed: int) -> str: return json.dumps([as_dict(settings), recipe, seed])


def result_of(case: Case) -> dict: # empty where nothing was run
    path = RESULTS/f'{case.name}.json'
    return read_json(path) if path.exists() else {}


def kept() -> dict: # identity -> numbers
    "Every run that some result holds, with all that is known of it: none is made twice."
    found = {}
    for result in map(result_of, CASES):
        for run in result.get('runs', ()):
            key = identity(resolve_quietly(result['version'], current_recipe(result['recipe']), 'mini', **{**result['settings'], **run['changes']}), current_recipe(result['recipe']), run['seed'])
            found[key] = found.get(key, {}) | run['found']
    return found


def keep(case: Case, known: dict) -> None:
    "Every known run of a case, seed by seed; curves only where they are drawn."
    every = [(changes, seed, known.get(identity(settings_of(case, changes), case.recipe, seed))) for seed in SEEDS for changes in wanted(case)]
    slim = lambda found: {name: value for name, value in found.items() if name != 'curve' or case.picture}
    write_json(RESULTS/f'{case.name}.json', dict(version=case.version, recipe=case.recipe, settings={**SMALL, **case.settings}, date=date.today().isoformat(),
                                                 runs=[dict(changes=changes, seed=seed, found=slim(found)) for changes, seed, found in every if found]))


def study(case: Case, seed: int, bench, known: dict) -> None:
    "A case's missing runs of a seed; its file is written after each."
    for changes in wanted(case):
        settings = settings_of(case, changes)
        key = identity(settings, case.recipe, seed)
        if {case.measure, case.beside or case.measure} <= known.get(key, {}).keys() and ('curve' in known[key] or not case.picture): continue
        known[key] = bench.run(settings, seed); keep(case, known)
        print(case.name, seed, changes, {name: known[key][name] for name in (case.measure, 'start', 'ndcg', 'seconds')}, flush=True)
    keep(case, known)


def study_all(names: list, seeds: list) -> None:
    "Seed after seed, case after case."
    from small_runs import Bench, setting_out
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not (RESULTS/'collection.json').exists(): write_json(RESULTS/'collection.json', dict(setting_out(), date=date.today().isoformat()))
    with tempfile.TemporaryDirectory() as folder:
        bench, known = Bench(Path(folder)), kept()
        for seed in seeds:
            for case in CASES:
                if case.name in names: study(case, seed, bench, known)


# What they show

def shows(case: Case, found: dict) -> bool:
    "Whether a run has the symptom."
    return found[case.measure] > case.limit if case.sign == '>' else found[case.measure] < case.limit


def eased(case: Case, before: dict, after: dict) -> bool:
    "Whether at least a quarter of the way back to the threshold is made."
    return abs(after[case.measure] - case.limit) <= 0.75 * abs(before[case.measure] - case.limit)


def verdict(case: Case, before: list, after: list) -> str: # runs, seed by seed
    "What a change did in every seed; a cost is more than a point of nDCG@10 lost against the symptom's own runs."
    gone = not any(shows(case, found) for found in after)
    costs = all(a['ndcg'] < b['ndcg'] for a, b in zip(after, before)) and mean(after, 'ndcg') < mean(before, 'ndcg') - 0.01
    if gone: return 'helped but cost' if costs else 'helped'
    return 'eased it' if all(not shows(case, a) or eased(case, b, a) for b, a in zip(before, after)) else 'did not help'


def mean(runs: list, name: str) -> float: return sum(found[name] for found in runs) / len(runs)


def tried_by(case: Case) -> dict: # seed -> runs in the order of `wanted`
    "The seeds of which every run is there."
    made = [(run['seed'], current_names(run['changes']), run['found']) for run in result_of(case).get('runs', ())]
    of = lambda seed: [found for changes in json.loads(json.dumps(wanted(case))) for other, said, found in made if (other, said) == (seed, changes) and {case.measure, case.beside or case.measure} <= found.keys()]
    return {seed: runs for seed in SEEDS if len(runs := of(seed)) == len(wanted(case))}


def sides(case: Case) -> list: # [(who advises, changes, runs seed by seed)], the symptom itself first
    return [(who, changes, list(runs)) for (who, changes), runs in zip([('', {}), *case.tries], zip(*tried_by(case).values()))]


# The page

TEXT = """# When training goes wrong

Written by `experiments/tuning.py` from `experiments/results/tuning/`, {date}. Every line was tried: the settings of a section produce its symptom, a number shows it, a setting is changed, the same number is measured again.

Look your symptom up in the table, change the setting there, and look at the same number in your own run: {files}.

The runs are small, so that all of them can be made again: {minutes:.0f} minutes of one core's time so far (`{command}`, which goes on where it was stopped): {steps} steps on {documents} documents of the embedded set, with the seeds that each section names; means, and in brackets the smallest and the largest. **How large an effect is on your data these numbers do not say**, only whether the change reaches the symptom and at what price. {queries} queries, held out of the training split, judge; no test query was asked. nDCG@10 of BM25 on them: {bm25}.{missing}

- **helped**: the number is on the healthy side of the threshold in every seed.
- **helped but cost**: so it is, and nDCG@10 fell in every seed, by more than a point on average.
- **eased it**: in every seed at least a quarter of the way to the threshold is made, not all of it.
- **did not help**: anything else.

*seed* marks advice of the design documents (seed 2, section 10, where a section quotes its table); *here* is what this project advises. What a setting means stands in [config]({config}).

{table}

Under every case, where it says nothing else: {small}.

{sections}
"""
SECTION = """## {heading}

{why}{quote}

{version}{settings}: {measure}, {sign} {limit:g}, is {shown}{guard}. Seeds {seeds}.

{table}
{picture}"""
SEEN = "`metrics.jsonl` has loss, parts, active terms and dead rows of each step, `guard.jsonl` what the guard said, `training_history.json` the validations, `summary.json` the rest"


def number(value: float) -> str: return f'{value:.0f}' if abs(value) >= 100 else f'{value:.1f}' if abs(value) >= 10 else f'{value:.2f}' if abs(value) >= 1 else f'{value:.3f}'


def spread(runs: list, name: str) -> str: # mean [lowest, highest]
    values = [found[name] for found in runs]
    if len(values) == 1: return number(values[0])
    return f'{number(mean(runs, name))} [{number(min(values))}, {number(max(values))}]'


def spelled(changes: dict) -> str: return ', '.join(f'`{name}={json.dumps(value) if isinstance(value, (list, tuple)) else value}`' for name, value in changes.items())


def heading(case: Case) -> str: return case.symptom.rstrip('.')


def anchor(case: Case) -> str: return re.sub(r'[^\w -]', '', heading(case).lower()).replace(' ', '-')


def overview(cases: list, bm25: float) -> pd.DataFrame:
    "A row a change."
    rows = []
    for case in cases:
        (_, _, before), *tries = sides(case)
        for place, (who, changes, after) in enumerate(tries):
            rows.append({'symptom': f'[{heading(case)}](#{anchor(case)})' if not place else '', 'change': spelled(changes), 'advice': who,
                         'measured': f'{number(mean(before, case.measure))} → {number(mean(after, case.measure))}', f'nDCG@10, BM25 {bm25:.3f}': f'{mean(before, "ndcg"):.3f} → {mean(after, "ndcg"):.3f}', 'verdict': verdict(case, before, after)})
    return pd.DataFrame(rows)


def tried(case: Case) -> pd.DataFrame:
    "A row a side."
    (_, _, before), *_ = every = sides(case)
    return pd.DataFrame([{'change': spelled(changes) or 'as it is', 'advice': who, **{MEASURES[name]: spread(runs, name) for name in (case.measure, case.beside) if name}, 'nDCG@10': spread(runs, 'ndcg'),
                          'terms': f'{mean(runs, "query_terms"):.0f} / {mean(runs, "doc_terms"):.0f}', 'verdict': verdict(case, before, runs) if changes else ''} for who, changes, runs in every])


def quoted(case: Case) -> str: # seed 2, section 10: problem | symptom | advice
    if not case.seed: return ''
    problem, symptom, advice = case.seed.split(' | ')
    return f'\n\n> {problem}: {symptom}. 권장 조정: {advice}.'


def warned(runs: list) -> str:
    said = sorted({event for found in runs for event in found['guard']})
    return f'. The guard says {", ".join(f"`{event}`" for event in said)}' if said else '. The guard says nothing'


def section(case: Case) -> str:
    _, _, before = sides(case)[0]
    return SECTION.format(heading=heading(case), why=case.why, quote=quoted(case), version=f'`{case.version}`, {"as written" if case.recipe == "original" else "corrected"}', settings=f', {spelled(case.settings)}' if case.settings else '',
                          measure=MEASURES[case.measure], sign='above' if case.sign == '>' else 'below', limit=case.limit, shown=spread(before, case.measure) + f'; untrained nDCG@10 {mean(before, "start"):.3f}', guard=warned(before), seeds=', '.join(map(str, tried_by(case))),
                          table=markdown_table(tried(case)), picture=f'\n![{heading(case)}: before and after](tuning-{case.name}.svg)\n' if case.picture else '')


def whole() -> list: # cases
    "The cases that were run with their present settings."
    return [case for case in CASES if tried_by(case) and current_names(result_of(case)['settings']) == json.loads(json.dumps({**SMALL, **case.settings}))]


def page() -> str:
    cases, about, spent = whole(), read_json(RESULTS/'collection.json'), sum(found['seconds'] for found in kept().values()) / 60
    missing = ', '.join(heading(case).lower() for case in CASES if case not in cases)
    return TEXT.format(**{name: about[name] for name in ('documents', 'queries')}, command='python experiments/tuning.py', minutes=spent, missing=f' Not run yet: {missing}.' if missing else '', date=max(result_of(case)['date'] for case in cases), files=SEEN, steps=SMALL['steps'],
                       bm25=f'{about["bm25"]:.3f}', config='../nbs/0_config/03_settings.ipynb', table=markdown_table(overview(cases, about['bm25'])), small=spelled(SMALL), sections='\n'.join(map(section, cases)))


# A picture: one line a side, the mean of its seeds

COLOURS = tuple(palette[name] for name in ('red', 'blue', 'green', 'orange', 'purple'))
TITLES = {'loss': 'loss', 'doc_terms': 'active terms of a document', 'ndcg': 'nDCG@10 on held-out queries'}


def curve(case: Case, runs: list) -> list: # a value a point
    return [sum(values) / len(values) for values in zip(*(found['curve'][case.picture] for found in runs))]


def line(values: list, low: float, high: float, colour: str) -> str:
    "A polyline over the left two fifths of the picture."
    points = ' '.join(f'{40 + 260 * place / max(1, len(values) - 1):.1f},{150 - 120 * (value - low) / (high - low or 1):.1f}' for place, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def drawing(case: Case) -> str: # SVG
    "Hand-made, so that it is the same on every machine."
    drawn = [(re.sub('`', '', spelled(changes)) or 'as it is', curve(case, runs)) for _, changes, runs in sides(case)]
    low, high = min(min(values) for _, values in drawn), max(max(values) for _, values in drawn)
    write = lambda x, y, words, colour='#333', anchor='start': f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
    parts = [write(40, 16, TITLES[case.picture]), write(36, 34, number(high), anchor='end'), write(36, 154, number(low), anchor='end'), write(300, 170, 'steps', anchor='end'),
             '<path d="M40 26V150H300" fill="none" stroke="#999"/>', *(line(values, low, high, colour) for (_, values), colour in zip(drawn, COLOURS)),
             *(write(316, 40 + 20 * place, label, colour) for place, ((label, _), colour) in enumerate(zip(drawn, COLOURS)))]
    return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 180" width="720" font-family="sans-serif" font-size="12">\n' + '\n'.join(parts) + '\n</svg>\n'


def pages() -> dict: # file -> text
    return {PAGE: page()} | {DOCS/f'tuning-{case.name}.svg': drawing(case) for case in whole() if case.picture}


def main() -> None:
    names = [case.name for case in CASES]
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('cases', nargs='*', metavar='CASE', default=names)
    reader.add_argument('--seeds', nargs='+', action='extend', type=int, choices=SEEDS, default=SEEDS)
    mode = reader.add_mutually_exclusive_group()
    mode.add_argument('--page', action='store_true', help='write docs/tuning.md and its pictures from the results')
    mode.add_argument('--check', action='store_true', help='exit where they are not what the results say')
    options = reader.parse_args()
    if options.page:
        for path, text in pages().items(): path.write_text(text, encoding='utf-8')
    elif options.check:
        if stale := [path.name for path, text in pages().items() if not path.exists() or path.read_text(encoding='utf-8') != text]: sys.exit(f'{", ".join(stale)}: not what the results say; run python experiments/tuning.py --page')
    else: study_all([choose('case', name, names) for name in options.cases], options.seeds)


if __name__ == '__main__': main()

"""Write docs/records.md: which improvement was beyond chance, from the entries in docs/results/records. It checks each.

    python docs/records_page.py                      check all entries and write the page
    python docs/records_page.py --check              exit 1 if the page is not what the entries and the kept results say
    python docs/records_page.py --entry=mine.json    check one entry; one that is not in the folder follows the last record
"""
import json, re, sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import pandas as pd
import readme_table
from splade_nb.config.command_line import CommandLine, exit_codes
from splade_nb.config.files import DataError, read_json, replaced
from splade_nb.config.settings import current_names
from splade_nb.evaluation.compare import markdown_table, percent
from splade_nb.evaluation.figures import source_line
from splade_nb.evaluation.metrics import index_bytes, marked, paired_difference, pooled
from splade_nb.evaluation.study import KeptResults, baselines_beside, known_baselines, revision_of

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PAGE = ROOT/'docs'/'results'/'records', ROOT/'docs'/'records.md'
NAME = re.compile(r'(\d+)-[\w.-]+\.json')
FIELDS = dict(improvement=str, version=str, sets=list, results=list, report=str, **{'ndcg@10': dict, 'difference': dict})
SEEDS, DIGITS = 3, 4  # an entry's numbers are rounded to so many decimals
TEMPLATE = 'docs/records_template.json'
UNTRAINED = ' untrained'  # behind a version: the model before its first step
TEXT = """# Records

> What improved ranking beyond chance, one record after another.

Each record is a file in [`docs/results/records`](results/records) that points to kept results; this page is written from both by `python docs/records_page.py`. A record needs {seeds} seeds of one recipe on every set of the record before it, and a mean difference to that record beyond chance: for each query the mean of the seeds, as a gain over BM25 of the run's own revision, paired over the queries of a set, then the mean of the sets ([metrics](../nbs/4_evaluation/01_metrics.ipynb), `paired_difference`, `pooled`, `marked`). Both BM25 learn nothing and have no seeds.

{judged}

## Table of records

nDCG@10 of the test queries in percent, the mean of the sets and seeds; differences with 95 % intervals. ▲: beyond chance. Minutes: of training one model. Terms of a document: mean of the sets. Index: of all sets together.

{table}

{source}

## Set by set

nDCG@10 in percent, lowest to highest of the seeds; then the difference to BM25 with bigrams, marked by Holm over the table.

{sets}

{source}

## Kept with {seeds} seeds on every set, and no record

{refused}

## How to enter one

1. Measure {seeds} seeds on every set of the last record, with the sets in `data` ([data sets](data.md)). `make study STUDY=training SETTINGS='{{"variants": {{"mine": {{"steps": 100}}}}, "test": "tydiqa_ko_goldp,question_pair,ko_strategyqa_facts,techdocs_ko,parakqc,korquad_v1"}}'` trains `splade_ko` with these settings for each seed, judges it on all of these sets and keeps the results; `korquad_v1` is `KorQuAD_v1.0_dev` in the tables.
2. Copy [the template](records_template.json) and fill it: what was improved, the version, the sets, the paths of the kept results, the executed notebook or the HTML report in the repository. The numbers are those that the check names.
3. `make record ENTRY=mine.json` checks it: the run is kept, the seeds are there, the numbers follow from the results, and the difference to the last record is beyond chance. It names the file and the field of what is wrong.
4. Move it to `docs/results/records` under the next number, run `python docs/records_page.py`, and open a pull request; without one, [an issue](https://github.com/splade-nb/splade_nb/issues/new?template=result.yml).
"""


@dataclass(frozen=True)
class Row:
    "What one model has on one set."
    set: str
    seed: int | None      # None: nothing was learned
    recipe: str           # version and changed settings
    ndcg: float
    bm25: float
    gains: np.ndarray     # [queries] nDCG@10 over BM25
    terms: float          # of a document
    minutes: float


@dataclass(frozen=True)
class Record:
    "An entry that was checked, with its results."
    entry: dict
    rows: dict            # set -> [Row]
    paths: tuple          # of the kept results
    difference: dict | None = None  # to the record before: {"mean", "low", "high", "p"}

    def gains(self, name: str) -> np.ndarray: return np.mean([row.gains for row in self.rows[name]], axis=0)

    def mean(self, part: str) -> float: return float(np.mean([np.mean([getattr(row, part) for row in rows]) for rows in self.rows.values()]))

    def over(self, other, name: str) -> dict: return paired_difference(self.gains(name), other.gains(name))

    def bytes(self) -> int:
        return sum(index_bytes(float(np.mean([row.terms for row in rows])), known_baselines()[name]['documents']) for name, rows in self.rows.items())

    def numbers(self) -> dict:  # as an entry states them
        means = {name: round(float(np.mean([row.ndcg for row in rows])), DIGITS) for name, rows in self.rows.items()}
        stated = self.difference and {part: round(self.difference[part], DIGITS) for part in ('mean', 'low', 'high')}
        return {'ndcg@10': means, 'difference': stated or {}}


# ---- kept results

def values(text: str) -> np.ndarray: return np.array(text.split(), dtype=float)


def of_baselines(path: Path, record: dict, version: str) -> list:
    "Both BM25, as the study of the initialization keeps them."
    system = {'BM25': 'bm25', 'BM25 + bigrams': 'bm25_bigrams'}.get(version)
    if system is None: return []
    part = next(record['splits'][split] for split in ('test', 'all') if split in record['splits'])
    gains = values(part['gains']) * (system == 'bm25_bigrams')
    return [Row(path.stem, None, version, part[system]['ndcg@10']['mean'], part['bm25']['ndcg@10']['mean'], gains, record['index'][system]['terms'], 0.0)]


def of_study(record: dict, untrained: bool = False) -> list:
    "A variant of the study of training: one model, judged on several sets after its last step, or before its first."
    part, minutes = ('untrained', 0.0) if untrained else ('found', record['seconds'] / 60)
    recipe = spell_recipe(record['version'] + UNTRAINED * untrained, current_names(record['changes']))
    return [Row(row['collection'], record['seed'], recipe, row['metrics']['ndcg@10']['mean'], row['bm25']['ndcg@10']['mean'],
                values(row['gains']), row['terms']['doc'], minutes)
            for row in record.get(part, ()) if row['split'] in ('test', 'all') and 'gains' in row]


def of_run(path: Path, record: dict) -> list:
    "A run folder, from its summary and the evaluation beside it."
    evaluation = read_json(path.with_name('evaluation.json'))
    if 'gains' not in evaluation: return []
    recipe = spell_recipe(f'{record["version"]} {record["recipe"]}', {name: new for name, (_, new) in record['changed'].items()})
    return [Row(record['data']['name'], record['seed'], recipe, record['metrics']['ndcg@10'], record['bm25']['ndcg@10'],
                values(evaluation['gains']), record['active_terms']['doc'], record['seconds'] / 60)]


def spell_recipe(version: str, changes: dict) -> str:
    return f'{version}: {", ".join(f"{name} {value}" for name, value in changes.items())}' if changes else version


def rows_of(path: Path, version: str) -> list:
    record = read_json(path)
    if 'splits' in record: return of_baselines(path, record, version)
    return of_run(path, record) if path.name == 'summary.json' else of_study(record, version.endswith(UNTRAINED)) if isinstance(record.get('found'), list) else []


def results_of(entry: dict, file: str) -> tuple:  # set -> rows; paths
    "The rows of the results that an entry names, of its sets. Raises `DataError`."
    rows, paths = {name: [] for name in entry['sets']}, []
    for name in entry['results'] or ['']:
        path = (ROOT/name).resolve()
        if not (name and path.is_file() and path.is_relative_to(ROOT/'docs'/'results')):
            raise DataError(file, None, 'results', repr(name) if name else 'no run', 'paths of kept results below docs/results')
        found = rows_of(path, entry['version'])
        if not found: raise DataError(name, None, 'gains', 'none', 'a result that keeps the nDCG@10 of each query over BM25')
        for row in found:
            if row.set in rows: rows[row.set].append(of_known_queries(row, name))
        paths.append(path)
    return rows, tuple(paths)


def of_known_queries(row: Row, file: str) -> Row:
    "A row that was measured on the queries of the baselines. Raises `DataError`."
    known = known_baselines().get(row.set)
    if not known: raise DataError(file, None, 'collection', row.set, f'a set whose BM25 is kept: {", ".join(known_baselines())}')
    split = next(split for split in ('test', 'all') if split in known['splits'])
    part = baselines_beside(row.set, split, row.bm25) or known['splits'][split]
    bm25, found = part['bm25']['ndcg@10']['mean'], (len(row.gains), round(row.bm25, DIGITS))
    if found != (part['queries'], round(bm25, DIGITS)):
        raise DataError(file, None, f'{row.set}: queries and nDCG@10 of BM25', f'{found[0]} and {found[1]}', f'{part["queries"]} and {bm25:.{DIGITS}f}, as kept in baselines')
    if abs(row.bm25 + row.gains.mean() - row.ndcg) > 10 ** -DIGITS * 5:
        raise DataError(file, None, f'{row.set}: nDCG@10', f'{row.ndcg:.{DIGITS}f}', f'{row.bm25 + row.gains.mean():.{DIGITS}f}, BM25 and the mean gain of its queries')
    return row


# ---- the check

def require_fields(entry: object, file: str) -> None:
    if not isinstance(entry, dict): raise DataError(file, None, 'entry', type(entry).__name__, 'an object')
    for name in sorted(entry.keys() ^ FIELDS.keys()):
        raise DataError(file, None, name, 'an unknown field' if name in entry else 'nothing', f'the fields of {TEMPLATE}: {", ".join(FIELDS)}')
    for name, kind in FIELDS.items():
        if not isinstance(entry[name], kind): raise DataError(file, None, name, repr(entry[name]), {str: 'text', list: 'a list', dict: 'an object'}[kind])
        if kind is not dict and name != 'results' and not entry[name]: raise DataError(file, None, name, 'nothing', 'what the template says')


def require_report(entry: dict, file: str) -> None:
    "An executed notebook of the project, or a page made of one."
    path = (ROOT/entry['report']).resolve()
    if not (path.is_file() and path.is_relative_to(ROOT) and path.suffix in ('.ipynb', '.html')):
        raise DataError(file, None, 'report', repr(entry['report']), 'the path of an executed notebook or of its HTML page in the project')
    outputs = [output for cell in read_json(path)['cells'] for output in cell.get('outputs', ())] if path.suffix == '.ipynb' else [{}]
    if not outputs or any(output.get('output_type') == 'error' for output in outputs):
        raise DataError(file, None, 'report', f'{entry["report"]} {"that ended with an error" if outputs else "without outputs"}', 'a notebook that was executed to its end')


def require_seeds(entry: dict, rows: dict, file: str) -> None:
    for name, found in rows.items():
        if not found: raise DataError(file, None, 'results', f'nothing on {name}', 'results on every set of the entry')
        seeds = {row.seed for row in found}
        if seeds != {None} and (len(seeds - {None}) < SEEDS or len(seeds) < len(found)):
            raise DataError(file, None, 'results', f'seeds {", ".join(str(row.seed) for row in found)} on {name}', f'{SEEDS} different seeds of each set, each once')
    recipes = dict.fromkeys(row.recipe for found in rows.values() for row in found)
    if len(recipes) > 1: raise DataError(file, None, 'results', f'{len(recipes)} recipes: {"; ".join(recipes)}', 'one recipe')
    if (used := next(iter(recipes)).split(':')[0]).split()[0] != entry['version'].split()[0]: raise DataError(file, None, 'version', entry['version'], used)


def require_numbers(record: Record, file: str) -> None:
    for name, right in record.numbers().items():
        if record.entry[name] != right: raise DataError(file, None, name, json.dumps(record.entry[name]), f'what follows from the results: {json.dumps(right)}')


def difference_to(record: Record, before: Record) -> dict: return pooled([record.over(before, name) for name in before.rows])


def checked(entry: dict, file: str, before: Record | None) -> Record:
    "A record, if the entry is one. Raises `DataError` that names the field otherwise."
    require_fields(entry, file)
    if left := [name for name in before.rows if name not in entry['sets']] if before else []:
        raise DataError(file, None, 'sets', ', '.join(entry['sets']), f'also {", ".join(left)}, which the record before has')
    require_report(entry, file)
    rows, paths = results_of(entry, file)
    require_seeds(entry, rows, file)
    record = Record(entry, rows, paths)
    if before: record = Record(entry, rows, paths, difference_to(record, before))
    require_numbers(record, file)
    if before and marked([record.difference]) != ['▲']:
        raise DataError(file, None, 'difference', percent(record.difference, '+'), f'a difference to the record before ({before.entry["improvement"]}) that is above 0 beyond chance')
    return record


def read_entry(path: Path) -> object:
    try: return read_json(path)
    except (OSError, ValueError) as error: raise DataError(path, None, 'entry', str(error), f'JSON in the form of {TEMPLATE}') from None


def records(folder: Path = RECORDS) -> list:
    "Every record in order, each checked against the one before it. Raises `DataError`."
    found, paths = [], sorted(folder.glob('*.json'), key=lambda path: (int(path.name.split('-')[0]) if NAME.fullmatch(path.name) else -1, path.name))
    for number, path in enumerate(paths):
        named = NAME.fullmatch(path.name)
        if not named or int(named[1]) != number: raise DataError(path.name, None, 'name', path.name, f'{number}-name.json: numbers from 0 on, each once')
        found.append(checked(read_entry(path), path.name, found[-1] if found else None))
    return found


def check_entry(path: Path) -> Record:
    "One entry: of the folder with all before it, or a new one after the last record."
    if path.resolve().parent == RECORDS and path.exists(): return records()[int(NAME.fullmatch(path.name)[1]) if NAME.fullmatch(path.name) else 0]
    known = records()
    return checked(read_entry(path), path.name, known[-1] if known else None)


# ---- the page

def link(path: Path, name: str = '') -> str: return f'[{name or path.stem}]({Path(path).relative_to(ROOT/"docs") if path.is_relative_to(ROOT/"docs") else Path("..")/path.relative_to(ROOT)})'


def record_row(number: int, record: Record, floor: Record) -> dict:
    trained, entry = record.mean('minutes'), record.entry
    return {'record': number, 'what was improved': entry['improvement'], 'recipe': next(iter(record.rows.values()))[0].recipe, 'sets': len(record.rows),
            'nDCG@10': percent(record.mean('ndcg')), 'over BM25 + bigrams': '-' if record is floor else percent(difference_to(record, floor), '+'),
            'over the record before': f'{percent(record.difference, "+")} ▲' if record.difference else '-', 'minutes': f'{trained:.1f}' if trained else '-',
            'terms of a document': f'{record.mean("terms"):.0f}', 'index, MB': f'{record.bytes() / 1e6:.1f}',
            'run': ', '.join(link(path) for path in record.paths), 'report': link((ROOT/entry['report']).resolve())}


def set_rows(found: list, floor: Record) -> list:
    wanted = [(number, name) for number, record in enumerate(found) for name in record.rows if record is not floor and name in floor.rows]
    over = {key: found[key[0]].over(floor, key[1]) for key in wanted}
    signs = dict(zip(over, marked([*over.values()])))
    def cell(number, name):
        values = sorted(percent(row.ndcg) for row in found[number].rows.get(name, ()))
        if not values: return '-'
        spread = ' to '.join(dict.fromkeys([values[0], values[-1]]))
        return f'{spread}; {percent(over[number, name], "+")} {signs[number, name]}' if (number, name) in over else spread
    return [{'set': name} | {f'record {number}': cell(number, name) for number in range(len(found))} for name in dict.fromkeys(name for record in found for name in record.rows)]


def candidates() -> dict:  # name -> rows of all seeds
    "Every variant of the study of training, trained and untrained."
    groups = defaultdict(list)
    for record in KeptResults('training').results('train-*').values():
        for untrained in (False, True): groups[record['name'] + UNTRAINED * untrained].extend(of_study(record, untrained))
    return groups


def refused(found: list) -> str:
    "Variants that have all that a record needs but the difference; what is known of untrained models."
    last, sets, lines = found[-1], list(found[-1].rows), []
    entered = {part[0].recipe for each in found for part in each.rows.values()}
    whole = {name: {each: [row for row in rows if row.set == each] for each in sets} for name, rows in candidates().items()}
    whole = {name: rows for name, rows in whole.items() if all(len({row.seed for row in part}) >= SEEDS for part in rows.values())}
    for name, rows in whole.items():
        record, recipe = Record({}, rows, ()), rows[sets[0]][0].recipe
        over = difference_to(record, last)
        if recipe not in entered:
            lines.append(f'- `{name}` ({recipe}): nDCG@10 {percent(record.mean("ndcg"))}, {percent(over, "+")} over record {len(found) - 1} {marked([over])[0]}.')
    if not any(name.endswith(UNTRAINED) for name in whole):
        lines.append(f'- No untrained model: its values of each query are not kept for {SEEDS} seeds on every set.')
    return '\n'.join(lines) or 'None.'


def page(found: list) -> str:
    if not found: return TEXT.split('\n{judged}')[0].format(seeds=SEEDS) + '\nNo record is entered yet.\n'
    floor, paths = found[min(1, len(found) - 1)], sorted({path for record in found for path in record.paths})
    kept = [read_json(path) for path in paths]
    source = source_line('python docs/records_page.py', {name: known_baselines()[name]['hash'] for name in found[-1].rows}, map(revision_of, paths, kept),
                         [record.get('date', '') for record in kept])
    table = markdown_table(pd.DataFrame([record_row(number, record, floor) for number, record in enumerate(found)]))
    return TEXT.format(seeds=SEEDS, table=table, source=source, sets=markdown_table(pd.DataFrame(set_rows(found, floor))), refused=refused(found),
                       judged=f'{readme_table.equal_start()} {readme_table.judged_for()}')


@exit_codes
def main(arguments: list) -> int:
    parser = CommandLine(prog='records_page.py', description='Check the records and write docs/records.md.')
    parser.add_argument('--check', action='store_true', help='exit 1 if the page is not what the entries say')
    parser.add_argument('--entry', help='check this entry alone')
    given = parser.parse_args(arguments)
    if given.entry is not None:
        record = check_entry(Path(given.entry))
        print(f'{given.entry}: a record, {percent(record.difference, "+") + " over the one before" if record.difference else "the first one"}')
        return 0
    text = page(records())
    if given.check: return int(PAGE.read_text(encoding='utf-8') != text)
    with replaced(PAGE) as file: file.write(text)
    return 0


if __name__ == '__main__': sys.exit(main(sys.argv[1:]))

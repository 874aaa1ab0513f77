"""Every system on every collection: quality, cost, and what can be told from chance. Finished parts are kept and skipped.

    python experiments/leaderboard.py [DATA] [--test COLLECTION ...] [--systems PATTERN ...] [--seeds 42 ...] [--steps N] [--results FOLDER]
    python experiments/leaderboard.py --page     write docs/leaderboard.md; --check: is it what the results say?
"""
import fnmatch, functools, json, re, sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
import pandas as pd
from tqdm import tqdm
from splade_nb.data import readers as data
from splade_nb.evaluation.leaderboard import BASELINE, FLOOR, board_figure, boards, collection_table, summary_table
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import ConfigError, alternatives, read_json, write_json
from splade_nb.config.settings import Settings, as_dict
from splade_nb.config.versions import ABOUT, MINI_CORRECTIONS, VERSIONS, resolve_quietly
from splade_nb.data.records import PAIR_TYPES
from splade_nb.config.files import machine, revision
from splade_nb.experiment import rollbacks_of
from splade_nb.evaluation.benchmark import leaderboard_result, metrics_per_query
from splade_nb.evaluation.figures import write_svg
from splade_nb.evaluation.systems import Hybrid, dense_system, fitted_on, model_in, sparse_system, words_system
from splade_nb.training.teacher import digest, teacher_label
from splade_nb.data.tokenizer import remembered
from splade_nb.evaluation.compare import markdown_table
from revisions import told

HERE = Path(__file__).resolve().parent
WORDS = {'kiwi': 'Kiwi morphemes', 'kiwi+bigrams': 'Kiwi morphemes, and over pairs of characters as a second field',
         'whitespace': 'words between spaces', 'bigrams': 'pairs of characters'}
PAGE, RESULTS = HERE.parent/'docs'/'leaderboard.md', HERE/'results'/'leaderboard'


@dataclass(frozen=True)
class Entry:
    "One line of the leaderboard."
    kind: str                # words, dense, seed, corrected, hybrid
    about: str
    words: str = ''          # a tokenizer
    version: str = ''
    changes: dict = field(default_factory=dict)
    learns: bool = True
    parts: tuple = ()        # names of two others


def entries() -> dict:  # name -> Entry, in the order of work
    found = {f'bm25-{words}': Entry('words', f'BM25 over {about}', words) for words, about in WORDS.items()}
    found['lsa'] = Entry('dense', teacher_label('lsa'))
    model = lambda version, recipe='corrected', about='', **options: Entry(recipe, about or ABOUT[version][0], version=version, **options)
    found |= {'splade_ko-untrained': model('splade_ko', about='its start: no step of training', learns=False), 'splade_ko': model('splade_ko')}
    found |= {f'splade_ko+{other}': Entry('hybrid', 'reciprocal ranks of both', parts=('splade_ko', other)) for other in ('bm25-kiwi', 'lsa')}
    by_encoder = dict(inference_free_query=False, output_idf=MINI_CORRECTIONS['output_idf'].value)
    found |= {'splade_ko-encoded-query': model('splade_ko', about='the same with queries through the encoder', changes=by_encoder), 'splade_v2': model('splade_v2')}
    numbered = [version for version in VERSIONS if version not in ('splade_ko', 'splade_v2')]
    return found | {f'{version}-{recipe}': model(version, recipe) for recipe in ('corrected', 'seed') for version in numbered}


SYSTEMS = entries()


def chosen(patterns: list) -> list:  # names, in the order of work
    for pattern in patterns:
        if not fnmatch.filter(SYSTEMS, pattern): raise ConfigError(f'no system {pattern!r}: {alternatives(pattern, SYSTEMS)}')
    return [name for name in SYSTEMS if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def judged_on(source: str, taught: bool) -> tuple:  # collection, query ids
    "A taught collection's test queries; of one that nothing is learned from, all."
    collection = data.load(source, pair_types=PAIR_TYPES)
    if taught and not any('train split' in note for note in collection.notes) and collection.split('train'): return collection, list(collection.split('test'))
    if taught: raise ConfigError(f'{source}: no train split of its own; give it by --test')
    return collection, [id for id, judged in collection.qrels.items() if any(judged.values())]


def chosen_values(settings: Settings) -> dict:  # those that differ from the defaults: a setting that comes later changes no label
    default = as_dict(Settings())
    return {name: value for name, value in as_dict(settings).items() if value != default[name]}


class Contest:
    "What the systems share: the training data of one seed, the judged collections, the baseline."
    def __init__(self, source: str, tests: list, seed: int, steps: int, work: Path):
        sources = [part.strip() for part in source.split(',') if part.strip()]
        self.training, self.seed, self.steps, self.work = data.load(source, pair_types=PAIR_TYPES), seed, steps, work
        found = [judged_on(part, True) for part in sources] + [judged_on(part, False) for part in tests]
        self.judged = {collection.name: (collection, ids) for collection, ids in found}
        if len(self.judged) < len(found): raise ConfigError(f'collections of one name: {", ".join(collection.name for collection, _ in found)}')
        self.taught = list(self.judged)[:len(sources)]

    def settings(self, entry: Entry):
        return resolve_quietly(entry.version, entry.kind, 'mini', validations=0, **entry.changes, **({'steps': self.steps} if self.steps else {}))

    def label(self, name: str) -> dict:  # what a kept result must have been made with
        entry = SYSTEMS[name]
        if entry.parts: return {part: self.label(part) for part in entry.parts}
        learned = {} if entry.words else dict(training=self.training.hash)
        return learned | (dict(settings=digest([json.dumps(chosen_values(self.settings(entry)))]), steps=self.settings(entry).steps) if entry.version else {})

    @functools.cached_property
    def fitted(self): return fitted_on(self.training, self.seed)

    @functools.cache
    def model(self, name: str) -> tuple:  # model, tokens, facts
        entry, settings = SYSTEMS[name], self.settings(SYSTEMS[name])
        folder = self.work/f'{name}-{self.seed}-{digest([json.dumps(self.label(name))])}'
        return model_in(folder, settings, self.training, self.seed, self.work/'cache', entry.learns, rollbacks=rollbacks_of(entry.kind))

    @functools.lru_cache(maxsize=32)
    def system(self, name: str, collection: str):
        entry, texts = SYSTEMS[name], self.judged[collection][0].texts
        if entry.parts: return Hybrid([self.system(part, collection) for part in entry.parts])
        if entry.words: return words_system(texts, entry.words)
        return sparse_system(*self.model(name)[:2], texts) if entry.version else dense_system(self.fitted, texts)

    @functools.cache
    def baseline(self, name: str): # DataFrame, a row for each query
        collection, ids = self.judged[name]
        qrels, queries = {id: collection.qrels[id] for id in ids}, {id: collection.queries[id].text for id in ids}
        return metrics_per_query(self.system(BASELINE, name), qrels, queries)


def begun(contest: Contest, name: str, path: Path) -> dict:
    "The record so far. Raises `ConfigError` where it was made from other data or settings."
    entry, label = SYSTEMS[name], contest.label(name)
    if not path.exists():
        return dict(system=name, about=entry.about, kind=entry.kind, version=entry.version, changes=entry.changes, seed=contest.seed, label=label, data=contest.training.name, taught=contest.taught,
                    date=date.today().isoformat(), device=machine(), revision=revision(), facts={}, collections={})
    record = read_json(path)
    if record['label'] != label: raise ConfigError(f'{path} was made with {record["label"]}, asked for is {label}: remove it, or take another --results')
    return record


def take_part(contest: Contest, name: str, folder: Path) -> dict:
    "One system on every collection that its record lacks; written after each."
    path = folder/f'{name}-{contest.seed}.json'
    record = begun(contest, name, path)
    for collection, (known, ids) in contest.judged.items():
        if record['collections'].get(collection, {}).get('hash') == known.hash: continue
        system = contest.system(name, collection)
        if SYSTEMS[name].version: record['facts'] = contest.model(name)[2]
        record['collections'][collection] = leaderboard_result(system, known, ids, contest.baseline(collection))
        write_json(path, record)
        tqdm.write(f'{name}, seed {contest.seed}, {collection}: nDCG@10 {record["collections"][collection]["metrics"]["ndcg@10"]["mean"]:.4f}')
    return record


# The page

TEXT = """# Leaderboard

Written by `make leaderboard` (`experiments/leaderboard.py`) from `experiments/results/leaderboard/`. Every system ranks the same test queries by exact search; ranking metrics are in percent.

- *Over BM25*: mean paired difference of nDCG@10 to `bm25-kiwi` with its 95 % bootstrap interval. ▲ above, ▼ below: the interval leaves out 0 and, on one collection, the paired t-test's p is below 0.05 after Holm's correction for all systems; ≈: neither can be claimed. A summary counts each collection once.
- *Terms*: active terms of a query / a document. *FLOPS*: expected multiplications to score one query against one document. *ms*: median / 99th percentile of one query, from its text to its hundred best. *MB*: postings of eight bytes an entry, of dense vectors four bytes a number. A hybrid pays for both halves.
- What a model has to beat is `{floor}`, which learns nothing. `splade_ko-untrained` is `splade_ko` before its first step: a lexical index of tokens, character bigrams, phonetic keys and Model 1 expansions.
- The test queries are the same for all systems and were judged for each; a system chosen from these tables was not chosen blind.
- *Collapsed*, *stopped*: what became of the training; shown as it is. Models are small, from random weights (scale mini); one model a system learns from all the training data named.
"""
BOARD = """
## Trained on {name}

{when}
{caveat}

{collections}

### All collections

{summary}

![Quality against active terms and against latency]({picture})

{caption}
"""


def picture(name: str) -> str: return f'leaderboard-{re.sub("[^a-z0-9_]+", "-", name.lower())}.svg'


def collections_of(table) -> pd.DataFrame:
    rows = table.drop_duplicates('collection')
    return pd.DataFrame([{'collection': row['collection'], 'documents': f'{row["documents"]:,}', 'test queries': f'{row["queries"]:,}', 'its train split': 'learned from' if row['taught'] else 'never seen'} for _, row in rows.iterrows()])


def when(folder: Path) -> str:
    "Dates, machine and seeds of a board's records."
    records = [read_json(path) for path in sorted(folder.glob('*.json'))]
    told_of = lambda name: ', '.join(sorted({str(record[name]) for record in records}))
    return f'{len({record["system"] for record in records})} of {len(SYSTEMS)} systems; measured {told_of("date")} on {told_of("device")}; seed {told_of("seed")}; of {told(folder.glob("*.json"))}. What else the machine did counts in minutes and milliseconds.'


def caveat(name: str, table) -> str:
    "What a board's figures must not be taken for."
    parts = []
    if name == 'mini': parts.append('The test queries of `mini` ask for documents that training queries ask for too: what is learned here is not shown to hold for other documents.')
    if unseen := list(table.loc[~table['taught'], 'collection'].unique()): parts.append(f'{", ".join(f"`{one}`" for one in unseen)}: no train split, so nothing was learned from them.')
    return ' '.join(parts)


def public_first(found: dict) -> dict: return dict(sorted(found.items(), key=lambda pair: pair[0] == 'mini'))


def page() -> str:
    text, found = TEXT.replace('{floor}', FLOOR), public_first(boards(RESULTS))
    parts = [text] if found else [text, '\nNot run yet.\n']
    for name, table in found.items():
        parts.append(BOARD.format(name=name, when=when(RESULTS/name), caveat=caveat(name, table), collections=markdown_table(collections_of(table)), summary=markdown_table(summary_table(table)), picture=picture(name), caption=board_figure(table)[1]))
        parts += [f'\n### {collection}\n\n{markdown_table(collection_table(table, collection))}\n' for collection in dict.fromkeys(table['collection'])]
    return ''.join(parts)


def write_page() -> None:
    for name, table in boards(RESULTS).items(): write_svg(board_figure(table)[0], PAGE.parent/picture(name))
    PAGE.write_text(page(), encoding='utf-8')


def check_page() -> None:
    if not PAGE.exists() or PAGE.read_text(encoding='utf-8') != page():
        sys.exit('docs/leaderboard.md is not what the results say: run python experiments/leaderboard.py --page')


def parts_of(given: list) -> list: return [part for text in given for part in text.split(',') if part]


def main(arguments: list | None = None) -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('data', nargs='?', default='mini', help='collections with a train split, joined by commas: one model a system learns from all')
    reader.add_argument('--test', nargs='*', action='extend', default=[], metavar='COLLECTION',
                        help='judge all queries of these; nothing is learned from them')
    reader.add_argument('--systems', nargs='*', action='extend', default=['*'], metavar='PATTERN', help=', '.join(SYSTEMS))
    reader.add_argument('--seeds', nargs='*', action='extend', default=['42'], metavar='SEED')
    reader.add_argument('--steps', type=int, default=0, help="optimizer steps; 0: the version's own")
    reader.add_argument('--results', type=Path, default=RESULTS)
    reader.add_argument('--work', type=Path, default=HERE.parent/'outputs'/'leaderboard', help='models and checkpoints, for going on')
    mode = reader.add_mutually_exclusive_group()
    mode.add_argument('--page', action='store_true', help='write docs/leaderboard.md from the results')
    mode.add_argument('--check', action='store_true', help='whether docs/leaderboard.md is what the results say')
    options = reader.parse_args(arguments)
    if options.page: return write_page()
    if options.check: return check_page()
    names, seeds = chosen(parts_of(options.systems)), [int(seed) for seed in parts_of(options.seeds)]
    with remembered({}):
        for seed in seeds:
            contest = Contest(options.data, parts_of(options.test), seed, options.steps, options.work)
            (folder := options.results/contest.training.name).mkdir(parents=True, exist_ok=True)
            for name in tqdm(names if seed == seeds[0] else [name for name in names if SYSTEMS[name].version], desc=f'leaderboard, seed {seed}', unit=' systems'): take_part(contest, name, folder)
    if options.results == RESULTS: write_page()


if __name__ == '__main__': main()

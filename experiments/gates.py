"""V28's gate in each form, without a gate, and without the language filter, on the embedded set; its criteria beside.

    python experiments/gates.py [--seeds 42 43 44] [--only NAME ...] [--page | --check]
"""
import copy, sys, tempfile, time
from collections import Counter
from datetime import date
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from splade_nb.config import files
from splade_nb.data import readers
from splade_nb.evaluation import retrieval
from splade_nb import experiment
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import read_json, write_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.encode import encode
from splade_nb.evaluation.metrics import CRITERIA, criteria, index_bytes, marked, paired_difference, summarise
from splade_nb.training.dataset import TrainingSetup, fix_seeds, prepare
from splade_nb.model.initialization import create
from splade_nb.data.tokenizer import remembered
from splade_nb.training.trainer import train
from splade_nb.evaluation.compare import markdown_table, percent
import baselines
from revisions import told

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent/'docs'/'gates.md'
SHORT = dict(steps=150, batch_size=8, max_length=48, validations=0, weight_averaging=[0.0])  # nobody judges while it trains, the weights stay as trained
SEEDS = (42, 43, 44)
FORMS = ('sigmoid', 'signed', 'threshold', 'hidden')
VARIANTS = {  # name: (version, recipe, settings), the reference first
    'unfiltered': ('v28', 'corrected', dict(lambda_language=0.0)), **{form: ('v28', 'corrected', dict(gate_form=form)) for form in FORMS},
    'no gate': ('v28a', 'corrected', {}), 'as written': ('v28', 'original', {})}
ABOUT = {'unfiltered': '`sigmoid`, no language filter', 'no gate': 'no gate (V28a)', 'as written': '`sigmoid`, V28 as written', **{form: f'`{form}`' for form in FORMS}}


def settings_of(name: str):
    version, recipe, changes = VARIANTS[name]
    return resolve_quietly(version, recipe, 'mini', **SHORT, **changes)


def place_of(results: Path, name: str, seed: int) -> Path: return results/f'gates-{name.replace(" ", "-")}-{seed}.json'


def started(base: TrainingSetup, settings, seed: int) -> TrainingSetup:
    "The base's data and start under another gate or filter."
    fix_seeds(seed)
    model = create(settings.but(start='random'), len(base.training_data.tokenizer), base.masks['special'].nonzero()[0].tolist(), base.training_data.idf.cpu().numpy(), float(base.model.mean_length))
    model.load_state_dict({name: value for name, value in base.model.state_dict().items() if not name.startswith('gate.')}, strict=False)
    return TrainingSetup(settings, base.collection, base.training_data, model, base.masks, base.held)


def moved(setup: TrainingSetup) -> dict | None:  # shares of active terms
    "What the gate takes away from the queries of the context pairs, and what it brings."
    if setup.model.gate is None: return None
    bare = copy.copy(setup.model); bare._modules = {**bare._modules, 'gate': None}
    texts = [text for pair in setup.collection.context_pairs for text in pair.queries]
    found, plain = (encode(model, setup.training_data.tokenizer, texts, document=False) > 0 for model in (setup.model, bare))
    both = found.multiply(plain).nnz
    return dict(silenced=1 - both / max(1, plain.nnz), raised=1 - both / max(1, found.nnz))


def findings(setup: TrainingSetup) -> dict:
    "Everything the criteria ask for, and each query's nDCG@10."
    ids = list(setup.collection.split('test'))
    found = retrieval.evaluate_queries(setup.model, setup.training_data.tokenizer, setup.collection, ids)
    context = retrieval.context_result(setup.model, setup.training_data.tokenizer, setup.collection)
    documents = found['vectors'][1]
    return dict(metrics=summarise(found['per_query']), per_query=found['per_query']['ndcg@10'].round(5).tolist(), ndcg=float(found['per_query']['ndcg@10'].mean()),
                korean=retrieval.language_result(setup, documents), context={name: value for name, value in context.items() if name != 'pairs'}, pairs=len(context['pairs']),
                active_terms=found['active_terms'], dead_rows=float(np.mean(documents.getnnz(axis=1) == 0)), moved=moved(setup))


def measure(name: str, seed: int, setup: TrainingSetup, cache: Path) -> dict:
    "Train and judge one variant."
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        done = train(setup.model, setup.training_data, setup.settings, folder, None, torch.tensor(setup.masks['korean']), seed, quiet=True, rollbacks=experiment.rollbacks_of(VARIANTS[name][1]))
    return dict(name=name, seed=seed, revision=files.revision(), date=date.today().isoformat(), command=f'python experiments/gates.py --seeds {seed} --only "{name}"', threads=torch.get_num_threads(), settings={**SHORT, **VARIANTS[name][2]},
                collection=setup.collection.name, seconds=round(time.perf_counter() - begun, 1), steps=done.step, stopped=done.stopped, parameters=sum(p.numel() for p in setup.model.parameters()), **findings(setup))


@remembered({})
def experiment(results: Path, seeds: list, names: list) -> None:
    "What is not there yet; what is, stays."
    collection, bm25 = readers.load_collection('mini'), results/'gates-bm25.json'
    if not bm25.exists(): write_json(bm25, summarise(retrieval.bm25_metrics(collection, list(collection.split('test')))))
    for seed in seeds:
        base, missing = None, [name for name in names if not place_of(results, name, seed).exists()]
        with tempfile.TemporaryDirectory() as cache:
            for name in missing:
                settings, alike = settings_of(name), VARIANTS[name][1] == 'corrected'
                if alike and base is None: base = prepare(settings_of('unfiltered'), collection, seed, Path(cache))
                setup = started(base, settings, seed) if alike else prepare(settings, collection, seed, Path(cache))
                found = measure(name, seed, setup, Path(cache))
                write_json(place_of(results, name, seed), found)
                print(f'{name} {seed}: nDCG@10 {found["ndcg"]:.4f}, terms {found["active_terms"]}, {found["moved"]}, {found["seconds"]} s', flush=True)


TEXT = """# What each form of the gate is worth

Written by `experiments/gates.py` from `experiments/results/gates-*.json`. {conditions}

What a form does to logits and states stands in the [gate's notebook](../nbs/2_model/04_gate.ipynb), what a criterion asks for in the [evaluation's](../nbs/4_evaluation/01_metrics.ipynb).

## Ranking and terms

Means over seeds, in brackets smallest and largest; `points` is nDCG@10 in percent less the unfiltered run of the same seed, [95 %] the paired bootstrap over queries and seeds. ▲ ▼ ≈ as by `metrics.marked`, corrected by Holm over the table. {words} Untrained: not kept; `mini`'s test queries ask for documents that training queries ask for too. Index: postings of eight bytes. Of {revisions}. Silenced and raised: the share of active query terms that the gate takes away, and that are there by the gate alone, on the context pairs.

{ranking}

## Language

Documents in Korean. Kept: foreign tokens of the text itself and words of the list, outside every share.

{language}

## Context

{pairs} pairs of one phrase in two situations. Told apart by active terms and by weights; the texts' input tokens alone differ by {texts}. Found: the right document comes first for the first half, the second, both; same: both halves get one document.

{context}

## Criteria

How many seeds meet each; void with its reason where the model collapsed or ranks more than half a point below the unfiltered one, met by the texts alone where a text's input tokens tell as many pairs apart.

{criteria}

## What each was worth

{worth}
"""


def kept() -> dict:  # name -> results by seed
    "Of the seeds that all corrected variants share."
    found = [read_json(path) for path in sorted((HERE/'results').glob('gates-*-[0-9]*.json'))]
    rows = {name: {row['seed']: row for row in found if row['name'] == name} for name in VARIANTS}
    whole = set.intersection(*(set(rows[name]) for name, (_, recipe, _) in VARIANTS.items() if recipe == 'corrected'))
    return {name: {seed: row for seed, row in seeds.items() if seed in whole} for name, seeds in rows.items() if whole & set(seeds)}


def spread(values, form: str = '{:.3f}') -> str:
    "The mean, and where several seeds differ the smallest and the largest."
    values = [value for value in values if value is not None]
    if not values: return '-'
    low, mean, high = (form.format(value) for value in (min(values), float(np.mean(values)), max(values)))
    return mean if low == high else f'{mean} ({low} to {high})'


def percents(values) -> str: return spread([value and 100 * value for value in values], '{:.1f}')


def beside(rows: dict, reference: dict) -> list:  # pairs of runs of one seed
    return [(row, reference[seed]) for seed, row in rows.items() if seed in reference]


def against(rows: dict, reference: dict) -> dict | None:
    "nDCG@10 less the reference's, over queries and seeds."
    pairs = beside(rows, reference)
    return paired_difference(*(np.concatenate([pair[side]['per_query'] for pair in pairs]) for side in (0, 1))) if pairs else None


def ranking_table(found: dict) -> pd.DataFrame:
    terms = lambda rows, side: spread([row['active_terms'][side] for row in rows.values()], '{:.1f}')
    change = lambda rows, what: percents([row['moved'][what] for row in rows.values()]) if all(row['moved'] for row in rows.values()) else ''
    others = {name: against(rows, found['unfiltered']) for name, rows in found.items() if name != 'unfiltered'}
    signs = dict(zip(others, marked(list(others.values()))))
    points = {name: f'{percent(difference, "+")} {signs[name]}' for name, difference in others.items()}
    documents = baselines.known().get('mini', {}).get('documents', 0)
    size = lambda rows: spread([index_bytes(row['active_terms']['doc'], documents) / 1e6 for row in rows.values()], '{:.2f}') if documents else '-'
    return pd.DataFrame([{'gate': ABOUT[name], 'seeds': len(rows), 'nDCG@10': spread([row['ndcg'] for row in rows.values()]), 'points [95 %]': points.get(name, ''),
                          'query terms': terms(rows, 'query'), 'document terms': terms(rows, 'doc'), 'index, MB': size(rows), 'silenced %': change(rows, 'silenced'), 'raised %': change(rows, 'raised'),
                          'parameters': f'{next(iter(rows.values()))["parameters"]:,}'} for name, rows in found.items()])


def language_table(found: dict) -> pd.DataFrame:
    names = {'count_share': 'Korean, terms %', 'weight_share': 'Korean, weight %', 'noise': 'noise, terms %', 'noise_weight': 'noise, weight %', 'kept': 'kept %'}
    return pd.DataFrame([{'gate': ABOUT[name], **{said: percents([row['korean'][key]['mean'] for row in rows.values()]) for key, said in names.items()}} for name, rows in found.items()])


def context_table(found: dict) -> pd.DataFrame:
    told = lambda rows, key: percents([row['context'][key]['mean'] for row in rows.values()])
    share = lambda rows, key: percents([row['context']['found'][key] for row in rows.values()])
    return pd.DataFrame([{'gate': ABOUT[name], 'apart, terms %': told(rows, 'set'), 'apart, weights %': told(rows, 'weighted'),
                          **{f'{key} %': share(rows, key) for key in ('first', 'second', 'both', 'same')}} for name, rows in found.items()])


def verdicts(rows: dict, reference: dict) -> dict:  # criterion -> list of verdicts, one a seed
    "A filtered run beside the unfiltered one of its seed."
    judged = [criteria(row, other) for row, other in beside(rows, reference)]
    return {name: [row['met'] for seed in judged for row in seed if row['criterion'] == name] for name in CRITERIA}


def in_words(states: list) -> str:  # 'met 2 of 3, void 1 of 3'
    counts = Counter(state.partition(':')[0] for state in states)
    return ', '.join(word if count == len(states) else f'{word} {count} of {len(states)}' for word, count in counts.items())


def reasons(states: list) -> str: return '; '.join(dict.fromkeys(state.removeprefix('void: ') for state in states if state.startswith('void')))


def criteria_table(found: dict) -> pd.DataFrame:
    rows = []
    for name, runs in found.items():
        states = verdicts(runs, found['unfiltered'])
        if name != 'unfiltered': rows.append({'gate': ABOUT[name], **{criterion: in_words(said) for criterion, said in states.items()}, 'void because': reasons(sum(states.values(), []))})
    return pd.DataFrame(rows)


def words_said(bm25: float) -> str:
    "Both BM25 on the same queries."
    found = baselines.known().get('mini')
    if not found: return f'BM25 has {bm25:.3f}.'
    size = lambda system: f'{found["index"][system]["terms"]:.0f} terms a document, {found["index"][system]["bytes"] / 1e6:.2f} MB'
    field = found['splits']['test']['bm25_bigrams']['ndcg@10']['mean']
    return f'BM25 has {bm25:.3f} ({size("bm25")}), with a bigram field {field:.3f} ({size("bm25_bigrams")}).'


def certain(difference: dict) -> str:
    if difference['low'] <= 0 <= difference['high']: return 'no certain difference'
    return 'a gain' if difference['mean'] > 0 else 'a loss'


def worth(found: dict) -> str:
    "A sentence a form, against no gate, and one on the filter and on the version as written."
    plain, told = found['no gate'], []
    mean = lambda rows, of: float(np.mean([of(row) for row in rows.values()]))
    for name in FORMS:
        rows, difference = found[name], against(found[name], plain)
        apart = [100 * (mean(rows, lambda row: row['context'][key]['mean']) - mean(plain, lambda row: row['context'][key]['mean'])) for key in ('set', 'weighted')]
        both = 100 * (mean(rows, lambda row: row['context']['found']['both']) - mean(plain, lambda row: row['context']['found']['both']))
        told.append(f'{ABOUT[name]} ranks {percent(difference, "+")} points beside no gate ({certain(difference)}), takes {100 * mean(rows, lambda row: row["moved"]["silenced"]):.1f} % of a query\'s terms away and brings '
                    f'{100 * mean(rows, lambda row: row["moved"]["raised"]):.1f} %; pairs are told apart {apart[0]:+.1f} points by terms and {apart[1]:+.1f} by weights, and both halves find their document {both:+.1f} points more often.')
    filtered = against(found['sigmoid'], found['unfiltered'])
    told.append(f'The language filter itself changes nDCG@10 by {percent(filtered, "+")} points and noise from {100 * mean(found["unfiltered"], lambda row: row["korean"]["noise"]["mean"]):.2f} % of the terms to '
                f'{100 * mean(found["sigmoid"], lambda row: row["korean"]["noise"]["mean"]):.2f} %: this vocabulary is cut from Korean texts, so little is left to filter.')
    if written := found.get('as written'): told.append(f'V28 as written: {in_words(sum(verdicts(written, found["unfiltered"]).values(), []))} ({reasons(sum(verdicts(written, found["unfiltered"]).values(), []))}), with nDCG@10 {spread([row["ndcg"] for row in written.values()])} '
                                                       f'and a Korean share of {percents([row["korean"]["count_share"]["mean"] for row in written.values()])} %.')
    return ' '.join(told)


def page() -> str:
    found = kept()
    if not found: return '# What each form of the gate is worth\n\nNot run yet: `python experiments/gates.py`.\n'
    bm25 = read_json(HERE/'results'/'gates-bm25.json')
    first = found['unfiltered'][min(found['unfiltered'])]
    conditions = (f'Embedded set `{first["collection"]}`, {len(first["per_query"])} test queries, scale mini, {first["date"]}, {first["threads"]} thread; `python experiments/gates.py`. Short runs: {first["steps"]} steps of '
                  f'{SHORT["batch_size"]} queries, {SHORT["max_length"]} tokens a window, weights as trained. Seeds: {", ".join(map(str, sorted({seed for rows in found.values() for seed in rows})))}.')
    tables = {name: markdown_table(table(found)) for name, table in (('ranking', ranking_table), ('language', language_table), ('context', context_table), ('criteria', criteria_table))}
    return TEXT.format(conditions=conditions, words=words_said(bm25['ndcg@10']['mean']), revisions=told((HERE/'results').glob('gates-*-[0-9]*.json')), pairs=first['pairs'], texts=f'{100 * first["context"]["texts"]["mean"]:.1f} %', worth=worth(found), **tables)


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--seeds', type=int, nargs='+', action='extend', default=list(SEEDS))
    reader.add_argument('--only', nargs='+', action='extend', choices=VARIANTS, default=list(VARIANTS))
    reader.add_argument('--results', type=Path, default=HERE/'results')
    mode = reader.add_mutually_exclusive_group()
    mode.add_argument('--page', action='store_true', help='write docs/gates.md')
    mode.add_argument('--check', action='store_true', help='whether docs/gates.md is what the results say')
    options = reader.parse_args()
    if options.page: PAGE.write_text(page(), encoding='utf-8')
    elif options.check:
        if PAGE.read_text(encoding='utf-8') != page(): sys.exit('docs/gates.md is not what the results say: run python experiments/gates.py --page')
    else: experiment(options.results, options.seeds, options.only)


if __name__ == '__main__': main()

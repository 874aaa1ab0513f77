"""One version on many vocabularies: XLM-R's, XLM-R's cut to the corpora, A.X's and learned ones, each on texts as they are and on morphemes.

    python experiments/vocabulary.py COLLECTION ... --tokenizers FOLDER [--only NAME ...] [--seeds 42 ...] [--steps 60]
    python experiments/vocabulary.py --page | --check
"""
import itertools, json, sqlite3, statistics, sys, tempfile, time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from scipy import sparse
from splade_nb.evaluation import metrics as evaluation
from splade_nb.data import bm25 as lexical
from splade_nb.data import tokenizer as tokens
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import SEED, read_json, root, write_json
from splade_nb.config.settings import Settings
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.encode import encode
from splade_nb.training.dataset import TrainingSetup, prepare
from splade_nb.evaluation.report import canvas, palette, write_svg
from splade_nb.config.files import revision
from splade_nb.model.prune_vocabulary import cut_tokenizer
from splade_nb.data.tokenizer import remembered
from splade_nb.training.trainer import train
from splade_nb.evaluation.compare import markdown_table, percent, write_labels
import baselines
from revisions import told
from start import HERE, Judged
from train import without_held_out
sys.path.append(str(HERE.parent/'benchmarks'))
from measure import peak

PAGE, PLOT = (HERE.parent/'docs'/f'vocabulary.{kind}' for kind in ('md', 'svg'))
XLMR = 'xlm-roberta-base'
VOCABULARIES = {'xlmr': ('XLM-R', XLMR), 'xlmr-cut': ('XLM-R cut', XLMR), 'ax': ('A.X', 'ax-encoder-base'),
                **{f'own-{size}k': (f'own, {size}k', 1000 * size) for size in (8, 16, 32)}}  # name -> (for readers, folder of the tokenizer or tokens to learn)
SEGMENTS = {'none': 'texts', 'kiwi': 'morphemes'}
COMMON = dict(max_length=128, validations=0, weight_averaging=(0.0,), checkpoint_epochs=25)
SAMPLE = 50  # documents of each collection, encoded with all tokens


# One vocabulary

class Morphemes:
    "What Kiwi says of texts, kept in a file for `remembered`: every vocabulary sees the same, and Kiwi is no part of its time and memory."
    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.kept = sqlite3.connect(path)
        self.kept.execute('create table if not exists words (text text primary key, morphemes text)')

    def found(self, text: str): return self.kept.execute('select morphemes from words where text = ?', (text,)).fetchone()

    def __contains__(self, text: str) -> bool: return self.found(text) is not None

    def __getitem__(self, text: str) -> list: return json.loads(self.found(text)[0])

    def update(self, pairs) -> None:
        with self.kept: self.kept.executemany('insert into words values (?, ?)', ((text, json.dumps(words)) for text, words in pairs))


def reading(path: Path, work, *arguments):
    "What a function returns while Kiwi's file is at hand."
    with remembered(Morphemes(path)): return work(*arguments)


def packed(values) -> str: return ' '.join(f'{value:.4g}' for value in values)  # a line of JSON for a column of numbers


def unpacked(text: str) -> np.ndarray: return np.array(text.split(), dtype=float)


def some_texts(parts: list) -> list: return [text for part in parts for text in part.texts[::max(1, len(part.texts) // SAMPLE)][:SAMPLE]]


def apart(morphemes: Path, work, *arguments):
    "What a function returns that runs in a fresh process: its memory is no part of ours."
    with ProcessPoolExecutor(1, get_context('spawn')) as fresh: return fresh.submit(reading, morphemes, work, *arguments).result()


def cut(source: Path, texts: list, out: Path, segment: str) -> None: cut_tokenizer(source, texts, out, segment=segment)


def settings_for(name: str, segment: str, options, collection, folder: Path) -> Settings:
    "The control at mini scale on a vocabulary; one that is cut sees documents and training queries, as one that is learned does."
    source, common = VOCABULARIES[name][1], dict(COMMON, segment=segment, steps=options.steps)
    if isinstance(source, int): return resolve_quietly('splade_v2', vocabulary=source, **common)
    texts = [*collection.texts.values(), *(query.text for query in collection.split('train').values())]
    if name == 'xlmr-cut': apart(options.morphemes, cut, options.tokenizers/source, texts, folder/name, segment)
    return resolve_quietly('splade_v2', vocabulary=0, backbone=str(folder/name if name == 'xlmr-cut' else options.tokenizers/source), **common)


def evaluate_queries(setup: TrainingSetup, parts: list) -> tuple:  # nDCG@10 by collection, query vectors
    "Documents are encoded in the tokens that some query holds: a dot product reads no others."
    model, tokenizer, found, asked = setup.model, setup.training_data.tokenizer, {}, []
    for part in parts:
        asked.append(encode(model, tokenizer, list(part.queries.values()), document=False))
        found[part.name] = packed(part.measure(asked[-1] @ encode(model, tokenizer, part.texts, keep=np.unique(asked[-1].indices), whole=True).T))
    return found, sparse.vstack(asked)


def split_of(setup: TrainingSetup, parts: list) -> dict:
    "How a vocabulary splits the corpora, and the queries that nobody trained on."
    training_data, unknown = setup.training_data, setup.training_data.tokenizer.backend.unk_token_id
    asked = training_data.tokenizer.ids([text for part in parts for text in part.queries.values()])
    share = lambda rows: sum(row.count(unknown) for row in rows) / sum(map(len, rows))
    words = sum(len(text.split()) for part in parts for text in part.texts)
    return dict(pieces=len(training_data.tokenizer), seen=int((training_data.frequencies.counts > 0).sum()), document=statistics.mean(map(len, training_data.documents)),
                word=sum(map(len, training_data.documents)) / words, unknown=dict(documents=share(training_data.documents), queries=share(asked)))


def learned(setup: TrainingSetup, folder: Path, seed: int) -> dict:
    "Training with its time, and the resident memory at its peak."
    began, runs = time.process_time(), []
    most = peak(lambda: runs.append(train(setup.model, setup.training_data, setup.settings, folder, seed=seed, rollbacks=0)), base=0)
    return dict(steps=runs[0].step, stopped=runs[0].stopped, peak=most, training=time.process_time() - began)


def described(setup: TrainingSetup, asked, texts: list) -> dict:
    "Sparsity and language of queries and of some documents, with the speed of encoding these."
    began = time.process_time()
    documents = encode(setup.model, setup.training_data.tokenizer, texts)
    speed, korean = len(texts) / (time.process_time() - began), evaluation.korean_share(documents, setup.masks['korean'], setup.masks['neutral'])
    return dict(speed=speed, terms=dict(query=evaluation.active_terms(asked), doc=evaluation.active_terms(documents)), dead=evaluation.dead_rows(sparse.vstack([asked, documents])),
                korean=korean['count_share']['mean'], noise=korean['noise']['mean'])


def measured(name: str, segment: str, seed: int, options) -> dict:
    "One vocabulary from its texts to its ranking; in a process of its own, whose memory is its own."
    parts, collection = [Judged(source) for source in options.collections], without_held_out(options.collections)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place); settings = settings_for(name, segment, options, collection, folder)
        began = time.process_time()
        setup = prepare(settings, collection, seed, folder/'cache')
        preparation, (start, _) = time.process_time() - began, evaluate_queries(setup, parts)
        training = learned(setup, folder/'run', seed)
        found, asked = evaluate_queries(setup, parts)
    return dict(vocabulary=name, segment=segment, seed=seed, revision=revision(), date=date.today().isoformat(), threads=torch.get_num_threads(), hidden=settings.hidden, layers=settings.layers, batch=settings.batch_size,
                length=settings.max_length, parameters=sum(value.numel() for value in setup.model.parameters()), preparation=preparation, **training, **split_of(setup, parts),
                **described(setup, asked, some_texts(parts)), start=start, found=found)


def baseline(options) -> dict:
    "BM25 over morphemes on the same queries, and how fast Kiwi reads."
    parts = [Judged(source) for source in options.collections]
    texts = some_texts(parts); tokens.analysed(texts[:1]); began = time.process_time(); tokens.analysed(texts)
    return dict(command=f'python experiments/vocabulary.py {" ".join(part.name for part in parts)} --tokenizers FOLDER --steps {options.steps}', kiwi=len(texts) / (time.process_time() - began),
                found={part.name: packed(part.measure(lexical.BM25(part.collection.texts).run(part.queries))) for part in parts})


def once(path: Path, options, work, *arguments) -> None:
    "A result that is not there yet, made in a fresh process."
    if path.exists(): print(f'{path.name}: kept', flush=True); return
    write_json(path, apart(options.morphemes, work, *arguments, options))
    print(f'{path.name}: done', flush=True)


# The page

TEXT = """# Which vocabulary

Written by `experiments/vocabulary.py` from its results. `{command}`: the control `splade_v2` at mini scale (hidden size {hidden}, {layers} layers, texts of {length} tokens a window) from the near-identity start,
{steps} steps of {batch} pairs on the training queries of all collections but a held-out fifth, which judges; no test query. Same data, loss, steps and seed in every row; only the vocabulary differs.
XLM-R's and A.X's tokenizers are the published ones, without their weights. XLM-R cut: the same tokenizer cut by `splade_nb.model.prune_vocabulary` to what documents and training queries hold. Own: Unigram learned from the same texts.
Morphemes: Kiwi's content morphemes are the words that the tokenizer sees. Measured: {done} of {planned} pairs of vocabulary and words.

## Quality

nDCG@10 in percent, brackets: 95 % interval of the paired difference to BM25 over Kiwi morphemes (bootstrap over queries); ▲ above, ▼ below: p of the paired t-test, corrected by Holm over the table, is below 0.05. BM25 + bigrams: with [a second field of character pairs](../nbs/1_data/07_bm25.ipynb), nothing trained. Terms a document: the model's of a sample, BM25's of all; the size of an index was not kept. Of {revisions}. All: {queries:,} queries together; the last column is the paired difference to XLM-R's whole vocabulary on the same words.

{quality}

![Quality and memory by the number of tokens](vocabulary.svg)

## Sparsity

Seen: tokens that stand in a document. A word: between spaces. Unknown: share of tokens, in documents and in the held-out queries. Terms, language and texts without a term: the held-out queries and {sample} documents of each collection.

{sparsity}

## Cost

{threads} thread of a CPU; times are the process's own, which other work on the machine disturbs less than the wall clock. Memory: the process's resident peak in training. Preparation: splitting, learning a vocabulary, the start's directions. Encoding: documents a second with all tokens; where morphemes are words, Kiwi's {kiwi:.0f} documents a second come before.

{cost}
"""


def gained(one, other) -> str: return percent(evaluation.paired_difference(one, other), '+')


@dataclass(frozen=True)
class Results:
    "What was measured, in the order of the vocabularies."
    rows: list
    bm25: dict

    def label(self, row: dict) -> dict:
        seed = {'seed': str(row['seed'])} if len({row['seed'] for row in self.rows}) > 1 else {}
        return {'vocabulary': VOCABULARIES[row['vocabulary']][0], 'tokens': f'{row["pieces"]:,}', 'words': SEGMENTS[row['segment']], **seed}

    def all(self, found: dict) -> np.ndarray: return np.concatenate([unpacked(found[name]) for name in self.bm25['found']])

    def over_whole(self, row: dict) -> str:
        whole = [other for other in self.rows if other['vocabulary'] == 'xlmr' and other['segment'] == row['segment'] and other['seed'] == row['seed']]
        return gained(self.all(row['found']), self.all(whole[0]['found'])) if whole and row['vocabulary'] != 'xlmr' else ''


def read_results(folder: Path) -> Results:
    order = list(itertools.product(VOCABULARIES, SEGMENTS))
    rows = [read_json(path) for path in folder.glob('vocabulary-*-*-*.json')]
    return Results(sorted(rows, key=lambda row: (order.index((row['vocabulary'], row['segment'])), row['seed'])), read_json(folder/'vocabulary-bm25.json') if rows else {})


def words_rows(results: Results, seed: dict) -> list:
    "Both BM25; the bigram field's of `experiments/baselines.py`."
    found, known = results.bm25['found'], baselines.known()
    of = lambda name, system: known[name]['splits']['dev'][system]['ndcg@10']['mean']
    terms = lambda system: f'{np.mean([known[name]["index"][system]["terms"] for name in found]):.0f}'
    empty = {'vocabulary': 'BM25', 'tokens': '', 'words': SEGMENTS['kiwi'], **seed}
    rest = {'all, untrained': '', 'over BM25': '', 'over XLM-R': ''}
    known_all = all('dev' in known.get(name, {}).get('splits', {}) for name in found)
    first = {**empty, **{name: percent(unpacked(values).mean()) for name, values in found.items()}, **rest, 'all': percent(results.all(found).mean())}
    if not known_all: return [first]
    sizes = [len(unpacked(values)) for values in found.values()]
    whole = np.average([of(name, 'bm25_bigrams') for name in found], weights=sizes)
    second = {**empty, 'vocabulary': 'BM25 + bigrams', **{name: percent(of(name, 'bm25_bigrams')) for name in found}, **rest, 'all': percent(whole)}
    return [first | {'terms a document': terms('bm25')}, second | {'terms a document': terms('bm25_bigrams')}]


def quality(results: Results) -> pd.DataFrame:
    bm25 = results.bm25['found']
    seed = {'seed': ''} if 'seed' in results.label(results.rows[0]) else {}
    of = lambda values, base: f'{percent(values.mean())} {gained(values, base).split(" ", 1)[1]}'
    differences = [evaluation.paired_difference(results.all(row['found']), results.all(bm25)) for row in results.rows]
    rows = [{**results.label(row), **{name: of(unpacked(row['found'][name]), unpacked(bm25[name])) for name in bm25},
             'all, untrained': percent(results.all(row['start']).mean()), 'all': percent(results.all(row['found']).mean()),
             'over BM25': f'{percent(found, "+")} {sign}', 'over XLM-R': results.over_whole(row), 'terms a document': f'{row["terms"]["doc"]:.0f}'}
            for row, found, sign in zip(results.rows, differences, evaluation.marked(differences))]
    columns = [*rows[0]]
    return pd.DataFrame([*words_rows(results, seed), *rows], columns=columns)


def sparsity(results: Results) -> pd.DataFrame:
    return pd.DataFrame([{**results.label(row), 'seen': f'{row["seen"]:,} ({row["seen"] / row["pieces"]:.0%})', 'tokens a document': f'{row["document"]:.1f}', 'a word': f'{row["word"]:.2f}',
                          'unknown': ' / '.join(f'{share:.3%}' for share in row['unknown'].values()), 'terms': f'{row["terms"]["query"]:.0f} / {row["terms"]["doc"]:.0f}',
                          'Korean': f'{row["korean"]:.0%}', 'of other languages': f'{row["noise"]:.1%}', 'texts without a term': f'{row["dead"]:.1%}'} for row in results.rows])


def cost(results: Results) -> pd.DataFrame:
    return pd.DataFrame([{**results.label(row), 'parameters': f'{row["parameters"] / 1e6:.1f} M', 'memory': f'{row["peak"] / 1e9:.2f} GB', 'a step': f'{row["training"] / row["steps"]:.2f} s', 'training': f'{row["training"] / 60:.1f} min' + ', stopped' * bool(row['stopped']),
                          'preparation': f'{row["preparation"]:.0f} s', 'encoding': f'{row["speed"]:.1f}/s'} for row in results.rows])


def page(results: Results | None = None) -> str:
    results = results or read_results(HERE/'results')
    if not results.rows: return '# Which vocabulary\n\nNot run yet: `python experiments/vocabulary.py`.\n'
    common = {name: ' or '.join(sorted({str(row[name]) for row in results.rows})) for name in ('hidden', 'layers', 'length', 'steps', 'batch', 'threads')}
    return TEXT.format(**common, revisions=told((HERE/'results').glob('vocabulary-*-*-*.json')), done=len({(row['vocabulary'], row['segment']) for row in results.rows}), planned=len(VOCABULARIES) * len(SEGMENTS), command=results.bm25['command'], kiwi=results.bm25['kiwi'], queries=len(results.all(results.bm25['found'])), sample=SAMPLE,
                       **{table.__name__: markdown_table(table(results)) for table in (quality, sparsity, cost)})


def draw(results: Results, path: Path) -> None:
    "Quality and memory by the number of tokens."
    panels = {'nDCG@10 of all held-out queries': lambda row: results.all(row['found']).mean(), 'resident peak in training, GB': lambda row: row['peak'] / 1e9}
    figure, axes = canvas(1, 2, height=4)
    axes[0].axhline(results.all(results.bm25['found']).mean(), color=palette['orange'], linestyle='--', label='BM25')
    known, found = baselines.known(), results.bm25['found']
    if all('dev' in known.get(name, {}).get('splits', {}) for name in found):
        values = [known[name]['splits']['dev']['bm25_bigrams']['ndcg@10']['mean'] for name in found]
        mean = np.average(values, weights=[len(unpacked(one)) for one in found.values()])
        axes[0].axhline(mean, color='#8A5A00', linestyle=':', label='BM25 + bigrams')
    for axis, (said, value) in zip(axes, panels.items()):
        points = {(row['vocabulary'], row['segment'], row['seed']): (row['pieces'], value(row)) for row in results.rows}
        for segment, colour in zip(SEGMENTS, (palette['red'], palette['blue'])):
            axis.plot(*np.array([point for (_, words, _), point in points.items() if words == segment]).reshape(-1, 2).T, 'o', color=colour, markersize=5, label=SEGMENTS[segment])
        axis.set_xscale('log'); axis.set_xlabel('tokenizer'); axis.set_title(said); axis.xaxis.set_major_formatter('{x:,.0f}'); axis.margins(0.12)
        named = {VOCABULARIES[name][0]: point for (name, *_), point in points.items()}
        write_labels(axis, np.array(list(named.values())), list(named), np.array(list(points.values())))
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=4)
    write_svg(figure, path)


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='*', metavar='COLLECTION', help='with a train split')
    reader.add_argument('--tokenizers', type=Path, default=Path('tokenizers'), help=f'holds {XLMR} and ax-encoder-base')
    reader.add_argument('--only', nargs='+', action='extend', choices=VOCABULARIES, default=list(VOCABULARIES),
                        metavar='NAME', help=', '.join(VOCABULARIES))
    reader.add_argument('--segments', nargs='+', action='extend', choices=SEGMENTS, default=list(SEGMENTS))
    reader.add_argument('--seeds', type=int, nargs='+', action='extend', default=[SEED])
    reader.add_argument('--steps', type=int, default=60)
    reader.add_argument('--morphemes', type=Path, default=root()/'outputs'/'morphemes.sqlite', help='where what Kiwi read is kept')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    mode = reader.add_mutually_exclusive_group()
    mode.add_argument('--page', action='store_true', help='write the page and its picture')
    mode.add_argument('--check', action='store_true', help='whether the page is what the results say')
    options = reader.parse_args()
    if options.check: sys.exit(None if PAGE.read_text(encoding='utf-8') == page() else 'docs/vocabulary.md is not what the results say: run python experiments/vocabulary.py --page')
    options.results.mkdir(parents=True, exist_ok=True)
    if options.collections: once(options.results/'vocabulary-bm25.json', options, baseline)
    for seed, name, segment in itertools.product(options.seeds, options.only, options.segments) if options.collections else ():
        once(options.results/f'vocabulary-{name}-{segment}-{seed}.json', options, measured, name, segment, seed)
    if not options.page: return
    goal = PAGE.parent if options.results == HERE/'results' else options.results
    results = read_results(options.results)
    (goal/PAGE.name).write_text(page(results), encoding='utf-8')
    if results.rows: draw(results, goal/PLOT.name)


if __name__ == '__main__': main()

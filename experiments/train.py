"""Variants of a version on several collections' train splits together, judged on the fifth of their queries that none of them saw; on the test queries last.

    python experiments/train.py COLLECTION ... [--version splade_ko] [--seeds 42 ...] [--variant NAME [setting=value ...]] ... [--test COLLECTION ...]
"""
import functools, statistics, tempfile, time
from datetime import date
from pathlib import Path
import torch
from splade_nb.data import readers as data
from splade_nb.evaluation import metrics as evaluation
from splade_nb.data.records import resplit
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import no_repeats, write_json
from splade_nb.config.settings import Settings
from splade_nb.config.versions import resolve_quietly
from splade_nb.config.files import device
from splade_nb.training.dataset import TrainingSetup, prepare
from splade_nb.config.files import revision
from splade_nb.training.dataset import save_model_folder
from splade_nb.evaluation.retrieval import bm25_metrics, evaluate_queries
from splade_nb.cli import parse_setting, typed
from splade_nb.data.tokenizer import remembered
from splade_nb.training.trainer import average_with_initial, initial_weights, train
from start import HERE, held_out

LATER = {name: getattr(Settings, name) for name in (  # read by the training alone: variants in these share all that comes before it
    'steps', 'learning_rate', 'temperature', 'batch_size', 'accumulation', 'negatives', 'lambda_flops', 'document_share', 'flops_ramp', 'lambda_positive',
    'lambda_initialization', 'lambda_infonce', 'lambda_self', 'warmup_ratio', 'weight_decay', 'weight_averaging')}


def without_held_out(sources: list):  # Collection
    "The collections as one; the queries that judge are no training queries."
    joined = data.load(','.join(sources))
    return resplit(joined, {id: 'dev' for id in joined.split('train') if held_out(id)}, 'a fifth of the training queries is the development split')


@functools.cache
def questions(source: str, split: str) -> tuple:  # Collection, ids, BM25's metrics of each
    "Training queries that nobody learns from, test queries, or all."
    collection = data.load(source)
    ids = [id for id in collection.split('train') if held_out(f'{collection.name}/{id}')] if split == 'dev' else list(collection.split('test') if split == 'test' else collection.qrels)
    return collection, ids, bm25_metrics(collection, ids)


def judge(model, tokenizer, source: str, split: str) -> dict:
    "Retrieval on one collection beside BM25 over morphemes."
    collection, ids, bm25 = questions(source, split)
    found = evaluate_queries(model, tokenizer, collection, ids)
    rows, gains = found['per_query'], found['per_query']['ndcg@10'] - bm25['ndcg@10']
    print(f'{collection.name} {split}: {rows["ndcg@10"].mean():.4f}, BM25 {bm25["ndcg@10"].mean():.4f}', flush=True)
    return dict(collection=collection.name, split=split, queries=len(ids), metrics=evaluation.summarise(rows), bm25=evaluation.summarise(bm25),
                difference=evaluation.paired_difference(rows['ndcg@10'], bm25['ndcg@10']), terms=found['active_terms'], gains=' '.join(f'{gain:.3g}' for gain in gains))


class Bench:
    "What variants of one preparation and seed share."
    def __init__(self, options, seed: int):
        self.options, self.seed, self.made, self.collection = options, seed, {}, without_held_out(options.collections)

    def setup(self, settings: Settings) -> tuple:  # Prepared at its start, how the start ranks
        common = settings.but(**LATER)
        if common not in self.made:
            with tempfile.TemporaryDirectory() as folder: found = prepare(settings, self.collection, self.seed, folder)
            self.made = {common: (found, initial_weights(found.model), [judge(found.model, found.training_data.tokenizer, source, 'dev') for source in self.options.collections])}
        found, weights, start = self.made[common]
        average_with_initial(found.model, weights, weights, 1.0)
        found.model.settings = settings
        return TrainingSetup(settings, found.collection, found.training_data, found.model, found.masks, found.held), start

    def on_dev(self, tokenizer):  # what chooses the share of the start
        def mean(model):
            rows = [judge(model, tokenizer, source, 'dev') for source in self.options.collections]
            return dict(metrics={'ndcg@10': statistics.mean(row['metrics']['ndcg@10']['mean'] for row in rows)}, active_terms=rows[0]['terms'])
        return mean

    def settings(self, changes: dict) -> Settings:
        return resolve_quietly(self.options.version, **dict(validations=0, weight_averaging=(0.0,)) | changes)

    def asked_last(self) -> list:  # (collection, split)
        "Test queries; all queries of a collection that nothing is learned from."
        return [(source, 'test' if source in self.options.collections else 'all') for source in self.options.test]

    def untrained(self, name: str, changes: dict) -> dict:
        "Judge a variant as it starts."
        with tempfile.TemporaryDirectory() as folder:
            setup = prepare(self.settings(changes), self.collection, self.seed, folder)
        found = [judge(setup.model, setup.training_data.tokenizer, *each) for each in self.asked_last()]
        return dict(version=self.options.version, name=name, seed=self.seed, changes=changes, date=date.today().isoformat(),
                    revision=revision(), untrained=found)

    def run(self, name: str, changes: dict) -> dict:
        "Train a variant and judge it."
        settings = self.settings(changes)
        setup, start = self.setup(settings)
        model, tokenizer = setup.model, setup.training_data.tokenizer
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder: run = train(model, setup.training_data, settings, folder, self.on_dev(tokenizer) if len(settings.weight_averaging) > 1 else None, seed=self.seed, rollbacks=0)
        seconds = time.monotonic() - began
        if self.options.out: save_model_folder(setup, self.options.out/f'{name}-{self.seed}')
        asked = [(source, 'dev') for source in self.options.collections] + self.asked_last()
        found = [judge(model, tokenizer, *each) for each in asked]
        return dict(version=self.options.version, name=name, seed=self.seed, changes=changes, date=date.today().isoformat(), steps=run.step, stopped=run.stopped, shares=run.shares,
                    seconds=round(seconds), threads=torch.get_num_threads(), device=device(), revision=revision(), start=start, found=found)


@remembered({})
def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='+', metavar='COLLECTION', help='with a train split')
    reader.add_argument('--version', default='splade_ko')
    reader.add_argument('--seeds', type=int, nargs='+', action='extend', default=[42])
    reader.add_argument('--variant', nargs='+', action='append', metavar=('NAME', 'setting=value'))
    reader.add_argument('--test', nargs='*', action='extend', default=[], metavar='COLLECTION',
                        help='judge their test queries as well, last; all queries of a '
                             'collection that nothing is learned from')
    reader.add_argument('--untrained', action='store_true', help='judge variants on TEST as they start; no step')
    reader.add_argument('--out', type=Path, help='keep the models here')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    variants = no_repeats((name, no_repeats(map(parse_setting, changes), typed))
                          for name, *changes in options.variant or [['as-declared']])
    options.results.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        bench = Bench(options, seed)
        for name, changes in variants.items():
            kind, work = ('untrained', bench.untrained) if options.untrained else ('train', bench.run)
            kept = options.results/f'{kind}-{options.version}-{name}-{seed}.json'
            if kept.exists(): print(f'{kept.name} is there already'); continue
            print(f'{options.version}, {name}, seed {seed}', flush=True)
            write_json(kept, work(name, changes))


if __name__ == '__main__': main()

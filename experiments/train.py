"""One model of a version on several collections' train splits together, judged on the fifth of their queries that it never saw; on the test queries last.

    python experiments/train.py COLLECTION ... [--version splade_ko] [--seed 42] [--name NAME] [--set name=value ...] [--test COLLECTION ...]
"""
import argparse, tempfile, time
from datetime import date
from pathlib import Path
import torch
from splade_nb import data, evaluation
from splade_nb.collection import resplit
from splade_nb.config import resolve_quietly, write_json
from splade_nb.material import device, prepare
from splade_nb.run import bm25_metrics, keep_model, parse_setting, retrieve
from splade_nb.training import train
from start import HERE, held_out


def without_held_out(sources: list):  # Collection
    "The collections as one; the queries that judge are no training queries."
    joined = data.load(','.join(sources))
    return resplit(joined, {id: 'dev' for id in joined.split('train') if held_out(id)}, 'a fifth of the training queries is the development split')


def judge(model, pieces, source: str, split: str) -> dict:
    "Retrieval on one collection beside BM25 over morphemes."
    collection = data.load(source)
    if split == 'dev': ids = [id for id in collection.split('train') if held_out(f'{collection.name}/{id}')]
    else: ids = list(collection.split('test') if collection.split('train') else collection.qrels)
    run, asked, documents = retrieve(model, pieces, {id: collection.queries[id].text for id in ids}, collection.texts)
    found, bm25 = (rows.loc[ids] for rows in (evaluation.retrieval_metrics({id: collection.qrels[id] for id in ids}, run), bm25_metrics(collection, ids)))
    print(f'{collection.name} {split}: {found["ndcg@10"].mean():.4f}, BM25 {bm25["ndcg@10"].mean():.4f}', flush=True)
    return dict(collection=collection.name, split=split, queries=len(ids), metrics=evaluation.summarise(found), bm25=evaluation.summarise(bm25),
                difference=evaluation.paired_difference(found['ndcg@10'], bm25['ndcg@10']), terms=dict(query=evaluation.active_terms(asked), doc=evaluation.active_terms(documents)))


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument('collections', nargs='+', metavar='COLLECTION', help='with a train split')
    reader.add_argument('--version', default='splade_ko')
    reader.add_argument('--seed', type=int, default=42)
    reader.add_argument('--name', default='as-declared', help='of this variant, for the file')
    reader.add_argument('--set', nargs='*', default=[], metavar='name=value')
    reader.add_argument('--test', nargs='*', default=[], metavar='COLLECTION', help='judge these test queries as well: last, and once')
    reader.add_argument('--out', type=Path, help='keep the model here')
    reader.add_argument('--results', type=Path, default=HERE/'results')
    options = reader.parse_args()
    changes = dict(map(parse_setting, options.set))
    settings = resolve_quietly(options.version, validations=0, keep_start=(0.0,), **changes)
    options.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(settings, without_held_out(options.collections), options.seed, folder)
        model, pieces = prepared.model, prepared.material.pieces
        start = [judge(model, pieces, source, 'dev') for source in options.collections]
        began = time.monotonic()
        run = train(model, prepared.material, settings, Path(folder)/'run', None, seed=options.seed, rollbacks=0)
        seconds = time.monotonic() - began
        if options.out: keep_model(prepared, options.out)
        found = [judge(model, pieces, source, 'dev') for source in options.collections] + [judge(model, pieces, source, 'test') for source in options.test]
    write_json(options.results/f'train-{options.version}-{options.name}-{options.seed}.json', dict(
        version=options.version, name=options.name, seed=options.seed, changes=changes, date=date.today().isoformat(), steps=run.step, stopped=run.stopped, seconds=round(seconds),
        threads=torch.get_num_threads(), device=device(), start=start, found=found))


if __name__ == '__main__': main()

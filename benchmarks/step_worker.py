"""One side of `step_revision.py`: a whole training step each time a line asks for it; the package is the one on PYTHONPATH.

Reads what `step_revision.write_start` wrote, and prints a line of JSON for each step. It must run at earlier revisions too.
"""
import json, sys, time
from contextlib import ExitStack
import torch


def chosen(start: dict, changes: dict) -> range:
    "The pairs of the batch, at even distances."
    return range(0, len(start['data']['pairs']), len(start['data']['pairs']) // (changes['batch_size'] * changes['accumulation']))


def trainer_step(start: dict, changes: dict, stack: ExitStack):  # -> loss
    "`train_step` of V28 `corrected` at full scale."
    import splade_nb.training.objective as objective
    import splade_nb.training.trainer as trainer
    from splade_nb.config.versions import resolve_quietly
    from splade_nb.model.initialization import create
    from splade_nb.model.splade import accumulated_rows
    from splade_nb.training.dataset import TrainingData
    make_batch = getattr(objective, 'make_batch', None)  # has a module of its own since
    if make_batch is None: from splade_nb.training.batch import make_batch
    settings = resolve_quietly('v28', 'corrected', 'full', **start['settings'] | changes)
    data = TrainingData(None, **start['data'])
    model = create(settings, len(data.idf), torch.where(data.special)[0].tolist())
    torch.manual_seed(0)
    for weight in model.gate.parameters():  # the rest is the backbone's
        if weight.ndim > 1: torch.nn.init.normal_(weight, std=0.02)
    pairs = chosen(start, changes)
    trainer.batch_at = lambda step, steps, part, *rest: make_batch(pairs, data, settings, 0, (42, 0))
    run = trainer.Run(model.train(), data, settings, None, 42, 1_000, objective.optimizer_for(model, settings), torch.zeros_like(data.special))
    trainer.set_rate = lambda run: [group.update(lr=0.0) for group in run.optimizer.param_groups] and 0.0  # the loss stays
    stack.enter_context(accumulated_rows(model))
    def step():
        run.step = 500  # every part of the loss takes part
        return trainer.train_step(run)['loss']
    return step


def their_step(start: dict, changes: dict, stack: ExitStack):  # -> loss
    "sentence-transformers: `SpladeLoss` over `SparseMultipleNegativesRankingLoss` on the same texts."
    from step import theirs
    step = theirs(start['settings']['backbone'], stack)
    data = start['data']
    def rows(side, places):
        texts = [[0, *data[side][place], 2] for place in places]
        ids = torch.tensor([text + [1] * (max(map(len, texts)) - len(text)) for text in texts])
        return dict(input_ids=ids, attention_mask=(ids != 1).long())
    every = chosen(start, changes)
    sides = [rows('queries', every), rows('documents', every), rows('documents', [data['given'][row][0] for row in every])]
    return lambda: float(step(sides))


def main(kind: str, path: str, changes: str) -> None:
    start = torch.load(path, weights_only=False)
    with ExitStack() as stack:
        step = dict(trainer=trainer_step, theirs=their_step)[kind](start, json.loads(changes), stack)
        print(json.dumps('ready'), flush=True)
        for _ in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            loss = step()
            print(json.dumps(dict(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall, loss=loss)), flush=True)


if __name__ == '__main__': main(*sys.argv[1:])

"""What a run learns from stays in its place, and what it has learned is not lost."""
import json, os
from dataclasses import replace
import numpy as np
import pytest
import torch
import faults
from faults import saved_checkpoints, lines
from splade_nb.training import checkpoints
from splade_nb.training import dataset as training_data
from splade_nb.training import objective
from splade_nb.data import readers
from splade_nb.model.load import load_encoder
from splade_nb.evaluation import retrieval, validation
from splade_nb import experiment
from splade_nb import cli
from splade_nb.training import trainer as training
from splade_nb.training.checkpoints import CheckpointError
from splade_nb.config.files import read_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.load import load

TRUE_TOY = training_data.toy_training_data


def poor_training_data(vocabulary: int = 60) -> tuple: # training data, model
    "The toy with queries of every kind: no negative at hand, one, many, one document left that is wrong, and none."
    data, model = TRUE_TOY(vocabulary)
    for query in range(24):
        others = [d for d in range(12) if d != query // 2]
        data.given[query] = [[], others[:1], others][query % 3]
    data.relevant[0], data.relevant[3] = set(range(11)), set(range(12))
    data.given[0], data.given[3] = [], []
    return data, model


DIVIDED = {'whole': dict(batch_size=8),
           'cached': dict(batch_size=4, accumulation=2, gradient_cache=True),
           'plain': dict(batch_size=4, accumulation=2, gradient_cache=False)}


def settings_of(negatives: int, way: str) -> training.Settings:
    return faults.settings_of(dropout=0.0, lambda_margin=1.0, negatives=negatives, steps=6, **DIVIDED[way])


@pytest.mark.parametrize('negatives', (0, 1, 3))
def test_each_query_has_its_own_negatives(negatives):
    (data, _), settings = poor_training_data(), settings_of(negatives, 'whole')
    queries = list(range(24))
    rows = objective.make_batch(queries, data, settings, 0, (42, 0))
    assert len(rows['documents']) == len(rows['document']['input_ids']) == 24 * (1 + negatives)
    assert rows['queries'] == queries
    for place, query in enumerate(queries):
        own = rows['documents'][24 + place * negatives:24 + (place + 1) * negatives]
        wrong = set(data.given[query]) or set(range(12)) - data.relevant[query] or data.relevant[query]
        assert set(own) <= wrong and rows['documents'][place] == query // 2
        filled = rows['same'][place, 24 + place * negatives:24 + (place + 1) * negatives]
        assert filled.tolist() == [query == 3] * negatives, 'a place that a right answer fills is marked'


def test_the_margin_counts_real_negatives_alone():
    (data, model), settings = poor_training_data(), settings_of(2, 'whole')
    rows = objective.make_batch(range(8), data, settings, 0, (42, 0))
    out = objective.encoded(model.eval(), rows, settings)
    scores, place = objective.batch_scores(out, data, settings), {}
    wanted = [settings.margin - scores[q, q] + scores[q, 8 + 2 * q + n] for q in range(8) if q != 3 for n in range(2)]
    found = objective.contrastive_terms(scores, out['same'], settings.phases[0], settings)['margin']
    torch.testing.assert_close(found, torch.stack(wanted).relu().mean())
    only = objective.make_batch([3, 3], data, settings, 0, (42, 0))
    terms = objective.contrastive_terms(scores[:2, :6], only['same'], settings.phases[0], settings)
    assert 'margin' not in terms and torch.isfinite(terms['infonce']), 'no wrong document, no margin'


def gradient(way: str, process_group=objective.ProcessGroup()) -> torch.Tensor:
    "Of the first step of a run on poor queries, all of its batches."
    training_data.fix_seeds(42)
    (data, model), settings = poor_training_data(), settings_of(2, way)
    each = objective.contrastive_batches(settings)[0]
    for part in range(each):
        rows = objective.batch_at(0, 6, part, data, settings, 42)
        objective.backward(model.eval(), rows, 0, 6, data, settings, None, process_group, part == each - 1)
    return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])


def test_a_cached_step_on_poor_queries_is_the_whole_step():
    torch.testing.assert_close(gradient('cached'), gradient('whole'), atol=1e-5, rtol=1e-4)


def one_of_two(folder, way: str) -> None:
    torch.set_num_threads(1)
    found = gradient(way, group := experiment._processes())
    torch.save(found, folder/f'{way}-{group.rank}.pt')


@pytest.mark.slow
@pytest.mark.parametrize('way', DIVIDED)
def test_two_processes_share_a_step_on_poor_queries(way, tmp_path):
    assert faults.in_processes(2, one_of_two, tmp_path, way) == [0, 0]
    alone = gradient(way)
    for rank in (0, 1): torch.testing.assert_close(torch.load(tmp_path/f'{way}-{rank}.pt'), alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('way', DIVIDED)
def test_a_run_on_poor_queries_ends(way, tmp_path):
    data, model = poor_training_data()
    done = training.train(model, data, settings_of(2, way), tmp_path, quiet=True)
    rows = lines(tmp_path/'metrics.jsonl')
    assert done.step == 6 == len(rows) and all(np.isfinite(row['loss']) for row in rows)


# What was learned

def stopping(folder, scores: list, monkeypatch=None, refused=(), **options) -> training.Run:
    "A toy run that ends early on these scores of its validations, one at every second step."
    remaining, keep = iter(scores), checkpoints.save_checkpoint
    def refusing(place, model, optimizer, state, *rest):
        if state['step'] in refused: raise CheckpointError(f'step-{state["step"]}: could not be written: no space left')
        return keep(place, model, optimizer, state, *rest)
    if refused: monkeypatch.setattr(training, 'save_checkpoint', refusing)
    training_data.fix_seeds(42)
    early = dict(steps=12, validations=6, early_stopping=3, weight_averaging=(0.0,), checkpoint_epochs=99)
    settings = faults.settings_of(**early | dict(keep_checkpoints=1) | options)
    data, model = TRUE_TOY()
    validator = lambda model: {'metrics': {'ndcg@10': next(remaining)}, 'active_terms': {}}
    return training.train(model, data, settings, folder, validator, quiet=True)


def flat(model) -> torch.Tensor: return torch.cat([value.detach().flatten() for value in model.parameters()])


def weights(found: training.Run) -> torch.Tensor: return flat(found.model)


def stored(path) -> torch.Tensor:
    _, model = TRUE_TOY()
    checkpoints.load_checkpoint(path, model, objective.optimizer_for(model, faults.settings_of()))
    return flat(model)


SCORES = [0.1, 0.7, 0.9, 0.8, 0.6, 0.5, 0.4]  # of steps 0, 2, 4, 6, 8, 10


def test_the_best_of_those_that_were_written_is_taken(tmp_path, monkeypatch):
    found = stopping(tmp_path, SCORES, monkeypatch, refused=(4,))
    assert found.stopped and found.best['step'] == 4
    assert torch.equal(weights(found), stored(tmp_path/'checkpoints'/'best'))
    disk, best = [event for event in lines(tmp_path/'guard.jsonl') if event['name'] in ('disk', 'best')]
    assert disk['step'] == 4 and 'best validation so far' in disk['message']
    assert best['value'] == 2 and 'weights of step 2' in best['message']
    assert os.readlink(tmp_path/'checkpoints'/'best') == 'step-2'


def test_without_any_checkpoint_the_trained_weights_stay(tmp_path, monkeypatch):
    found = stopping(tmp_path, SCORES, monkeypatch, refused=range(13))
    assert found.step == 10 and not saved_checkpoints(tmp_path) and 'weights of step 10' in found.events[-1]['message']
    monkeypatch.undo()
    whole = stopping(tmp_path/'whole', SCORES)
    assert torch.equal(weights(found), stored(tmp_path/'whole'/'checkpoints'/'step-10'))
    assert torch.equal(weights(whole), stored(tmp_path/'whole'/'checkpoints'/'step-4'))


def test_a_resumed_run_whose_best_is_broken_takes_the_next(tmp_path):
    first = stopping(tmp_path, SCORES, keep_checkpoints=9)
    assert first.stopped
    (tmp_path/'checkpoints'/'step-4'/'model.safetensors').write_bytes(b'')
    data, model = TRUE_TOY()
    again = training.train(model, data, first.settings, tmp_path, quiet=True, resume=True)
    assert again.step == 10 and again.events[-1]['name'] == 'best' and again.events[-1]['value'] == 2
    assert torch.equal(weights(again), stored(tmp_path/'checkpoints'/'step-2'))


def test_the_guard_goes_back_past_a_broken_checkpoint(tmp_path):
    data, model = TRUE_TOY()
    settings = faults.settings_of(steps=12, keep_checkpoints=9)
    found = training.train(model, data, settings, tmp_path, quiet=True, max_steps=6, save_every=2)
    before, last = saved_checkpoints(tmp_path)[-2:]
    (last/'model.safetensors').write_bytes(b'')
    training.roll_back(found, dict(name='not_finite', message='not finite', level='fatal'), dict(step=6, parts={}))
    assert last.name == 'step-6' and found.step == checkpoints.step_of(before)
    assert not found.stopped and found.rollbacks == 1 and found.events[-1]['level'] == 'rollback'
    assert any(event['name'] == 'disk' and 'step-6' in event['message'] for event in found.events)


def test_the_best_checkpoint_is_the_model_that_was_validated(tmp_path, capsys):
    settings = resolve_quietly('splade_ko', scale='mini', steps=12, hidden=64, layers=1, vocabulary=300, batch_size=8,
                               validations=6, weight_averaging=[0.0], learning_rate=0.01)
    setup = training_data.prepare(settings, readers.load_collection('toy'), 42)
    setup = replace(setup, dev_queries=set(list(setup.collection.split('train'))[:8]))
    training.train(setup.model, setup.training_data, settings, tmp_path, validation.make_validator(setup), quiet=True)
    best, history = tmp_path/'checkpoints'/'best', read_json(tmp_path/'training_history.json')
    state = read_json(best/'state.json')
    recorded = [{name: row[name] for name in ('metrics', 'active_terms')} for row in history]
    wanted, = [row for row, found in zip(history, recorded) if row['step'] == state['best']['step'] == state['step']]
    model, tokenizer = load_encoder(best)
    found = retrieval.evaluate_queries(model, tokenizer, setup.collection, sorted(setup.dev_queries))
    assert {name: found[name] for name in recorded[0]} == {name: wanted[name] for name in recorded[0]}
    assert found['metrics']['ndcg@10'] == state['best']['ndcg@10']
    assert recorded.count(recorded[-1]) < len(recorded), 'other weights give other numbers'
    assert cli.main(['evaluate', '--model', str(best), '--data', 'toy']) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    whole = retrieval.evaluate_queries(model, tokenizer, setup.collection, list(setup.collection.split('test')))
    assert printed['ndcg@10'] == whole['metrics']['ndcg@10'] and torch.equal(flat(load(best)), flat(model))


def test_a_model_is_written_before_anything_that_can_fail(tmp_path, monkeypatch):
    def fails(*arguments): raise RuntimeError('out of memory')
    monkeypatch.setattr(experiment, 'keep_samples', fails)
    monkeypatch.setattr(experiment, 'require_acting_settings', lambda *arguments: ())
    with pytest.raises(RuntimeError, match='out of memory'):
        small = dict(steps=2, hidden=64, layers=1, vocabulary=300, batch_size=8)
        experiment.run_version('v28', scale='mini', source='toy', out=str(tmp_path), settings=small)
    assert len(load_encoder(tmp_path)[1]) > 5

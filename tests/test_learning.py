"""What a run learns from stays in its place, and what it has learned is not lost."""
import itertools, json, os
from dataclasses import replace
from types import SimpleNamespace
import numpy as np
import pytest
import torch
import faults
from faults import saved_checkpoints, lines
from splade_nb.training import checkpoints
from splade_nb.training import dataset as training_data
from splade_nb.config import stages
from splade_nb.config.processes import ProcessGroup
from splade_nb.training import batch, losses, memory, objective
from splade_nb.data import readers
from splade_nb.data.records import toy_corpus
from splade_nb.model.load import load_encoder
from splade_nb.evaluation import retrieval, validation
from splade_nb import experiment
from splade_nb import cli
from splade_nb.training import trainer as training
from splade_nb.training.checkpoints import CheckpointError
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.load import load
from splade_nb.model.splade import MASKED_LOGIT

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
    rows = batch.make_batch(queries, data, settings, 0, (42, 0))
    assert len(rows['documents']) == len(rows['document']['input_ids']) == 24 * (1 + negatives)
    assert rows['queries'] == queries
    for place, query in enumerate(queries):
        own = rows['documents'][24 + place * negatives:24 + (place + 1) * negatives]
        wrong = set(data.given[query]) or set(range(12)) - data.relevant[query] or data.relevant[query]
        assert set(own) <= wrong and rows['documents'][place] == query // 2
        filled = rows['same'][place, 24 + place * negatives:24 + (place + 1) * negatives]
        assert filled.tolist() == [query == 3] * negatives, 'a place that a right answer fills is marked'


def test_no_negative_of_a_query_is_drawn_twice_where_there_are_enough():
    data, queries = TRUE_TOY()[0], list(range(24)) * 20
    data.given = [[d for d in range(12) if d != query // 2][:2 + query % 9] for query in range(24)]
    rows = np.reshape(batch._draw_negatives(queries, data, settings_of(5, 'whole'), 0, (42, 0)), (-1, 5))
    assert all(len(set(row)) == 5 for query, row in zip(queries, rows) if len(data.given[query]) >= 5)
    assert all(set(row) <= set(data.given[query]) for query, row in zip(queries, rows))


def test_a_single_negative_is_drawn_as_in_published_runs():
    data, rng = TRUE_TOY()[0], np.random.default_rng((42, 0))
    data.given = [[d for d in range(12) if d != query // 2] for query in range(24)]
    wanted = [data.given[query][rng.integers(11, size=1)[0]] for query in range(24)]
    assert batch._draw_negatives(range(24), data, settings_of(1, 'whole'), 0, (42, 0)) == wanted


def test_the_margin_counts_real_negatives_alone():
    (data, model), settings = poor_training_data(), settings_of(2, 'whole')
    rows = batch.make_batch(range(8), data, settings, 0, (42, 0))
    out = objective.encoded(model.eval(), rows, settings)
    scores, place = objective.batch_scores(out, data, settings), {}
    wanted = [settings.margin - scores[q, q] + scores[q, 8 + 2 * q + n] for q in range(8) if q != 3 for n in range(2)]
    found = objective.contrastive_terms(scores, out['same'], settings.phases[0], settings)['margin']
    torch.testing.assert_close(found, torch.stack(wanted).relu().mean())
    only = batch.make_batch([3, 3], data, settings, 0, (42, 0))
    terms = objective.contrastive_terms(scores[:2, :6], only['same'], settings.phases[0], settings)
    assert 'margin' not in terms and torch.isfinite(terms['infonce']), 'no wrong document, no margin'


def gradient(way: str, process_group=ProcessGroup()) -> torch.Tensor:
    "Of the first step of a run on poor queries, all of its batches."
    training_data.fix_seeds(42)
    (data, model), settings = poor_training_data(), settings_of(2, way)
    each, passes = batch.contrastive_batches(settings)[0], settings.accumulation if settings.gradient_cache else 1
    for part in range(each):
        rows = batch.batch_at(0, 6, part, data, settings, 42)
        memory.backward(model.eval(), rows, 0, 6, data, settings, None, process_group, part == each - 1, passes=passes)
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


def test_a_run_without_pairs_says_so(tmp_path):
    data, model = TRUE_TOY()
    empty = replace(data, pairs=np.zeros((0, 2), int), keys=[])
    for steps in (0, 4):
        with pytest.raises(ConfigError, match='found 0 pairs'):
            training.train(model, empty, faults.settings_of(steps=steps), tmp_path, quiet=True)


@pytest.mark.parametrize('version', ('v28', 'splade_ko'))
def test_data_without_a_training_query_are_refused_before_any_work(version, tmp_path, monkeypatch):
    found = toy_corpus()
    others = {id: query for id, query in found.queries.items() if query.split != 'train'}
    monkeypatch.setattr(experiment, 'load_collection', lambda source: replace(found, queries=others, context_pairs=[], triplets=[]))
    with pytest.raises(ConfigError, match='no training query'): experiment.begin_run(version, 'corrected', 'mini', 'mine', 42, str(tmp_path), '')


def test_tokens_that_cannot_be_active_cost_nothing():
    "Without a decoder most tokens of a query cannot be active in its document, whatever the weights; also under a gate."
    torch.manual_seed(0)
    logits, tokens, idf = torch.randn(3, 8), torch.rand(3, 8) > 0.4, torch.rand(8) + 0.1
    tokens[:, 0] = True
    missing = torch.zeros_like(tokens)
    missing[:, 1:4] = True
    found = [losses.expansion(logits.masked_fill(missing, value), tokens, idf, others=0.0) for value in (MASKED_LOGIT, 0.3 * MASKED_LOGIT)]
    torch.testing.assert_close(found, [losses.expansion(logits, tokens & ~missing, idf, others=0.0)] * 2)
    assert torch.isfinite(losses.expansion(torch.full((3, 8), MASKED_LOGIT), tokens, idf))


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


@pytest.mark.parametrize('another', ('the same model', 'a new process'))
def test_a_resumed_run_averages_with_the_weights_that_it_began_with(another, tmp_path):
    settings = faults.settings_of(steps=6, learning_rate=0.01, weight_averaging=(0.5,))
    def trained(folder, pair, **options): return weights(training.train(*pair[::-1], settings, folder, quiet=True, **options))
    whole, pair = trained(tmp_path/'whole', TRUE_TOY()), TRUE_TOY()
    trained(tmp_path/'run', pair, max_steps=3)
    assert torch.equal(trained(tmp_path/'run', pair if 'same' in another else TRUE_TOY(), resume=True), whole)
    assert torch.equal(trained(tmp_path/'run', pair, resume=True), whole), 'averaged once, though it was ended before'


def test_initial_weights_are_kept_once_and_only_where_they_are_needed(tmp_path):
    data, model = TRUE_TOY()
    initial = tmp_path/'checkpoints'/checkpoints.INITIAL
    training.train(model, data, faults.settings_of(steps=2, weight_averaging=(0.0,)), tmp_path, quiet=True)
    assert not initial.exists()
    settings = faults.settings_of(steps=4, weight_averaging=(0.0, 0.5))
    training.train(model, data, settings, tmp_path, quiet=True, max_steps=2)
    initial.write_bytes(initial.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match='initial.safetensors: cannot be read'): training.train(model, data, settings, tmp_path, quiet=True, resume=True)
    initial.unlink()  # as a run of an earlier version
    assert training.train(model, data, settings, tmp_path, quiet=True, resume=True).step == 4
    training.train(model, data, faults.settings_of(steps=2, weight_averaging=(0.0,)), tmp_path, quiet=True)
    assert not initial.exists(), 'a new run clears what the last one left'


def test_a_disk_that_refuses_the_initial_weights_stops_nothing(tmp_path, monkeypatch):
    def refuses(*arguments): raise CheckpointError('initial.safetensors: could not be written: no space left')
    monkeypatch.setattr(training, 'save_initial', refuses)
    data, model = TRUE_TOY()
    found = training.train(model, data, faults.settings_of(steps=2, weight_averaging=(0.5,)), tmp_path, quiet=True)
    assert found.step == 2 and [event['name'] for event in lines(tmp_path/'guard.jsonl')][0] == 'disk'


def test_where_a_call_ends_changes_neither_validations_nor_early_stopping(tmp_path):
    "Six steps into a schedule that validates after 4, 8 and 12 steps, the model happens to be worse than after 4."
    scores, settings = {0: 0.1, 4: 0.5, 6: 0.4, 8: 0.6, 12: 0.7}, faults.settings_of(steps=12, validations=3, early_stopping=1, weight_averaging=(0.0,))
    def trained(folder, *calls):
        for options in calls:
            data, model = TRUE_TOY()
            counted = iter(scores[step] for step in options.pop('at'))
            found = training.train(model, data, settings, folder, lambda model: {'metrics': {'ndcg@10': next(counted)}, 'active_terms': {}}, quiet=True, **options)
        return found
    whole = trained(tmp_path/'whole', dict(at=(0, 4, 8, 12)))
    halves = trained(tmp_path/'run', dict(at=(0, 4), max_steps=6), dict(at=(8, 12), resume=True))
    assert halves.step == whole.step == 12 and not halves.stopped and halves.history == whole.history


def test_the_best_of_those_that_were_written_is_taken(tmp_path, monkeypatch):
    found = stopping(tmp_path, SCORES, monkeypatch, refused=(4,))
    assert found.stopped and found.best['step'] == 4
    assert torch.equal(weights(found), stored(tmp_path/'checkpoints'/'best'))
    disk, best = [event for event in lines(tmp_path/'guard.jsonl') if event['name'] in ('disk', 'best')]
    assert disk['step'] == 4 and 'best validation so far' in disk['message']
    assert best['value'] == 2 and 'weights of step 2' in best['message']
    assert os.readlink(tmp_path/'checkpoints'/'best') == 'step-2'


def test_a_resume_without_a_checkpoint_says_that_it_begins(tmp_path, capsys):
    data, model = TRUE_TOY()
    training.train(model, data, model.settings.but(steps=1, batch_size=4, validations=0), tmp_path, resume=True, quiet=True)
    assert 'no checkpoint to go on from' in capsys.readouterr().err


def test_a_run_that_was_never_validated_keeps_its_last_weights(tmp_path):
    data, model = TRUE_TOY()
    settings = resolve_quietly('splade_v2', scale='mini', steps=4, batch_size=4, hidden=model.settings.hidden, take_best=True, validations=0)
    before = {name: value.clone() for name, value in model.named_parameters()}
    run = training.train(model, data, settings, tmp_path, lambda model: dict(metrics={'ndcg@10': 0.5}, active_terms={}), quiet=True)
    assert (run.step, run.model_step) == (4, None) and not all(value.equal(before[name]) for name, value in model.named_parameters())


def test_a_run_that_the_guard_stops_takes_its_best_validation_where_that_is_asked_for(tmp_path):
    settings, scores = faults.settings_of(steps=12, validations=6, learning_rate=1e6, weight_averaging=(0.5,)), iter(SCORES * 2)
    def stopped(take_best: bool) -> training.Run:
        data, model = TRUE_TOY()
        return training.train(model, data, settings.but(take_best=take_best), tmp_path/str(take_best),
                              lambda model: {'metrics': {'ndcg@10': next(scores)}, 'active_terms': {}}, quiet=True, rollbacks=0, patience=1)
    last, best = stopped(False), stopped(True)
    assert last.stopped == best.stopped and not last.stopped.startswith('early') and 0 < last.step < 12
    assert last.model_step is None and best.model_step == best.best['step'] < best.step
    assert torch.equal(weights(best), stored(tmp_path/'True/checkpoints'/f'step-{best.model_step}')), 'and no average'


def test_without_any_checkpoint_the_trained_weights_stay(tmp_path, monkeypatch):
    found = stopping(tmp_path, SCORES, monkeypatch, refused=range(13))
    assert found.step == 10 and not saved_checkpoints(tmp_path) and 'weights of step 10' in found.events[-1]['message']
    monkeypatch.undo()
    whole = stopping(tmp_path/'whole', SCORES)
    assert torch.equal(weights(found), stored(tmp_path/'whole'/'checkpoints'/'step-10'))
    assert torch.equal(weights(whole), stored(tmp_path/'whole'/'checkpoints'/'step-4'))


def test_where_no_best_validation_can_be_read_the_weights_are_of_the_last_step(tmp_path):
    data, model = TRUE_TOY()
    settings = faults.settings_of(steps=12, validations=6, keep_checkpoints=9)
    found = training.train(model, data, settings, tmp_path, lambda model: {'metrics': {'ndcg@10': 0.5}, 'active_terms': {}}, quiet=True, max_steps=5)
    for path in saved_checkpoints(tmp_path): (path/'model.safetensors').write_bytes(b'')
    training._take_best(found)
    assert found.model_step == found.step == 5 and 'weights of step 5' in found.events[-1]['message']


def test_a_resumed_run_has_the_factor_on_scores_that_it_began_with(tmp_path):
    settings = faults.settings_of(steps=4)
    def trained(factor: float, **options) -> float:
        data, model = TRUE_TOY()
        data.score_factor = factor
        training.train(model, data, settings, tmp_path, quiet=True, **options)
        return data.score_factor
    assert trained(0.3, max_steps=2) == 0.3 == trained(0.7, resume=True)


def test_without_a_pair_scores_have_no_factor():
    data, model = TRUE_TOY()
    settings = model.settings.but(score_spread=3.0, similarity='dot')
    assert training_data._score_factor(model, settings, replace(data, pairs=[])) == 1.0


def test_flops_is_steered_by_the_texts_of_all_micro_batches(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(training, 'steer', lambda run, row, lengths: seen.append({side: len(found) for side, found in lengths.items()}))
    data, model = TRUE_TOY()
    training.train(model, data, settings_of(1, 'plain'), tmp_path, quiet=True)
    assert seen == [dict(query=8, document=16)] * 6


def test_memory_is_given_back_once_a_third_of_it_may_be_gaps(tmp_path, monkeypatch):
    "MB: before and after each time that memory is given back, and what four steps between them have."
    sizes, given = iter([400, 300, 400, 450, 451, 250, 376, 260]), []
    monkeypatch.setattr(stages, '_status', lambda name: next(sizes))
    monkeypatch.setattr(stages, 'give_back', lambda: given.append(1))
    data, model = TRUE_TOY()
    run = training.train(model, data, faults.settings_of(steps=5), tmp_path, quiet=True)
    assert len(given) == 3 and run.private_mb == 260 and not [*sizes]


def test_a_system_that_tells_no_size_gives_nothing_back(monkeypatch):
    monkeypatch.setattr(stages, '_status', lambda name: None)
    monkeypatch.setattr(stages, 'give_back', lambda: 1 / 0)
    assert stages.give_back_gaps(0) == 0


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


def test_factors_that_steer_follow_the_weights_that_they_were_found_with(tmp_path):
    data, model = TRUE_TOY()
    settings = faults.settings_of(steps=12, query_terms=3, document_terms=3, document_share=1.0, keep_checkpoints=9)
    found = training.train(model, data, settings, tmp_path, quiet=True, max_steps=4, save_every=2)
    at_step_4, steered = dict(found.damping), ('flops query', 'flops document')
    assert all(at_step_4[name] > 1 for name in steered)
    found.training_data = replace(data, penalty=torch.full((60,), float('nan')))
    assert found.step == 4 and training.train_step(found)['loss'] != 0 and found.damping == at_step_4, 'a step that is skipped steers nothing'
    found.damping = dict.fromkeys(steered, 0.01) | dict(language=0.1)  # of weights that collapse
    training.roll_back(found, dict(name='dense', message='dense', level='fatal'), dict(step=6, parts={}))
    assert found.step == 4 and found.damping == at_step_4 | dict(language=0.1, flops=10.0)


def test_validations_after_the_checkpoint_that_a_run_goes_back_to_are_removed(tmp_path):
    data, model = TRUE_TOY()
    settings, judged = faults.settings_of(steps=12, validations=6, keep_checkpoints=9), {'metrics': {'ndcg@10': 0.5}, 'active_terms': {}}
    found = training.train(model, data, settings, tmp_path, lambda model: judged, quiet=True, max_steps=5, save_every=3)
    assert [row['step'] for row in read_json(tmp_path/'training_history.json')] == [0, 2, 4]
    training.restore(found, tmp_path/'checkpoints'/'step-3')
    assert [row['step'] for row in read_json(tmp_path/'training_history.json')] == [0, 2]


def test_a_run_that_was_cut_has_no_summary_while_it_goes_on(tmp_path):
    def trained(**options) -> bool:
        data, model = TRUE_TOY()
        training.train(model, data, faults.settings_of(steps=4), tmp_path, quiet=True, **options)
        return (tmp_path/'summary.json').exists()
    trained(max_steps=2)
    (tmp_path/'summary.json').write_text('{}')
    assert not trained(resume=True), 'its numbers are those of step 2'
    (tmp_path/'summary.json').write_text('{}')
    assert trained(resume=True), 'all steps are done: nothing that it says changes'


NO_LOSS = dict.fromkeys('lambda_infonce lambda_margin lambda_self lambda_positive lambda_flops lambda_language lambda_min_act lambda_kd'.split(), 0.0)


def test_a_run_without_any_loss_says_so_and_one_whose_only_loss_begins_at_zero_trains(tmp_path):
    data, model = TRUE_TOY()
    data.teacher = np.eye(24, 8, dtype=np.float32), np.eye(12, 8, dtype=np.float32)
    settings = faults.settings_of(steps=4, phases=(), epochs=4, **NO_LOSS)
    with pytest.raises(ConfigError, match='no loss to train with: .*lambda_infonce.*extra_losses must be above 0'):
        training.train(model, data, settings, tmp_path, quiet=True)
    training.train(model, data, settings.but(lambda_kd=1.0, lambda_context_kd=0.0, kd_warmup_epochs=2), tmp_path, quiet=True)
    assert [[*row['parts']] for row in lines(tmp_path/'metrics.jsonl')] == [[], ['kd'], ['kd'], ['kd']]


def test_the_best_checkpoint_is_the_model_that_was_validated(tmp_path, capsys):
    settings = resolve_quietly('v29', scale='mini', steps=12, hidden=64, layers=1, vocabulary=300, batch_size=8,
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


def test_a_resumed_run_counts_the_seconds_before(tmp_path, monkeypatch):
    settings = resolve_quietly('v28', scale='mini', steps=4, hidden=32, layers=1, vocabulary=300, batch_size=4, validations=0)
    def trained(**options):
        setup = training_data.prepare(settings, readers.load_collection('toy'), 42)
        with monkeypatch.context() as clock:
            clock.setattr('splade_nb.training.trainer.time', SimpleNamespace(perf_counter=itertools.count(step=100).__next__))  # two parts of 100 s a step
            return training.train(setup.model, setup.training_data, settings, tmp_path, quiet=True, **options)
    assert trained(max_steps=3).seconds == 3 * 200
    before = read_json(tmp_path/'checkpoints/step-3/state.json')['seconds']
    assert before == 2 * 200 and trained(resume=True).seconds == before + 200


def test_a_model_is_written_before_anything_that_can_fail(tmp_path, monkeypatch):
    def fails(*arguments): raise RuntimeError('out of memory')
    monkeypatch.setattr(experiment, 'keep_samples', fails)
    monkeypatch.setattr(experiment, 'require_acting_settings', lambda *arguments: ())
    with pytest.raises(RuntimeError, match='out of memory'):
        small = dict(steps=2, hidden=64, layers=1, vocabulary=300, batch_size=8)
        experiment.run_version('v28', scale='mini', source='toy', out=str(tmp_path), settings=small)
    assert len(load_encoder(tmp_path)[1]) > 5


@pytest.mark.parametrize('temperature', [0.08, 0.5])
def test_distillation_compares_scores_and_cosines_over_their_temperatures(temperature, monkeypatch):
    "What `score_spread` brings scores to is what the softmax of distillation reads, whatever a version's temperature is."
    settings = resolve_quietly('v28', scale='small')
    settings = settings.but(phases=tuple(replace(phase, temperature=temperature) for phase in settings.phases))
    torch.manual_seed(0)
    queries, documents, cosines = torch.rand(8, 40), torch.rand(12, 40), torch.rand(8, 12)
    factor = settings.score_spread * temperature / losses.scaled_scores(queries, documents, settings).std()
    read = {}
    monkeypatch.setattr(objective, 'distillation', lambda student, teacher, *_: read.update(student=student, teacher=teacher))
    objective._distil(queries, documents, cosines, settings, factor)
    assert read['student'].std().item() == pytest.approx(settings.score_spread) and torch.allclose(read['teacher'], cosines / 0.02)

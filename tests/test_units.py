"""Losses of one unit: at a start that activates the whole vocabulary, and at a sparse one."""
import math
from dataclasses import replace
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from splade_nb.config.versions import VERSIONS, resolve_quietly
from splade_nb.data.readers import load_collection
from splade_nb.model.initialization import mini_backbone
from splade_nb.model.splade import read_states
from splade_nb.model.splade_doc import SpladeDoc
from splade_nb.training.collapse_guard import inspect, measure
from splade_nb.training.dataset import TrainingData, prepare
from splade_nb.training.losses import score, score_unit
from splade_nb.training.batch import batch_at
from splade_nb.training.objective import encoded, objective, weights_at
from splade_nb.training.trainer import step_count

VOCABULARY, MEAN, DEVIATION, PAIRS = 250_002, 1.99, 0.45, 4  # logits of an untrained KLUE/RoBERTa
MOST, LEAST = 20.0, 0.05     # of a weighted part; the second of those that teach ranking
JUDGED = ('v26', 'v28', 'splade_v2')


def dense_data(settings) -> TrainingData:
    "Texts of 6 to 30 random tokens, and a teacher that knows nothing of them."
    rng, ones = np.random.default_rng(0), torch.ones(VOCABULARY)
    documents = [rng.integers(5, VOCABULARY, rng.integers(6, 31)).tolist() for _ in range(2 * PAIRS)]
    queries = [rng.choice(document, 5).tolist() for document in documents[:PAIRS]]
    teacher = tuple(F.normalize(torch.randn(len(texts), 32, generator=torch.Generator().manual_seed(0)), dim=1) for texts in (queries, documents))
    foreign = (torch.arange(VOCABULARY) > 10_000) * settings.non_korean_penalty  # about as many as XLM-R has
    return TrainingData(None, queries, documents, [(i, i) for i in range(PAIRS)], ['original'] * PAIRS, [{i} for i in range(PAIRS)],
                        [[PAIRS + i] for i in range(PAIRS)], ones, ones, foreign.float(), ones < 0, torch.arange(VOCABULARY) < 5, teacher=teacher)


@torch.no_grad()
def dense_model(settings, rows) -> SpladeDoc:
    "Random weights whose logits have the mean and the deviation stated."
    torch.manual_seed(0)
    model = SpladeDoc(mini_backbone(settings, VOCABULARY), settings, special=[0, 1, 2, 3, 4])
    side = rows['document']
    read = read_states(model, side['input_ids'], side['attention_mask'])[1][side['attention_mask'].bool()]
    logits = read @ model.decoder.weight[:5000].T
    model.decoder.weight.mul_(DEVIATION / logits.std())
    model.decoder.bias.fill_(MEAN - logits.mean() * DEVIATION / logits.std())
    return model


def step_parts(version: str, **changes) -> tuple:  # parts at step 0, parts without ramps and warm-up, what the guard reads
    "The weighted parts of the loss at a dense start, at the full scale of a version but for the encoder."
    small = dict(hidden=32, layers=1, max_length=64, query_length=0, dropout=0.0, gate_hidden=8, gate_dropout=0.0, precision='fp32', batch_size=PAIRS, accumulation=1)
    settings = replace(resolve_quietly(version, 'corrected', 'full', initialization='random'), **small, **changes)
    data = dense_data(settings)
    rows = batch_at(0, 100, 0, data, settings, 42)
    model = dense_model(settings, rows)
    with torch.no_grad(): out = encoded(model, rows, settings)
    loss, parts = objective(out, rows, 0, 100, data, settings)
    warm = objective(out, rows, 20, 100, data, settings)[1]
    seen = measure(out, weights_at(0, 100, settings), settings.top_k, data.special, data.special)
    return parts, warm, dict(seen, step=0, loss=loss.item(), gradient_norm=1.0, parts=parts)


@pytest.mark.slow
@pytest.mark.parametrize('version', JUDGED)
def test_parts_are_of_order_one_at_a_dense_start(version):
    "Also distillation, once its weight has grown; what is satisfied, as a minimum activation, may be 0."
    parts, warm, row = step_parts(version)
    assert row['active_doc'] > 0.99 * VOCABULARY
    taught = [parts['infonce'], *([warm['kd']] if 'kd' in warm else [])]
    assert all(abs(value) <= MOST for value in (*parts.values(), *taught)) and min(taught) >= LEAST, (parts, taught)
    assert 'oversized' not in {event['name'] for event in inspect(row, VOCABULARY, 0.0)}


@pytest.mark.slow
def test_without_a_limit_the_guard_names_what_is_too_large():
    "The unit that suits a hundred terms gives tens of thousands here; the guard says which setting to change."
    parts, warm, row = step_parts('v26', score_limit=0.0)
    assert parts['infonce'] > 500 and warm['kd'] > 500
    event, = [event for event in inspect(row, VOCABULARY, 0.0) if event['name'] == 'oversized']
    assert event['level'] == 'warn' and 'infonce is' in event['message'] and 'score_limit' in event['message']


@pytest.mark.slow
@pytest.mark.parametrize('version', [version for version in JUDGED if version != 'v26'])  # V28 has all parts of V26
def test_parts_are_of_order_one_at_a_sparse_start(version):
    settings = resolve_quietly(version)
    setup = prepare(settings, load_collection('mini'), 42, place='cpu')
    data, steps = setup.training_data, step_count(settings, len(setup.training_data.pairs))
    rows = batch_at(0, steps, 0, data, settings, 42)
    with torch.no_grad(): out = encoded(setup.model.train(), rows, settings)
    parts, warm = (objective(out, rows, step, steps, data, settings)[1] for step in (0, steps // 5))
    taught = [parts['infonce'], *([warm['kd']] if 'kd' in warm else [])]
    assert all(abs(value) <= MOST for value in (*parts.values(), *taught)) and min(taught) >= LEAST, (parts, taught)


def test_small_models_keep_the_unit_they_were_measured_with():
    assert {(resolve_quietly(version).score_limit, resolve_quietly(version).ramp_start) for version in VERSIONS} == {(0.0, 0.01)}


def test_unit_is_a_constant_of_the_batch():
    "The order of documents is that of the dot product, and the gradient its gradient times one number."
    torch.manual_seed(0)
    queries, documents = (torch.rand(3, 500, requires_grad=True), torch.rand(5, 500, requires_grad=True))
    unit = score_unit(queries, documents, 0.07, 1.0)
    dots = score(queries, documents)
    assert not unit.requires_grad and 0 < unit < 0.07 and torch.equal((dots * unit).argsort(1), dots.argsort(1))
    scaled, plain = (torch.autograd.grad(value.diagonal().sum(), queries, retain_graph=True)[0] for value in (dots * unit, dots))
    assert torch.allclose(scaled, plain * unit)


def test_scores_of_mean_norm_reach_the_limit_and_no_more():
    for active in (10, 1000, 100_000):
        vectors = torch.ones(2, active)
        reached = float(score(vectors, vectors)[0, 0] * score_unit(vectors, vectors, 0.07, 1.0))
        assert math.isclose(reached, min(1.0, 0.07 * active), rel_tol=1e-4)
    assert float(score_unit(torch.zeros(2, 9), torch.zeros(3, 9), 0.07, 1.0)) == pytest.approx(0.07)

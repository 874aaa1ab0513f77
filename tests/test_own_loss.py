"""A loss that a researcher registers is trained, logged, drawn, checked and resumed like every other part."""
import json
import numpy as np
import pytest
import torch
import faults
from faults import lines
from splade_nb.cli import main, sort_changes
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import Settings, as_dict, cast, from_dict, off
from splade_nb.config.versions import resolve_quietly
from splade_nb.data.records import toy_corpus
from splade_nb.evaluation.report import metrics_table
from splade_nb.training import check_settings as checks
from splade_nb.training import batch, losses, memory, objective, trainer
from splade_nb.training.dataset import fix_seeds, prepare, toy_training_data


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    "The registry with the entropy of the document vectors, put back after the test."
    monkeypatch.setattr(losses, 'REGISTERED', {})
    @losses.register_loss('entropy')
    def entropy(inputs: losses.LossInputs) -> torch.Tensor:
        shares = inputs.document_vectors / inputs.document_vectors.sum(1, keepdim=True).clamp(min=1e-6)
        return -torch.xlogy(shares, shares.clamp(min=1e-9)).sum(1).mean()
    return entropy


def settings_of(**changes) -> Settings:
    return faults.settings_of(**dict(dict(steps=6, dropout=0.0, extra_losses={'entropy': 0.5}), **changes))


def trained(folder, settings: Settings, **options):
    fix_seeds(42)
    training_data, model = toy_training_data()
    return trainer.train(model, training_data, settings, folder, quiet=True, **options)


def test_the_loss_is_trained_and_logged(tmp_path):
    trained(tmp_path, settings_of())
    rows = lines(tmp_path/'metrics.jsonl')
    assert len(rows) == 6 and all(np.isfinite(row['parts']['entropy']) and row['parts']['entropy'] > 0 for row in rows)
    assert all(row['loss'] == pytest.approx(sum(row['parts'].values()), rel=1e-4) for row in rows)
    assert 'loss_entropy' in metrics_table(tmp_path/'metrics.jsonl'), 'what the loss curves of the report draw'
    assert 'train/loss_entropy' in trainer.tensorboard_scalars(rows[0])


def test_a_large_weight_lowers_it(tmp_path):
    def last(weight):
        run = trained(tmp_path/str(weight), settings_of(extra_losses={'entropy': weight}, learning_rate=0.01, steps=30))
        return lines(run.folder/'metrics.jsonl')[-1]['parts']['entropy'] / weight
    assert last(20.0) < 0.95 * last(1e-6)


def gradient(settings: Settings) -> torch.Tensor:
    fix_seeds(42)
    training_data, model = toy_training_data()
    rows = batch.batch_at(0, 6, 0, training_data, settings, 42)
    memory.backward(model.eval(), rows, 0, 6, training_data, settings)
    return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])


def test_its_gradient_reaches_the_model():
    assert not torch.allclose(gradient(settings_of()), gradient(settings_of(extra_losses={})))
    torch.testing.assert_close(gradient(settings_of(extra_losses={'entropy': 0.0})), gradient(settings_of(extra_losses={})))


def test_the_gradient_cache_gives_the_same_gradient():
    whole = gradient(settings_of(batch_size=8))
    cached = gradient(settings_of(batch_size=4, accumulation=2, gradient_cache=True))
    torch.testing.assert_close(cached, whole, atol=1e-5, rtol=1e-4)


def test_what_a_loss_reads(monkeypatch):
    seen = []
    losses.register_loss('entropy')(lambda inputs: seen.append(inputs) or inputs.scores.mean())
    gradient(settings_of(batch_size=4, negatives=2))
    inputs, = seen
    assert inputs.query_vectors.shape == inputs.query_logits.shape == inputs.query_tokens.shape == (4, 60)
    assert inputs.document_vectors.shape == inputs.document_logits.shape == inputs.document_tokens.shape == (12, 60)
    assert inputs.scores.shape == inputs.relevant.shape == (4, 12) and inputs.relevant[:, :4].diagonal().all()
    assert len(inputs.queries) == 4 and len(inputs.documents) == 12
    words = inputs.training_data.documents[inputs.documents[0]]
    assert set(words) == set(inputs.document_tokens[0].nonzero().flatten().tolist())


def test_a_run_resumes_where_the_loss_is_registered(tmp_path):
    whole = trained(tmp_path/'whole', settings_of())
    trained(tmp_path/'parts', settings_of(), max_steps=3, save_every=3)
    again = trained(tmp_path/'parts', settings_of(), resume=True)
    parts, wanted = ([row['parts'] for row in lines(tmp_path/name/'metrics.jsonl')] for name in ('parts', 'whole'))
    assert again.step == len(wanted) == 6 and parts == wanted
    for one, other in zip(whole.model.parameters(), again.model.parameters()): torch.testing.assert_close(one, other)


def test_a_resumed_run_says_that_its_loss_is_not_registered(tmp_path):
    trained(tmp_path, settings_of(), max_steps=3, save_every=3)
    before = lines(tmp_path/'metrics.jsonl')
    losses.REGISTERED.clear()
    with pytest.raises(ConfigError, match="no loss is registered as 'entropy'; registered: none.*before training or resuming"):
        trained(tmp_path, settings_of(), resume=True)
    assert lines(tmp_path/'metrics.jsonl') == before, 'nothing of the run is lost'


def test_an_unknown_name_is_refused_before_any_work(tmp_path):
    settings = resolve_quietly('v22', scale='mini', extra_losses={'entropi': 1.0})
    with pytest.raises(ConfigError, match="'entropi'; registered: entropy"): prepare(settings, toy_corpus(), 42, tmp_path/'cache')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', (*losses.BUILT_IN, 'learning_rate'))
def test_names_of_the_package_are_taken(name):
    with pytest.raises(ConfigError, match=name): losses.register_loss(name)


@pytest.mark.parametrize('wrong', (lambda inputs: 3.0, lambda inputs: inputs.query_vectors.sum(1)))
def test_a_value_that_is_no_scalar_is_refused(wrong):
    losses.register_loss('entropy')(wrong)
    with pytest.raises(ConfigError, match="'entropy' returned (float|shape).*one number"): gradient(settings_of())


@pytest.mark.parametrize('value', ('{"entropy": 0.01}', {'entropy': 0.01}, [['entropy', 0.01]], (('entropy', '0.01'),)))
def test_the_setting_in_every_form(value): assert cast('extra_losses', value, ()) == (('entropy', 0.01),)


@pytest.mark.parametrize('value', ('entropy', '["entropy"]', {'entropy': 'much'}, {'entropy': float('inf')}, 3, '{"a": 1, "a": 2}'))
def test_a_wrong_setting_is_refused(value):
    with pytest.raises(ConfigError): cast('extra_losses', value, ())


def test_the_setting_on_the_command_line_and_on_disk():
    _, changes = sort_changes(['extra_losses={"entropy": 0.01}'])
    settings = resolve_quietly('v28', **changes)
    assert settings.extra_losses == (('entropy', 0.01),) and hash(settings)
    assert from_dict(json.loads(json.dumps(as_dict(settings)))) == settings
    assert as_dict(settings)['extra_losses'] == {'entropy': 0.01} and resolve_quietly('v28').extra_losses == ()


def test_the_settings_check_covers_it(monkeypatch):
    assert 'extra_losses' in off(resolve_quietly('v22')), 'with a reason where it is empty'
    settings = resolve_quietly('v22', scale='mini', extra_losses={'entropy': 0.5})
    assert 'extra_losses' not in off(settings)
    found, = checks.check_settings(settings, ['extra_losses'], progress=False)
    assert (found.state, found.seen) == ('live', 'loss')
    losses.register_loss('entropy')(lambda inputs: inputs.scores.sum() * 0)
    found, = checks.check_settings(settings, ['extra_losses'], progress=False)
    assert found.state == 'dead', 'a loss that is always zero changes nothing'
    monkeypatch.setattr(objective, 'extra_terms', lambda *batch: {})
    found, = checks.check_settings(settings, ['extra_losses'], progress=False)
    assert found.state == 'dead', 'a setting that the objective does not read'


def test_the_command_line_names_what_is_missing(tmp_path, capsys):
    losses.REGISTERED.clear()
    arguments = ['train', 'v22', '--set', 'scale=mini', 'data=toy', f'out={tmp_path}/run', 'extra_losses={"entropy": 1}']
    assert main(arguments) != 0
    assert "no loss is registered as 'entropy'" in capsys.readouterr().err

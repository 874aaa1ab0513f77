"""The versions after V28: what each takes from its paper, in one process, in several, and over a resumed run."""
from dataclasses import replace
import pytest
pytest.register_assert_rewrite('faults')
import torch
from faults import in_processes
from splade_nb import experiment
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import off
from splade_nb.config.versions import PARENTS, VERSIONS, resolve, resolve_quietly
from splade_nb.data.records import toy_corpus
from splade_nb.model.encode import encode
from splade_nb.model.load import load_encoder
from splade_nb.training import check_settings
from splade_nb.training.dataset import fix_seeds, prepare, save_model_folder, toy_training_data
from splade_nb.config.processes import ProcessGroup
from splade_nb.training.objective import density, optimizer_for
from splade_nb.training.trainer import Run, train, train_step

LATER = [version for version in VERSIONS if version[0] == 'v' and version[1:].isdigit() and int(version[1:]) > 28]
SMALL = dict(steps=12, batch_size=4, accumulation=2, gradient_cache=True, df_steps=3, flops_form='df', flops_ramp=0.0)


@pytest.mark.parametrize('version', LATER)
def test_a_later_version_is_a_difference_of_a_few_settings(version):
    changed = {name for name, value in vars(VERSIONS[version]).items() if value != getattr(VERSIONS[PARENTS[version]], name)}
    assert 0 < len(changed) <= 7
    assert not changed & set(off(resolve_quietly(version, 'corrected', 'full')))


# ---- document frequencies

def counted_run(group=ProcessGroup(), steps: int = 4, **changes) -> Run:
    "Some steps of a version whose FLOPS is weighted by its own document frequencies."
    torch.set_num_threads(1)
    fix_seeds(42)
    data, model = toy_training_data()
    settings = resolve('v28', **SMALL | changes)
    run = Run(model.eval(), data, settings, None, 42, 12, optimizer_for(model, settings),
              torch.zeros_like(data.special), group)
    for run.step in range(steps): train_step(run)
    return run


def keep_counted(folder) -> None:
    group = experiment._processes()
    torch.save(counted_run(group).counted.state_dict(), folder/f'{group.rank}.pt')


def test_processes_count_the_same_documents(tmp_path):
    alone = counted_run().counted
    assert in_processes(2, keep_counted, tmp_path) == [0, 0]
    for rank in range(2):
        found = torch.load(tmp_path/f'{rank}.pt')
        assert found['counts'].equal(alone.counts) and found['penalty'].equal(alone.penalty)


def test_counts_do_not_depend_on_how_a_batch_is_passed():
    whole, parts = counted_run(batch_size=8, accumulation=1), counted_run()
    assert whole.counted.counts.equal(parts.counted.counts) and whole.counted.penalty.equal(parts.counted.penalty)
    assert whole.counted.counts[-1] == 16, 'eight pairs and a negative for each; the step after a measurement'


def trained(folder, **more) -> Run:
    torch.set_num_threads(1)
    fix_seeds(42)
    data, model = toy_training_data()
    return train(model, data, resolve('v28', **SMALL), folder, save_every=5, quiet=True, **more)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_counts(tmp_path):
    whole = trained(tmp_path/'whole')
    trained(tmp_path/'resumed', max_steps=5)  # between two measurements
    resumed = trained(tmp_path/'resumed', resume=True)
    assert resumed.rates == whole.rates[5:] and not whole.counted.penalty.eq(1).all()
    for one, other in zip(whole.counted.state_dict().values(), resumed.counted.state_dict().values()): assert one.equal(other)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters()): assert one.equal(other)


def test_other_forms_of_flops_count_nothing(tmp_path):
    run = trained(tmp_path)
    plain = counted_run(flops_form='plain', steps=1)
    assert plain.counted is None and counted_run(lambda_flops=0.0, steps=1).counted is None
    files = {path.name for path in (tmp_path/'checkpoints'/'step-12').iterdir()}
    assert run.counted is not None and 'counted.safetensors' in files


def test_measured_weights_lower_frequent_terms():
    "After a measurement the gradient of FLOPS is zero for a rare term and not for a frequent one."
    run = counted_run(steps=5, df_cutoff=0.5)
    rare, frequent = run.counted.penalty.argmin(), run.counted.penalty.argmax()
    assert run.counted.penalty[rare] < 1e-3 < 0.5 < run.counted.penalty[frequent]


@pytest.mark.parametrize('changes, message', [
    (dict(df_cutoff=0.0), 'the nearest is 1e-06'), (dict(df_cutoff=1.0), 'the nearest in use is 0.99'),
    (dict(df_cutoff=1.5), 'the nearest is 1'), (dict(df_steps=0), 'the nearest is 1')])
def test_what_document_frequencies_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message): resolve('v29', **changes)


# ---- thresholds and limits

def test_short_texts_feel_no_penalty():
    "The gradient of FLOPS reaches the rows with more active terms than the threshold, and no other."
    vectors = torch.tensor([[1., 1, 1, 0], [2., 0, 0, 0], [1., 1, 0, 0]], requires_grad=True)
    data = toy_training_data()[0]
    density(vectors, data, resolve_quietly('v29', flops_form='plain', flops_threshold=2)).backward()
    assert vectors.grad.any(1).tolist() == [True, False, False]


def test_a_pretrained_decoder_is_calibrated(tmp_path):
    "A document of a named backbone begins with about as many terms as are asked for; the saved model too."
    texts = [*toy_corpus().texts.values()]
    with check_settings.quiet(): checkpoint = check_settings.tiny_checkpoint(tmp_path/'backbone', texts, 0)
    def prepared(terms, folder='cache'):
        settings = replace(check_settings.small(resolve('splade_v2', scale='full'), checkpoint), initial_terms=terms)
        return prepare(settings, toy_corpus(), 42, tmp_path/folder, 'cpu')
    setups = [prepared(terms) for terms in (0, 40, 10)]
    vectors = [encode(setup.model, setup.training_data.tokenizer, texts) for setup in setups]
    assert vectors[0].nnz > vectors[1].nnz > vectors[2].nnz
    again = prepared(10, 'elsewhere')
    assert again.model.decoder.bias.equal(setups[2].model.decoder.bias), 'the same without what was prepared'
    loaded, tokenizer = load_encoder(save_model_folder(setups[1], tmp_path/'saved'))
    assert abs(encode(loaded, tokenizer, texts) - vectors[1]).max() < 1e-6


@pytest.mark.slow
def test_every_setting_of_the_later_versions_acts():
    "Those that they brought; all of them are checked before each run."
    for version, names in dict(v29=['df_cutoff', 'df_steps', 'flops_form', 'log_twice'], splade_ko=['flops_threshold', 'query_terms']).items():
        states = {check.name: check.state for check in check_settings.check_settings(resolve(version), names, False)}
        assert states == dict.fromkeys(names, 'live'), version
    idle = off(resolve('v28'))
    assert {'df_cutoff', 'df_steps'} <= set(idle) and 'flops_threshold' not in idle

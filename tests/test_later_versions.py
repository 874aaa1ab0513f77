"""The versions after V28: what each takes from its paper."""
from dataclasses import replace
import pytest
import torch
from splade_nb.config.settings import off
from splade_nb.config.versions import PARENTS, VERSIONS, resolve, resolve_quietly
from splade_nb.data.records import toy_corpus
from splade_nb.model.encode import encode
from splade_nb.model.load import load_encoder
from splade_nb.training import check_settings
from splade_nb.training.dataset import prepare, save_model_folder, toy_training_data
from splade_nb.training.objective import density

LATER = [version for version in VERSIONS if version[0] == 'v' and version[1:].isdigit() and int(version[1:]) > 28]


@pytest.mark.parametrize('version', LATER)
def test_a_later_version_is_a_difference_of_a_few_settings(version):
    changed = {name for name, value in vars(VERSIONS[version]).items() if value != getattr(VERSIONS[PARENTS[version]], name)}
    assert 0 < len(changed) <= 7
    assert not changed & set(off(resolve_quietly(version, 'corrected', 'full')))


# ---- thresholds and limits

def test_short_texts_feel_no_penalty():
    "The gradient of FLOPS reaches the rows with more active terms than the threshold, and no other."
    vectors = torch.tensor([[1., 1, 1, 0], [2., 0, 0, 0], [1., 1, 0, 0]], requires_grad=True)
    data = toy_training_data()[0]
    density(vectors, data, resolve_quietly('v29', flops_threshold=2)).backward()
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


def test_a_filter_is_at_work_before_the_first_step(tmp_path):
    "Terms of other languages that no text contains are held back, and others take their place; what was prepared for one start serves no other."
    texts = [*toy_corpus().texts.values()]
    elsewhere = ['ресторан меню рецепт', 'поездка билет вокзал', 'рецепт поездка меню']
    with check_settings.quiet(): checkpoint = check_settings.tiny_checkpoint(tmp_path/'backbone', [*texts, *elsewhere], 0)
    def vectors(version, held):
        settings = replace(check_settings.small(resolve(version, scale='full'), checkpoint), initial_terms=40, initial_filter=held)
        data = (setup := prepare(settings, toy_corpus(), 42, tmp_path/'cache', 'cpu')).training_data
        return encode(setup.model, data.tokenizer, texts), (data.language.numpy() > 0) & (data.frequencies.counts == 0)
    (without, unseen), (with_it, _), (again, _) = (vectors('v28', held) for held in (0.0, 4.0, 0.0))
    assert unseen.sum() > 10 and abs(without - again).max() == 0
    assert with_it[:, unseen].nnz < 0.2 * without[:, unseen].nnz and with_it[:, ~unseen].nnz > without[:, ~unseen].nnz
    assert abs(with_it.nnz - without.nnz) < 0.15 * without.nnz
    assert abs(vectors('v26', 4.0)[0] - vectors('v26', 0.0)[0]).max() == 0, 'V26 filters nothing'


@pytest.mark.slow
def test_every_setting_of_the_later_versions_acts():
    "Those that they brought; all of them are checked before each run."
    for version, names in dict(v29=['inference_free_query', 'log_twice'], splade_ko=['flops_threshold', 'query_terms']).items():
        states = {check.name: check.state for check in check_settings.check_settings(resolve(version), names, False)}
        assert states == dict.fromkeys(names, 'live'), version

"""Encoding and a training step on a device that is not the CPU, without one: nothing meets what lies elsewhere."""
import numpy as np
import pytest
import torch
from other_device import PLACE, Elsewhere, OtherDevice
from splade_nb.config.files import ConfigError
from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
from splade_nb.model.encode import encode
from splade_nb.model.initialization import toy_model
from splade_nb.model.splade_doc import SpladeDoc

TEXTS = ['서울에서 김치찌개 맛집을 찾아요', '제주도', '', '서울 지하철 노선과 김치 보관 방법을 함께 적은 조금 더 긴 글 ' * 4, '제주도 여행']
PARTS = {'plain': {}, 'gate': dict(context_gate=True), 'counts': dict(term_frequency=True, output_idf=0.5),
         'importance': dict(mlm_head=False)}


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch):
    "It knows no such device; at fp32 it changes nothing."
    autocast = torch.autocast
    monkeypatch.setattr(torch, 'autocast', lambda device, *_, **options: autocast('cpu', enabled=False))


@pytest.fixture(scope='module')
def tokenizer(): return SpladeTokenizer(train_unigram(TEXTS, 120))


def made(tokenizer, parts):
    torch.manual_seed(0)
    return toy_model(len(tokenizer), **PARTS[parts])


def test_two_devices_do_not_mix():
    with OtherDevice():
        away = torch.ones(3).to(PLACE)
        with pytest.raises(RuntimeError, match='two devices'): away + torch.ones(3)
        assert isinstance(away * 2, Elsewhere) and (away * 2).tolist() == [2, 2, 2] and type((away * 2).cpu()) is torch.Tensor
        with pytest.raises(RuntimeError, match='numpy'): away.numpy()


@pytest.fixture
def without_inference_mode(monkeypatch):  # it refuses classes of tensors of one's own
    monkeypatch.setattr(SpladeDoc, 'sparse_rows', SpladeDoc.sparse_rows.__wrapped__)


@pytest.mark.usefixtures('without_inference_mode')
@pytest.mark.parametrize('parts', PARTS)
def test_encoding_stays_on_the_device(parts, tokenizer):
    model, given = made(tokenizer, parts), dict(cut={}, budget=300)
    for options in ({}, dict(document=False), *([dict(keep=np.arange(5, len(tokenizer), 3))] if parts != 'importance' else [])):
        wanted = encode(model, tokenizer, TEXTS, **given, **options)
        with OtherDevice(), torch.no_grad():
            found = encode(made(tokenizer, parts).to(PLACE), tokenizer, TEXTS, **given, **options)
        assert abs(found - wanted).max() < 1e-6 and found.nnz == wanted.nnz > 0


@pytest.mark.usefixtures('without_inference_mode')
def test_a_screen_is_refused_there_and_auto_goes_without(tokenizer):
    with OtherDevice(), torch.no_grad():
        model = made(tokenizer, 'plain').to(PLACE)
        with pytest.raises(ConfigError, match='screen=True is for a CPU, the model is on meta'):
            encode(model, tokenizer, TEXTS, screen='on', cut={})
        assert encode(model, tokenizer, TEXTS, screen='auto', cut={}).nnz > 0


def two_steps(version: str, place) -> list:  # their losses
    from splade_nb.config.versions import resolve_quietly
    from splade_nb.model.splade import accumulated_rows
    from splade_nb.training.dataset import toy_training_data
    from splade_nb.training.objective import optimizer_for
    from splade_nb.training.trainer import Run, train_step
    torch.manual_seed(0)
    data, model = toy_training_data()
    if version == 'v28': model = toy_model(60, context_gate=True)
    for name in ('idf', 'penalty', 'language', 'stopword', 'special'): setattr(data, name, getattr(data, name).to(place))
    data.teacher = tuple(torch.nn.functional.normalize(torch.ones(n, 8).cumsum(0).sin()) for n in (24, 12))
    settings = resolve_quietly(version, 'corrected', 'mini', hidden=model.settings.hidden, layers=model.settings.layers, batch_size=4,
                               steps=4, max_length=16, query_length=16, teacher='lsa')
    model.to(place).train()
    run, losses = Run(model, data, settings, None, 42, 4, optimizer_for(model, settings), torch.zeros(60, dtype=torch.bool).to(place)), []
    with accumulated_rows(model):
        for run.step in range(2): losses.append(train_step(run)['loss'])
    return losses


@pytest.mark.parametrize('version', ['v26', 'v28'])
def test_a_training_step_stays_on_the_device(version):
    wanted = two_steps(version, 'cpu')
    with OtherDevice(): found = two_steps(version, PLACE)
    assert found == pytest.approx(wanted, rel=0.02) and found[0] == pytest.approx(wanted[0], rel=1e-5), 'Adam magnifies the last digits'

"""Masked-language pretraining: what settings do, how a run goes on after a kill, and that versions train on what it leaves."""
import json, lzma, shutil, signal
from dataclasses import asdict, replace
import numpy as np
import pytest
import torch
from transformers import AutoModel
from conftest import run_cells
from splade_nb.config.files import ConfigError, DataError
from splade_nb.config.versions import resolve_quietly
from splade_nb.lab.passages import PackedSequences, packed_batch, stored_passages, text_files
from splade_nb.data.prepared import Preparation
from splade_nb.data.tokenizer import load_tokenizer
from splade_nb.model.load import pretrained_backbone
from splade_nb.lab import pretraining
from splade_nb.training.checkpoints import CheckpointError, checkpoints
from splade_nb.lab.pretraining import new_run, pretrain, pretrain_step, rate_at, training_batch
from splade_nb.lab.pretraining_setup import create_backbone, prepare_corpus, resolve_pretraining, without_effect

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's

SMALL = dict(hidden=32, layers=1, vocabulary=2000, segment='none', length=32, batch_size=4, precision='fp32', log_every=1,
             dropout=0.1, validations=2, checkpoints=4, held_out_sequences=4)
STEP = 4 * 32  # tokens


@pytest.fixture(scope='module')
def stages(tmp_path_factory): return Preparation(base=tmp_path_factory.mktemp('prepared'))


def settings(**more): return resolve_pretraining('mini', SMALL | more)


def run_in(folder, stages, steps=8, of=None, **options):
    chosen = of or settings()
    corpus = prepare_corpus(chosen, 'mini', 42, stages)
    return pretrain(create_backbone(chosen, corpus, 42, stages), corpus, chosen, folder, steps * STEP, quiet=True, **options)


def weights(backbone): return [*backbone.state_dict().values()]


def rows_of(folder): return [json.loads(line) for line in (folder/'metrics.jsonl').read_text().splitlines()]


class Killed(BaseException): pass


def test_a_run_that_is_killed_and_resumed_is_the_uninterrupted_one(tmp_path, stages, monkeypatch):
    whole = run_in(tmp_path/'whole', stages)
    calls = []
    def dies(run):
        calls.append(run.step)
        if run.step == 5: raise Killed  # after the checkpoint of step 4
        return pretrain_step(run)
    monkeypatch.setattr(pretraining, 'pretrain_step', dies)
    with pytest.raises(Killed): run_in(tmp_path/'parts', stages)
    monkeypatch.undo()
    resumed = run_in(tmp_path/'parts', stages, resume=True)
    assert calls == [0, 1, 2, 3, 4, 5] and all(map(torch.equal, weights(whole.backbone), weights(resumed.backbone)))
    timed = lambda row: {name: value for name, value in row.items() if name != 'tokens_per_second'}
    assert [*map(timed, rows_of(tmp_path/'whole'))] == [*map(timed, rows_of(tmp_path/'parts'))]
    assert whole.history == resumed.history and [row['step'] for row in whole.history] == [0, 4, 8]


def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path, stages, monkeypatch):
    def stopped(run):
        if run.step == 2: signal.raise_signal(signal.SIGINT)
        return pretrain_step(run)
    monkeypatch.setattr(pretraining, 'pretrain_step', stopped)
    with pytest.raises(KeyboardInterrupt): run_in(tmp_path, stages)
    assert [path.name for path in checkpoints(tmp_path/'checkpoints')][-1] == 'step-3' and not (tmp_path/'model').exists()


def test_another_run_is_not_resumed(tmp_path, stages):
    run_in(tmp_path, stages, max_steps=2)
    with pytest.raises(CheckpointError, match='clip=1.0 there, 2.0 here'):
        run_in(tmp_path, stages, of=settings(clip=2.0), resume=True)
    with pytest.raises(CheckpointError, match='planned_tokens=1024 there, 1280 here'): run_in(tmp_path, stages, 10, resume=True)


def test_a_broken_checkpoint_comes_with_advice_that_can_be_followed(tmp_path, stages):
    run_in(tmp_path, stages, max_steps=4)
    *_, before, last = checkpoints(tmp_path/'checkpoints')
    (last/'model.safetensors').write_bytes(b'')
    with pytest.raises(CheckpointError, match=f'model.safetensors has 0 bytes.*Delete {last.name} and resume: that goes on from {before}') as caught:
        run_in(tmp_path, stages, resume=True)
    assert 'resume_from' not in str(caught.value)
    shutil.rmtree(last)
    assert run_in(tmp_path, stages, resume=True).step == 8


def test_the_model_stays_after_given_tokens(tmp_path, stages):
    run_in(tmp_path, stages, of=settings(keep_millions=[0.0005, 0.001]))
    assert {path.name for path in (tmp_path/'kept').iterdir()} == {'0.0005M', '0.001M'}
    early, late = (json.loads((tmp_path/'kept'/name/'pretraining.json').read_text())['step'] for name in ('0.0005M', '0.001M'))
    assert (early, late) == (4, 8)
    last, model = (weights(pretrained_backbone(str(tmp_path/name))) for name in ('kept/0.001M', 'model'))
    assert all(map(torch.equal, last, model))


# What settings do

OTHER = dict(hidden=64, layers=2, vocabulary=1500, segment='kiwi', tokenizer_texts=100, dropout=0.3, window=2,
             decoder_bias_offset=2.0, length=16, mask_share=0.4, whole_words=False, across_passages=True, batch_size=2,
             accumulation=2, learning_rate=1e-2, warmup_ratio=0.5, weight_decay=0.5, clip=0.01, adam_beta2=0.9,
             precision='bf16', held_out=0.3, held_out_sequences=2, validations=1, keep_millions=[0.0002],
             checkpoints=1, keep_checkpoints=1, log_every=2)


def trace(folder, stages, changes):
    "All that a short run leaves behind, without its seconds."
    run = run_in(folder, stages, 3, settings(**changes))
    rows = [{name: value for name, value in row.items() if name != 'tokens_per_second'} for row in rows_of(folder)]
    files = sorted(path.name for path in folder.rglob('*') if path.is_dir())
    return rows, run.history, files, [round(float(value.double().abs().sum()), 9) for value in weights(run.backbone)]


def test_every_setting_acts(tmp_path, stages):
    assert set(OTHER) | {'backbone'} == set(asdict(settings()))
    base = trace(tmp_path/'base', stages, {})
    assert trace(tmp_path/'again', stages, {}) == base
    assert [name for name, value in OTHER.items() if trace(tmp_path/name, stages, {name: value}) == base] == []


def test_settings_that_cannot_be_are_refused():
    for wrong, said in ((dict(mask_share=1.5), 'mask_share=1.5: between 0 and 1'), (dict(hidden=40), 'a multiple of 32'),
                        (dict(length=0), 'length=0: at least 8'), (dict(segment='mecab'), "unknown segment 'mecab'"),
                        (dict(layer=3), "did you mean 'layers'"), (dict(learning_rate='fast'), 'learning_rate')):
        with pytest.raises(ConfigError, match=said): settings(**wrong)
    with pytest.raises(ConfigError, match="unknown scale 'huge'"): resolve_pretraining('huge')


def test_a_run_without_tokens_or_texts_says_so(tmp_path, stages):
    with pytest.raises(ConfigError, match='do not fill a sequence'): prepare_corpus(settings(length=512), 'toy', 42, stages)
    corpus = prepare_corpus(settings(), 'mini', 42, stages)
    with pytest.raises(ConfigError, match='tokens=0'): new_run(create_backbone(settings(), corpus, 42, stages), corpus, settings(), tmp_path, 0, 42)


def test_the_rate_rises_and_falls():
    rates = [rate_at(step, 50, settings(warmup_ratio=0.2)) for step in range(50)]
    assert rates[9] == rates[10] == max(rates) and rates[:10] == sorted(rates[:10]) and rates[9:] == sorted(rates[9:])[::-1]
    assert 0 < rates[-1] < rates[0]


# Texts

def test_texts_are_read_as_they_lie(tmp_path, stages):
    (tmp_path/'b.txt').write_text('가나다\n\n  라마바 \n', encoding='utf-8')
    (tmp_path/'a').mkdir()
    (tmp_path/'a'/'c.txt.xz').write_bytes(lzma.compress('사아자\r\n'.encode()))
    (tmp_path/'notes.md').write_text('not read', encoding='utf-8')
    texts, key = stored_passages(stages, str(tmp_path))
    assert list(texts) == ['사아자', '가나다', '라마바'] and stored_passages(stages, str(tmp_path))[1] == key
    (tmp_path/'b.txt').write_text('가나다\n', encoding='utf-8')
    assert stored_passages(stages, str(tmp_path))[1] != key and text_files('mini') == []


@pytest.mark.parametrize('name, content, said', [
    ('broken.txt', '가'.encode()[:2], 'broken.txt, line 1, encoding'), ('cut.txt.xz', lzma.compress('가나다'.encode() * 999)[:-20], 'a whole .xz or .gz file'),
    ('no.txt.xz', b'plain', 'a whole .xz or .gz file')])
def test_a_broken_text_is_named(name, content, said, tmp_path, stages):
    (tmp_path/name).write_bytes(content)
    with pytest.raises(DataError, match=said): stored_passages(stages, str(tmp_path))


def test_a_missing_text_is_named(tmp_path, stages):
    with pytest.raises(DataError, match='none.txt, source: found no such file'): stored_passages(stages, str(tmp_path/'none.txt'))
    (tmp_path/'some.txt').write_text('가\n', encoding='utf-8')
    with pytest.raises(DataError, match='no text file'): text_files(f'{tmp_path}/some.txt,mini')


def test_an_epoch_holds_every_token_once():
    random = np.random.default_rng(0)
    rows = [random.integers(5, 99, size) for size in random.integers(0, 70, 50)]
    packed = PackedSequences(rows, [*map(len, rows)], np.arange(50), 16, 0, 2, seed=7)
    epochs = [packed_batch(packed, epoch * packed.in_epoch, packed.in_epoch)['input_ids'].ravel() for epoch in (0, 1)]
    every = np.concatenate([[0, *row, 2] for row in rows])
    assert all(packed.tokens - 16 < len(epoch) <= packed.tokens for epoch in epochs) and not np.array_equal(*epochs)
    assert all((np.bincount(every, minlength=99) >= np.bincount(epoch, minlength=99)).all() for epoch in epochs)
    one = packed_batch(packed, 5, 1)
    assert all(np.array_equal(packed_batch(packed, 3, 4)[name][2], one[name][0]) for name in one), 'without those before it'


def test_held_out_passages_are_never_trained_on(stages):
    corpus = prepare_corpus(settings(), 'mini', 42, stages)
    assert not set(corpus.training.chosen) & set(corpus.validation.chosen)
    assert len(corpus.training.chosen) + len(corpus.validation.chosen) == len(corpus.texts)


def test_hidden_tokens_follow_from_seed_and_step(tmp_path, stages):
    corpus = prepare_corpus(settings(), 'mini', 42, stages)
    run = new_run(create_backbone(settings(), corpus, 42, stages), corpus, settings(), tmp_path, 8 * STEP, 42)
    same, other, seed = training_batch(run, 1, 0), training_batch(run, 2, 0), training_batch(replace(run, seed=43), 1, 0)
    first = training_batch(run, 1, 0)
    assert all(first[name].equal(same[name]) for name in first)
    assert not first['places'].equal(other['places']) and not first['places'].equal(seed['places'])
    assert len(first['places']) == round(0.15 * STEP) and not corpus.special[first['targets']].any()


# What becomes of it

def test_training_goes_on_with_what_pretraining_left(tmp_path, stages):
    first = run_in(tmp_path/'first', stages)
    named = settings(backbone=str(tmp_path/'first'/'model'), dropout=0.0, accumulation=1)
    corpus = prepare_corpus(named, 'mini', 42, stages)
    backbone = create_backbone(named, corpus, 42, stages)
    assert all(map(torch.equal, weights(backbone), weights(first.backbone)))
    assert corpus.tokenizer.names == first.corpus.tokenizer.names and 'hidden' in without_effect(named)
    assert run_in(tmp_path/'second', stages, 2, named).step == 2


def test_an_encoder_without_a_head_gets_one_and_learns(tmp_path, stages, tiny_encoder):
    "The settings are those for trained weights at any scale, the head is the one that `small` starts from, solved once."
    shutil.copytree(tiny_encoder, tmp_path/'bare')
    AutoModel.from_pretrained(tiny_encoder).save_pretrained(tmp_path/'bare')
    named = resolve_pretraining('mini', dict(length=32, batch_size=4, accumulation=1, held_out=0.2), str(tmp_path/'bare'))
    assert (named.learning_rate, named.segment) == (5e-5, 'none')
    corpus = prepare_corpus(named, 'mini', 42, stages)
    one, other = (create_backbone(named, corpus, 42, stages) for _ in range(2))
    assert all(map(torch.equal, weights(one), weights(other))) and one.get_output_embeddings().weight is not one.get_input_embeddings().weight
    first = pretrain(one, corpus, named, tmp_path/'run', 3 * 4 * 32, quiet=True)
    assert first.step == 3
    back = pretrained_backbone(str(tmp_path/'run'/'model'))
    assert all(map(torch.equal, weights(back), weights(first.backbone))) and not all(map(torch.equal, weights(back), weights(other)))


def test_a_version_trains_on_it_where_it_is_named(tmp_path, stages):
    run_in(tmp_path, stages, 2)
    found = resolve_quietly('v28', scale='mini', backbone=str(tmp_path/'model'))
    assert (found.hidden, found.vocabulary, found.initialization) == (0, 0, 'pretrained')
    assert resolve_quietly('v28', scale='mini', backbone='x', hidden=64, initialization='random').hidden == 64
    assert load_tokenizer(tmp_path/'model').segment == 'none'


def test_the_notebook_names_what_is_misspelt():
    with pytest.raises(ConfigError, match="did you mean 'tokens'"): run_cells('pretrain.ipynb', token=5)

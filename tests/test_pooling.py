"""The pooling inside sentence-transformers: their vectors, losses, gradients, trainer and folders; a start that is sparse; its page."""
import copy, functools, json, pickle, re, sys
from pathlib import Path
import pytest
import torch
from torch.nn import functional as F
from conftest import ROOT
from splade_nb.config.files import ConfigError, DataError
from splade_nb.data.records import toy_corpus
from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
from splade_nb.training.check_settings import quiet

pytest.importorskip('sentence_transformers', reason='the extra `export` is not installed')
from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.losses import CachedSpladeLoss, SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import MLMTransformer, Router, SparseStaticEmbedding, SpladePooling
from splade_nb.hub.export import whole_tokenizer
from splade_nb.hub.pooling import CLASSES, SpladeMaxPooling, attach, calibrate, level_of, name_pooling, shift_for, text_logits
sys.path.append(str(ROOT/'benchmarks'))
import models, start

TEXTS = list(toy_corpus().texts.values())
SHAPE = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, max_position_embeddings=70,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
FAMILIES = dict(BertConfig=SHAPE, XLMRobertaConfig=SHAPE | dict(type_vocab_size=1), AlbertConfig=SHAPE | dict(embedding_size=16),
                ElectraConfig=SHAPE | dict(embedding_size=24),
                DistilBertConfig=dict(dim=32, n_layers=1, n_heads=2, hidden_dim=48, dropout=0.0, attention_dropout=0.0),
                ModernBertConfig={name: value for name, value in SHAPE.items() if 'prob' not in name})


@pytest.fixture(scope='module')
def tokenizer(): return SpladeTokenizer(train_unigram(TEXTS, 300))


@pytest.fixture(scope='module')
def folder(tokenizer, tmp_path_factory):
    "A function from a kind of backbone to its folder, with random weights; a random bias, so that texts differ in their terms."
    import transformers
    def made(kind: str = 'XLMRobertaConfig', **other) -> str:
        path = tmp_path_factory.mktemp(kind)
        marks = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
        torch.manual_seed(0)
        backbone = transformers.AutoModelForMaskedLM.from_config(getattr(transformers, kind)(vocab_size=len(tokenizer), **FAMILIES[kind] | marks | other))
        decoder = backbone.get_output_embeddings()
        with torch.no_grad():
            decoder.weight.normal_(0, 0.3)
            if decoder.bias is not None: decoder.bias.normal_(-3, 2)
        backbone.save_pretrained(path); whole_tokenizer(tokenizer).save_pretrained(path)
        return str(path)
    return functools.cache(made)


def transformer_of(path: str, task: str = 'fill-mask') -> Transformer:
    with quiet(): return Transformer(path, transformer_task=task, max_seq_length=64)


def encoders(path: str, **settings) -> tuple:  # theirs, ours
    return tuple(SparseEncoder(modules=[transformer_of(path), pooling(**settings)], device='cpu') for pooling in (SpladePooling, SpladeMaxPooling))


def step(model, kind=SpladeLoss, texts=TEXTS, **options) -> tuple:  # loss, gradients by name
    model.train().zero_grad()
    loss_of = kind(model, SparseMultipleNegativesRankingLoss(model), 3e-2, 5e-2, **options)
    with torch.enable_grad():
        loss = sum(loss_of([model.preprocess(texts[:6]), model.preprocess(texts[6:12])]).values())
        loss.backward()
    return loss.item(), {name: weight.grad for name, weight in model[0].named_parameters()}


def far(ours: dict, theirs: dict) -> float:
    "The largest difference of gradients relative to the largest gradient."
    assert ours.keys() == theirs.keys() and [name for name in ours if (ours[name] is None) != (theirs[name] is None)] == []
    held = [name for name in theirs if theirs[name] is not None]
    scale = max(float(theirs[name].abs().max()) for name in held)
    assert scale > 0
    return max(float((ours[name] - theirs[name]).abs().max()) for name in held) / scale


# Their vectors, losses and gradients

@pytest.mark.parametrize('kind', FAMILIES)
def test_the_vectors_losses_and_gradients_are_theirs(kind, folder):
    theirs, ours = encoders(folder(kind))
    wanted = theirs.encode_document(TEXTS, convert_to_sparse_tensor=False)
    found = ours.encode_document(TEXTS, convert_to_sparse_tensor=False)
    assert 0 < (wanted > 0).float().mean() < 1 and torch.equal(found > 0, wanted > 0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    (loss, gradients), (our_loss, our_gradients) = step(theirs), step(ours)
    assert our_loss == pytest.approx(loss, rel=1e-6) and far(our_gradients, gradients) < 1e-6


def test_the_second_logarithm_and_the_cached_loss_are_theirs(folder):
    theirs, ours = encoders(folder(), activation_function='log1p_relu')
    plain = encoders(folder())[1]
    for kind, options in ((SpladeLoss, {}), (CachedSpladeLoss, dict(mini_batch_size=2))):
        (loss, gradients), (our_loss, our_gradients) = step(theirs, kind, **options), step(ours, kind, **options)
        assert our_loss == pytest.approx(loss, rel=1e-6) and far(our_gradients, gradients) < 1e-6
    assert step(plain)[0] != pytest.approx(loss, rel=1e-3)


def test_a_decoder_without_a_bias_and_half_weights(folder):
    theirs, ours = encoders(folder('ModernBertConfig', decoder_bias=False))
    assert theirs[0].auto_model.get_output_embeddings().bias is None
    (loss, gradients), (our_loss, our_gradients) = step(theirs), step(ours)
    assert our_loss == pytest.approx(loss, rel=1e-6) and far(our_gradients, gradients) < 1e-6
    with pytest.raises(ConfigError, match='no bias to shift'): calibrate(ours, TEXTS, 20)
    theirs, ours = (model.bfloat16() for model in encoders(folder()))
    wanted, found = (model.encode_document(TEXTS, convert_to_sparse_tensor=False) for model in (theirs, ours))
    assert found.dtype == wanted.dtype == torch.bfloat16 and float((found - wanted).abs().max()) < 0.05
    with pytest.raises(ConfigError, match='bias in torch.bfloat16'): calibrate(ours, TEXTS, 20)


def test_flattened_texts_and_texts_without_a_token(folder):
    theirs, ours = (model.train() for model in encoders(folder()))
    lengths, generator = [5, 2, 9], torch.Generator().manual_seed(0)
    states, decoder = torch.randn(16, 32, generator=generator), ours[1].decoder
    ends = torch.tensor([0, 5, 7, 16])
    flat = ours[1](dict(token_embeddings=states[None], cu_seq_lens_q=ends))['sentence_embedding']
    wanted = theirs[1](dict(token_embeddings=F.linear(states, decoder.weight, decoder.bias)[None], cu_seq_lens_q=ends))['sentence_embedding']
    torch.testing.assert_close(flat, wanted, rtol=0, atol=1e-6)
    mask = torch.zeros(4, 9, dtype=torch.long)
    for row, length in zip(mask, [5, 0, 2, 9]): row[9 - length:] = 1  # padded on the left, one text empty
    padded = torch.zeros(4, 9, 32); padded[mask.bool()] = states
    found = ours[1](dict(token_embeddings=padded, attention_mask=mask))['sentence_embedding']
    assert not found[1].any() and torch.equal(found[[0, 2, 3]], flat) and lengths == mask.sum(1)[[0, 2, 3]].tolist()
    nothing = ours[1](dict(token_embeddings=padded, attention_mask=0 * mask))['sentence_embedding']
    assert nothing.shape == (4, decoder.out_features) and not nothing.any()


def test_no_tensor_holds_every_logit(folder, monkeypatch):
    monkeypatch.setattr('splade_nb.model.head.rows_in_cache', lambda tokens: 32)
    from torch.utils._python_dispatch import TorchDispatchMode
    class Largest(TorchDispatchMode):
        most = 0
        def __torch_dispatch__(self, function, types, given=(), named=None):
            result = function(*given, **(named or {}))
            for part in result if isinstance(result, (tuple, list)) else [result]:
                if torch.is_tensor(part) and part.is_floating_point(): self.most = max(self.most, part.numel())
            return result
    long = [' '.join(TEXTS)] * 12
    sizes = []
    for model in encoders(folder()):
        with Largest() as seen: step(model, texts=long)
        sizes.append(seen.most)
    theirs, ours = sizes
    assert theirs == 6 * 64 * model.get_embedding_dimension() and ours < theirs / 4


# Their trainer and folders

def trained(model, out: Path, **options) -> list:  # losses
    from datasets import Dataset
    rows = Dataset.from_dict(dict(query=TEXTS[:12], document=TEXTS[2:14]))
    given = dict(max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, save_steps=2, logging_steps=1, report_to='none',
                 seed=0, disable_tqdm=True, use_cpu=True) | options
    resume = given.pop('resume', None)
    trainer = SparseEncoderTrainer(model=model, args=SparseEncoderTrainingArguments(str(out), **given), train_dataset=rows,
                                   loss=SpladeLoss(model, SparseMultipleNegativesRankingLoss(model), 3e-2, 5e-2))
    trainer.train(resume_from_checkpoint=resume)
    return [row['loss'] for row in trainer.state.log_history if 'loss' in row]


def weights_of(model) -> dict: return {name: value.detach().clone() for name, value in model[0].state_dict().items()}


@pytest.mark.slow
def test_their_trainer_trains_resumes_and_saves_it(folder, tmp_path):
    theirs, ours = encoders(folder())
    losses, our_losses = trained(theirs, tmp_path/'theirs'), trained(ours, tmp_path/'ours')
    assert our_losses == pytest.approx(losses, rel=1e-4) and len(set(losses)) == 4
    for name, value in weights_of(theirs).items(): torch.testing.assert_close(weights_of(ours)[name], value, rtol=0, atol=2e-4)
    again = encoders(folder())[1]
    resumed = trained(again, tmp_path/'ours', resume=str(tmp_path/'ours'/'checkpoint-2'))
    assert resumed == pytest.approx(our_losses, rel=1e-5)
    checkpointed = encoders(folder())[1]
    assert trained(checkpointed, tmp_path/'less', gradient_checkpointing=True) == pytest.approx(losses, rel=1e-4)


def test_a_folder_opens_by_either_name(folder, tmp_path):
    ours = encoders(folder(), activation_function='log1p_relu')[1]
    wanted = ours.encode_document(TEXTS, convert_to_sparse_tensor=False)
    with quiet(): ours.save_pretrained(str(tmp_path/'out'), create_model_card=False)
    with pytest.raises(ValueError, match='trust_remote_code'): SparseEncoder(str(tmp_path/'out'), device='cpu')
    for name, kind in (('SpladeMaxPooling', SpladeMaxPooling), ('SpladePooling', SpladePooling), ('SpladeMaxPooling', SpladeMaxPooling)):
        name_pooling(tmp_path/'out', name)
        config = tmp_path/'out'/'1_SpladeMaxPooling'/'config.json'  # the third time as earlier versions wrote it
        if kind is SpladePooling: config.write_text(config.read_text().replace('"embedding_dimension"', '"word_embedding_dimension"'))
        with quiet(): found = SparseEncoder(str(tmp_path/'out'), trust_remote_code=name == 'SpladeMaxPooling', device='cpu')
        assert type(found[1]) is kind and found.get_embedding_dimension() == wanted.shape[1] and found[1].activation_function == 'log1p_relu'
        torch.testing.assert_close(found.encode_document(TEXTS, convert_to_sparse_tensor=False), wanted, rtol=0, atol=1e-6)
    assert [row['type'] for row in json.loads((tmp_path/'out'/'modules.json').read_text())][1] == CLASSES['SpladeMaxPooling']
    assert not [path for path in (tmp_path/'out').rglob('*') if path.suffix == '.part']


def test_a_route_of_a_router_holds_it(folder, tmp_path):
    theirs, ours = encoders(folder())
    def routed(model): return SparseEncoder(modules=[Router.for_query_document([SparseStaticEmbedding(tokenizer=model[0].tokenizer)], [model[0], model[1]])], device='cpu')
    theirs, ours = routed(theirs), routed(ours)
    wanted = theirs.encode_document(TEXTS, convert_to_sparse_tensor=False)
    with quiet(): ours.save_pretrained(str(tmp_path/'out'), create_model_card=False)
    with quiet(): opened = SparseEncoder(str(tmp_path/'out'), trust_remote_code=True, device='cpu')
    name_pooling(tmp_path/'out', 'SpladePooling')
    with quiet(): published = SparseEncoder(str(tmp_path/'out'), device='cpu')
    for model in (ours, opened, published):
        torch.testing.assert_close(model.encode_document(TEXTS, convert_to_sparse_tensor=False), wanted, rtol=0, atol=1e-6)
    assert calibrate(opened, TEXTS, 10)['average'] == 10


def test_their_earlier_transformer_takes_it(folder):
    with quiet(): theirs, ours = (SparseEncoder(modules=[MLMTransformer(folder(), max_seq_length=64), pooling], device='cpu') for pooling in (SpladePooling(), SpladeMaxPooling()))
    wanted, found = (model.encode_query(TEXTS, convert_to_sparse_tensor=False) for model in (theirs, ours))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_copy_is_a_model_of_its_own(folder):
    ours = encoders(folder())[1]
    there = pickle.loads(pickle.dumps(ours))  # as a pool of processes gets it
    torch.testing.assert_close(there.encode(TEXTS, convert_to_sparse_tensor=False), ours.encode(TEXTS, convert_to_sparse_tensor=False))
    assert there[1].decoder is there[0].auto_model.get_output_embeddings()
    other = copy.deepcopy(ours)
    with torch.no_grad(): other[0].auto_model.get_output_embeddings().bias += 1
    assert other[1].decoder is other[0].auto_model.get_output_embeddings() is not ours[1].decoder
    assert not torch.equal(other.encode(TEXTS[:1], convert_to_sparse_tensor=False), ours.encode(TEXTS[:1], convert_to_sparse_tensor=False))


# What is refused

def test_what_cannot_be_done_is_refused_by_name(folder, tmp_path):
    for wrong in (dict(pooling_strategy='sum'), dict(activation_function='gelu')):
        with pytest.raises(ConfigError, match=next(iter(wrong.values()))): SpladeMaxPooling(**wrong)
    with pytest.raises(ConfigError, match="transformer_task='feature-extraction'"):
        SparseEncoder(modules=[transformer_of(folder(), 'feature-extraction'), SpladeMaxPooling()], device='cpu')
    with pytest.raises(ConfigError, match='found no Transformer before it'): SparseEncoder(modules=[SpladeMaxPooling()], device='cpu')
    with pytest.raises(ConfigError, match='embedding_dimension=7: the decoder of XLMRobertaForMaskedLM'): encoders(folder(), embedding_dimension=7)
    with pytest.raises(ConfigError, match='has no decoder yet'): SpladeMaxPooling()(dict(token_embeddings=torch.zeros(1, 1, 4), attention_mask=torch.ones(1, 1)))
    with pytest.raises(ConfigError, match='no SpladeMaxPooling'): text_logits(encoders(folder())[0], TEXTS)
    (tmp_path/'modules.json').write_text('[]')
    with pytest.raises(DataError, match='1 files that name modules, none a pooling'): name_pooling(tmp_path, 'SpladePooling')
    with pytest.raises(ConfigError, match='Pooling'): name_pooling(tmp_path, 'MeanPooling')


def test_a_head_that_does_more_is_refused_and_left_as_it_was(folder):
    transformer = transformer_of(folder())
    head = transformer.auto_model.lm_head
    width = transformer.auto_model.get_output_embeddings().out_features
    for more in (lambda logits: 30 * (logits / 30).tanh() if logits.shape[-1] == width else logits, lambda logits: logits + torch.ones(width)):
        hook = head.register_forward_hook(lambda module, given, logits: more(logits))
        before = transformer(transformer.preprocess(TEXTS[:2]))['token_embeddings']
        with pytest.raises(ConfigError, match='XLMRobertaForMaskedLM: its logits are not weight times state'): attach(SpladeMaxPooling(), transformer)
        assert torch.equal(transformer(transformer.preprocess(TEXTS[:2]))['token_embeddings'], before)
        hook.remove()


def test_a_shift_needs_room(folder):
    ours = encoders(folder())[1]
    width = ours.get_embedding_dimension()
    for terms in (0, width):
        with pytest.raises(ConfigError, match=f'terms={terms}: allowed: 1 to {width - 1}'): calibrate(ours, TEXTS, terms)
    with pytest.raises(DataError, match='allowed: at least 1'): calibrate(ours, [], 5)
    for logits in (torch.ones(2, 6), torch.full((2, 6), float('nan'))):
        with pytest.raises(ConfigError, match='no shift leaves 3 terms a text'): shift_for(logits, 3)


# A start that is sparse

@pytest.fixture(scope='module')
def small(tokenizer):
    "Stand-ins at the levels that users report, of a size that takes seconds."
    pairs = [(text[:12], text) for text in TEXTS]
    made = {name: start.stand_in(tokenizer, 32, TEXTS, *level) for name, level in start.starts().items()}
    return made, pairs


def test_the_stand_ins_have_the_reported_weights(small):
    for name, (means, deviations) in start.REPORTED.items():
        level = level_of(text_logits(small[0][name], TEXTS))
        assert level['active'] > 0.98 and level['cosine'] > 0.95
        assert level['mean'] == pytest.approx(sum(means) / 3, abs=0.2) and level['deviation'] == pytest.approx(sum(deviations) / 3, rel=0.5)
    assert level_of(text_logits(small[0]['no active token'], TEXTS))['active'] == 0


def test_their_softmax_does_not_see_the_level(small):
    dense, empty = (small[0][name] for name in (next(iter(start.REPORTED)), 'no active token'))
    torch.testing.assert_close(text_logits(dense, TEXTS).log_softmax(1), text_logits(empty, TEXTS).log_softmax(1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', start.starts())
def test_plain_training_stays_dense_or_dead_and_a_calibrated_start_learns(name, small):
    made, pairs = small
    plain, calibrated = copy.deepcopy(made[name]), copy.deepcopy(made[name])
    told = calibrate(calibrated, TEXTS, 20)
    assert told['average'] == 20 and 0 < told['least'] <= 20 <= told['most'] < 60
    begun, settings = start.judge(calibrated, pairs), dict(steps=10, rate=3e-3)
    losses, plain_losses = start.train(calibrated, pairs, **settings), start.train(plain, pairs, **settings)
    ended, plain_ended, width = start.judge(calibrated, pairs), start.judge(plain, pairs), plain.get_embedding_dimension()
    assert all(0 < value < 20 for value in losses) and ended['loss'] < 0.8 * begun['loss'] and ended['least'] > 0 and ended['terms'] < width / 4
    if name == 'no active token': assert plain_ended['terms'] == 0 and len(set(plain_losses)) == 1
    else: assert plain_ended['terms'] > 0.95 * width and plain_ended['cosine'] > 0.95 > 3 * ended['active']
    again = copy.deepcopy(made[name])
    assert calibrate(again, TEXTS, 20) == told and start.train(again, pairs, **settings) == losses


# The benchmark and the page

@pytest.mark.slow
def test_a_step_of_the_benchmark_gives_one_loss_both_ways(capsys):
    import pooling, pooling_page
    with models.model_folder(models.SMALL) as path: rows = pooling.times(path, models.SMALL)
    assert [row['loss']['drop_in'] for row in rows] == pytest.approx([row['loss']['pooling'] for row in rows], rel=1e-6)
    assert all(set(row['rounds']) == {'pooling', 'drop_in'} for row in rows) and 'times faster' in capsys.readouterr().out
    shown = pooling_page.step_table(dict(times=rows, memory=[dict(pairs=4, length=length, peaks=dict(theirs=3e9, drop_in=1e9)) for length in (64, 96)]))
    assert '| 4 pairs, documents of 64 tokens | 3.0 GB | 1.0 GB | 3.0x | ' in shown and shown.endswith('| 3.0 GB | 1.0 GB | 3.0x |  |  |')


def page() -> str: return (ROOT/'docs'/'xlmr_one_gpu.md').read_text(encoding='utf-8')


@pytest.mark.slow
def test_the_code_of_the_page_runs(folder, tmp_path, monkeypatch, capsys):
    blocks, names = re.findall(r'```python\n(.*?)```', page(), re.S), {}
    assert len(blocks) == 7 and sum('FacebookAI/xlm-roberta-base' in block for block in blocks) == 1
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        block = block.replace('FacebookAI/xlm-roberta-base', folder()).replace('max_steps=1000', 'max_steps=2, use_cpu=True').replace('max_seq_length=192', 'max_seq_length=64')
        with quiet(): exec(block, names)
    shown = capsys.readouterr().out
    assert "'cosine'" in shown and "'average': 150.0" in shown
    assert isinstance(names['published'][1], SpladePooling) and names['routes'].router_mapping == dict(query='query', document='document')
    vectors = [model.encode_document(TEXTS, convert_to_sparse_tensor=False) for model in (names['model'], names['published'], names['inference_free'])]
    for other in vectors[1:]: torch.testing.assert_close(other, vectors[0], rtol=0, atol=1e-6)


def test_figures_of_the_page_are_those_of_the_results():
    import pooling_page
    results = {part: json.loads((ROOT/'benchmarks'/'results'/f'{part}.json').read_text()) for part in ('head', 'start')}
    row = next(row for row in results['head']['memory'] if row['length'] == 192 and 'pooling' in row['peaks'])
    assert f'{row["peaks"]["pooling"] / 1e6:,.0f} MB | {row["peaks"]["dense"] / 1e6:,.0f} MB' in page()
    width, kinds = results['start']['size']['vocabulary'], ('plain', 'calibrated')
    for plain, calibrated in zip(*[iter(results['start']['rows'])] * 2, strict=True):
        assert (plain['start'], calibrated['start']) == kinds and all(f'| {plain["backbone"]} | {kind} |' in page() for kind in kinds)
        assert plain['after']['active'] == 0 or plain['after']['active'] > 0.95, 'dead or dense'
        assert 0 < calibrated['after']['least'] and calibrated['after']['terms'] < width / 10 and calibrated['after']['loss'] < calibrated['before']['loss']
        assert calibrated['after']['first'] > 2 * plain['after']['first']
    half = copy.deepcopy(results)
    for each in half['head']['memory']: each['peaks'] = {name: value // 2 for name, value in each['peaks'].items()}
    assert pooling_page.page(half) != pooling_page.page(results)

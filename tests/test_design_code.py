"""The code that the design documents print runs on this package: on a local checkpoint, without a GPU."""
import re, sys, types
import pytest
import torch
from conftest import real
from splade_nb.data.tokenizer import train_unigram
from splade_nb.model import xlmr
from splade_nb.model.gate import POOLERS
from splade_nb.model.initialization import mini_backbone, resolve_toy, toy_model

TEXTS = ['서울 맛집 추천', '부산 여행 코스', '서울 강남 맛집 추천해주세요', '서울에서 맛있는 김치찌개 맛집을 찾고 있습니다']


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp('checkpoint')
    torch.manual_seed(0)
    tokenizer = train_unigram(TEXTS * 20, 80)
    tokenizer.save_pretrained(folder)
    mini_backbone(resolve_toy(max_length=256), len(tokenizer)).save_pretrained(folder)
    return str(folder)


def blocks(seed: str) -> list[str]: return re.findall('```python\n(.*?)```', real(f'seeds/{seed}').read_text(encoding='utf-8'), re.S)


def block(seed: str, marker: str) -> str: return next(code for code in blocks(seed) if marker in code)


def runs(code: str, checkpoint: str, **names) -> dict:
    "Execute a document's code: its module names the package's, its hub name a folder, its device the CPU."
    code = code.replace('"xlm-roberta-base"', repr(checkpoint)).replace('"cuda"', '"cpu"')
    sys.modules |= {'src': types.ModuleType('src'), 'src.model': types.ModuleType('src.model'), 'src.model.splade_xlmr': xlmr}
    names = {'torch': torch} | names
    try: exec(code, names)
    finally:
        for name in ('src', 'src.model', 'src.model.splade_xlmr'): del sys.modules[name]
    return names


@pytest.fixture
def names(checkpoint) -> dict:  # model, tokenizer and what else design 1's first example makes
    return runs(block('1-architecture.md', 'create_splade_xlmr(use_idf=False)').replace('create_splade_xlmr(use_idf=False)', 'create_splade_xlmr("xlm-roberta-base", use_idf=False)'), checkpoint)


def test_design_1_encodes_documents(names):
    assert names['sparse_repr'].shape == (2, len(names['tokenizer'])) and (names['sparse_repr'] > 0).any()


def test_design_1_shows_the_heaviest_tokens(names, checkpoint):
    names['model'].eval()
    found = runs(block('1-architecture.md', '상위 20개 토큰 추출'), checkpoint, **names)
    assert 0 < len(found['top_tokens']) <= 20 and list(found['top_tokens'].values()) == sorted(found['top_tokens'].values(), reverse=True)


def test_design_1_forward_is_the_models(names, checkpoint):
    "`self.model(...)`, `self.relu` and the rest of the printed method, on the same texts."
    model, inputs = names['model'].eval(), names['inputs']
    method = runs('from typing import Tuple\n' + block('1-architecture.md', '# 1. MLM 순전파'), checkpoint)['forward']
    ids, mask = inputs['input_ids'], inputs['attention_mask']
    with torch.no_grad(): printed, own = method(model, ids, mask), model(ids, mask)
    assert [one.shape for one in printed] == [one.shape for one in own]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(printed, own))


def test_design_1_reads_the_encoder(names):
    model, inputs = names['model'].eval(), names['inputs']
    states = model.transformer(input_ids=inputs['input_ids'], attention_mask=inputs['attention_mask'])[0]
    assert model.model.roberta is model.transformer and states.shape == (*inputs['input_ids'].shape, 32)


def test_design_3_step_by_step(names, checkpoint):
    "`model.model(...)`, ReLU, mask and maximum give the vector of the model."
    names['model'].eval()
    found = runs(block('3-operation.md', '# 2. Embedding + Encoding'), checkpoint, **names)
    with torch.no_grad(): own, _ = names['model'](found['encoded']['input_ids'], found['encoded']['attention_mask'])
    assert found['logits'].shape == (1, 256, len(names['tokenizer'])) and torch.allclose(found['sparse_repr'], own, atol=1e-5)


def test_design_3_activations_batches_and_dictionaries(names, checkpoint):
    code = 'from transformers import AutoTokenizer\nSPLADEDocXLMR = object\n' + block('3-operation.md', 'def get_token_activations') + block('3-operation.md', 'def encode_batch')
    found = runs(code, checkpoint, model=names['model'].eval(), tokenizer=names['tokenizer'])
    assert found['activations'] and found['encode_batch'](names['model'], names['tokenizer'], TEXTS, batch_size=3, device='cpu').shape == (4, len(names['tokenizer']))
    dictionary = runs(block('3-operation.md', 'def to_sparse_dict').split('# 저장 예시')[0], checkpoint)
    assert dictionary['to_opensearch_format'](names['sparse_repr'][0], names['tokenizer'])['tokens']
    analysis = runs(block('3-operation.md', 'def analyze_sparsity'), checkpoint)['analyze_sparsity'](names['sparse_repr'][0])
    assert analysis['vocab_size'] == len(names['tokenizer']) and analysis['max_weight'] >= analysis['mean_weight'] > 0


def test_names_are_on_every_model():
    model = toy_model(context_gate=False)
    ids, mask = torch.tensor([[0, 10, 11, 2]]), torch.ones(1, 4, dtype=torch.long)
    logits = model.model(input_ids=ids, attention_mask=mask).logits
    scores = torch.log1p(model.relu(logits)).max(dim=1).values.masked_fill(model.special, 0)
    assert torch.allclose(scores, model(ids, mask)[0], atol=1e-6) and not [name for name in model.state_dict() if 'model.' in name[:6]]


# The same in our own words, without the documents

@pytest.fixture
def encoded(checkpoint) -> tuple:  # design 1's usage: ids, mask, tokenizer
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    rows = tokenizer([f'<s>{text}</s>' for text in TEXTS], padding=True, return_tensors='pt')
    return rows['input_ids'], rows['attention_mask'], tokenizer


def printed(model, ids, mask) -> tuple:
    "Logits, log(1 + ReLU), padding set to zero, the maximum over positions and over the vocabulary."
    scores = torch.log1p(model.relu(model.model(ids, mask, token_type_ids=None).logits)) * mask[..., None].float()
    return scores.amax(1), scores.amax(2)


@pytest.mark.parametrize('options', (dict(use_idf=False), dict(use_idf=True, idf_weights=2.0)))
def test_a_new_model_gives_what_the_designs_print_and_the_same_twice(options, checkpoint, encoded):
    ids, mask, tokenizer = encoded
    if 'idf_weights' in options: options = options | dict(idf_weights=torch.full((len(tokenizer),), 2.0))
    model = xlmr.create_splade_xlmr(checkpoint, **options)
    with torch.no_grad(): first, again, wanted = model(ids, mask), model(ids, mask, token_type_ids=torch.zeros_like(ids)), printed(model, ids, mask)
    assert not model.training and all(torch.equal(*pair) for pair in zip(first, again))
    assert torch.allclose(first[0], wanted[0] * (2.0 if options['use_idf'] else 1.0), atol=1e-5) and torch.allclose(first[1], wanted[1], atol=1e-5)
    assert torch.equal(model.encode_documents(input_ids=ids, attention_mask=mask, token_type_ids=None), first[0])
    top = model.get_top_k_tokens(sparse_repr=first[0][0], tokenizer=tokenizer, k=20)
    assert 0 < len(top) <= 20 and list(top.values()) == sorted(top.values(), reverse=True)


def test_dropout_is_the_backbone_s_and_that_of_token_importance(checkpoint, encoded):
    ids, mask, _ = encoded
    for form in (True, False):
        model = xlmr.create_splade_xlmr(checkpoint, use_idf=False, dropout=0.5, use_mlm_head=form)
        for part in model.transformer.modules():
            if isinstance(part, torch.nn.Dropout): part.p = 0.0
        model.train()
        assert torch.equal(model(ids, mask)[0], model(ids, mask)[0]) == form
        assert (model.token_importance is None) == form
    kinds = [type(part).__name__ for part in model.token_importance]
    assert kinds == ['Linear', 'ReLU', 'Dropout', 'Linear'] and model.token_importance[2].p == 0.5


def test_penalties_fall_from_1_to_the_power_of_minus_alpha():
    found = xlmr.idf_penalty_weights(torch.tensor([1.0, 3.0, 5.0]), alpha=2.0)
    assert torch.allclose(found, torch.tensor([1.0, torch.e ** -1, torch.e ** -2]), atol=1e-5)


@pytest.mark.parametrize('pooler', ('heads', 'rectified_heads'))
def test_heads_pool_as_design_5_explains(pooler):
    "For each head: scores of the words, softmax without the padding, weighted sum; the heads in a row, ReLU or not, a last layer."
    torch.manual_seed(0)
    layer, states, mask = POOLERS[pooler](12, 3), torch.randn(2, 5, 12), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    pooled, weights = layer(states, mask, return_attention=True)
    assert weights.shape == (2, 3, 5) and torch.allclose(weights.sum(2), torch.ones(2, 3)) and (weights[0, :, 3:] == 0).all()
    for text in range(2):
        words = states[text, mask[text].bool()]
        share, value = layer.score(words).softmax(0), layer.value(words)
        row = torch.cat([share[:, head] @ value[:, head * 4:head * 4 + 4] for head in range(3)])
        assert torch.allclose(layer.out(row.relu() if 'rectified' in pooler else row), pooled[text], atol=1e-5)
    assert torch.equal(layer(states, mask), pooled)

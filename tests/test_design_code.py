"""The code that the design documents print runs on this package: on a local checkpoint, without a GPU."""
import re, sys, types
import pytest
import torch
from conftest import real
from splade_nb.data.tokenizer import train_unigram
from splade_nb.model import xlmr
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

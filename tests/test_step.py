"""What a training step asks of the machine, in counts: operations, waits for the device, casts, padding, passes."""
import re, traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from conftest import ROOT, real
from splade_nb.config.files import read_json
from splade_nb.config.processes import ProcessGroup
from splade_nb.config.versions import resolve_quietly
from splade_nb.data.readers import load_collection
from splade_nb.data.tokenizer import load_tokenizer
from splade_nb.model import head
from splade_nb.model.blocks import block_shapes, blocks_of
from splade_nb.model.initialization import toy_model
from splade_nb.model.splade import accumulated_rows
from splade_nb.training import batch, memory, objective
from splade_nb.training.dataset import toy_training_data
from splade_nb.training.trainer import Run, train_step


class Operations(TorchDispatchMode):
    "Counts operations, and casts of each weight."
    def __init__(self, model):
        super().__init__()
        self.weights, self.number, self.casts = {value.data_ptr() for value in model.parameters()}, 0, Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.number += 1
        if operation.name() == 'aten::_to_copy' and arguments[0].data_ptr() in self.weights: self.casts[arguments[0].data_ptr()] += 1
        return operation(*arguments, **options or {})


@pytest.fixture
def waits(monkeypatch) -> list:
    "Where the host read a tensor."
    found, inside = [], []
    def watched(true):
        def read(self, *arguments, **options):
            if not inside: found.append(traceback.extract_stack(limit=2)[0])
            inside.append(True)
            try: return true(self, *arguments, **options)
            finally: inside.pop()
        return read
    for name in ('item', 'tolist', '__bool__', '__float__', '__int__', 'nonzero', 'cpu', 'numpy'):
        monkeypatch.setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name)))
    return found


def run_of(layers: int = 12, texts: int = 300, **changes) -> Run:
    "V28 at full scale and tiny widths, with texts of very different lengths."
    settings = resolve_quietly('v28', 'corrected', 'full', initialization='random', hidden=32, layers=layers, steps=20, teacher='lsa',
                               **changes)
    data, _ = toy_training_data(texts)
    random = np.random.default_rng(1)
    data.documents = [random.integers(5, texts, number).tolist() for number in random.integers(8, 190, 12)]
    data.queries = [random.permutation(data.documents[query // 2])[:random.integers(3, 40)].tolist() for query in range(24)]
    data.teacher = tuple(normalize(torch.randn(number, 8)).numpy() for number in (24, 12))
    model = toy_model(texts, layers=layers, max_length=192, gate_heads=4, gate_hidden=32, precision=settings.precision).train()
    return Run(model, data, settings, None, 42, 20, objective.optimizer_for(model, settings), torch.zeros(texts, dtype=torch.bool))


@pytest.mark.slow
@pytest.mark.parametrize('passes', (1, 2))
def test_a_step_of_v28_is_few_operations_and_fewer_waits(passes, waits, monkeypatch):
    monkeypatch.setattr(head, 'fast_bf16', lambda place: False)  # the head casts its weight in each pass, on some machines
    run = run_of()
    run.step, run.passes = 12, passes  # of 96 pairs
    with accumulated_rows(run.model):
        train_step(run)
        run.step += 1
        waits.clear()
        with Operations(run.model) as operations: train_step(run)
    assert operations.number <= 9500 and len(waits) <= 12, (operations.number, Counter(frame.name for frame in waits))
    assert operations.casts and max(operations.casts.values()) == 1


def test_blocks_and_passes_give_the_gradient_of_the_padded_batch():
    run = run_of(layers=2, precision='fp32', batch_size=12, accumulation=1)
    rows, found = batch.batch_at(12, 20, 0, run.training_data, run.settings, 42), []
    padded = rows | {side: {name: value for name, value in rows[side].items() if name != 'lengths'} for side in ('query', 'document')}
    for passes in (0, 1, 3):  # 0: padded, in one pass of each side
        run.model.eval().zero_grad()
        if passes: loss, parts, _ = memory.backward(run.model, rows, 12, 20, run.training_data, run.settings, passes=passes)
        else: loss, parts, _ = objective.step_loss(run.model, padded, 12, 20, run.training_data, run.settings)
        if not passes: loss.backward()
        gradient = torch.cat([value.grad.flatten() for value in run.model.parameters() if value.grad is not None])
        found.append([loss.detach(), {name: torch.as_tensor(value) for name, value in parts.items()}, gradient / gradient.abs().max()])
    for other in found[1:]: torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-5, check_dtype=False)


@pytest.mark.parametrize('precision, asked', [('bf16', True), ('fp32', False)])
def test_a_card_may_use_tf32_where_a_step_is_in_bf16(precision, asked, monkeypatch):
    run, products, found = run_of(layers=1, precision=precision, batch_size=4, accumulation=1), torch.backends.cuda.matmul, []
    true, before = memory.loss_of, products.allow_tf32
    monkeypatch.setattr(memory, 'loss_of', lambda *given: found.append(products.allow_tf32) or true(*given))
    train_step(run)
    assert found == [asked] and products.allow_tf32 == before


def test_memory_beyond_the_plan_is_what_a_card_has_shown(monkeypatch):
    printed = next(row for row in read_json(ROOT/'benchmarks'/'results'/'gpu-printed.json')['rows'] if 'V28' in row[0])
    taken, planned = map(float, re.search(r'([\d.]+) GB \(plan ([\d.]+)\)', ' '.join(printed)).groups())
    assert memory.BEYOND == taken / planned - 1
    run = run_of(layers=1, batch_size=4, accumulation=1)
    rows, held = memory.widest_batch(20, run.training_data, run.settings, 42, tries=1), sum(value.nbytes for value in run.model.parameters())
    plan = memory.memory_plan(run.model, rows, run.settings)
    monkeypatch.setattr(memory, '_kept_rng', lambda model: nullcontext())
    monkeypatch.setattr(torch.Tensor, 'is_cuda', property(lambda self: self is run.model.special))
    assert memory.memory_plan(run.model, rows, run.settings)['beyond'] == pytest.approx(memory.BEYOND * (held + sum(plan.values())))


def test_passes_follow_from_memory_and_work_falls_with_processes():
    run = run_of(layers=2)
    rows = memory.widest_batch(20, run.training_data, run.settings, 42, tries=2)
    whole = sum(memory.memory_plan(run.model, rows, run.settings).values())
    def passes(share, group=ProcessGroup()): return memory.passes_for(run.model, rows, run.settings, replace(group), whole * share / memory.USED)
    assert passes(1) == 1 < passes(0.6) < passes(0.3) <= passes(0) == 192
    plan = memory.memory_plan(run.model, rows, run.settings, passes=passes(0.6))
    assert sum(plan.values()) <= 0.6 * whole
    chunks = memory._chunks_of(rows, 1, ProcessGroup(3, 8))
    assert len(chunks) == 1 and [len(chunks[0].rows[side]['lengths']) for side in ('query', 'document')] == [12, 24]


SETS = 'tydiqa_ko_goldp question_pair ko_strategyqa_facts techdocs_ko'.split()


@pytest.fixture(scope='module')
def xlmr(): return load_tokenizer(real('tokenizers/xlm-roberta-base'))  # takes seconds


@pytest.mark.slow
@pytest.mark.parametrize('name', SETS)
def test_a_step_on_real_texts_is_hardly_padded(name, xlmr):
    collection = load_collection(str(real(f'data/{name}')))
    documents, queries = ([len(row[:190]) + 2 for row in xlmr.ids(list(texts)[:600])]
                          for texts in (collection.texts.values(), (query.text for query in collection.queries.values())))
    random = np.random.default_rng(0)
    for size in (4, 24, 96):
        lengths = np.concatenate([random.choice(queries, size), random.choice(documents, 2 * size)])
        assert len(blocks_of(lengths.tolist()).place) <= 1.1 * lengths.sum() and len(block_shapes(np.sort(lengths)[::-1])) <= 16


def test_another_attention_keeps_texts_apart():  # as an export sets it; blocks then go one after the other
    import torch
    from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
    from splade_nb.model.encode import encode
    from splade_nb.model.initialization import toy_model
    texts = ['서울에서 김치찌개 맛집을 찾아요', '제주도 여행', '부산 지하철 노선도와 요금']
    tokenizer = SpladeTokenizer(train_unigram(texts, 120))
    torch.manual_seed(0)
    model = toy_model(len(tokenizer), similarity='dot')
    wanted = encode(model, tokenizer, texts).toarray()
    model.backbone.set_attn_implementation('eager')
    assert abs(encode(model, tokenizer, texts).toarray() - wanted).max() < 1e-5

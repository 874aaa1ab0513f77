"""The head's laws: how many bytes it takes, counted as they are asked for, and how it lives with the rest of torch."""
import gc, itertools
import pytest, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from faults import in_processes
from splade_nb.model.blocks import PADDING
from splade_nb.model import head
from splade_nb.model.head import max_logits, naive_max, rows_in_cache
from splade_nb.config.processes import ProcessGroup

HIDDEN, CHUNK = 64, 512


# Memory. Every figure below is what the formulae beside it say, and at most so many bytes for small change.
SMALL_CHANGE = 200_000


def peak(call) -> int:
    "The most bytes that tensors held at once, over what was there before: torch's own count, of every thread."
    gc.collect()  # what earlier tests left would be given back meanwhile, and counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen: kept = call()
    events = sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(seen.profiler.kineto_results.events()) if e.name() == '[memory]')
    return max(itertools.accumulate(taken for *_, taken in events))


class Case:
    "Texts whose logits are positive in a given share."
    def __init__(self, texts, length, vocabulary, active=0.001, ragged=False):
        torch.manual_seed(0)
        self.lengths = torch.linspace(length // 4, length, texts).long().tolist() if ragged else [length] * texts
        self.tokens, self.shape, self.chunk = sum(self.lengths), (texts, vocabulary), CHUNK
        self.leaves = [torch.randn(self.tokens, HIDDEN), torch.randn(vocabulary, HIDDEN), torch.zeros(vocabulary)]
        largest = max_logits(*self.leaves, self.lengths).flatten()
        self.active = round(active * largest.numel())
        self.leaves[2] -= largest.kthvalue(max(1, largest.numel() - self.active)).values - 1e-3 * (active == 1)
        self.slope = torch.randn(self.shape)
        for leaf in self.leaves: leaf.requires_grad_()

    def forward(self, **options): return max_logits(*self.leaves, self.lengths, self.chunk, **options)

    def both(self, **options):
        vectors = self.forward(**options).relu().log1p()
        return vectors, torch.autograd.grad(vectors, self.leaves, self.slope)

    @property
    def table(self): return self.shape[0] * self.shape[1]  # numbers in [B, V]

    @property
    def passing(self):
        "Bytes of one chunk of logits, its maxima and their tokens twice, and of the states turned round; in blocks of like lengths."
        places = (1 + PADDING) * self.tokens
        return 4 * self.chunk * places + 20 * self.chunk * self.shape[0] + 4 * places * HIDDEN

    @property
    def gathered(self):
        "Bytes of active entries: places, values and their order, and the rows of both gradients."
        return 64 * self.active + 4 * HIDDEN * min(self.active, self.shape[1]) + 4 * self.tokens * HIDDEN + 8 * self.shape[1]


SHAPES = ((2, 16, 20_000, 0.001, False), (8, 192, 20_000, 0.001, False), (8, 192, 20_000, 0.001, True), (8, 64, 40_000, 0.05, True), (4, 64, 10_000, 1.0, False))


@pytest.mark.parametrize('shape', SHAPES)
def test_forward_takes_values_winners_and_one_chunk(shape):
    case = Case(*shape)
    assert 8 * case.table <= peak(case.forward) <= 8 * case.table + case.passing + SMALL_CHANGE


@pytest.mark.parametrize('shape', SHAPES)
def test_backward_as_rows_takes_five_tables_and_the_active_entries(shape):
    "Five: winners and ReLU kept for the way back, the vectors, their slope, and one more while the slope of log1p is made."
    case = Case(*shape)
    taken = peak(lambda: case.both(as_rows=True))
    assert taken <= max(8 * case.table + case.passing, 20 * case.table + case.gathered) + SMALL_CHANGE, taken


def test_a_dense_gradient_adds_itself_alone():
    case = Case(8, 64, 40_000)
    assert peak(case.both) - peak(lambda: case.both(as_rows=True)) <= 4 * HIDDEN * case.shape[1] + SMALL_CHANGE


@pytest.mark.slow
def test_length_costs_at_most_a_chunk():
    "Chunks are chosen here: at any length they are as large as a cache, and the rest does not grow."
    short, long = (Case(8, length, 250_000) for length in (64, 192))
    for case in (short, long): case.chunk = rows_in_cache(case.tokens)
    taken = [peak(case.forward) for case in (short, long)]
    assert taken[1] / taken[0] <= 1.1 and taken[1] - taken[0] <= 4 * HIDDEN * (long.tokens - short.tokens) + SMALL_CHANGE, taken


def test_vocabulary_costs_eight_bytes_a_text_and_piece():
    small, large = Case(8, 64, 20_000), Case(8, 64, 80_000)
    assert abs(peak(large.forward) - peak(small.forward) - 8 * (large.table - small.table)) <= SMALL_CHANGE


# Company

def gradients(case, vectors) -> list:
    "By `backward`: reentrant checkpointing knows no other."
    for leaf in case.leaves: leaf.grad = None
    (vectors * case.slope).sum().backward()
    return [leaf.grad for leaf in case.leaves]


@pytest.fixture
def case(): return Case(3, 9, 700, 0.2, ragged=True)


class Model(nn.Module):
    "A layer, the head, the activation."
    def __init__(self, as_rows=False):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.decoder, self.as_rows = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 700), as_rows

    def forward(self, states, lengths: list):
        return max_logits(torch.tanh(self.layer(states)), self.decoder.weight, self.decoder.bias, lengths, as_rows=self.as_rows).relu().log1p()


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['eager', 'aot_eager'])
def test_compiled_around_the_head(case, backend):
    torch._dynamo.reset()
    plain, compiled = Model(), torch.compile(Model(), backend=backend)
    for model in (plain, compiled): (model(case.leaves[0].detach(), case.lengths) * case.slope).sum().backward()
    torch.testing.assert_close(plain(case.leaves[0], case.lengths), compiled(case.leaves[0], case.lengths))
    torch.testing.assert_close([p.grad for p in plain.parameters()], [p.grad for p in compiled.parameters()])


def test_autocast_on_a_cpu_without_tiles_leaves_the_head_exact(case, monkeypatch):
    monkeypatch.setattr(head, 'fast_bf16', lambda place: False)
    plain = case.forward()
    with torch.autocast('cpu', torch.bfloat16): inside = case.forward()
    assert inside.dtype == torch.float32
    torch.testing.assert_close([plain, *gradients(case, plain)], [inside, *gradients(case, inside)])


def test_states_in_bfloat16_are_widened(case):
    wide = max_logits(case.leaves[0].bfloat16().float(), *case.leaves[1:], case.lengths)
    torch.testing.assert_close(wide, max_logits(case.leaves[0].bfloat16(), *case.leaves[1:], case.lengths))


@pytest.mark.parametrize('reentrant', [False, True])
def test_checkpointed(case, reentrant):
    again = checkpoint(lambda *leaves: max_logits(*leaves, case.lengths, CHUNK), *case.leaves, use_reentrant=reentrant)
    torch.testing.assert_close(gradients(case, again), gradients(case, case.forward()))


def test_equal_to_the_plain_way_at_every_shape(case):
    mask = torch.arange(max(case.lengths)) < torch.tensor(case.lengths)[:, None]
    states = torch.zeros(*mask.shape, HIDDEN).masked_scatter(mask[..., None], case.leaves[0].detach())
    torch.testing.assert_close(case.forward(), naive_max(states, *case.leaves[1:], mask), rtol=1e-5, atol=1e-5)


# Two processes: each has its own texts, and together they have the gradient of all. Torch's DistributedDataParallel copies gradients into
# buckets, so it takes the dense one alone; rows are added to a dense gradient first and that is summed, as `ProcessGroup.add_up` does in a run.

def rank() -> None:
    "One of two processes: its gradient, averaged or added up, is that of all texts."
    dist.init_process_group('gloo')
    torch.manual_seed(2)
    states, slope = torch.randn(4, 9, 64), torch.randn(4, 700) * (torch.rand(4, 700) < 0.1)  # few entries: rows are worth it

    def gradients(model, texts):
        (model(states[texts].flatten(0, 1), [9] * len(states[texts])) * slope[texts]).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    alone, mine = gradients(Model(), slice(0, 4)), slice(0, 2) if dist.get_rank() == 0 else slice(2, 4)
    averaged = gradients(DistributedDataParallel(Model()), mine)
    rows = Model(as_rows=True)
    assert gradients(rows, mine)[2].is_sparse
    rows.zero_grad()
    rows.decoder.weight.grad = torch.zeros_like(rows.decoder.weight)
    gradients(rows, mine)
    ProcessGroup(dist.get_rank(), 2).add_up(rows)
    for found in ([2 * each for each in averaged], [parameter.grad for parameter in rows.parameters()]):
        for a, b in zip(found, alone, strict=True): torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    dist.destroy_process_group()


def test_two_processes_have_the_gradient_of_all_texts(): assert in_processes(2, rank) == [0, 0]

"""The fused head's kernel: against plain torch, and compiled for cards that are not here."""
import importlib.util, os, subprocess, sys
import pytest
import torch
from splade_nb.model import kernel

if not importlib.util.find_spec('triton'): pytest.skip('no Triton here', allow_module_level=True)
runs = pytest.mark.skipif(not (torch.cuda.is_available() or kernel._interpreted), reason='no CUDA card, and TRITON_INTERPRET=1 is not set')
DEVICE = 'cpu' if kernel._interpreted else 'cuda'
RAGGED = [1, 33, 5, 70, 2, 1, 16]


def case(lengths, terms, width, dtype=torch.float32, whole=False):
    "Hidden states, weight and bias; whole numbers are exact in every type and full of ties."
    generator = torch.Generator().manual_seed(terms + width)
    drawn = [torch.randn(*shape, generator=generator) for shape in ((sum(lengths), width), (terms, width), (terms,))]
    scaled = [x.round().clamp(-1, 1) for x in drawn] if whole else [drawn[0], drawn[1] / width**.5, drawn[2] / 4]
    return [x.to(DEVICE, dtype).requires_grad_() for x in scaled]


def naive(hidden, weight, bias, lengths):
    "Largest logits and their first places, on the CPU, from one product with everything."
    hidden, weight, bias = (x.cpu().float() for x in (hidden, weight, bias))
    every = (hidden @ weight.t() + bias).split(lengths)
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    return torch.stack([e.max(0).values for e in every]), torch.stack([e.max(0).indices for e in every]) + starts[:, None]


SHAPES = {'ragged': (RAGGED, 50, 48), 'wide': ([3, 40], 70, 768), 'one token': ([1], 5, 16), 'narrow': ([4] * 9, 33, 8),
          'one term': ([9, 30], 1, 40), 'odd width': ([17, 2], 37, 33)}


@runs
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize('shape', SHAPES)
def test_values_and_places(shape, dtype):
    lengths, *size = SHAPES[shape]
    inputs = case(lengths, *size, dtype)
    values, at = kernel.fused_max(*inputs, lengths)
    plain, place = naive(*inputs, lengths)
    assert (values.dtype, at.dtype, at.requires_grad) == (torch.float32, torch.int32, False)
    assert values.is_contiguous() and at.is_contiguous()
    assert (values.cpu() - plain).abs().max() < 2e-6
    assert torch.equal(at.cpu().long(), place)


@runs
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_ties_go_to_the_first_token(dtype):
    inputs = case(RAGGED, 40, 16, dtype, whole=True)
    values, at = kernel.fused_max(*inputs, RAGGED)
    plain, place = naive(*inputs, RAGGED)
    logits = (inputs[0].float() @ inputs[1].float().t()).cpu()
    ties = torch.stack([(part == part.max(0).values).sum(0) for part in logits.split(RAGGED)])
    assert (ties > 1).float().mean() > .1
    assert torch.equal(values.cpu(), plain) and torch.equal(at.cpu().long(), place)


@runs
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('shape', SHAPES)
def test_values_alone_are_those_of_the_training_kernel(shape, dtype):
    lengths, *size = SHAPES[shape]
    inputs = case(lengths, *size, dtype)
    values = kernel.fused_values(*inputs, lengths)
    assert not values.requires_grad and torch.equal(values, kernel.fused_max(*inputs, lengths)[0])
    assert (values.cpu() - naive(*inputs, lengths)[0]).abs().max() < 2e-6


@runs
def test_values_alone_of_no_text_of_ties_and_of_broken_numbers():
    hidden, weight, bias = (x.detach() for x in case(RAGGED, 50, 48, whole=True))
    assert kernel.fused_values(hidden[:0], weight, bias, []).shape == (0, 50)
    assert torch.equal(kernel.fused_values(hidden, weight, bias, RAGGED).cpu(), naive(hidden, weight, bias, RAGGED)[0])
    hidden[40] = torch.nan
    assert kernel.fused_values(hidden, weight, bias, RAGGED).isnan().any(1).tolist() == [n == 3 for n in range(len(RAGGED))]


TEXTS = ['서울에서 김치찌개 맛집을 찾아요', '제주도', '', '서울 지하철 노선과 김치 보관 방법을 함께 적은 조금 더 긴 글 ' * 4, '제주도 여행']
PARTS = {'plain': {}, 'gate': dict(context_gate=True)}


@runs
@pytest.mark.parametrize('some', [False, True], ids=['all rows', 'some rows'])
@pytest.mark.parametrize('parts', PARTS)
def test_encoding_takes_one_launch_a_batch_and_gives_the_same(parts, some, monkeypatch):
    from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
    from splade_nb.model import int8_filter
    from splade_nb.model.encode import encode
    from splade_nb.model.initialization import toy_model
    torch.manual_seed(0)
    tokenizer = SpladeTokenizer(train_unigram(TEXTS, 120))
    model = toy_model(len(tokenizer), **PARTS[parts]).to(DEVICE)
    if model.gate is not None: torch.nn.init.normal_(model.gate.project[-1].weight)
    given = dict(keep=range(5, len(tokenizer), 3) if some else None, budget=300, cut={}, precision='fp32')
    monkeypatch.setattr(int8_filter, 'runs_on', lambda hidden: False)
    chunked, launches, forward = encode(model, tokenizer, TEXTS, **given), [], kernel._forward
    monkeypatch.setattr(kernel, '_forward', lambda *all, **more: launches.append(len(all[3])) or forward(*all, **more))
    monkeypatch.setattr(int8_filter, 'runs_on', lambda hidden: True)
    fused = encode(model, tokenizer, TEXTS, **given)
    assert len(launches) < len(TEXTS) == sum(launches) and ((fused > 0) != (chunked > 0)).nnz == 0 < chunked.nnz
    assert abs(fused - chunked).max() < 1e-5


@runs
@pytest.mark.parametrize('tile', [kernel.Tile(16, 16, 16, 4, 1), kernel.Tile(64, 16, 32, 4, 2), kernel.Tile(32, 128, 64, 4, 2)], ids=str)
def test_every_tile_gives_the_same(tile):
    inputs = case(RAGGED, 50, 48, whole=True)
    assert all(map(torch.equal, kernel.fused_max(*inputs, RAGGED, tile=tile), kernel.fused_max(*inputs, RAGGED)))


@runs
@pytest.mark.parametrize('shift', [0., -1.5, 9.])
def test_gradients(shift):
    inputs = case(RAGGED, 50, 48)
    target = torch.randn(len(RAGGED), 50, generator=torch.Generator().manual_seed(0))
    plain = [x.detach().cpu().requires_grad_() for x in inputs]
    slopes = [torch.autograd.grad(((values.cpu() + shift).relu().log1p() * target).sum(), x) for values, x in
              ((kernel.fused_max(*inputs, RAGGED)[0], inputs), (naive_values(*plain), plain))]
    for ours, theirs in zip(*slopes): assert (ours.cpu() - theirs).norm() <= 1e-5 * theirs.norm()


def naive_values(hidden, weight, bias): return torch.stack([e.max(0).values for e in (hidden @ weight.t() + bias).split(RAGGED)])


@runs
def test_gradients_of_bfloat16_are_summed_in_float32():
    inputs = case(RAGGED, 50, 48, torch.bfloat16)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    slopes = [torch.autograd.grad(kernel.fused_max(*x, RAGGED)[0].relu().sum(), x) for x in (inputs, wide)]
    for half, full in zip(*slopes):
        assert half.dtype == torch.bfloat16 and (half - full).norm() < 1e-2 * full.norm()


@runs
def test_two_types_are_joined():
    hidden, weight, bias = case(RAGGED, 20, 16)
    mixed = kernel.fused_max(hidden.bfloat16(), weight, bias.half(), RAGGED)[0]
    assert torch.allclose(mixed, kernel.fused_max(hidden.bfloat16().float(), weight, bias.half().float(), RAGGED)[0])
    assert [x.dtype for x in torch.autograd.grad(mixed.sum(), (hidden, weight, bias))] == [torch.float32] * 3


@runs
def test_nothing_active():
    inputs = case(RAGGED, 20, 16)
    values, at = kernel.fused_max(*inputs, RAGGED)
    slopes = torch.autograd.grad((values - 99).relu().sum(), inputs)
    assert [x.shape for x in slopes] == [x.shape for x in inputs] and not any(x.any() for x in slopes)


@runs
def test_the_same_bits_each_time():
    inputs = case(RAGGED, 50, 48)
    slopes = [torch.autograd.grad(kernel.fused_max(*inputs, RAGGED)[0].square().sum(), inputs) for _ in range(2)]
    assert all(map(torch.equal, *slopes))


@runs
def test_broken_numbers_show():
    hidden, weight, bias = (x.detach() for x in case(RAGGED, 50, 48))
    hidden[40], weight[7] = torch.nan, torch.nan  # a token of the fourth text, a token
    values, at = kernel.fused_max(hidden, weight, bias, RAGGED)
    expected = torch.zeros(len(RAGGED), 50, dtype=torch.bool); expected[3] = expected[:, 7] = True
    assert torch.equal(values.isnan().cpu(), expected)
    begin = torch.tensor(RAGGED).cumsum(0) - torch.tensor(RAGGED)
    assert ((at.cpu() >= begin[:, None]) & (at.cpu() < (begin + torch.tensor(RAGGED))[:, None])).all()


@runs
@pytest.mark.parametrize('change, said', [
    (dict(lengths=[1, 0]), 'at least 1 and sum to 2'), (dict(lengths=[3]), 'sum to 2'), (dict(lengths=[]), 'sum to 2'),
    (dict(weight=torch.zeros(5, 7)), 'must be'), (dict(bias=torch.zeros(4)), 'must be'),
    (dict(hidden=torch.zeros(2, 8, dtype=torch.float64)), 'float64'), (dict(precision='half'), 'none of ieee')])
def test_what_does_not_fit_is_refused(change, said):
    given = dict(hidden=torch.zeros(2, 8), weight=torch.zeros(5, 8), bias=torch.zeros(5), lengths=[1, 1]) | change
    with pytest.raises(ValueError, match=said):
        kernel.fused_max(**{k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in given.items()})


@runs
def test_it_says_that_it_runs():
    with torch.autocast(DEVICE, torch.bfloat16): assert kernel._trial(DEVICE) is None
    assert kernel.available()


# What the interpreter does not see: a compiler's types, layouts and limits. No card is needed.
COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from splade_nb.model import kernel

def compiled(function, card, types, constants, divisible, **options):
    names = function.arg_names
    signature = {n: 'constexpr' if n in constants else types[n] for n in names}
    source = ASTSource(function, signature, {(names.index(n),): v for n, v in constants.items()},
                       {(names.index(n),): [['tt.divisibility', 16]] for n in divisible})
    return triton.compile(source, target=GPUTarget('cuda', card, 32), options=options)

import torch
pointers = dict(hidden='*T', weight='*T', bias='*T', plan='*i32', values='*fp32', at='*i32')
for card, room, name, precision, slot, even in [  # compute capability, KiB of shared memory
        (90, 227, 'bfloat16', 'ieee', 64, True), (90, 227, 'bfloat16', 'ieee', 16, True), (90, 227, 'bfloat16', 'ieee', 128, False),
        (90, 227, 'float32', 'ieee', 64, True), (90, 227, 'float32', 'tf32x3', 64, True), (80, 163, 'float16', 'ieee', 32, True),
        (86, 99, 'bfloat16', 'ieee', 64, True), (89, 99, 'float32', 'tf32', 64, True), (120, 99, 'bfloat16', 'ieee', 64, True)]:
    tile, short = kernel._tile(getattr(torch, name), precision, room > 200), dict(bfloat16='bf16', float16='fp16', float32='fp32')[name]
    types = {n: t.replace('T', short) for n, t in pointers.items()} | dict(B='i32', V='i32', H='i32')
    for places in (True, False):  # training, encoding
        constants = dict(TERMS=tile.terms, GROUP=tile.tokens // slot, SLOT=slot, INNER=tile.inner, BAND=8, EVEN=even, WIDE=False, PLACES=places, PRECISION=precision)
        made = compiled(kernel._max_kernel, card, types | dict(at='*i32' if places else '*fp32'), constants, [*pointers, *['H'] * even], num_warps=tile.warps, num_stages=tile.stages)
        assert made.metadata.shared <= room * 1024, (card, name, precision, slot, made.metadata.shared)
    types = dict(weights='*fp32', rows='*i64', offsets='*i64', table='*' + short, sums='*' + short, H='i32')
    if card == 90: compiled(kernel._sum_kernel, card, types, dict(ROWS=32, COLUMNS=256), list(types), num_warps=4)
print('compiled')
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='Triton compiles on Linux')
def test_it_compiles_for_cards_that_are_not_here(tmp_path):
    triton = pytest.importorskip('triton', minversion='3.3')  # compiles without a card from then on
    environment = {k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'} | dict(TRITON_CACHE_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, '-c', COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.split()[-1] == 'compiled', done.stderr[-3000:]


def test_where_triton_was_imported_before_it_is_told_to_interpret_nothing_is_interpreted():
    "Its own functions are for cards then: notebooks that ran in one process failed in an order that nobody chose."
    pytest.importorskip('triton')
    late = "import os, triton.language; os.environ['TRITON_INTERPRET'] = '1'; from splade_nb.model import kernel; print(kernel._interpreted)"
    said = [subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True, env={k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'}).stdout
            for program in (late, late.replace('import os, triton.language;', 'import os;'))]
    assert said == ['False\n', 'True\n']

"""The fused head's kernel on a GPU: against a plain product in float64, and its time beside other ways."""
from functools import partial
import torch
from torch.nn import functional as F
from splade_nb.model import head, int8_filter, kernel
from splade_nb.model.blocks import _attend_inside, blocks_of
from gpu_profile import profiled
from measure import alternately, relative_error, say, spread
from models import VOCABULARY

KOREAN = 8_851  # rows of XLM-R's decoder that Korean texts need
LENGTH = 192    # longest text of the timed batch
LEAST = 30      # seconds under which nothing more is begun
TYPES = dict(fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)


def peak_of(call, device: str) -> int:  # bytes allocated at once on the GPU, with models; 0 on a processor
    if device == 'cpu':
        call()
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


# Against a plain product in float64

# The kernel against a plain product in float64

def lengths_of(texts: int, longest: int, seed: int = 0) -> list:
    return torch.randint(1, longest + 1, (texts,), generator=torch.Generator().manual_seed(seed)).tolist()


def cases(small: bool) -> list:  # name, tokens of the texts, V, H, type, precision, whole numbers
    V, H, long = (90, 32, 9) if small else (VOCABULARY, 768, 256)
    many, wide = lengths_of(5 if small else 24, long), lengths_of(4, long) + [1, 1, 8 * long]
    ordinary = [('ordinary', many, V, H, name, 'ieee', False) for name in TYPES]
    return ordinary + [
        ('tf32x3', many, V, H, 'fp32', 'tf32x3', False), ('very different lengths', wide, V, H, 'bf16', 'ieee', False),
        ('ties', many, V, H, 'bf16', 'ieee', True), ('one token', [1], V, H, 'bf16', 'ieee', False),
        ('Korean rows', many, min(V, KOREAN), H, 'bf16', 'ieee', False), ('odd width', many, V, H + 33, 'bf16', 'ieee', False),
        ('more entries than 32 bits count', [1] * (9 if small else 9_000), V, 16, 'bf16', 'ieee', False)]


def inputs_of(lengths, V, H, name, whole, device) -> list:  # hidden, weight, bias
    generator = torch.Generator(device).manual_seed(V + H)
    drawn = [torch.randn(*shape, generator=generator, device=device) for shape in ((sum(lengths), H), (V, H), (V,))]
    scaled = [x.round().clamp(-1, 1) for x in drawn] if whole else [drawn[0], drawn[1] / H ** 0.5, drawn[2] / 4 - 3]
    return [x.to(TYPES[name]) for x in scaled]


def plain(hidden, weight, bias, lengths):  # chunks: first row, values [B, C] float64, first tokens [B, C]
    starts = torch.tensor([0, *lengths[:-1]], device=hidden.device).cumsum(0)
    for low in range(0, len(weight), chunk := max(64, 2 ** 25 // len(hidden))):
        every = hidden.double() @ weight[low:low + chunk].double().t() + bias[low:low + chunk].double()
        best = [text.max(0) for text in every.split(lengths)]
        yield low, torch.stack([b.values for b in best]), torch.stack([b.indices for b in best]) + starts[:, None]


def differences(values, at, inputs, lengths) -> dict:
    "Of values and of the logits of the tokens that were named; and in how many entries another token was named."
    hidden, weight, bias = inputs
    found = dict(value=0.0, named=0.0, other=0)
    for low, wanted, place in plain(*inputs, lengths):
        mine, named = values[:, low:low + wanted.shape[1]], at[:, low:low + wanted.shape[1]].long()
        rows, shift = weight[low:low + wanted.shape[1]].double(), bias[low:low + wanted.shape[1]].double()
        other = (named != place).nonzero(as_tuple=True)
        logits = (hidden[named[other]].double() * rows[other[1]]).sum(1) + shift[other[1]]
        found['value'] = max(found['value'], (mine - wanted).abs().max().item())
        found['named'] = max([found['named'], *(wanted[other] - logits).abs().amax(0, keepdim=True).tolist()] if len(logits) else [found['named']])
        found['other'] += len(logits)
    return found


def slopes(values, at, hidden, weight) -> tuple:  # of the sum of log1p(relu(values)), in float64, at the tokens named
    by_value = torch.where(values > 0, 1 / (1 + values.double().clamp(min=0)), 0)
    to_hidden, to_weight = (torch.zeros_like(x, dtype=torch.float64) for x in (hidden, weight))
    text, term = by_value.nonzero(as_tuple=True)
    for some in torch.arange(len(text), device=text.device).split(2 ** 18):
        b, v = text[some], term[some]
        token, factor = at[b, v].long(), by_value[b, v][:, None]
        to_hidden.index_add_(0, token, factor * weight[v].double())
        to_weight.index_add_(0, v, factor * hidden[token].double())
    return to_hidden, to_weight, by_value.sum(0)


def gradient_errors(values, at, learned) -> list:
    found = torch.autograd.grad(values.relu().log1p().sum(), learned)
    wanted = slopes(values.detach(), at, *(x.detach() for x in learned[:2]))
    return [relative_error(a.double(), b) for a, b in zip(found, wanted) if b.any()]


def kernel_case(device, name, lengths, V, H, kind, precision, whole) -> dict:
    inputs = inputs_of(lengths, V, H, kind, whole, device)
    learned = [x.clone().requires_grad_() for x in inputs]
    values, at = kernel.fused_max(*learned, lengths, precision)
    alone = torch.equal(kernel.fused_values(*inputs, lengths, precision), values)
    errors = [] if values.numel() > 2 ** 31 else gradient_errors(values, at, learned)  # of less than all memory
    result = dict(name=name, texts=len(lengths), tokens=sum(lengths), V=V, H=H, type=kind, precision=precision,
                  active=(values > 0).float().mean().item(), inference_equal=alone, gradient=max(errors, default=0.0),
                  **differences(values.detach(), at, inputs, lengths))
    result['right'] = bool(alone and result['gradient'] < bound(kind) and (
        result['value'] == result['other'] == 0 if whole else max(result['value'], result['named']) < 1e-4))
    say(f'  {name}, {kind} {precision}: values {result["value"]:.0e}, gradients {result["gradient"]:.0e}, '
        f'{"right" if result["right"] else "WRONG"}')
    return result


def bound(kind: str) -> float: return dict(fp32=1e-5, fp16=2e-3, bf16=1e-2)[kind]  # one rounding of a gradient to its type


def attention_errors(device: str, small: bool) -> dict:
    "Attention inside texts of any length, values and gradients, beside that of each text alone in float64."
    lengths = lengths_of(8, 24) if small else lengths_of(96, LENGTH)
    found, kind = blocks_of(lengths, device=device), torch.float32 if device == 'cpu' else torch.bfloat16
    given = torch.randn(3, 1, 12, len(found.place), 64, device=device, dtype=kind).requires_grad_()
    exact = given.detach().double().requires_grad_()
    mine = _attend_inside(*given, found, dropout_p=0.0, scale=0.125)[0, found.tokens].double()  # [T, heads, D]
    texts = exact[..., found.tokens, :].split(lengths, dim=3)
    wanted = torch.cat([F.scaled_dot_product_attention(*text, scale=0.125) for text in texts], dim=2)[0].transpose(0, 1)
    weights = torch.randn_like(mine)
    slopes = [torch.autograd.grad((values * weights).sum(), leaf)[0].double() for values, leaf in ((mine, given), (wanted, exact))]
    errors = dict(value=relative_error(mine, wanted), gradient=relative_error(*slopes))
    say('  attention: ' + ', '.join(f'{name} {error:.0e}' for name, error in errors.items()))
    return errors | dict(texts=len(lengths), tokens=sum(lengths), type=str(kind).removeprefix('torch.'), right=max(errors.values()) < bound('bf16'))


def kernel_stage(device: str, small: bool, left) -> dict:
    if not kernel.available(): return dict(cases=[], left_out='the kernel does not run here', whole=False)
    wanted, found = cases(small), []
    for case in wanted:
        if left() < LEAST and found: break
        try: found.append(kernel_case(device, *case))
        except torch.cuda.OutOfMemoryError: found.append(dict(name=case[0], left_out='more memory than the GPU has'))
        if device == 'cuda': torch.cuda.empty_cache()
    return dict(cases=found, attention=attention_errors(device, small), whole=len(found) == len(wanted))


# How fast the kernel is

class Chunked:
    "Inside, the head computes in chunks as where there is no kernel."
    def __enter__(self):
        self.known = head.runs_on, int8_filter.runs_on
        head.runs_on = int8_filter.runs_on = lambda hidden: False
    def __exit__(self, *_): head.runs_on, int8_filter.runs_on = self.known


def pooled(hidden, weight, bias, lengths):  # what SpladePooling does, on a padded batch: all logits, then the maximum
    rows = torch.nn.utils.rnn.pad_sequence(hidden.split(lengths), batch_first=True)
    real = torch.arange(rows.shape[1], device=rows.device) < torch.tensor(lengths, device=rows.device)[:, None]
    return ((rows @ weight.t() + bias).relu().log1p() * real[..., None]).amax(1)


def speed_stage(device: str, small: bool, left) -> dict:
    "Forward and backward, and forward alone, of one batch: the kernel, the chunks, and all logits."
    lengths, kind = lengths_of(4 if small else 16, 12 if small else LENGTH), 'fp32' if device == 'cpu' else 'bf16'
    inputs = inputs_of(lengths, *((90, 32) if small else (VOCABULARY, 768)), kind, False, device)
    learned = [x.clone().requires_grad_() for x in inputs]
    ways = dict(kernel=lambda *x: kernel.fused_max(*x, lengths)[0].relu().log1p(), pooling=lambda *x: pooled(*x, lengths))
    if not kernel.available(): ways.pop('kernel')
    def chunked(*x):
        with Chunked(): return head.max_logits(*x, lengths).relu().log1p()
    def trained(way): torch.autograd.grad(way(*learned).sum(), learned)
    def inferred(way):
        with torch.no_grad(): way(*inputs)
    result, ways = dict(peaks={}, rounds={}), ways | dict(chunks=chunked)
    for form, call in dict(forward_backward=trained, forward=inferred).items():
        given = ways | ({'kernel': lambda *x: kernel.fused_values(*x, lengths)} if form == 'forward' and 'kernel' in ways else {})
        calls = {name: partial(call, way) for name, way in given.items()}
        result['peaks'][form] = {name: peak_of(each, device) for name, each in calls.items()}
        result['rounds'][form] = alternately(calls, 2 if small else 11)
        for name, rounds in result['rounds'][form].items():
            say(f'  {form} {name}: {spread([each["wall"] for each in rounds])["median"] * 1e3:,.1f} ms')
    profile = profiled(partial(trained, ways.get('kernel', chunked)), device)
    return result | dict(texts=len(lengths), tokens=sum(lengths), V=len(inputs[1]), type=kind, profile=profile, whole=True)

"""The memory plan against the kernel's own figure, in processes of their own; encoding's largest tensor."""
import json, os, subprocess, sys
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from splade_nb.model import encode as encoding
from splade_nb.model.initialization import toy_model
from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram

# Memory that is given back goes back at once: what is measured is what tensors take.
PLAIN = dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
PROGRAM = """
import json, re, sys
from pathlib import Path
import torch.utils.tensorboard
from splade_nb.data.readers import load_collection
from splade_nb.training import dataset, memory, trainer as training
from splade_nb.config.versions import resolve_quietly

settings, folder = resolve_quietly('v28', 'corrected', 'mini', steps=20, validations=1, **json.loads(sys.argv[1])), Path(sys.argv[2])
setup = dataset.prepare(settings, load_collection('mini'), 42)
plan = memory.memory_plan(setup.model, memory.widest_batch(20, setup.training_data, settings, 42), settings)
status = lambda name: int(re.search(name + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) * 1024
true, held = training._loop, []
def measured(*arguments):
    Path('/proc/self/clear_refs').write_text('5'); held.append(status('VmRSS'))
    true(*arguments)
training._loop = measured
training.train(setup.model, setup.training_data, settings, folder, quiet=True, max_steps=3)
print(json.dumps(dict(predicted=sum(plan.values()), measured=status('VmHWM') - held[0])))
"""
SHAPES = {'one pass': dict(hidden=256, layers=4, batch_size=16, max_length=128),
          'cached': dict(hidden=256, layers=6, batch_size=16, max_length=160, accumulation=2, gradient_cache=True)}


@pytest.mark.slow
@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
@pytest.mark.parametrize('shape', SHAPES)
def test_the_plan_is_within_a_fifth_of_the_peak(shape, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()/'memory'/shape; folder.mkdir(parents=True)
    done = subprocess.run([sys.executable, '-c', PROGRAM, json.dumps(SHAPES[shape]), str(folder)], capture_output=True, text=True, env=os.environ | PLAIN)
    assert done.returncode == 0, done.stderr[-2000:]
    bytes_of = json.loads(done.stdout.splitlines()[-1])
    assert 0.8 < bytes_of['predicted'] / bytes_of['measured'] < 1.2, bytes_of


class Largest(TorchDispatchMode):
    "The size of the largest tensor that any operation gives, in bytes."
    bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), names=None):
        given = function(*arguments, **(names or {}))
        made = [part.numel() * part.element_size() for part in tree_leaves(given) if isinstance(part, torch.Tensor)]
        self.bytes = max(self.bytes, *made, 0)
        return given


SHORT, VOCABULARY = [f'{number}번 버스' for number in range(1000)], 10_000
FORMS = {'gate': {}, 'no gate': dict(context_gate=False), 'importance': dict(mlm_head=False)}


def encoded(model, texts: list, bound: int, monkeypatch) -> tuple:
    "Vectors under a bound on dense tensors, and the largest tensor on the way."
    monkeypatch.setattr(encoding, 'DENSE_BYTES', bound)
    with Largest() as largest: vectors = encoding.encode(model, SpladeTokenizer(train_unigram(SHORT, 100)), texts, cut={})
    return vectors, largest.bytes


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
def test_many_short_texts_take_no_more_than_the_bound(form, monkeypatch):
    model, bound = toy_model(VOCABULARY, **FORMS[form]), 2 ** 24
    if model.decoder is not None: torch.nn.init.constant_(model.decoder.bias, -0.35)  # a few tokens stand in a vector
    wanted, unbounded = encoded(model, SHORT, 2 ** 40, monkeypatch)
    vectors, bounded = encoded(model, SHORT, bound, monkeypatch)
    assert unbounded >= 4 * len(SHORT) * VOCABULARY > 2 * bound >= 2 * bounded, 'all texts by all tokens, and the bound'
    assert wanted.nnz > len(SHORT) and abs(vectors - wanted).max() < 1e-6
    long, several = encoded(model, [' '.join(SHORT[:30])] * 100, bound, monkeypatch)  # windows count, not texts
    assert several <= bound and long.shape[0] == 100


def test_the_bound_is_small_at_a_large_vocabulary():
    "Gigabytes where batches were bounded by tokens alone."
    from types import SimpleNamespace
    model = SimpleNamespace(special=range(250_002))
    assert 4 * 250_002 * encoding.most_rows(model) <= 2 ** 27 < 4 * 250_002 * (8192 // 5) / 10

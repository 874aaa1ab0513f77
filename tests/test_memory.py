"""The memory plan against the kernel's own figure, in processes of their own."""
import json, os, subprocess, sys
import pytest

# Memory that is given back goes back at once: what is measured is what tensors take.
PLAIN = dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE', MALLOC_MMAP_THRESHOLD_='1000000', MALLOC_TRIM_THRESHOLD_='1000000')
PROGRAM = """
import json, re, sys
from pathlib import Path
import torch.utils.tensorboard
from splade_nb import material, objective, run, training
from splade_nb.config import resolve_quietly

settings, folder = resolve_quietly('v28', 'corrected', 'mini', steps=20, validations=1, **json.loads(sys.argv[1])), Path(sys.argv[2])
prepared = material.prepare(settings, run.collect('mini'), 42, folder.parent/'cache')
plan = objective.memory_plan(prepared.model, objective.widest_batch(20, prepared.material, settings, 42), settings)
status = lambda name: int(re.search(name + r':\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) * 1024
true, held = training.loop, []
def measured(*arguments):
    Path('/proc/self/clear_refs').write_text('5'); held.append(status('VmRSS'))
    true(*arguments)
training.loop = measured
training.train(prepared.model, prepared.material, settings, folder, quiet=True, max_steps=3)
print(json.dumps(dict(predicted=sum(plan.values()), measured=status('VmHWM') - held[0])))
"""
SHAPES = {'one pass': dict(hidden=256, layers=4, batch_size=16, max_length=128),
          'cached': dict(hidden=256, layers=6, batch_size=16, max_length=160, accumulation=2, gradient_cache=True)}


@pytest.mark.slow
@pytest.mark.skipif(not os.access('/proc/self/clear_refs', os.W_OK), reason='the kernel does not reset its figure here')
@pytest.mark.parametrize('shape', SHAPES)
def test_the_plan_is_within_a_fifth_of_the_peak(shape, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()/'memory'/shape; folder.mkdir(parents=True)  # the teacher's vectors, made by the first, lie beside
    done = subprocess.run([sys.executable, '-c', PROGRAM, json.dumps(SHAPES[shape]), str(folder)], capture_output=True, text=True, env=os.environ | PLAIN)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert 0.8 < told['predicted'] / told['measured'] < 1.2, told

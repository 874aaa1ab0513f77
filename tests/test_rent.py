"""The page on rented GPUs, and the script that trains on one: with stubs in place of what takes hours."""
import os, re, shutil, subprocess, sys
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM
from conftest import ROOT, read
from test_make import NAMES

sys.path.insert(0, str(ROOT/'docs'))
import rent_page

SCRIPT = ROOT/'deploy/rent_gpu.sh'
STUBS = {  # make leaves behind what the real one would; the training that FAIL names stops after its first checkpoint
    'make': '''echo "make $*" >> "$RECORD"
case $1 in
  data) mkdir -p data/v24.0 && touch data/v24.0/README.md ;;
  gpu) mkdir -p benchmarks/results/gpu docs && touch benchmarks/results/gpu/kernel.json docs/gpu.md; [ -z "${BROKEN:-}" ] ;;
  *-distributed) mkdir -p outputs/v28/checkpoints/step-4 && touch outputs/v28/checkpoints/step-4/state.json
    [ "$1" != "${FAIL:-}" ] || exit 1
    touch outputs/v28/summary.json outputs/v28/report.html ;;
esac''',
    'nvidia-smi': '[ -z "${NO_GPU:-}" ]', 'git': 'echo "git $*" >> "$RECORD"; mkdir -p splade_nb && touch splade_nb/settings.ini', 'gcc': '',
    'sudo': 'echo "sudo $*" >> "$RECORD"', 'apt-get': 'echo "apt-get $*" >> "$RECORD"'}


# The page

def test_page_is_what_the_script_writes():
    assert rent_page.PAGE.read_text(encoding='utf-8') == rent_page.page(), 'run python docs/rent_page.py'


def test_operations_are_those_that_torch_counts():
    texts, length, sizes = 3, 32, dict(layers=2, hidden=64, vocabulary=1000)
    model = XLMRobertaForMaskedLM(XLMRobertaConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256, attn_implementation='eager')).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter: model(torch.full((texts, length), 5))
    assert counter.get_total_flops() == texts * length * rent_page.forward(length, **sizes)


def test_hours_follow_from_the_rate():
    faster, slower = rent_page.CARDS['H100 SXM'][1], rent_page.CARDS['A100'][1]
    assert rent_page.hours('A100', 96) / rent_page.hours('H100 SXM', 96) == pytest.approx(faster / slower)
    assert rent_page.hours('A100', 192) > 2 * rent_page.hours('A100', 96)  # attention grows with the length


@pytest.mark.slow
def test_the_plan_is_that_of_the_model():
    assert rent_page.measured((1,))['1'] == read(rent_page.PLAN)['processes']['1'], 'run python docs/rent_page.py --measure'


# The script

@pytest.fixture
def rented(tmp_path):
    "Runs the script in a checkout with stubs; gives the exit, and what was called."
    checkout, tools, record = tmp_path/'checkout', tmp_path/'tools', tmp_path/'record'
    for folder in (checkout/'deploy', tools): folder.mkdir(parents=True)
    for name, body in STUBS.items():
        (tools/name).write_text(f'#!/bin/bash\n{body}\n')
        (tools/name).chmod(0o755)
    (checkout/'settings.ini').touch()
    shutil.copy(SCRIPT, checkout/'deploy')
    def run(*arguments, script=checkout/'deploy/rent_gpu.sh', **environment):
        record.unlink(missing_ok=True)
        given = {name: value for name, value in os.environ.items() if name not in ('VERSION', 'OUT', 'MINUTES', 'PROCESSES')}
        done = subprocess.run(['bash', script, *arguments], cwd=tmp_path, env=given | dict(PATH=f'{tools}:{os.environ["PATH"]}', RECORD=str(record)) | environment, capture_output=True, text=True)
        return done, record.read_text().splitlines() if record.exists() else []
    run.checkout = checkout
    return run


PREPARED = ['make environment PYTHON=python3', 'make data NAME=triplets', 'make gpu MINUTES=40']
TRAIN = 'make {}-distributed VERSION=v28 SCALE=full DATA=data/v24.0 OUT=outputs/v28 PROCESSES=auto'


def test_from_nothing_to_an_archive(rented):
    done, calls = rented()
    assert done.returncode == 0, done.stderr
    assert calls == [*PREPARED, TRAIN.format('train')]
    held = subprocess.run(['tar', '-tzf', rented.checkout/'outputs/rented-v28.tar.gz'], capture_output=True, text=True, check=True).stdout.split()
    assert {'outputs/v28/summary.json', 'outputs/v28/report.html', 'benchmarks/results/gpu/kernel.json', 'docs/gpu.md'} <= set(held)
    assert not any('checkpoints' in name for name in held) and 'rented-v28.tar.gz' in done.stdout
    assert list((rented.checkout/'outputs').glob('*.part')) == []


@pytest.mark.slow
def test_the_same_command_goes_on(rented):
    done, calls = rented(FAIL='train-distributed')
    assert done.returncode == 1 and calls[-1] == TRAIN.format('train')
    assert not (rented.checkout/'outputs/rented-v28.tar.gz').exists()
    done, calls = rented()
    assert done.returncode == 0 and calls == [PREPARED[0], PREPARED[2], TRAIN.format('resume')]  # the data are there
    done, calls = rented()
    assert done.returncode == 0 and calls[-1] == 'make report OUT=outputs/v28'  # and so is the run


def test_a_failed_measurement_does_not_stop_the_training(rented):
    done, calls = rented(BROKEN='yes')
    assert done.returncode == 0 and 'a stage did not end well' in done.stdout and calls[-1] == TRAIN.format('train')


def test_settings_reach_make(rented):
    done, calls = rented(TRIPLETS='1000', MINUTES='5', PROCESSES='2', OUT='outputs/trial', VERSION='v27')
    assert calls[1:] == ['make data NAME=triplets TRIPLETS=1000', 'make gpu MINUTES=5',
                         'make train-distributed VERSION=v27 SCALE=full DATA=data/v24.0 OUT=outputs/trial PROCESSES=2']


def test_a_dry_run_does_nothing(rented):
    done, calls = rented('--dry-run', NO_GPU='yes')
    assert done.returncode == 0 and calls == [] and not (rented.checkout/'outputs').exists()
    assert [line.removeprefix('+ ') for line in done.stdout.splitlines() if line.startswith('+ make')] == [*PREPARED, TRAIN.format('train')]


def test_what_cannot_be_is_refused(rented):
    done, calls = rented(NO_GPU='yes')
    assert done.returncode == 1 and 'found no GPU' in done.stderr and calls == []
    done, calls = rented('--fast')
    assert done.returncode == 2 and 'found --fast; allowed: --dry-run' in done.stderr and calls == []


def test_alone_it_clones(rented, tmp_path):
    shutil.copy(SCRIPT, tmp_path/'tools'/'rent.sh')
    done, calls = rented(script=tmp_path/'tools'/'rent.sh', REVISION='v0.1', FAIL='train-distributed')
    assert calls[0] == 'git clone --branch v0.1 https://github.com/splade-nb/splade_nb splade_nb'
    assert (tmp_path/'splade_nb'/'data').exists()


def test_what_it_types_exists():
    targets = set(re.findall(r'^([a-z-]+)(?: [a-z-]+)*:', (ROOT/'Makefile').read_text(), re.M)) | {'environment', 'resume-distributed'}
    assert set(re.findall(r'run make ([a-z-]+)', SCRIPT.read_text())) <= targets
    assert set(re.findall(r'"?\b([A-Z]+)=\$', '\n'.join(line for line in SCRIPT.read_text().splitlines() if 'run make' in line))) <= {*NAMES, 'PYTHON'}


@pytest.mark.skipif(not shutil.which('shellcheck'), reason='no shellcheck here')
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(['shellcheck', SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

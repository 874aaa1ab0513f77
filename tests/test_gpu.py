"""`make gpu` without a GPU: what it says, its page, its time limit, and every stage at a tiny size."""
import os, subprocess, sys
from io import BytesIO
import pytest
import torch
from conftest import ROOT
from splade_nb.config.files import ConfigError, read_json, write_json

sys.path.append(str(ROOT/'benchmarks'))
import gpu, gpu_encoder, gpu_kernel, gpu_pack, gpu_page


def run(*arguments, **environment) -> subprocess.CompletedProcess:
    called = [sys.executable, 'benchmarks/gpu.py', *map(str, arguments)]
    return subprocess.run(called, cwd=ROOT, capture_output=True, text=True, env=os.environ | dict(OMP_NUM_THREADS='1') | environment)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is here')
def test_without_a_gpu_it_says_so_in_one_line():
    done = run()
    assert done.returncode and done.stderr.startswith('no GPU here') and done.stderr.count('\n') == 1 and not done.stdout


def test_a_misspelt_stage_is_named():
    with pytest.raises(ConfigError, match="did you mean 'kernel'"): gpu.stages_of('kernal, v28')
    assert gpu.stages_of('v28,kernel') == ['kernel', 'v28'] and gpu.stages_of('') == [*gpu.STAGES], 'the most valuable first'


def test_time_that_is_over_begins_nothing_and_a_kept_result_stays(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: pytest.fail('a stage was begun'))
    write_json(tmp_path/'kernel.json', dict(whole=True))
    write_json(tmp_path/'v26.json', dict(whole=False))
    assert gpu.run_stages(['kernel', 'v26'], 'cpu', tmp_path, 0.1, False) == []
    assert capsys.readouterr().out.split('\n')[1].strip().startswith('has a result') and read_json(tmp_path/'kernel.json')['whole']


def test_a_stage_that_outlasts_the_time_is_ended(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, 'LEAST', 0)
    assert gpu.run_stages(['v28'], 'cpu', tmp_path, 1 / 60, False) == ['v28']
    assert 'the time was over' in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_part_never_takes_the_place_of_the_whole(tmp_path, monkeypatch):
    for whole, steps, kept in ((False, 3, 3), (True, 9, 9), (False, 5, 9)):
        monkeypatch.setitem(gpu.STAGES, 'v26', lambda *_: dict(whole=whole, steps=steps))
        gpu.measure_stage('v26', 'cpu', tmp_path, 0)
        assert read_json(tmp_path/'v26.json')['steps'] == kept
    assert read_json(tmp_path/'v26.json')['command'] == 'make gpu STAGE=v26 DEVICE=cpu'


def test_the_page_says_what_was_run_and_what_is_wrong(monkeypatch):
    monkeypatch.setattr(gpu_page, 'printed_results', list)
    case = dict(name='ties', type='bf16', precision='ieee', texts=3, tokens=9, V=90, value=0.0, named=0.0, gradient=1e-3, right=True)
    kernel = dict(name='card', whole=True, date='2026-01-01', versions=dict(torch='2', python='3'), command='make gpu STAGE=kernel', cases=[case])
    assert gpu_page.page({}).count('not run yet') == len(gpu_page.CLAIMS)
    page = gpu_page.page({'card': {'kernel': kernel}})
    assert page.count('card: run, 2026-01-01') == 2 and '| ties | bf16 ieee |' in page and '*Source:* `make gpu STAGE=kernel`; data random weights; ' in page
    broken = kernel | dict(cases=[case | dict(right=False)], whole=False)
    assert 'card: **wrong**: ties' in gpu_page.page({'card': {'kernel': broken}})
    assert 'in part' in gpu_page.page({'card': {'kernel': kernel | dict(whole=False)}})
    assert {stage for _, stage, _ in gpu_page.CLAIMS} == {*gpu.STAGES} == {*gpu_page.TABLES}


def test_plain_values_and_slopes_are_those_of_autograd():
    lengths, inputs = [3, 1, 5], [x.requires_grad_() for x in gpu_kernel.inputs_of([3, 1, 5], 70, 8, 'fp32', False, 'cpu')]
    inputs[2].data += 3
    parts = list(gpu_kernel.plain(*(x.detach() for x in inputs), lengths))
    values, at = (torch.cat([part[n] for part in parts], 1) for n in (1, 2))
    every = torch.stack([text.amax(0) for text in (inputs[0] @ inputs[1].t() + inputs[2]).split(lengths)])
    assert (values - every).abs().max() < 1e-5
    wanted = torch.autograd.grad(every.relu().log1p().sum(), inputs)
    for mine, theirs in zip(gpu_kernel.slopes(values.float(), at, *(x.detach() for x in inputs[:2])), wanted):
        assert (mine - theirs).norm() < 1e-5 * theirs.norm()
    found = gpu_kernel.differences(values.float(), at, [x.detach() for x in inputs], lengths)
    assert found['value'] < 1e-6 and found['other'] == 0
    assert gpu_kernel.differences(values.float(), at.roll(1, 1), [x.detach() for x in inputs], lengths)['named'] > 0.1


def test_what_a_run_printed_stands_on_the_page_where_no_file_is_kept():
    [known] = gpu_page.printed_results()
    assert 'NVIDIA H200: right in every case' in gpu_page.page({}) and {*known['stages']} < {*gpu.STAGES}
    assert all(len(row) == len(known['columns']) for row in known['rows'])


def test_a_profile_names_the_largest_operations():
    found = gpu_kernel.profiled(lambda: torch.ones(64, 64) @ torch.ones(64, 64), 'cpu')
    assert found['products'] == 2 * 64 ** 3 and any(one['name'] == 'aten::mm' for one in found['top']) and found['share'] > 0
    table = gpu_page.profile_table(dict(profile=found))
    assert '`aten::mm`' in table and gpu_page.profile_table({}) == ''


@pytest.fixture(scope='module')
def reads(tmp_path_factory): return gpu_encoder.material(tmp_path_factory.mktemp('gpu')/'material', True)


@pytest.mark.slow
def test_a_pretrained_encoder_becomes_a_model_and_a_finished_run_is_not_run_again(reads, tmp_path, monkeypatch):
    from splade_nb.model.load import load_encoder
    monkeypatch.setattr(gpu_encoder, 'root', lambda: tmp_path)
    monkeypatch.setattr(gpu_encoder, 'material', lambda *_: reads)
    results = [gpu_encoder.encoder_stage('cpu', True, lambda: 1e6) for _ in range(2)]
    out = tmp_path/results[0]['folder']
    assert all(result['whole'] and result['steps'] == 6 for result in results) and len((out/'metrics.jsonl').read_text().splitlines()) == 6
    assert results[0]['sets'] == results[1]['sets'] and {'config.json', 'metrics.jsonl', 'checkpoints', 'model'} <= {path.name for path in out.iterdir()}
    model, tokenizer = load_encoder(out)
    assert model.decoder.weight is not model.backbone.get_input_embeddings().weight and len(tokenizer) == model.decoder.weight.shape[0]
    assert 'texts a second' in gpu_page.encoder_table(results[0])


@pytest.mark.slow
def test_time_that_is_over_leaves_a_run_that_goes_on(reads, tmp_path, monkeypatch):
    from splade_nb.training import trainer
    monkeypatch.setattr(gpu_encoder, 'root', lambda: tmp_path)
    monkeypatch.setattr(gpu_encoder, 'material', lambda *_: reads)
    def interrupted(*given, real=trainer.train, **named):
        real(*given, **named, max_steps=3)
        raise KeyboardInterrupt
    monkeypatch.setattr(trainer, 'train', interrupted)
    part = gpu_encoder.encoder_stage('cpu', True, lambda: 1e6)
    assert not part['whole'] and part['steps'] == 3 and 'sets' not in part and (tmp_path/part['folder']/'model'/'model.safetensors').exists()
    monkeypatch.undo()
    monkeypatch.setattr(gpu_encoder, 'root', lambda: tmp_path)
    monkeypatch.setattr(gpu_encoder, 'material', lambda *_: reads)
    assert gpu_encoder.encoder_stage('cpu', True, lambda: 1e6)['steps'] == 6


def test_a_pack_holds_project_material_and_packages(reads, tmp_path, monkeypatch):
    import tarfile
    monkeypatch.setattr(gpu_pack, 'packages', lambda folder, python: (folder/'bm25s').mkdir(parents=True))
    monkeypatch.setattr(gpu_pack, 'PIECE', 40_000)  # more than ten of them
    size, folder = gpu_pack.pack(tmp_path/'pack', material=reads), tmp_path/'pack'
    def pieces(name): return sorted(folder.glob(f'{name}.tar.xz.*'))
    def inside(name): return set(tarfile.open(fileobj=BytesIO(b''.join(path.read_bytes() for path in pieces(name)))).getnames())
    assert len(pieces('project')) > 1 and all(path.stat().st_size <= 40_000 for path in folder.glob('*.xz.*'))
    assert {'splade_nb/data/encoders.py', 'benchmarks/gpu.py', 'settings.ini', 'data/mini', 'REVISION'} <= inside('project') and 'site/bm25s' in inside('site')
    assert {'data/gpu/backbone/kept.json', 'data/gpu/sets/mini/corpus.jsonl', 'data/gpu/backbone/model.safetensors'} <= inside('material')
    assert size == sum(path.stat().st_size for path in folder.glob('*.xz.*'))
    python = folder/'python'  # says what it is started with
    python.write_text('#!/bin/sh\necho "$PWD" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(['bash', folder/'run.sh', '--stage', 'kernel'], capture_output=True, text=True, env=os.environ | dict(PYTHON=str(python)))
    assert done.stdout == f'{folder}/unpacked benchmarks/gpu.py --stage kernel\n' and (folder/'unpacked'/'settings.ini').exists(), done.stderr


def test_rows_that_are_not_kept_are_zero_in_a_pack():
    from conftest import read, text
    from splade_nb.data import encoders
    import numpy as np
    cell = next(c for c in read(ROOT/'nbs/1_data/15_encoders.ipynb')['cells'] if c['id'] == 'tiny-file')
    exec(text(cell).split('\ntiny = ')[0], names := vars(encoders) | dict(np=np))
    raw = names['tiny_file'](['<s>', '<pad>', '</s>', '<unk>', '집', '<mask>'])
    before, after = (encoders.read_file(each)[2] for each in (raw, gpu_pack.sparse_file(raw, [0, 5])))
    rows, left = before['emb.word'].reshape(40, -1), after['emb.word'].reshape(40, -1)
    assert (left[[0, 5]] == rows[[0, 5]]).all() and not left[[1, 2, 39]].any() and (before['l0.q.w'] == after['l0.q.w']).all()


TRIED = 'kernel,encode,v28'  # the others measure the same code; `make gpu DEVICE=cpu` tries them all


@pytest.mark.slow
def test_stages_run_at_a_tiny_size_and_only_once(tmp_path, capsys):
    "Two of them in this process; the program finds their results and begins the third in a process of its own."
    (tmp_path/'cpu').mkdir()
    for stage in ('encode', 'v28'): gpu.measure_stage(stage, 'cpu', tmp_path/'cpu', float('inf'))
    done = run('--device', 'cpu', '--results', tmp_path, '--stage', TRIED, TRITON_INTERPRET='1')
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = {path.stem: read_json(path) for path in (tmp_path/'cpu').glob('*.json')}
    left_out = {'kernel'} if 'left_out' in results['kernel'] else set()  # without Triton
    assert {*results} == {*TRIED.split(',')} < {*gpu.STAGES}
    assert {name for name, result in results.items() if not result['whole']} == left_out
    assert all(case.get('right') for case in results['kernel']['cases']) and results['v28']['finite'] and results['v28']['plan']['kept'] > 0
    page = (tmp_path/'gpu.md').read_text(encoding='utf-8')
    assert '### V28' in page and 'texts a second' in page and done.stdout.count('has a result') == 2
    capsys.readouterr()
    assert gpu.run_stages(['encode', 'v28'], 'cpu', tmp_path/'cpu', 1.0, False) == []
    assert capsys.readouterr().out.count('has a result') == 2

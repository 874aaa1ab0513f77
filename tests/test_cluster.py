"""Ray writes the shards that one process writes, and goes on where it was killed."""
import importlib.util, json, os, signal, subprocess, sys, time
from pathlib import Path
import pytest
from conftest import ROOT
from splade_nb.cli import main
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve
from splade_nb.data.records import toy_corpus
from splade_nb.model import encode_cluster
from splade_nb.training.dataset import prepare, save_model_folder

TEXTS, SIZE = [f'제주도 {number}번 버스는 어디서 타나요' for number in range(37)], 4
has_ray = pytest.mark.skipif(not importlib.util.find_spec('ray'), reason="no Ray here: pip install 'splade_nb[cluster]'")


@pytest.fixture(scope='module', params=['v28', 'splade_ko'])
def folder(request, tmp_path_factory) -> Path:
    "An untrained model, texts, and the shards that one process makes of them."
    folder = tmp_path_factory.mktemp(request.param)
    settings = resolve(request.param, 'corrected', 'mini', hidden=64, layers=1, vocabulary=300, max_length=32, query_length=32)
    save_model_folder(prepare(settings, toy_corpus(), 42, folder/'cache'), folder)
    (folder/'texts.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    assert main(command(folder, 'at-once')) == 0
    return folder


def command(folder: Path, out: str, *more) -> list:
    given = ('encode', '--model', folder, '--data', folder/'texts.txt', '--out', folder/out, '--size', SIZE, *more)
    return [str(each) for each in given]


def shards(folder: Path) -> dict: return {path.name: path.read_bytes() for path in sorted(folder.glob('shard-*.npz'))}


def ray_command(folder: Path, out: str) -> subprocess.Popen:
    called = [sys.executable, '-m', 'splade_nb.cli', *command(folder, out, '--engine', 'ray', '--workers', 2)]
    return subprocess.Popen(called, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env=os.environ | dict(OMP_NUM_THREADS='1'))


def finished(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
@has_ray
@pytest.mark.parametrize('folder', ['splade_ko'], indirect=True)  # the mean length of all texts comes first
def test_a_killed_cluster_goes_on_and_writes_what_one_process_writes(folder):
    process = ray_command(folder, 'by-ray')
    while process.poll() is None and len(shards(folder/'by-ray')) < 2: time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1][-3000:]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    there = shards(folder/'by-ray')
    told = finished(ray_command(folder, 'by-ray'))
    made, wanted = shards(folder/'by-ray'), shards(folder/'at-once')
    assert told['whole'] and told['written'] <= len(wanted) - 2 and there.items() <= made.items()
    assert made == wanted and read_json(folder/'by-ray'/'shards.json') == read_json(folder/'at-once'/'shards.json')


def test_a_worker_reads_forward_and_anew_for_a_shard_that_another_lost(folder):
    from splade_nb.cli import _opened
    def opened(): return _opened(str(folder), str(folder/'texts.txt'), False)
    worker = encode_cluster.ShardWorker(opened, folder/'by-worker', SIZE)
    assert [worker({'number': [number]})['texts'] for number in (1, 9, 0, 3)] == [[4], [1], [4], [4]]
    assert shards(folder/'by-worker').items() <= shards(folder/'at-once').items()
    with pytest.raises(ConfigError, match='shard 10 is beyond the texts'): worker.take(10)


def test_what_does_not_go_together_is_said(folder, capsys, monkeypatch):
    assert main(command(folder, 'none', '--engine', 'ray', '--parts', 2)) == 2
    assert 'leave --part and --parts out' in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert main(command(folder, 'none', '--engine', 'ray')) == 2
    assert "pip install 'splade_nb[cluster]'" in capsys.readouterr().err and not (folder/'none').exists()

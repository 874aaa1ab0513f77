"""Ray writes the shards that one process writes, and goes on where it was killed."""
import importlib.util, json, os, pickle, signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import pytest
from conftest import ROOT
from splade_nb.cli import main
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve
from splade_nb.data.records import toy_corpus
from splade_nb.lab import encode_cluster
from splade_nb.training.dataset import as_searched, prepare, save_model_folder

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's

TEXTS, SIZE = [f'제주도 {number}번 버스는 어디서 타나요' for number in range(37)], 4
has_ray = pytest.mark.skipif(not importlib.util.find_spec('ray'), reason="no Ray here: pip install 'splade_nb[cluster]'")


@pytest.fixture(scope='module', params=['v28', 'splade_ko'])
def folder(request, tmp_path_factory) -> Path:
    "An untrained model, texts, and the shards that one process makes of them."
    folder = tmp_path_factory.mktemp(request.param)
    settings = resolve(request.param, 'corrected', 'mini', hidden=64, layers=1, vocabulary=300, max_length=32, query_length=32)
    save_model_folder(as_searched(prepare(settings, toy_corpus(), 42)), folder)
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


def said_at_its_end(process: subprocess.Popen) -> tuple:
    out, err = process.communicate(timeout=300)
    if 'did not start in time' in err: pytest.skip('Ray waits 15 seconds for its own processes, and this machine is busier than that')
    return out, err


def finished(process: subprocess.Popen) -> dict:
    out, err = said_at_its_end(process)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@has_ray
@pytest.mark.parametrize('folder', ['splade_ko'], indirect=True)  # the mean length of all texts comes first
def test_a_killed_cluster_goes_on_and_writes_what_one_process_writes(folder):
    process = ray_command(folder, 'by-ray')
    while process.poll() is None and len(shards(folder/'by-ray')) < 2: time.sleep(0.05)
    if process.poll() is not None: pytest.fail(said_at_its_end(process)[1][-3000:])
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    there = shards(folder/'by-ray')
    told = finished(ray_command(folder, 'by-ray'))
    made, wanted = shards(folder/'by-ray'), shards(folder/'at-once')
    assert told['whole'] and told['written'] <= len(wanted) - 2 and there.items() <= made.items()
    assert made == wanted and read_json(folder/'by-ray'/'shards.json') == read_json(folder/'at-once'/'shards.json')


class OneProcessRay:
    "What `encode_on_ray` asks of Ray, answered in this process; what goes to a worker is pickled, as Ray does."
    class ActorPoolStrategy:
        def __init__(self, min_size, max_size): self.sizes = min_size, max_size

    def __init__(self, resources, fails_after=99): self.resources, self.fails_after, self.data, self.calls = resources, fails_after, self, []
    def is_initialized(self): return True
    def shutdown(self): pass
    def cluster_resources(self): return self.resources
    def remote(self, **options): return lambda call: SimpleNamespace(remote=lambda: (self.calls.append(options), 'bf16')[1])
    def get(self, value): return value
    DataContext = SimpleNamespace(get_current=lambda: SimpleNamespace())

    def from_items(self, rows, override_num_blocks):
        assert override_num_blocks == len(rows)
        self.rows = rows
        return self

    def map_batches(self, worker, fn_constructor_args, batch_size, compute, **resources):
        self.calls.append(dict(resources, sizes=compute.sizes))
        self.worker = worker(*pickle.loads(pickle.dumps(fn_constructor_args)))
        return self

    def iter_rows(self):
        for row in sorted(self.rows, key=lambda row: row['number'] % 3)[:self.fails_after]:  # in no order
            yield dict(texts=self.worker(dict(number=[row['number']]))['texts'][0])
        if self.fails_after < len(self.rows): raise RuntimeError('the cluster is gone')


def encoded(folder, out, ray, monkeypatch, *more) -> int:
    for name in ('ray', 'ray.data'): monkeypatch.setitem(sys.modules, name, ray)
    return main(command(folder, out, '--engine', 'ray', *more))


def test_what_is_handed_out_gives_the_folder_of_one_process(folder, tmp_path, monkeypatch):
    ray = OneProcessRay(dict(CPU=8), fails_after=4)
    with pytest.raises(RuntimeError, match='the cluster is gone'): encoded(folder, 'handed-out', ray, monkeypatch)
    there = shards(folder/'handed-out')
    assert len(there) == 4 and ray.calls == [dict(num_cpus=2, sizes=(1, 4))]
    again = OneProcessRay(dict(CPU=8))
    assert encoded(folder, 'handed-out', again, monkeypatch) == 0 and len(again.rows) == len(shards(folder/'at-once')) - 4
    assert there.items() <= shards(folder/'handed-out').items() and shards(folder/'handed-out') == shards(folder/'at-once')
    assert read_json(folder/'handed-out'/'shards.json') == read_json(folder/'at-once'/'shards.json')
    none = OneProcessRay(dict(CPU=8))
    assert encoded(folder, 'handed-out', none, monkeypatch) == 0 and none.calls == [], 'nothing is missing'


def test_workers_with_gpus_decide_the_precision(folder, monkeypatch):
    ray = OneProcessRay(dict(CPU=8, GPU=2))
    assert encoded(folder, 'by-gpus', ray, monkeypatch) == 0
    assert ray.calls == [dict(num_gpus=1.0), dict(num_gpus=1.0, num_cpus=1, sizes=(1, 2))]
    assert read_json(folder/'by-gpus'/'shards.json')['precision'] == 'bf16', 'not that of the machine that hands out'


@has_ray
def test_ray_has_what_is_asked_of_it():
    import inspect
    import ray
    def names(call): return {*inspect.signature(call).parameters}
    assert {'fn_constructor_args', 'batch_size', 'compute', 'num_cpus', 'num_gpus'} <= names(ray.data.Dataset.map_batches)
    assert {'min_size', 'max_size'} <= names(ray.data.ActorPoolStrategy) and 'override_num_blocks' in names(ray.data.from_items)
    assert {'address', 'log_to_driver', 'include_dashboard'} <= names(ray.init)


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

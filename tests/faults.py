"""Fault injection tests. Each function makes a fault happen to a run in processes of its own, asserts what must hold,
and returns a row for the table.

A fault comes at a chosen moment, never after some time: a process kills or interrupts itself, or fills its disk, at the
n-th call of the model or the n-th change on the disk. Where one process waits for another, it waits for what that one
does.

`test_faults.py` runs them as tests, `docs/fault_table.py` writes their table. As a program this file is one of the
ranks that torchrun starts.
"""
import functools, itertools, json, multiprocessing, os, resource
import shutil, signal, subprocess, sys, tempfile, threading, time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from runpy import run_module, run_path
# before torch, in this process and in those that it starts
os.environ |= dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE')
import safetensors.torch
import torch
from safetensors.torch import load_file
from tqdm import tqdm
from moments import CHILDREN, TEXTS, die_at_change
from notebooks import write_executed
from splade_nb.training import checkpoints
from splade_nb.training import dataset as training_data
from splade_nb.config.processes import ProcessGroup
from splade_nb.training import batch, memory
from splade_nb.data import readers
from splade_nb import experiment
from splade_nb import cli
from splade_nb.training import trainer as training
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.data.records import toy_corpus
from splade_nb.data.tokenizer import morphemes, remembered

SMALL = dict(scale='mini', data='toy', steps=10, hidden=64, layers=1, vocabulary=300, batch_size=8, log_every=1)
FOREVER = 100_000  # steps: until something ends the run
HANGS = 600  # seconds: only a process that hangs takes so long, on any machine


@dataclass(frozen=True)
class Outcome:
    "A row of the fault table."
    tries: int
    lost: int | None  # steps done again after the worst of them
    outcome: str


# What a child does

def settings_of(**changes):
    return resolve_quietly('v28', **dict(batch_size=6, log_every=1, validations=1, dropout=0.1) | changes)


def train_toy(folder: Path, changes: dict, options: dict, process_group) -> training.Run:
    "The toy of the notebooks, from one seed."
    training_data.fix_seeds(42)
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own lock is a semaphore that outlives a kill
    data, model = training_data.toy_training_data()
    settings = settings_of(**changes)
    return training.train(model, data, settings, folder, quiet=True, process_group=process_group, **options)


def toy(folder: Path, changes: dict, options: dict, before=None, process_group=ProcessGroup()) -> None:
    "A child that trains the toy and ends as the command line does; `before` prepares the fault inside it."
    if before: before[0](*before[1:])
    try: train_toy(folder, changes, options, process_group)
    except KeyboardInterrupt: sys.exit(130)
    except ConfigError as error:
        folder.with_name('output').write_text(str(error), encoding='utf-8')
        sys.exit(2)


def command(arguments: list, folder: Path, before=None) -> None:
    "A child that is the command line; its output goes to a file `output` beside the run folder. No settings check."
    if before: before[0](*before[1:])
    experiment.require_acting_settings = lambda *settings: ()
    with open(folder.with_name('output'), 'w', encoding='utf-8') as file:
        sys.stdout = sys.stderr = file
        code = cli.main(arguments)
    sys.exit(code)


def take_passes(number: int) -> None:
    "A batch takes so many passes, as if memory asked for them."
    training.passes_for = lambda *arguments: number


def kill_at_call(call: int, passes: int = 1) -> None:
    "SIGKILL from within, as texts pass the model for the `call`-th time in a step."
    take_passes(passes)
    true, calls = memory._Chunk.outputs, iter(range(call))
    def dying(*arguments):
        if next(calls, None) is None: os.kill(os.getpid(), signal.SIGKILL)
        return true(*arguments)
    memory._Chunk.outputs = dying


def interrupt_at(step: int) -> None:
    "Ctrl-C from within, as a step begins."
    true = training.train_step
    def interrupting(run):
        if run.step == step: os.kill(os.getpid(), signal.SIGINT)
        return true(run)
    training.train_step = interrupting


def fill_disk_from(disk: Path, call: int) -> None:
    "The disk is full from the `call`-th call of the model on: every later call fills what has become free."
    true, calls = memory._Chunk.outputs, itertools.count()
    def filling(*arguments):
        if next(calls) >= call: fill(disk)
        return true(*arguments)
    memory._Chunk.outputs = filling


def fill(disk: Path) -> None:
    "Write ballast until the disk takes no byte more."
    with open(disk/'ballast', 'ab', buffering=0) as ballast:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while ballast.write(bytes(size)) == size: pass
            except OSError: pass


FILES = TEXTS, (safetensors.torch, 'save_file', 1)


def kill_while_saving(number: int) -> None: die_at_change(number, training, 'save_checkpoint', FILES)


def kill_while_replacing(number: int) -> None:
    "While a checkpoint replaces one of the same step: each is saved twice, as by Ctrl-C."
    true = training.save_checkpoint
    training.save_checkpoint = lambda *arguments: [true(*arguments) for _ in range(2)]
    die_at_change(number, checkpoints, 'put_in_place')


def nan_at(call: int, passes: int = 1) -> None:
    "NaN in the vectors of the queries in the model's `call`-th call of a step only."
    take_passes(passes)
    true, calls = memory._Chunk.outputs, iter(range(call + 1))
    def with_nan(*arguments):
        (vectors, logits), documents = true(*arguments)
        return [(vectors * float('nan') if next(calls, None) == call else vectors, logits), documents]
    memory._Chunk.outputs = with_nan


def limit_file_size(size: int) -> None:
    "No file of this process grows beyond `size` bytes: a refusal without a disk of its own."
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def drop_privileges() -> None:
    "Root may write anywhere; the user nobody may not."
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


# What is seen from outside

@functools.cache
def toy_morphemes() -> dict:
    "The morphemes of the toy corpus: loading the analyser takes longer than a small run."
    corpus = toy_corpus()
    pairs = [text for pair in corpus.context_pairs for text in pair.queries]
    queries = [query.text for query in corpus.queries.values()]
    with remembered({}) as known: morphemes([*corpus.texts.values(), *queries, *pairs])
    return known


def with_morphemes(known: dict, target, *arguments) -> None:
    with remembered(known): target(*arguments)


def start(target, *arguments) -> multiprocessing.Process:
    child = CHILDREN.Process(target=with_morphemes, args=(toy_morphemes(), target, *arguments), daemon=True)
    child.start()
    return child


def exit_code_of(child) -> int:  # exit code; minus the number of a signal
    child.join(HANGS)
    if child.is_alive():
        child.kill()
        child.join()
        raise AssertionError('the child hung')
    return child.exitcode


def exit_code(target, *arguments) -> int: return exit_code_of(start(target, *arguments))


def as_program(arguments: list, folder: Path, output: Path, errors: Path) -> None:
    "A child that does in `folder` what `python` does with these arguments: `-m` and a module, `-c` and code, or a script."
    os.chdir(folder)
    sys.stdout, sys.stderr = (open(path, 'w', encoding='utf-8') for path in (output, errors))
    first, *sys.argv = map(str, arguments)
    if first == '-c': exec(sys.argv[0], dict(__name__='__main__'))
    elif first == '-m': run_module(sys.argv[0], run_name='__main__', alter_sys=True)
    else:
        sys.argv.insert(0, first)
        sys.path.insert(0, str(Path(first).parent))
        run_path(first, run_name='__main__')


def program(*arguments, folder: Path) -> subprocess.CompletedProcess:
    "What `python` says with these arguments, without the seconds of its imports."
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place)/'output', Path(place)/'errors'
        code = exit_code(as_program, arguments, folder, output, errors)
        return subprocess.CompletedProcess(arguments, code, *(path.read_text(encoding='utf-8') for path in (output, errors)))


def run_notebook(notebook, folder: Path):
    "The notebook of nbformat with the outputs that its cells give in `folder`, without a kernel and its imports."
    from nbformat import from_dict
    code = [cell for cell in notebook.cells if cell.cell_type == 'code']
    with tempfile.TemporaryDirectory() as place:
        assert exit_code(write_executed, [cell.source for cell in code], folder, goal := Path(place)/'outputs.json') == 0
        found = read_json(goal)
    assert not isinstance(found, str), found
    for cell, outputs in zip(code, found, strict=True): cell.outputs = [from_dict(output) for output in outputs]
    return notebook


def output_of(folder: Path) -> str: return folder.with_name('output').read_text(encoding='utf-8')


def wait_for(seen, child=None, pause: float = 0.002):
    "The first true result of `seen()`; None where the child ended before."
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        if found := seen(): return found
        if child and child.exitcode is not None: return None
        time.sleep(pause)
    raise AssertionError('waited in vain')


def lines(path: Path) -> list:
    "Rows of a file of JSON lines; the last one may be cut short."
    found = path.read_text(encoding='utf-8', errors='replace').split('\n')[:-1] if path.exists() else []
    return [json.loads(line) for line in found]


def saved_checkpoints(folder: Path) -> list: return checkpoints.checkpoints(folder/'checkpoints')


def steps_done(folder: Path) -> int:  # steps
    return max((row['step'] + 1 for row in lines(folder/'metrics.jsonl')), default=0)


def last_step(folder: Path) -> int:  # of the last checkpoint
    return max(map(checkpoints.step_of, saved_checkpoints(folder)), default=0)


def steps_lost(folder: Path) -> int:
    "Steps that a resume does again. Every checkpoint that a resume could take is whole."
    for path in saved_checkpoints(folder): checkpoints.verify(path)
    return steps_done(folder) - last_step(folder)


def last_checkpoint(folder: Path) -> dict:  # file -> size and digest
    "The last checkpoint: weights, optimizer, rng state and the run's state, but for the seconds that it took."
    last = saved_checkpoints(folder)[-1]
    checkpoints.verify(last)
    state = {name: value for name, value in read_json(last/'state.json').items() if name != 'seconds'}
    return {'step': last.name, **read_json(last/'manifest.json'), 'state.json': state}


def summary_of(folder: Path) -> dict:
    values = read_json(folder/'summary.json')
    other = ('seconds', 'stages', 'peak_memory_mb', 'peak_gpu_memory_mb', 'revision', 'date')  # the tree may be edited between two runs
    return {name: value for name, value in values.items() if name not in other}


def arguments_of(folder: Path, **changes) -> list:
    values = SMALL | dict(out=folder) | changes
    return ['train', 'v28', '--set', *(f'{name}={value}' for name, value in values.items())]


# Kills

def is_half_written(folder: Path) -> bool:
    "Whether a kill left a checkpoint that is half written, half replaced or half deleted."
    return any(path.name.startswith(('part-', 'old-')) for path in (folder/'checkpoints').glob('*'))


def killed_in_turn(fault, folder: Path, changes: dict, options: dict, steps: int, stride: int, enough=bool):
    """Runs into one folder, each killed `stride` moments later in its writing of checkpoints than the one before, until
    `enough()` or no moment is left. Yields steps lost, and whether something half written is left."""
    for number in itertools.count(0, stride):
        last = dict(max_steps=last_step(folder) + steps)
        code = exit_code(toy, folder, changes, {**options, **last, 'resume': True}, (fault, number))
        if code == 0 or enough(): return
        assert code == -signal.SIGKILL
        yield steps_lost(folder), is_half_written(folder)


def kills(folder: Path, every: int = 2, stride: int = 1) -> Outcome:
    "kill -9 at every moment of writing a checkpoint: the first, a later one, one that exists already"
    changes, options, target = dict(steps=400), dict(save_every=every), folder/'run'
    seen = list(killed_in_turn(kill_while_saving, target, changes, options, 1, stride, lambda: saved_checkpoints(target)))
    assert len(seen) > 15 / stride and exit_code(toy, target, changes, {**options, 'max_steps': 4 * every, 'resume': True}) == 0
    for fault in (kill_while_saving, kill_while_replacing):
        seen += killed_in_turn(fault, target, changes, options, every, stride)
    worst, halves, reached = max(steps for steps, _ in seen), sum(half for _, half in seen), steps_done(target)
    assert len(seen) > 50 / stride and halves > 40 / stride and worst == every
    assert exit_code(toy, folder/'whole', changes, dict(options, max_steps=reached)) == 0
    assert last_checkpoint(target) == last_checkpoint(folder/'whole') and not is_half_written(target)
    assert [row['step'] for row in lines(target/'metrics.jsonl')] == list(range(reached))
    return Outcome(len(seen), worst, 'before each change on the disk and in the middle of each file: '
                   f'{halves} of them left a checkpoint half written, half replaced or half deleted, and none of these '
                   f'was loaded; after {reached} steps every file equals the uninterrupted run\'s')


# The disk

@contextmanager
def small_disk(folder: Path, size: str):
    "A tmpfs of its own; None where this machine does not allow mounting one."
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try: yield folder if mounted else None
    finally:
        if mounted: subprocess.run(['umount', '-l', str(folder)], check=True)


def file_limit(folder: Path) -> Outcome:
    "a checkpoint that the disk refuses (limit on the size of a file)"
    changes, target = dict(steps=12), folder/'run'
    assert exit_code(toy, target, changes, dict(save_every=2, max_steps=4)) == 0
    assert exit_code(toy, target, changes, dict(save_every=2, resume=True), (limit_file_size, 100_000)) == 0
    events = [event for event in lines(target/'guard.jsonl') if event['name'] == 'disk']
    assert [event['step'] for event in events] == [5, 6, 8, 10, 12] and 'could not be written' in events[0]['message']
    assert steps_lost(target) == 8 and saved_checkpoints(target)[-1].name == 'step-4' and steps_done(target) == 12
    assert exit_code(toy, target, changes, dict(save_every=2, resume=True)) == 0
    assert exit_code(toy, folder/'whole', changes, dict(save_every=2)) == 0
    assert last_checkpoint(target) == last_checkpoint(folder/'whole')
    return Outcome(1, 8, 'an event for each refused checkpoint, the run continues, earlier checkpoints are complete; '
                   'resumed with free space, it equals the uninterrupted run')


def disk_full(folder: Path) -> Outcome:
    "disk full (a small tmpfs)"
    with small_disk(folder/'disk', '2m') as disk:
        if not disk: return Outcome(0, None, 'not tried: a tmpfs cannot be mounted here')
        target, changes, options, output_file = disk/'run', dict(steps=FOREVER), dict(save_every=2), folder/'output'
        output_file.touch()
        (disk/'output').symlink_to(output_file)
        calls = 7  # of the model until step 7
        assert exit_code(toy, target, changes, options, (fill_disk_from, disk, calls)) == 2
        assert 'No space left on device' in output_of(target)
        assert output_of(target).startswith(f'{target}: cannot be written')
        (disk/'ballast').unlink()
        worst, end_at = steps_lost(target), dict(options, max_steps=steps_done(target) + 3)
        assert len(saved_checkpoints(target)) >= 3
        assert exit_code(toy, target, changes, {**end_at, 'resume': True}) == 0
        assert exit_code(toy, folder/'whole', changes, end_at) == 0
        found, whole = ({**last_checkpoint(each), 'state.json': ''} for each in (target, folder/'whole'))
        assert found == whole  # but for `state.json`, which may hold an event of the disk
    return Outcome(1, worst, 'the run ends with a message that names the folder, exit code 2; checkpoints are '
                   'complete; resumed with free space, it equals the uninterrupted run')


def full_at_the_end(folder: Path) -> Outcome:
    "a disk that is full when the trained model is written"
    target = folder/'run'
    assert exit_code(command, arguments_of(target, max_steps=4), target) == 0
    assert exit_code(command, [*arguments_of(target, max_steps=4), '--resume'], target, (limit_file_size, 100_000)) == 2
    assert output_of(target).splitlines()[-1].startswith(f'{target}: cannot be written'), output_of(target)
    assert exit_code(command, [*arguments_of(target, max_steps=4), '--resume'], target) == 0
    return Outcome(1, steps_lost(target), 'the run ends with a message that names the folder, exit code 2; '
                   'with free space, the same command ends it without another step')


# Checkpoints that are not what was written

def damaged_files(path: Path) -> list:  # (what, function on the bytes of a file)
    "Every file of a checkpoint cut short, emptied, and with one bit flipped."
    def flip(position):
        def change(found):
            changed = bytearray(found)
            changed[int(position * (len(found) - 1))] ^= 1 << 5
            return bytes(changed)
        return change
    ways = [lambda found: found[:-7], lambda found: b'', *(flip(share) for share in (0, 0.5, 0.99))]
    return [(file.name, way) for file in sorted(path.iterdir()) for way in ways]


def assert_refused(folder: Path, changes: dict, *wanted: str, **options) -> None:
    assert exit_code(toy, folder, changes, dict(resume=True) | options) == 2
    for words in wanted: assert words in output_of(folder), (words, output_of(folder))


def broken(folder: Path) -> Outcome:
    "a truncated or bit-flipped checkpoint"
    target, changes = folder/'run', dict(steps=6)
    assert exit_code(toy, target, changes, dict(save_every=2, max_steps=4)) == 0
    last, before = saved_checkpoints(target)[-1], saved_checkpoints(target)[-2]
    tries = damaged_files(last)
    for name, change in tries:
        good = (last/name).read_bytes()
        (last/name).write_bytes(change(good))
        named = '' if name == 'manifest.json' else name  # a changed digest is reported as damage of its file
        assert_refused(target, changes, str(last), named, f'resume_from={before}')
        (last/name).write_bytes(good)
    (last/'random.safetensors').unlink()
    assert_refused(target, changes, 'random.safetensors is missing', f'resume_from={before}')
    assert exit_code(toy, target, changes, dict(resume_from=str(before))) == 0
    assert exit_code(toy, folder/'whole', changes, {}) == 0
    assert last_checkpoint(target) == last_checkpoint(folder/'whole')
    repeated = checkpoints.step_of(last) - checkpoints.step_of(before)
    return Outcome(len(tries) + 1, repeated, 'the checkpoint is refused, the message names the file and the checkpoint '
                   'before; resumed from that one, the run equals the uninterrupted one')


def other_run(folder: Path) -> Outcome:
    "a other_run checkpoint: other settings, seed or model"
    target, changes = folder/'run', dict(steps=6)
    assert exit_code(toy, target, changes, dict(save_every=2, max_steps=4)) == 0
    others = dict(settings=(dict(steps=6, top_k=7), {}, 'top_k=7 there'),
                  seed=(changes, dict(seed=7), '7 there, 42 here'),
                  model=(dict(steps=6, context_gate=False), {}, 'context_gate=False there'))
    for name, (other, options, difference) in others.items():
        assert exit_code(toy, folder/name, other, dict(save_every=5, max_steps=5, **options)) == 0
        other_checkpoint = shutil.copytree(folder/name/'checkpoints'/'step-5', target/'checkpoints'/'step-5')
        assert_refused(target, changes, f'{other_checkpoint} has other', difference,
                       f'resume_from={saved_checkpoints(target)[-2]}')
        assert_refused(target, changes, 'has other', resume_from=str(folder/name/'checkpoints'/'step-5'))
        shutil.rmtree(other_checkpoint)
    assert exit_code(toy, target, changes, dict(resume=True)) == 0
    return Outcome(2 * len(others), 0, 'refused with what differs; the message names the last checkpoint of the run '
                   'itself')


# Batches and data

def not_a_number(folder: Path) -> Outcome:
    "a NaN in one contrastive batch"
    tries = (dict(), 5), (dict(accumulation=4, gradient_cache=False), 4 * 5 + 1), (dict(accumulation=4, gradient_cache=True), 7 * 5 + 1, 4)
    for number, (changes, *call) in enumerate(tries):
        target = folder/str(number)
        assert exit_code(toy, target, dict(steps=10, **changes), {}, (nan_at, *call)) == 0
        events = [event for event in lines(target/'guard.jsonl') if event['level'] == 'fatal']
        assert [(event['step'], event['name']) for event in events] == [(5, 'not_finite')]
        rows = lines(target/'metrics.jsonl')
        assert [row['step'] for row in rows if row['gradient_norm'] is None] == [5] and len(rows) == 10
        weights = load_file(saved_checkpoints(target)[-1]/'model.safetensors')
        assert all(torch.isfinite(value).all() for value in weights.values())
    return Outcome(len(tries), 1, 'the step is skipped and an event is written; the run continues to its end with '
                   'finite weights')


def write_toy(folder: Path) -> Path:
    "The toy corpus in BEIR's form."
    corpus = toy_corpus()
    folder.mkdir()
    documents = [{'_id': d.id, 'title': d.title, 'text': d.text} for d in corpus.documents.values()]
    queries = [{'_id': q.id, 'text': q.text, 'metadata': {'split': q.split}} for q in corpus.queries.values()]
    for name, rows in dict(corpus=documents, queries=queries).items():
        text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
        (folder/f'{name}.jsonl').write_text(text, encoding='utf-8')
    for split in ('train', 'test'):
        rows = [f'{query}\t{document}\t{grade}' for query in corpus.split(split)
                for document, grade in corpus.qrels[query].items()]
        text = '\n'.join(['query-id\tcorpus-id\tscore', *rows]) + '\n'
        (folder/f'qrels_{split}.tsv').write_text(text, encoding='utf-8')
    return folder


def other_data(folder: Path) -> Outcome:
    "a data file that changes between stop and resume"
    data, target = write_toy(folder/'data'), folder/'run'
    assert exit_code(command, arguments_of(target, data=data, max_steps=4), target) == 0, output_of(target)
    first, config = read_json(saved_checkpoints(target)[-1]/'state.json')['data'], (target/'config.json').read_bytes()
    assert exit_code(command, [*arguments_of(target, data=data, top_k=7), '--resume'], target) == 2
    assert 'top_k' in output_of(target) and (target/'config.json').read_bytes() == config
    text = (data/'corpus.jsonl').read_text(encoding='utf-8')
    (data/'corpus.jsonl').write_text(text.replace('다', '까', 1), encoding='utf-8')
    assert exit_code(command, [*arguments_of(target, data=data), '--resume'], target) == 2
    second = readers.load_collection(str(data)).hash
    assert first != second and first in output_of(target) and second in output_of(target), output_of(target)
    (data/'corpus.jsonl').write_text(text, encoding='utf-8')
    assert exit_code(command, [*arguments_of(target, data=data), '--resume'], target) == 0
    return Outcome(1, 0, 'refused with both hashes; with the original file the run resumes')


# People and other processes

def ctrl_c(folder: Path) -> Outcome:
    "Ctrl-C"
    target, whole = folder/'run', folder/'whole'
    long = dict(steps=20)
    assert exit_code(command, arguments_of(target, **long), target, (interrupt_at, 3)) == 130
    reached = steps_done(target)
    assert steps_lost(target) == 0 and reached == 4
    assert exit_code(command, [*arguments_of(target, **long), '--resume'], target) == 0
    assert exit_code(command, arguments_of(whole, **long), whole) == 0
    assert last_checkpoint(target) == last_checkpoint(whole) and summary_of(target) == summary_of(whole)
    return Outcome(1, 0, f'the step is finished, a checkpoint of step {reached} written, exit code 130; resumed, '
                   'summary.json equals the uninterrupted run\'s')


def two_runs(folder: Path) -> Outcome:
    "two runs aimed at one folder"
    target = folder/'run'
    child = start(command, arguments_of(target, steps=FOREVER, weight_averaging='[0.0]'), target)
    wait_for(lambda: steps_done(target) >= 2, child)
    config = (target/'config.json').read_bytes()
    second = start(command, arguments_of(target, steps=5), target)
    assert exit_code_of(second) == 2 and f'process {child.pid} is training into this folder' in output_of(target)
    before = steps_done(target)
    wait_for(lambda: steps_done(target) > before, child)
    assert (target/'config.json').read_bytes() == config
    os.kill(child.pid, signal.SIGTERM)
    assert exit_code_of(child) == 130 and steps_lost(target) == 0
    return Outcome(1, 0, 'the second is refused with the process id of the first, exit code 2; the first continues')


def read_only(folder: Path) -> Outcome:
    "a read-only output folder"
    public = Path(tempfile.mkdtemp())
    public.chmod(0o755)  # `nobody` may read here
    try:
        sealed, output_file = public/'sealed', public/'output'
        sealed.mkdir()
        sealed.chmod(0o555)
        output_file.touch()
        output_file.chmod(0o666)
        (public/'file').touch()
        for target in (sealed/'run', sealed, public/'file', public/'file'/'run'):
            output_file.write_text('')
            assert exit_code(command, arguments_of(target), public/'run', (drop_privileges,)) == 2
            *notes, message = output_file.read_text(encoding='utf-8').splitlines()
            assert message.startswith(f'{target}: cannot be written') and 'out=' in message, message
            assert all('training pairs are few' in note for note in notes), notes
        assert not list(sealed.iterdir())
    finally: shutil.rmtree(public)
    return Outcome(4, None, 'refused before any work, with the folder\'s name and what to do, exit code 2')


# Several processes

FAULTS_OF_A_RANK = dict(die=kill_at_call, interrupt=interrupt_at, save=kill_while_saving)


def ranks(folder: Path, changes: dict, options: dict, fault: list = ()) -> None:
    "A process of a run; its gradient of a batch goes to `gradient.pt`. `fault`: what happens, when, and to whom: the second."
    process_group = experiment._processes()
    found = gradient(process_group)
    if process_group.rank == 0: torch.save(found, folder.with_name('gradient.pt'))
    name, moment, rank = (*fault, 1)[:3] if fault else ('', 0, None)
    before = (FAULTS_OF_A_RANK[name], moment) if process_group.rank == rank else None
    if name: take_passes(1)  # on every rank: they agree on the passes, also with the one that takes them from its fault
    toy(folder, changes, options, before, process_group)


def gradient(process_group=ProcessGroup()) -> tuple: # loss, gradients
    "Of one batch of sixteen pairs."
    training_data.fix_seeds(42)
    torch.set_num_threads(1)
    (data, model), settings = training_data.toy_training_data(), settings_of(batch_size=16)
    model.eval()
    rows = batch.batch_at(3, 20, 0, data, settings, 42)
    loss = memory.backward(model, rows, 3, 20, data, settings, None, process_group)[0]
    return loss, [value.grad for value in model.parameters() if value.grad is not None]


def check_gradient(folder: Path) -> float: # largest difference
    "Two ranks of eight gave what one of sixteen gives."
    (loss, found), (wanted_loss, wanted) = torch.load(folder/'gradient.pt'), gradient()
    differences = [(a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
    worst = max(abs(loss - wanted_loss).item(), *differences)
    assert worst < 1e-5
    return worst


def join_as(rank: int, port: int, number: int = 2) -> None:
    "The environment that torchrun gives its children: among the rest, that the store where they meet exists already."
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(number), LOCAL_WORLD_SIZE=str(number))
    os.environ |= dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE='True')


def joined(rank: int, port: int, number: int, target, *arguments) -> None:
    join_as(rank, port, number)
    target(*arguments)


def in_processes(number: int, target, *arguments) -> list:  # exit codes
    "`target(*arguments)` in processes that know each other. The store where they meet takes a free port and keeps it."
    store = torch.distributed.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    children = [start(joined, rank, store.port, number, target, *arguments) for rank in range(number)]
    return [exit_code_of(child) for child in children]


def two_ranks(*arguments) -> list: return in_processes(2, ranks, *arguments)  # exit codes


def torchrun(folder: Path, *arguments) -> int:  # exit code
    program = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', __file__]
    with open(folder.with_name('output'), 'w') as log:
        command_line = [*program, str(folder), *map(json.dumps, arguments)]
        return subprocess.run(command_line, stdout=log, stderr=log, timeout=HANGS).returncode


def worker_dies(folder: Path) -> Outcome:
    "a worker that dies (torchrun, two processes)"
    target, changes, options = folder/'run', dict(batch_size=16, steps=30), dict(save_every=5)
    calls = 14  # of the model until step 14
    assert torchrun(target, changes, options, ('die', calls)) != 0, output_of(target)
    check_gradient(folder)
    worst = steps_lost(target)
    assert steps_done(target) == 14 and 0 < worst <= 5
    shutil.copytree(target, folder/'alone')
    assert exit_code(toy, folder/'alone', changes, {**options, 'resume': True}) == 0
    assert steps_done(folder/'alone') == 30
    for name, resume in ((target, True), (folder/'whole', False)):
        assert two_ranks(name, changes, {**options, 'resume': resume}) == [0, 0]
    assert last_checkpoint(target) == last_checkpoint(folder/'whole')
    return Outcome(1, worst, 'torchrun ends all with an error; resumed with one process the run continues, with two it '
                   'equals the uninterrupted one')


# A loss that ruins a run

def start_of(folder: Path, recipe: str, steps: int) -> training.Run:
    "The first steps of V28 on the embedded set, of the 400 that it takes."
    settings = resolve_quietly('v28', recipe, 'mini', log_every=1, validations=1)
    assert settings.steps == 400
    setup = training_data.prepare(settings, readers.load_collection('mini'), 42)
    return training.train(setup.model, setup.training_data, settings, folder/recipe, quiet=True, max_steps=steps,
                          rollbacks=experiment.rollbacks_of(recipe))


def collapse(folder: Path, steps: int = 8) -> Outcome:
    "the collapse of V28 as written, from random weights (embedded set, the first 5 % of the steps)"
    with remembered({}):
        runs = {recipe: start_of(folder, recipe, steps) for recipe in ('original', 'corrected')}
    named = {recipe: [event['step'] for event in run.events if event['name'] == 'imbalance']
             for recipe, run in runs.items()}
    assert named['original'] and named['original'][0] < 0.05 * 400 and not named['corrected']
    first = lines(folder/'original'/'metrics.jsonl')[named['original'][0]]
    return Outcome(1, None, f'named at step {first["step"]} of 400: the language term is '
                   f'{first["parts"]["language"]:,.0f} of a loss of {first["loss"]:,.0f}; '
                   'the corrected recipe triggers no such event')


def same_seed(folder: Path) -> Outcome:
    "the same seed twice"
    for name in ('one', 'two'): assert exit_code(command, arguments_of(folder/name), folder/name) == 0
    assert summary_of(folder/'one') == summary_of(folder/'two')
    return Outcome(2, None, 'the same summary.json, but for seconds, peak memory and revision')


FAULTS = (kills, file_limit, disk_full, full_at_the_end, broken, other_run, not_a_number, other_data, ctrl_c, two_runs,
          read_only, worker_dies, collapse, same_seed)

if __name__ == '__main__': ranks(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))

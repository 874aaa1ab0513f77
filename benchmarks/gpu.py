"""What only a GPU can show: the kernel against float64, speed, encoding and training at full shape; stage by stage.

    python benchmarks/gpu.py [--minutes 40] [--stage STAGE ...] [--device cuda|cpu] [--force] [--results FOLDER] [--pack FOLDER]

Each stage runs in a process of its own until the time is over, and its result is kept as soon as it is there:
benchmarks/results/gpu/<device>/<stage>.json. A stage that has a whole result is left out, so the same command goes on.
`--device cpu` tries every stage at a tiny size, to see whether it runs; its results are not those of a GPU.
`--pack` writes a folder for a machine that has a GPU and its own torch, and neither network nor git nor pip (`gpu_pack.py`).
"""
import re, subprocess, sys, time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
import torch
from splade_nb.config.command_line import CommandLine, exit_codes
from splade_nb.config.files import ConfigError, alternatives, installed, read_json, write_json
from splade_nb.model.encode import encode, prepared_decoder
from encode import Encoders
from gpu_encoder import encoder_stage, versions_stage
from gpu_kernel import LEAST, Chunked, kernel_stage, peak_of, speed_stage
from gpu_profile import profiled, rate
from measure import HERE, alternately, once, ratios, say, spread, write_result
from models import FULL, SHARED, SMALL, model_folder, sparse_encoder
from step import QUERY, batch, drop_in, mine, theirs

NUMBER, BATCH, BUDGET = 2_000, 64, 32_768  # texts; texts of their batch; tokens of ours
PAIRS, LENGTH, STEPS = 24, 192, 300


# Encoding and one training step

def operations(size: dict, tokens: int) -> float:
    "Of a forward pass without the attention itself: two for each weight and token."
    hidden = size['hidden']
    return 2 * tokens * (size['layers'] * 12 * hidden ** 2 + hidden ** 2 + size['vocabulary'] * hidden)


def their_encoder(folder, device: str):  # in bfloat16, as fast as it can be
    return sparse_encoder(folder, device).bfloat16()


def encode_stage(device: str, small: bool, left) -> dict:
    "Texts a second: sentence-transformers, and every path here."
    size = SMALL if small else FULL
    with model_folder(size) as folder:
        encoders = Encoders(folder, 32 if small else NUMBER, device)
        texts, their = encoders.texts, their_encoder(folder, device)
        calls = dict(pooling=partial(their.encode, texts, batch_size=BATCH, show_progress_bar=False, save_to_cpu=True))
        for name, (keep, precision) in dict(bf16=(None, 'bf16'), fp32=(None, 'fp32'), korean=(encoders.korean, 'bf16')).items():
            decoder = prepared_decoder(encoders.our(), keep, precision=precision)
            calls[name] = partial(encode, encoders.our(), encoders.tokenizer, texts, budget=BUDGET, decoder=decoder, precision=precision)
        def chunked():
            with Chunked(): calls['bf16']()
        calls['chunks'] = chunked
        peaks = {name: peak_of(call, device) for name, call in calls.items()}
        times, tokens = alternately(calls), sum(len(ids) + 2 for ids in encoders.tokenizer.ids(texts))
    for name in calls:
        seconds = spread([each['wall'] for each in times[name]])['median']
        say(f'  {name}: {len(texts) / seconds:,.0f} texts a second, {peaks[name] / 1e9:.1f} GB')
    return dict(texts=len(texts), tokens=tokens, rounds=times, peaks=peaks, operations=operations(size, tokens), profile=profiled(calls['bf16'], device),
                rate=rate(device, 256 if small else 8_192), whole=True)


def step_stage(device: str, small: bool, left) -> dict:
    "One step under autocast; one side after the other on the GPU, so that each peak is of one side."
    size, (pairs, length) = (SMALL, (2, 16)) if small else (FULL, (PAIRS, LENGTH))
    sides, result = batch(size['vocabulary'], pairs, length, device), dict(peaks={}, rounds={}, loss={})
    with model_folder(size) as folder:
        for name, side in dict(pooling=theirs, rows=mine, drop_in=drop_in).items():
            with ExitStack() as stack:
                step = side(folder, stack, device, half=True)
                result['loss'][name] = float(step(sides))
                result['peaks'][name] = peak_of(lambda: step(sides), device)
                result['rounds'] |= alternately({name: lambda: step(sides)}, 5)
                if name == 'rows': result['profile'] = profiled(lambda: step(sides), device)
            del step
    peaks, ratio = result['peaks'], spread(ratios(result['rounds'], 'pooling', 'rows', 'wall'))['median']
    say(f'  step B{pairs} L{length}: {ratio:.2f} times faster, {peaks["pooling"] / 1e9:.1f} and '
        f'{peaks["rows"] / 1e9:.1f} GB, losses {result["loss"]}')
    return result | dict(pairs=pairs, length=length, operations=3 * operations(size, pairs * (length + QUERY)),
                         rate=rate(device, 256 if small else 8_192), whole=True)


# A version at full shape

def collection_of(small: bool) -> str:  # real text beside the project, else the embedded set
    found = SHARED/'data'/'tydiqa_ko_goldp'
    return 'toy' if small else str(found) if found.exists() else 'mini'


def run_of(version: str, folder: str, device: str, small: bool, scratch: Path):
    "A run of a version at its full shape from random weights, with its data; nothing is trained yet."
    from splade_nb.config.versions import resolve_quietly
    from splade_nb.data.readers import load_collection
    from splade_nb.training.dataset import prepare
    from splade_nb.training.objective import optimizer_for
    from splade_nb.training.trainer import Run
    tiny = dict(batch_size=4, accumulation=1, gate_hidden=16, gate_heads=4, max_length=32, query_length=16, precision='fp32')
    mined = {} if installed('kiwipiepy') else dict(bm25_negatives=0, dense_negatives=0)  # a pack has no morphemes: random negatives
    settings = resolve_quietly(version, 'corrected', 'full', backbone=str(folder), teacher='lsa', steps=4 if small else STEPS,
                               **mined, **(tiny if small else {}))
    setup = prepare(settings, load_collection(collection_of(small)), 42, scratch, device)
    return Run(setup.model, setup.training_data, settings, scratch, 42, settings.steps, optimizer_for(setup.model, settings),
               torch.tensor(setup.masks['korean'], device=device), quiet=True)


def planned(run, device: str) -> tuple:  # bytes that the process holds, and those that a step needs beside
    from splade_nb.training.memory import memory_plan, passes_for, widest_batch
    from splade_nb.training.trainer import each_tensor
    held = torch.cuda.memory_allocated() if device == 'cuda' else 0
    rows = each_tensor(widest_batch(run.steps, run.training_data, run.settings, run.seed), lambda value: value.to(device))
    run.passes = passes_for(run.model, rows, run.settings)
    return held, memory_plan(run.model, rows, run.settings, passes=run.passes)


def steps_of(run, left) -> tuple:  # seconds of each step; rows of metrics
    from splade_nb.model.splade import accumulated_rows
    from splade_nb.training.trainer import train_step
    seconds, rows = [], []
    run.model.train()
    with accumulated_rows(run.model):
        while run.step < run.steps and (left() > LEAST or run.step < 2):
            def step(): rows.append(train_step(run))
            seconds.append(once(step)['wall'])
            run.step += 1
    return seconds, rows


def profile_of(run, device: str) -> dict:  # of one more step
    from splade_nb.model.splade import accumulated_rows
    from splade_nb.training.trainer import train_step
    run.step = min(run.step, run.steps - 1)
    with accumulated_rows(run.model): return profiled(lambda: train_step(run), device)


def version_stage(version: str, device: str, small: bool, left) -> dict:
    "Throughput, memory beside the plan, and the parts of the loss, over the steps for which there is time."
    from splade_nb.training.trainer import texts_in_step
    with model_folder(SMALL if small else FULL) as folder, TemporaryDirectory() as scratch:
        run = run_of(version, folder, device, small, Path(scratch))
        held, plan = planned(run, device)
        done = []
        peak = peak_of(lambda: done.append(steps_of(run, left)), device)
        whole, profile = run.step == run.steps, profile_of(run, device)
    (seconds, rows), each = done[0], texts_in_step(run.settings)
    speed = each / spread(seconds[1:])['median']
    say(f'  {version}: {len(rows)} steps, {speed:,.0f} texts a second, {peak / 1e9:.1f} GB (plan '
        f'{(held + sum(plan.values())) / 1e9:.1f}), loss {rows[0]["loss"]:.3f} to {rows[-1]["loss"]:.3f}')
    shown = sorted({*range(0, len(rows), max(1, len(rows) // 10)), len(rows) - 1})
    return dict(version=version, steps=len(rows), of=run.steps, profile=profile, seconds_of_steps=seconds, texts_per_step=each,
                texts_per_second=speed, precision=run.settings.precision, mined=run.settings.bm25_negatives > 0, held=held, plan=plan, peak=peak,
                collection=Path(collection_of(small)).name, parameters=sum(p.numel() for p in run.model.parameters()),
                log=[{name: rows[n][name] for name in ('step', 'loss', 'parts', 'active_query', 'active_doc')} for n in shown],
                finite=all(map(torch.isfinite, map(torch.tensor, [row['loss'] for row in rows]))), whole=whole)


STAGES = dict(kernel=kernel_stage, encoder=encoder_stage, versions=versions_stage, speed=speed_stage, encode=encode_stage, step=step_stage,
              v26=partial(version_stage, 'v26'), v28=partial(version_stage, 'v28'))  # the most valuable first


# The whole

def device_name(device: str) -> str: return torch.cuda.get_device_name() if device == 'cuda' else 'cpu'


def kept(folder: Path, stage: str) -> dict:
    return read_json(folder/f'{stage}.json') if (folder/f'{stage}.json').exists() else {}


def measure_stage(stage: str, device: str, folder: Path, until: float) -> None:
    "One stage in this process. A shorter result than the kept one is dropped."
    began = time.monotonic()
    result = STAGES[stage](device, device == 'cpu', lambda: until - time.time())
    if result['whole'] or not kept(folder, stage):
        write_json(folder/f'{stage}.json', result | dict(name=device_name(device)))  # first of all: describing it can fail
        write_result(folder/f'{stage}.json', began, command=f'make gpu STAGE={stage} DEVICE={device}', name=device_name(device), **result)


def run_stages(stages: list, device: str, folder: Path, minutes: float, force: bool) -> list:  # those that failed
    until, failed = time.time() + 60 * minutes, []
    for stage in stages:
        say(f'{stage}:')
        if kept(folder, stage).get('whole') and not force:
            say('  has a result; FORCE=1 measures again')
            continue
        if until - time.time() < LEAST:
            say('  no time is left; the same command goes on here')
            continue
        command = [sys.executable, __file__, '--one', stage, '--device', device, '--until', str(until), '--results', str(folder)]
        try: code = subprocess.run(command, timeout=max(1, until - time.time())).returncode
        except subprocess.TimeoutExpired: code = 'the time was over'
        if code: failed.append(stage)
        if code: say(f'  did not end well: {code}; the other stages go on')
    return failed


def options():
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--minutes', type=float, default=40)
    reader.add_argument('--stage', default='', help=f'of {", ".join(STAGES)}, separated by spaces or commas; all by default')
    reader.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='cpu: every stage at a tiny size')
    reader.add_argument('--force', action='store_true', help='measure again what has a result')
    reader.add_argument('--results', type=Path, help='where results are kept')
    reader.add_argument('--pack', type=Path, help='write a folder for a GPU machine without a network, and measure nothing')
    reader.add_argument('--one', help='a stage to measure in this process')
    reader.add_argument('--until', type=float, default=float('inf'), help='seconds of the clock at which it ends')
    return reader.parse_args()


def stages_of(text: str) -> list:
    "Raises `ConfigError` for a stage that there is not."
    wanted = re.findall(r'[^,\s]+', text) or [*STAGES]
    for name in wanted:
        if name not in STAGES: raise ConfigError(f'stage {name!r}: {alternatives(name, STAGES)}')
    return [name for name in STAGES if name in wanted]


@exit_codes
def main() -> int:
    given = options()
    if given.pack:
        from gpu_pack import pack
        return pack(given.pack) and 0
    if given.device == 'cuda' and not torch.cuda.is_available():
        raise ConfigError('no GPU here: make gpu measures what only a GPU can show; DEVICE=cpu tries every stage at a tiny size')
    if given.one: return measure_stage(given.one, given.device, given.results, given.until)
    trial = HERE.parent/'outputs'/'gpu-trial'  # on a processor: nothing that a page would show
    folder = given.results or (trial if given.device == 'cpu' else HERE/'results'/'gpu')
    folder = folder/re.sub(r'[^A-Za-z0-9]+', '-', device_name(given.device))
    folder.mkdir(parents=True, exist_ok=True)
    failed = run_stages(stages_of(given.stage), given.device, folder, given.minutes, given.force)
    import gpu_page
    gpu_page.main(folder.parent)
    return int(bool(failed))


if __name__ == '__main__': sys.exit(main())

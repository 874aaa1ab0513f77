"""Models from a pretrained encoder on one GPU, by the project's own trainer: the recipe for a release, and V22 to V28.

What the runs read is made once, by `make gpu PACK=folder` or by the stage itself: judged sets, triplets, and the encoder
with the rows that their texts need.
"""
import _thread, fcntl, json, multiprocessing, shutil, threading, time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
import torch
from splade_nb.config.files import embedded, model_folder, read_json, root, write_json
from splade_nb.data.encoders import encoder_record, fetch_encoder, write_encoder
from splade_nb.lab.mixture import Rules, build
from splade_nb.data.readers import load_collection
from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, train_unigram
from splade_nb.model.load import pretrained_backbone
from splade_nb.model.prune_vocabulary import PRUNABLE, model_rows, prune_backbone, requested_rows, tokenizer_state, write_tokenizer
from measure import say, spread
from models import SHARED

ENCODER = 'multilingual-e5-small'
TRAINED = 'tydiqa_ko_goldp', 'question_pair', 'ko_strategyqa_facts', 'techdocs_ko'  # sets with a train split
JUDGED = *TRAINED, 'parakqc'                       # and `mini`, which is judged and has context pairs
TRIPLETS, MOST_JUDGED = 160_000, 600               # about so many open triplets; test queries of a set
LEAST_COUNT = 3                                    # how often a token stands in the texts that keeps its row
BESIDE = 'SOURCE', 'modules.json', 'config_sentence_transformers.json', '1_Pooling/config.json'
SHOWN = '서울 맛집 추천', '삼성 갤럭시 S24 가격', '제주도 여행 어디가 좋아요', '당뇨병 치료'  # queries of the designs
READ = dict(vocabulary_rows='all', teacher_max_length=128, bm25_negatives=0, mining_depth=48)  # as cut; a pack has no morphemes
RECIPE = READ | dict(  # beside splade_v2 at small: cross-entropy, and divergence from the encoder's own cosines over 0.02
    batch_size=512, steps=600, learning_rate=1.5e-4, scheduler='linear', adam_beta2=0.98, dropout=0.0,
    score_limit=0.0, score_spread=3.0, lambda_kd=1.0, alpha_kl=1.0, alpha_mse=0.0, kd_teacher_scale=50.0, kd_temperature=1.0,
    negative_margin=0.01, lambda_flops=0.003, document_share=0.3, log_every=10)
SEVERAL = dict(batch_size=128, steps=400, log_every=10)  # of a version: 51,200 pairs
VERSIONS = [(version, 'corrected', 42) for version in ('v28', 'v26', 'v22', 'v23', 'v24', 'v25', 'v27')]
VERSIONS += [(version, 'corrected', seed) for seed in (43, 44) for version in ('v28', 'v26')]
VERSIONS += [(version, 'original', 42) for version in ('v28', 'v26', 'v22', 'v23', 'v24', 'v25', 'v27')]
WORKERS, LEAST = 4, 45                             # runs beside each other on a card; seconds below which none is begun
TINY = dict(batch_size=4, steps=6, max_length=16, query_length=8, teacher_max_length=16, precision='fp32', validations=1,
            mining_depth=4, warmup_ratio=0.0, log_every=1, initial_terms=100)


# What the runs read

def counted_rows(tokenizer: SpladeTokenizer, texts: list) -> set:  # ids of tokens that stand often enough
    counts = np.zeros(len(tokenizer), int)
    for first in range(0, len(texts), 5_000):
        counts += np.bincount(np.concatenate(tokenizer.ids(texts[first:first + 5_000])).astype(int), minlength=len(counts))
    return {*np.flatnonzero(counts >= LEAST_COUNT).tolist()}


def cut_encoder(source: Path, texts: list, folder: Path) -> list:  # ids that are kept
    "An encoder and its tokenizer with the rows that texts need, and what says how it is used as a teacher."
    tokenizer, backbone = load_tokenizer(source), pretrained_backbone(str(source), mlm_head=False)
    state = tokenizer_state(model_folder(source), tokenizer.backend)
    rows = requested_rows(tokenizer, []) | counted_rows(tokenizer, texts) | model_rows(backbone)
    rows = {row for row in rows if row < len(tokenizer)}
    kept = sorted(rows | PRUNABLE[state['model']['type']][0](state['model'], rows))
    folder.mkdir(parents=True)
    write_tokenizer(tokenizer, state, kept, folder)
    prune_backbone(backbone, kept).save_pretrained(folder)
    for name in BESIDE:
        if (source/name).exists():
            (folder/name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source/name, folder/name)
    write_json(folder/'kept.json', kept)
    return kept


def tiny_encoder(folder: Path, texts: list) -> Path:  # for a trial: random weights, a tokenizer of the texts
    from transformers import BertConfig, BertModel
    tokenizer = train_unigram(texts, 2_000)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                         max_position_embeddings=32, pad_token_id=1), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def open_triplets(folder: Path) -> None:
    "The triplets of `make data NAME=triplets` where they are there, else made of the open pairs beside the project."
    if (root()/'data'/'v24.0').exists():
        for name in ('v24.0', 'v27.0'):
            if (root()/'data'/name).exists(): shutil.copytree(root()/'data'/name, folder/name)
    elif (SHARED/'text'/'pairs').exists():
        build(SHARED/'text'/'pairs', folder, Rules(triplets=TRIPLETS), lambda line: None)
        shutil.rmtree(folder/'.parts')  # what it would go on from


def data_of(reads: Path, travel: bool = False) -> str:  # as DATA takes it
    "Judged sets that have a train split, and triplets; travel: those of V27 too."
    sets = [str(reads/'sets'/name) for name in TRAINED if (reads/'sets'/name).exists()] or [str(reads/'sets'/'mini')]
    return ','.join(sets + [f'train={reads/name}' for name in ('v24.0', 'v27.0')[:1 + travel] if (reads/name).exists()])


def texts_of(collection) -> chain: return chain(collection.texts.values(), (one.text for one in collection.queries.values()))


def material(folder: Path, small: bool) -> Path:
    "Everything that the runs read, made whole and then put in place; what is there stays."
    if (folder/'backbone'/'tokenizer.json').exists(): return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix='.material.') as beside:
        made = Path(beside)/'made'
        shutil.copytree(embedded('data/mini'), made/'sets'/'mini')
        for name in JUDGED if not small else ():
            if (SHARED/'data'/name).exists(): shutil.copytree(SHARED/'data'/name, made/'sets'/name)
        if not small: open_triplets(made)
        read = [load_collection(source) for source in (data_of(made), *map(str, (made/'sets').iterdir()))]
        texts = [*dict.fromkeys(chain.from_iterable(map(texts_of, read)))]
        encoder = tiny_encoder(Path(beside)/'tiny', texts) if small else fetch_encoder(ENCODER)
        kept = cut_encoder(encoder, texts, made/'backbone')
        say(f'  {len(read[0].queries):,} queries, {len(texts):,} texts, {len(kept):,} rows of the encoder')
        shutil.move(made, folder)
    return folder


def unpacked(folder: Path) -> Path:
    "The material of a pack, whose encoder is the file of 4 bits, with the rows that are kept."
    packed, backbone = folder/'encoder.bin', folder/'backbone'
    with one_at_a_time(folder):
        if packed.exists() and not (backbone/'model.safetensors').exists():
            with TemporaryDirectory() as whole:
                write_encoder(packed.read_bytes(), Path(whole))
                prune_backbone(pretrained_backbone(whole, mlm_head=False), read_json(backbone/'kept.json')).save_pretrained(backbone)
    return folder


@contextmanager
def one_at_a_time(folder: Path):  # processes that prepare the same wait for the first
    with open(folder/'.lock', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# A run

def judge(setup, sets: Path) -> dict:  # {set: what the learned terms alone give}
    from splade_nb.evaluation.retrieval import LanguageShares, context_result, evaluate_queries
    found, tokenizer = {}, setup.training_data.tokenizer
    for place in sorted(sets.iterdir()):
        collection = load_collection(str(place))
        shares = LanguageShares(tokenizer, setup.masks, len(collection.texts))
        result = evaluate_queries(setup.model, tokenizer, collection, list(collection.split('test'))[:MOST_JUDGED], k=1000, observers=[shares])
        korean, context = shares.result(device=setup.model.special.device), context_result(setup.model, tokenizer, collection)
        found[place.name] = dict(ndcg=result['metrics']['ndcg@10'], metrics=result['metrics'], terms=result['active_terms'],
                                 korean={name: korean[name]['mean'] for name in ('count_share', 'weight_share', 'noise')},
                                 context=context and {name: context[name]['mean'] for name in ('set', 'weighted')})
    return found


def stopped_in(seconds: float) -> threading.Timer:
    "Interrupts the main thread as Ctrl-C does, upon which the trainer finishes its step and saves a checkpoint."
    timer = threading.Timer(max(1.0, seconds), _thread.interrupt_main)
    timer.daemon = True
    timer.start()
    return timer


def train_run(reads: Path, out: Path, small: bool, until: float, version: str, recipe: str, seed: int, settings: dict) -> tuple:
    "Setup and run; None for both where the time was over. A run that is there goes on. `before.json` is of the untrained model."
    from splade_nb.experiment import begin_run, rollbacks_of, sample_terms
    from splade_nb.training.checkpoints import checkpoints
    from splade_nb.training.dataset import prepare, save_model_folder
    from splade_nb.training.trainer import train
    folders = dict(backbone=str(reads/'backbone'), teacher=str(reads/'backbone'))
    _, _, resolved, collection, folder = begin_run(
        version, recipe, 'small', data_of(reads, version == 'v27'), seed, str(out), settings | folders | (TINY if small else {}), resume=True)
    timer, setup = stopped_in(until - time.time() - 20), None
    try:
        with one_at_a_time(reads): setup = prepare(resolved, collection, seed)
        if version == 'splade_v2' and not (folder/'before.json').exists():  # V22 to V28 begin with the same head
            shown = sample_terms(setup.model, setup.training_data.tokenizer, [*SHOWN])
            write_json(folder/'before.json', dict(sets=judge(setup, reads/'sets'), shown=[*zip(SHOWN, shown)]))
        run = train(setup.model, setup.training_data, resolved, folder, korean=torch.tensor(setup.masks['korean']), seed=seed,
                    resume=True, save_every=200, rollbacks=rollbacks_of(recipe), quiet=True)
    except KeyboardInterrupt:
        if setup and checkpoints(folder/'checkpoints'): save_model_folder(setup, folder)  # it may be the last that is seen of it
        return None, None
    finally: timer.cancel()
    save_model_folder(setup, folder)
    return setup, run


def described(out: Path, reads: Path, setup, run) -> dict:
    "What a run leaves, from its folder; the judged sets where it is whole."
    from splade_nb.experiment import sample_terms
    rows = [json.loads(line) for line in (out/'metrics.jsonl').read_text().splitlines()] if (out/'metrics.jsonl').exists() else []
    config, shown = read_json(out/'config.json'), rows[::max(1, len(rows) // 10)] + rows[-1:]
    speed = spread([row['texts_per_second'] for row in rows])['median'] if rows else 0.0
    data = ', '.join(Path(part.rpartition('=')[2]).name for part in config['data'].split(','))
    result = dict(data=data, texts_per_second=speed, steps=len(rows) and rows[-1]['step'] + 1, of=config['settings']['steps'],
                  folder=str(out.relative_to(root())), whole=run is not None, version=config['version'], recipe=config['recipe'], seed=config['seed'],
                  log=[{name: row[name] for name in ('step', 'loss', 'parts', 'active_query', 'active_doc')} for row in shown])
    if run is None: return result
    terms = sample_terms(setup.model, setup.training_data.tokenizer, [*SHOWN])
    if (out/'before.json').exists(): result |= dict(before=read_json(out/'before.json'))
    result |= dict(sets=judge(setup, reads/'sets'), shown=[*zip(SHOWN, terms)],
                   pairs=len(setup.training_data.pairs), rows=len(setup.training_data.tokenizer), guard=run.events, stopped=run.stopped)
    write_json(out/'result.json', result)
    say(f'  {out.name}: ' + ', '.join(f'{name} {100 * one["ndcg"]:.1f}' for name, one in result['sets'].items()))
    return result


def places(small: bool) -> tuple:  # what is read, the folder of the runs
    base = root()/('outputs/gpu-trial' if small else 'outputs')
    return unpacked(material(base/'material' if small else root()/'data'/'gpu', small)), base


def encoder_stage(device: str, small: bool, left) -> dict:
    "The whole recipe; a run that time interrupts goes on from its last checkpoint."
    reads, base = places(small)
    began, out = time.monotonic(), base/'gpu-encoder'
    setup, run = train_run(reads, out, small, time.time() + left(), 'splade_v2', 'corrected', 42, RECIPE)
    result = described(out, reads, setup, run) | dict(seconds_here=time.monotonic() - began, encoder=encoder_record(str(reads/'backbone')))
    if run is None: return result
    from gpu_profile import profiled
    from splade_nb.training.trainer import train_step
    run.step = run.steps - 1
    run.model.train()
    return result | dict(profile=profiled(lambda: train_step(run), device))


def one_version(reads: Path, base: Path, small: bool, until: float, which: tuple) -> dict:
    version, recipe, seed = which
    out = base/'gpu-versions'/f'{version}-{recipe}-{seed}'
    if (out/'result.json').exists(): return read_json(out/'result.json')
    if until - time.time() < (0 if small else LEAST): return dict(whole=False)
    setup, run = train_run(reads, out, small, until, version, recipe, seed, READ | SEVERAL)
    return described(out, reads, setup, run)


def versions_stage(device: str, small: bool, left) -> dict:
    "V22 to V28, some beside each other; each is kept as soon as it is done."
    reads, base = places(small)
    one = partial(one_version, reads, base, small, time.time() + min(left(), 1e6))
    with ProcessPoolExecutor(1 if small else WORKERS, multiprocessing.get_context('spawn')) as pool:
        done = list(pool.map(one, VERSIONS[:2] if small else VERSIONS))
    return dict(runs=[result for result in done if 'sets' in result], whole=all(result['whole'] for result in done))

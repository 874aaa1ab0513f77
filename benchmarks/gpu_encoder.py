"""SPLADE from a pretrained encoder on one GPU, by the project's own trainer: a head in closed form, then pairs.

What the run reads is made once, by `make gpu PACK=folder` or by the stage itself: pairs and judged sets as one
collection, the judged sets by themselves, and the encoder with the rows that their texts need.
"""
import _thread, json, shutil, threading, time
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
import torch
from splade_nb.config.files import model_folder, read_json, root, write_json
from splade_nb.data.collections import write_beir
from splade_nb.data.encoders import encoder_record, fetch_encoder, write_encoder
from splade_nb.data.pairs import read_pairs, sources
from splade_nb.data.readers import load_collection
from splade_nb.data.records import Document, Query, collect
from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, train_unigram
from splade_nb.model.load import pretrained_backbone
from splade_nb.model.prune_vocabulary import PRUNABLE, model_rows, prune_backbone, requested_rows, tokenizer_state, write_tokenizer
from measure import once, say, spread
from models import SHARED

ENCODER, SETS = 'multilingual-e5-small', ('tydiqa_ko_goldp', 'question_pair', 'ko_strategyqa_facts', 'techdocs_ko', 'parakqc')
TESTED = SETS[0]                                   # whose test queries the run folder is evaluated with
A_SOURCE, MANY, LONGEST = 2_500, dict(laws=9_000, precedents=12_000), 500  # pairs of a source; characters of a text
LEAST_COUNT = 3                                    # how often a token stands in the texts that keeps its row
BESIDE = 'SOURCE', 'modules.json', 'config_sentence_transformers.json', '1_Pooling/config.json'
STEPS, BATCH = 700, 512
RECIPE = dict(                                     # beside splade_v2: scores of mean norms are 0.4, over 0.02 in both losses
    initialization='closed_form', calibration=3.0, max_length=128, query_length=64, dropout=0.0, batch_size=BATCH, accumulation=1,
    steps=STEPS, learning_rate=1.5e-4, scheduler='linear', warmup_ratio=0.14, adam_beta2=0.98, clip=2.0, score_limit=0.4,
    temperature=0.02, lambda_kd=1.0, alpha_kl=1.0, alpha_mse=0.0, kd_scale=50.0, kd_temperature=1.0, teacher_max_length=128,
    dense_negatives=8, mining_depth=48, lambda_flops=0.003, flops_form='plain', document_share=0.3, flops_ramp=0.3,
    validations=4, log_every=10, keep_checkpoints=1)
TINY = dict(batch_size=4, steps=6, max_length=16, query_length=8, teacher_max_length=16, precision='fp32', validations=1,
            dense_negatives=2, mining_depth=4, warmup_ratio=0.0, log_every=1)


# What the run reads

def pairs_here(folder: Path) -> dict:  # {source: [(query, document)]}, at even distances
    found = {}
    for name, path in sources(folder).items():
        pairs = [(query, text[:LONGEST]) for query, text, _ in read_pairs(path) if query != text]
        found[name] = pairs[::-(-len(pairs) // MANY.get(name, A_SOURCE)) or 1]
    return found


def with_pairs(judged: list, pairs: dict) -> tuple:  # collections for training and for the test
    "Train splits of the judged sets and pairs of other sources, whose texts are documents once; the test is that of one set."
    documents, queries, qrels, places = {}, {}, {}, {}
    def document(text):
        id = places.setdefault(text, f'd{len(places)}')
        documents[id] = Document(id, text=text)
        return id
    def query(text, relevant):
        id = f'q{len(queries)}'
        queries[id], qrels[id] = Query(id, text, 'train'), {document(each): 1 for each in relevant}
    for collection in judged:
        for id, one in collection.split('train').items(): query(one.text, [collection.texts[other] for other in collection.qrels[id]])
    for rows in pairs.values():
        for asked, text in rows: query(asked, [text])
    test = next((each for each in judged if each.name == TESTED), judged[0])
    asked = {f't-{id}': Query(f't-{id}', one.text, 'test') for id, one in test.split('test').items()}
    answers = {f't-{id}': Document(f't-{id}', text=text) for id, text in test.texts.items()}
    grades = {f't-{id}': {f't-{other}': grade for other, grade in test.qrels[id].items()} for id in test.split('test')}
    return collect('pairs', documents, queries, qrels), collect('test', answers, asked, grades)


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
    tokenizer = train_unigram(texts, 400)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                         max_position_embeddings=32, pad_token_id=1), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def material(folder: Path, small: bool) -> Path:
    "Everything that the run reads, made whole and then put in place; what is there stays."
    if (folder/'backbone'/'tokenizer.json').exists(): return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix='.material.') as beside:
        made, known = Path(beside)/'made', SHARED/'data'
        judged = [load_collection('toy')] if small else [load_collection(str(known/name)) for name in SETS if (known/name).exists()]
        judged = judged or [load_collection('mini')]
        pairs = {} if small or not (SHARED/'text'/'pairs').exists() else pairs_here(SHARED/'text'/'pairs')
        for collection in judged:
            (made/'sets'/collection.name).mkdir(parents=True)
            write_beir(made/'sets'/collection.name, dict(test=with_test(collection)))
        (made/'collection').mkdir()
        train, test = with_pairs(judged, pairs)
        write_beir(made/'collection', dict(train=train, test=test))
        texts = [*train.texts.values(), *test.texts.values(), *(one.text for each in (train, test) for one in each.queries.values())]
        encoder = tiny_encoder(Path(beside)/'tiny', texts) if small else fetch_encoder(ENCODER)
        kept = cut_encoder(encoder, texts, made/'backbone')
        say(f'  {len(train.queries):,} pairs, {len(train.texts):,} texts, {len(kept):,} rows of the encoder')
        shutil.move(made, folder)
    return folder


def with_test(collection):  # its test queries alone
    asked = collection.split('test')
    return collect(collection.name, collection.documents, {id: collection.queries[id] for id in asked}, {id: collection.qrels[id] for id in asked})


def unpacked(folder: Path) -> Path:
    "The material of a pack, whose encoder is the file of 4 bits, with the rows that are kept."
    packed, backbone = folder/'encoder.bin', folder/'backbone'
    if packed.exists() and not (backbone/'model.safetensors').exists():
        with TemporaryDirectory() as whole:
            write_encoder(packed.read_bytes(), Path(whole))
            prune_backbone(pretrained_backbone(whole, mlm_head=False), read_json(backbone/'kept.json')).save_pretrained(backbone)
    return folder


# The run

def judge(model, tokenizer, sets: Path) -> dict:  # {set: nDCG@10 of the learned terms alone, terms}
    from splade_nb.evaluation.retrieval import evaluate_queries
    found = {}
    for place in sorted(sets.iterdir()):
        collection = load_collection(str(place))
        result = evaluate_queries(model, tokenizer, collection, list(collection.split('test'))[:600])
        found[place.name] = dict(ndcg=result['metrics']['ndcg@10'], terms=result['active_terms'])
        say(f'  {place.name}: {100 * found[place.name]["ndcg"]:.1f}')
    return found


def stopped_in(seconds: float) -> threading.Timer:
    "Interrupts the main thread as Ctrl-C does, upon which the trainer finishes its step and saves a checkpoint."
    timer = threading.Timer(max(1.0, seconds), _thread.interrupt_main)
    timer.daemon = True
    timer.start()
    return timer


def train_encoder(reads: Path, out: Path, small: bool, left) -> tuple:  # setup, run; None where the time was over
    from splade_nb.experiment import begin_run
    from splade_nb.training.dataset import prepare, save_model_folder
    from splade_nb.training.trainer import train
    settings = RECIPE | dict(backbone=str(reads/'backbone'), teacher=str(reads/'backbone')) | (TINY if small else {})
    _, _, resolved, collection, folder = begin_run(
        'splade_v2', 'corrected', 'full', str(reads/'collection'), 42, str(out), settings, resume=True)
    timer = stopped_in(min(left() - 60, 1e6))
    try:
        setup = prepare(resolved, collection, 42)
        say(f'  ready to train: {len(setup.training_data.pairs):,} pairs')
        run = train(setup.model, setup.training_data, resolved, folder, korean=torch.tensor(setup.masks['korean']),
                    resume=True, save_every=100, quiet=small)
    except KeyboardInterrupt: return None, None
    finally: timer.cancel()
    save_model_folder(setup, folder)
    return setup, run


def encoder_stage(device: str, small: bool, left) -> dict:
    "The whole recipe; a run that time interrupts goes on from its last checkpoint."
    base = root()/('outputs/gpu-trial' if small else 'outputs')
    reads, out = unpacked(material(base/'material' if small else root()/'data'/'gpu', small)), base/'gpu-encoder'
    began = time.monotonic()
    setup, run = train_encoder(reads, out, small, left)
    rows = [json.loads(line) for line in (out/'metrics.jsonl').read_text().splitlines()] if (out/'metrics.jsonl').exists() else []
    shown = rows[::max(1, len(rows) // 10)]
    result = dict(steps=len(rows) and rows[-1]['step'] + 1, of=TINY['steps'] if small else STEPS, folder=str(out.relative_to(root())),
                  seconds_here=time.monotonic() - began, whole=run is not None, encoder=encoder_record(str(reads/'backbone')),
                  log=[{name: row[name] for name in ('step', 'loss', 'parts', 'active_query', 'active_doc')} for row in shown],
                  texts_per_second=spread([row['texts_per_second'] for row in rows])['median'] if rows else 0.0)
    if run is None: return result
    from gpu_profile import profiled
    from splade_nb.training.trainer import train_step
    result['sets'] = judge(setup.model, setup.training_data.tokenizer, reads/'sets')
    write_json(out/'sets.json', result['sets'])
    run.step = run.steps - 1
    run.model.train()
    return result | dict(profile=profiled(lambda: train_step(run), device))

"""A whole training step of V28 from multilingual-e5-small beside an earlier revision's and beside sentence-transformers'.

Each side is a process of its own (`step_worker.py`) that lives for all rounds; they take turns, so only one runs at a time.
"""
import json, os, subprocess, sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
import torch
from splade_nb.config.files import DataError, root
from splade_nb.data.encoders import fetch_encoder
from splade_nb.data.readers import load_collection
from splade_nb.data.tokenizer import batch, load_tokenizer
from splade_nb.model.head_start import head_start
from splade_nb.model.load import pretrained_backbone
from splade_nb.model.prune_vocabulary import prune_backbone
from splade_nb.training.batch import MarkIds
from measure import HERE, alternately, ratios, say, spread
from models import SHARED, limit_terms, splade

REVISION, ENCODER, ACTIVE, LENGTH, ROUNDS = '63d11e4', 'multilingual-e5-small', 200, 192, 3
SETS = 'tydiqa_ko_goldp question_pair ko_strategyqa_facts techdocs_ko'.split()
SETTINGS = dict(dropout=0.0, gate_dropout=0.0, precision='fp32', negatives=1, teacher='lsa')


def real_pairs(number: int) -> tuple:  # [(query, document)], names of the collections
    "As many of each public collection beside the project, else of the embedded set; at even distances."
    names = [name for name in SETS if (SHARED/'data'/name).exists()]
    collections, found = [load_collection(str(SHARED/'data'/name)) for name in names] or [load_collection('mini')], []
    for collection in collections:
        each, queries = number // len(collections), collection.relevant
        found += [(collection.queries[query].text, collection.texts[next(iter(collection.qrels[query]))])
                  for query in queries[::len(queries) // each][:each]]
    return found, names or ['mini']


def kept_rows(ids: list, rows: int) -> list:
    "The tokens of the texts, and the most frequent of the others: XLM-R's ids are in that order."
    needed = np.unique(np.concatenate([*ids, range(4)]))
    others = np.setdiff1d(np.arange(rows + len(needed)), needed)
    return np.sort(np.concatenate([needed, others[:rows - len(needed)]])).tolist()


def backbone_from(encoder: Path, kept: list, documents: list):
    "The encoder with a head in closed form; without dropout, so that all sides have one loss."
    backbone = prune_backbone(pretrained_backbone(str(encoder), new_head=True), kept)
    backbone.config.hidden_dropout_prob = backbone.config.attention_probs_dropout_prob = 0.0
    model, rows = splade(backbone), [batch(MarkIds(), documents[n:n + 16], LENGTH) for n in range(0, len(documents), 16)]
    head_start(model, rows)
    limit_terms(model, rows[0], ACTIVE)
    return backbone


def training_data(queries: list, documents: list, rows: int) -> dict:
    "Each query's document, the next one's as its negative; teacher embeddings by chance."
    number, teacher = len(queries), np.random.default_rng(0).normal(size=(2, len(queries), 384)).astype(np.float32)
    seen = np.bincount(np.concatenate([np.unique(ids) for ids in documents]), minlength=rows)
    idf, special = torch.from_numpy(np.log1p(number / (0.5 + seen)).astype(np.float32)), torch.arange(rows) < 4
    return dict(queries=queries, documents=documents, pairs=[(row, row) for row in range(number)], keys=['original'] * number,
                relevant=[{row} for row in range(number)], given=[[(row + 1) % number] for row in range(number)], idf=idf,
                penalty=idf, language=torch.arange(rows) % 2 / 2, stopword=special, special=special,
                teacher=tuple(teacher / np.linalg.norm(teacher, axis=-1, keepdims=True)))


def write_start(folder: Path, pairs: int, rows: int) -> dict:  # what is said about the batch
    "The model's folder, and what every side begins with."
    encoder, (chosen, names) = fetch_encoder(ENCODER), real_pairs(pairs)
    tokenizer, texts = load_tokenizer(encoder), [text for pair in chosen for text in pair]
    kept = kept_rows(ids := tokenizer.ids(texts), rows)
    ids = [np.searchsorted(kept, row[:LENGTH - 2]).tolist() for row in ids]
    queries, documents = ids[::2], ids[1::2]
    backbone_from(encoder, kept, documents).save_pretrained(folder/'model')
    tokenizer.backend.save_pretrained(folder/'model')  # sentence-transformers wants one; it sees ids alone
    settings = SETTINGS | dict(backbone=str(folder/'model'))
    torch.save(dict(data=training_data(queries, documents, rows), settings=settings), folder/'start.pt')
    lengths = [np.array([len(row) + 2 for row in side]) for side in (queries, documents)]
    padded = sum(side.max() * len(side) for side in lengths) / sum(map(np.sum, lengths))
    return dict(pairs=pairs, rows=rows, collections=names, padded=float(padded), tokens=[float(side.mean()) for side in lengths])


@contextmanager
def worker(side: str, package: Path, start: Path, **changes):
    "Yields a function that asks a side for a step: {'cpu', 'wall', 'loss'}."
    threads = dict(OMP_NUM_THREADS=str(os.cpu_count()), OMP_WAIT_POLICY='PASSIVE')  # waiting threads leave the cores alone
    paths = os.pathsep.join([str(package), str(HERE)])
    process = subprocess.Popen([sys.executable, str(HERE/'step_worker.py'), side, str(start), json.dumps(changes)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=package, env=os.environ | threads | dict(PYTHONPATH=paths))
    def answer():
        line = process.stdout.readline()
        if not line: raise RuntimeError(f'{side} of {package} ended with {process.wait()}')
        return json.loads(line)
    def step():
        process.stdin.write('\n')
        process.stdin.flush()
        return answer()
    answer()
    try: yield step
    finally: process.kill()
    process.wait()


def earlier(folder: Path) -> Path | None:  # the package at REVISION; None in a copy without its history
    archive = subprocess.run(['git', '-C', str(root()), 'archive', REVISION, 'splade_nb', 'settings.ini'], capture_output=True)
    if archive.returncode: return say(f'  left out: this copy has no history with the revision {REVISION}')
    folder.mkdir()
    subprocess.run(['tar', '-x', '-C', str(folder)], input=archive.stdout, check=True)
    return folder


# Beside what; parts into which the pairs of a step are divided (an earlier revision passes one at a time, each twice); precision.
CASES = {'float32, in one batch': ('before', 1, 'fp32'), 'float32, in four parts': ('before', 4, 'fp32'),
         'bfloat16, in four parts': ('before', 4, 'bf16'), 'float32, 8 pairs in one batch': ('theirs', 1, 'fp32')}
SAME = dict(fp32=1e-4, bf16=1e-1)  # largest difference of two revisions' losses


def measured(start: Path, before: Path | None, pairs: int, case: tuple, rounds: int) -> dict:  # losses and times of each side
    "Raises `ValueError` where the losses of two revisions differ."
    other, parts, precision = case
    if other == 'theirs': pairs //= 4  # what their logits of a whole batch take is more than many machines have
    changes = dict(batch_size=pairs // parts, accumulation=parts, precision=precision)
    given = dict(now=('trainer', root())) | {other: ('trainer', before) if other == 'before' else ('theirs', root())}
    with ExitStack() as stack:
        calls = {name: stack.enter_context(worker(*of, start, **changes)) for name, of in given.items()}
        losses = {name: step()['loss'] for name, step in calls.items()}
        if abs(losses['now'] - losses.get('before', losses['now'])) > SAME[precision]: raise ValueError(f'the losses differ: {losses}')
        return dict(other=other, losses=losses, rounds=alternately(calls, rounds, lambda step: step()))


def measure(small=False) -> dict:
    pairs, rows = (8, 3_000) if small else (32, 22_000)
    with TemporaryDirectory() as folder:
        before, start = earlier(Path(folder)/'before'), Path(folder)/'start.pt'
        try: result = write_start(Path(folder), pairs, rows) | dict(earlier=REVISION, command='make bench PART=step', steps={})
        except DataError as error: return say(f'  left out: {error}') or {}
        for name, case in CASES.items():
            if case[0] == 'before' and not before: continue
            try: found = result['steps'][name] = measured(start, before, pairs, case, 1 if small else ROUNDS)
            except RuntimeError as error:  # as where the system ends a side for its memory: the other cases stay
                say(f'  {name}: left out: {error}')
                continue
            ratio = spread(ratios(found['rounds'], case[0], 'now'))
            say(f'  {name}: {ratio["median"]:.2f} times faster ({ratio["low"]:.2f} to {ratio["high"]:.2f}), losses {found["losses"]}')
    return result

"""A start that does not collapse: backbones at the levels that users report, trained plainly and after `calibrate`.

What users published of untrained backbones is the mean and the standard deviation of the weights log(1 + logit) of
three texts (huggingface/sentence-transformers, issue 3431). A stand-in is a small XLM-R with this level and this
spread of logits: its embeddings near identity, its decoder's bias shifted.
"""
import copy, math, statistics, tempfile
import torch
from torch.nn import functional as F
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from splade_nb.data import readers
from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
from splade_nb.hub.export import whole_tokenizer
from splade_nb.hub.pooling import SpladeMaxPooling, calibrate, level_of, text_logits
from splade_nb.model.initialization import mini_backbone, near_identity, resolve_toy
from splade_nb.model.splade import activate
from splade_nb.training.check_settings import quiet
from measure import say

REPORTED = {'DTAI-KULeuven/robbert-2023-dutch-large': ((3.7151, 3.7273, 3.6776), (0.0643, 0.0669, 0.0666)),
            'klue/roberta-large': ((1.9932, 1.8510, 1.9265), (0.4493, 0.5236, 0.4439))}  # means, deviations
WEIGHTS = dict(document_regularizer_weight=3e-5, query_regularizer_weight=5e-5)
FULL = dict(vocabulary=1_300, hidden=32, pairs=64, steps=50, rate=1e-3, terms=30)
SMALL = FULL | dict(pairs=16, steps=5)
BATCH, SHOWN = 16, 32  # pairs of a step; documents that `calibrate` reads


def starts() -> dict:  # name -> mean and standard deviation of the logits
    "What is reported, as logits, and the opposite of the highest level."
    found = {}
    for name, (means, deviations) in REPORTED.items():
        level = math.expm1(statistics.mean(means))
        found[name] = level, (1 + level) * statistics.mean(deviations)
    level, deviation = max(found.values())
    return found | {'no active token': (-level, deviation)}


def encoder(tokenizer: SpladeTokenizer, hidden: int, input_logit: float) -> SparseEncoder:
    torch.manual_seed(0)
    backbone = mini_backbone(resolve_toy(hidden=hidden, max_length=64), len(tokenizer))
    near_identity(backbone, torch.randn(len(tokenizer), hidden), input_logit, decoder_bias=0.0)
    with tempfile.TemporaryDirectory() as folder, quiet():
        backbone.save_pretrained(folder)
        whole_tokenizer(tokenizer).save_pretrained(folder)
        transformer = Transformer(folder, transformer_task='fill-mask', max_seq_length=64)
        return SparseEncoder(modules=[transformer, SpladeMaxPooling()], device='cpu')


def stand_in(tokenizer: SpladeTokenizer, hidden: int, texts: list, level: float, deviation: float) -> SparseEncoder:
    "A small backbone whose largest logits have this mean and standard deviation."
    logit = 7.0
    logit *= deviation / float(text_logits(encoder(tokenizer, hidden, logit), texts).std())
    model = encoder(tokenizer, hidden, logit)
    with torch.no_grad(): model[1].decoder.bias += level - float(text_logits(model, texts).mean())
    return model


def judge(model: SparseEncoder, pairs: list) -> dict:
    "The loss over pairs that were not trained on, and what their documents look like."
    queries, documents = (text_logits(model, list(side)) for side in zip(*pairs))
    scores = activate(queries) @ activate(documents).T
    right = torch.arange(len(pairs))
    found = scores.argmax(1) == right if scores.any() else torch.zeros(1)  # equal scores rank nothing
    return level_of(documents) | dict(terms=float((documents > 0).sum(1).float().mean()),
                                      least=int((documents > 0).sum(1).min()), first=float(found.float().mean()),
                                      loss=float(F.cross_entropy(scores, right)))


def train(model: SparseEncoder, pairs: list, steps: int, rate: float) -> list:  # loss of each step
    loss_of = SpladeLoss(model.train(), SparseMultipleNegativesRankingLoss(model), **WEIGHTS)
    optimizer, losses = torch.optim.AdamW(model.parameters(), rate), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = [pairs[at] for at in torch.randperm(len(pairs), generator=generator)[:BATCH]]
        loss = sum(loss_of([model.preprocess(list(side)) for side in zip(*chosen)]).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def pairs_of(collection, split: str) -> list:  # query, a relevant document
    return [(query.text, collection.texts[next(id for id, grade in collection.qrels[key].items() if grade)])
            for key, query in collection.split(split).items() if any(collection.qrels.get(key, {}).values())]


def measure(small=False) -> dict:
    size, collection = SMALL if small else FULL, readers.load('mini')
    texts, training, held = list(collection.texts.values()), pairs_of(collection, 'train'), pairs_of(collection, 'test')
    tokenizer, held = SpladeTokenizer(train_unigram(texts, size['vocabulary'])), held[:size['pairs']]
    rows = []
    for name, (level, deviation) in starts().items():
        made = stand_in(tokenizer, size['hidden'], texts[:SHOWN], level, deviation)
        for kind in ('plain', 'calibrated'):
            model = copy.deepcopy(made)
            shift = calibrate(model, texts[:SHOWN], size['terms']) if kind == 'calibrated' else None
            before = judge(model, held)
            losses = train(model, training, size['steps'], size['rate'])
            after = judge(model, held)
            rows.append(dict(backbone=name, start=kind, level=level, deviation=deviation, calibration=shift,
                             before=before, after=after, losses=losses))
            told = {part: f'{before[part]:.2f} to {after[part]:.2f}' for part in ('terms', 'loss', 'first')}
            say(f'  {name}, {kind}: {told["terms"]} terms of {len(tokenizer)}, loss {told["loss"]}, '
                f'right document first {told["first"]}')
    return dict(size=size | dict(vocabulary=len(tokenizer)), reported=REPORTED, rows=rows)

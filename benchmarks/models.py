"""One random XLM-R base on disk, read by this project and by sentence-transformers: no trained weights are needed to measure speed."""
import json, logging, tempfile, warnings
from contextlib import contextmanager
from pathlib import Path
import torch
from tokenizers.processors import TemplateProcessing
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM
from transformers.utils import logging as transformers_logging
from splade_nb.data import readers as data
from splade_nb.config.files import root
from splade_nb.config.settings import Settings
from splade_nb.model.splade_doc import SpladeDoc
from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, train_unigram

VOCABULARY, LONGEST = 250_002, 256
FULL, SMALL = dict(hidden=768, layers=12, vocabulary=VOCABULARY), dict(hidden=32, layers=2, vocabulary=3_000)
SHARED = root().parent/'shared'
warnings.filterwarnings('ignore')  # what libraries say of a model that nobody trained
logging.getLogger('sentence_transformers').setLevel('ERROR')
transformers_logging.set_verbosity_error(); transformers_logging.disable_progress_bar()


def texts(number: int, tokenizer: SpladeTokenizer, longest: int = 128) -> list:
    "Korean documents of ordinary length: of a public collection where it lies beside the project, else of the embedded set."
    source = SHARED/'data'/'ko_strategyqa_facts'/'corpus.jsonl'
    found = [json.loads(line)['text'] for line in source.open(encoding='utf-8')] if source.exists() else list(data.load('mini').texts.values())
    found = found[::max(1, len(found) // (2 * number))]
    return [text for text, ids in zip(found, tokenizer.ids(found)) if len(ids) + 2 <= longest][:number]


def tokenizer(vocabulary: int) -> SpladeTokenizer:
    "XLM-R's own where it lies beside the project and fits, else one learned from the embedded set."
    source = SHARED/'tokenizers'/'xlm-roberta-base'
    if vocabulary == VOCABULARY and source.exists(): return load_tokenizer(source)
    learned = train_unigram(list(data.load('mini').texts.values()), 2_000)
    marks = [(token, learned.convert_tokens_to_ids(token)) for token in ('<s>', '</s>')]
    learned.backend_tokenizer.post_processor = TemplateProcessing(single='<s> $A </s>', special_tokens=marks)
    return SpladeTokenizer(learned)


def random_backbone(hidden: int, layers: int, vocabulary: int):
    torch.manual_seed(0)
    return XLMRobertaForMaskedLM(XLMRobertaConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=max(1, hidden // 64), intermediate_size=4 * hidden,
        max_position_embeddings=514, type_vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5))


def splade(source, device: str = 'cpu', **settings) -> SpladeDoc:
    "This project's model of a folder, or of a backbone."
    backbone = XLMRobertaForMaskedLM.from_pretrained(source, dtype=torch.float32) if isinstance(source, (str, Path)) else source
    return SpladeDoc(backbone, Settings(**dict(max_length=LONGEST, dropout=0.0, precision='fp32') | settings), special=[]).to(device)


def sparse_encoder(folder, device: str = 'cpu'):
    "sentence-transformers' model of the same folder."
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    return SparseEncoder(modules=[Transformer(str(folder), transformer_task='fill-mask', max_seq_length=LONGEST), SpladePooling()], device=device)


@torch.no_grad()
def quieten(model: SpladeDoc, rows: dict, active: int) -> None:
    "Shift the decoder's bias until a text has about so many terms."
    logits = model.eval()(**rows)[1]
    model.decoder.bias -= logits.flatten().kthvalue(logits.numel() - active * len(logits)).values


def random_rows(tokenizer: int, number: int, length: int, seed: int = 0, device: str = 'cpu') -> dict:
    "Token ids without padding."
    ids = torch.randint(5, tokenizer, (number, length), generator=torch.Generator().manual_seed(seed)).to(device)
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


@contextmanager
def folder_of(size: dict, active: int = 150):
    "A folder with the backbone, its bias shifted, and the tokenizer; gone afterwards."
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, backbone = tokenizer(size['vocabulary']), random_backbone(**size)
        model = splade(backbone)
        quieten(model, random_rows(len(tokenizer), 4, 64), active)
        backbone.save_pretrained(folder); tokenizer.backend.save_pretrained(folder)
        del model, backbone
        yield folder

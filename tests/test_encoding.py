"""Shards of documents and of queries have the scores that an evaluation judges, and nothing is lost on the way."""
import json, shutil
from pathlib import Path
import numpy as np
import pytest
from scipy import sparse
from conftest import ROOT
from splade_nb import encoding
from splade_nb.collection import toy_corpus
from splade_nb.config import ConfigError, read_json, resolve
from splade_nb.encoding import encode, encode_shards, read_shards, shard_ids
from splade_nb.evaluation import rank, retrieval_metrics
from splade_nb.formats import read_vectors
from splade_nb.material import prepare
from splade_nb.run import collect, keep_model, load_encoder, main, retrieve

VERSIONS = {'splade_ko': 'corrected', 'v28': 'corrected', 'v22': 'seed'}  # the last scores by cosine
SMALL = dict(hidden=64, layers=1, vocabulary=300, max_length=32, query_length=32)
DOCUMENTS, SIZE = 90, 12  # of the collection, of a shard


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    "Untrained models by version, made when asked for."
    folder = tmp_path_factory.mktemp('models')
    def made(version: str) -> Path:
        if (folder/version).exists(): return folder/version
        settings = resolve(version, VERSIONS[version], 'mini', **SMALL)
        keep_model(prepare(settings, toy_corpus(), 42, folder/'cache'), folder/version)
        return folder/version
    return made


@pytest.fixture(scope='module')
def source(tmp_path_factory) -> Path:
    "The first documents of `mini`, the shortest first, and the queries that they answer."
    folder, lines = tmp_path_factory.mktemp('sorted'), lambda name: (ROOT/'data'/'mini'/name).read_text(encoding='utf-8').splitlines()
    documents = sorted(map(json.loads, lines('corpus.jsonl')[:DOCUMENTS]), key=lambda record: len(record['text']))
    known, (head, *judged) = {record['_id'] for record in documents}, lines('qrels_test.tsv')
    judged = [line for line in judged if line.split('\t')[1] in known]
    asked = {line.split('\t')[0] for line in judged}
    queries = [line for line in lines('queries.jsonl') if json.loads(line)['_id'] in asked]
    dump = lambda record: json.dumps(record, ensure_ascii=False)
    for name, rows in (('corpus.jsonl', map(dump, documents)), ('queries.jsonl', queries), ('qrels_test.tsv', [head, *judged])):
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


@pytest.mark.parametrize('version', VERSIONS)
def test_shards_have_the_scores_that_are_judged(version, models, source, tmp_path, capsys):
    model, collection = models(version), collect(str(source))
    command('evaluate', '--model', model, '--data', source, '--split', 'all')
    wanted = json.loads(capsys.readouterr().out.splitlines()[-1])
    queries = {id: collection.queries[id].text for id in collection.qrels}
    _, query_vectors, doc_vectors = retrieve(*load_encoder(model), queries, collection.texts)
    judged = (query_vectors @ doc_vectors.T).toarray()
    for name, size in (('whole', 10_000), ('parts', SIZE)):
        for part in range(4): command('encode', '--model', model, '--data', source, '--out', tmp_path/name, '--size', size, '--part', part, '--parts', 4)
        command('encode', '--model', model, '--queries', source/'queries.jsonl', '--collection', tmp_path/name, '--out', tmp_path/f'{name}-queries')
        scores, ranking = ranked(tmp_path/name, tmp_path/f'{name}-queries')
        found = scores.toarray()[[list(shard_ids(tmp_path/f'{name}-queries')).index(id) for id in queries]]
        if name == 'whole': assert (found == judged).all(), 'the same batches give the same bits'
        else: assert np.allclose(found, judged, rtol=1e-5, atol=1e-6)
        metrics = retrieval_metrics(collection.qrels, ranking).mean().round(5).to_dict()
        assert metrics == {metric: wanted[metric] for metric in metrics} and metrics['ndcg@10'] > 0.02
    assert len(contents(tmp_path/'parts')) == -(-DOCUMENTS // SIZE)


def test_a_query_needs_its_collection(models, source, tmp_path, capsys):
    model = models('splade_ko')
    given = ['encode', '--model', str(model), '--queries', str(source/'queries.jsonl'), '--out', str(tmp_path/'queries')]
    assert main(given) == 2 and 'name its shards with --collection' in capsys.readouterr().err
    assert main([*given, '--collection', str(tmp_path)]) == 2 and 'encode the documents first' in capsys.readouterr().err
    documents = ['encode', '--model', str(model), '--data', str(source), '--out', str(tmp_path/'documents'), '--size', str(SIZE), '--parts', '2', '--part']
    assert main([*documents, '0']) == 0 and 'still to come' in capsys.readouterr().err
    assert main([*given, '--collection', str(tmp_path/'documents')]) == 2 and 'documents are still missing' in capsys.readouterr().err
    assert main(['convert', '--vectors', str(tmp_path/'documents'), '--format', 'csr', '--out', str(tmp_path/'csr')]) == 2
    assert 'not whole' in capsys.readouterr().err
    assert main([*documents, '1']) == 0 and main([*given, '--collection', str(tmp_path/'documents')]) == 0
    plain = encode(*load_encoder(model), [query.text for query in collect(str(source)).queries.values()], document=False)
    assert abs(plain - sparse.vstack(list(read_shards(tmp_path/'queries')))).max() > 0.1, 'the IDF of the collection acts'
    other = [given[0], '--model', str(models('v28')), *given[3:5], '--out', str(tmp_path/'others'), '--collection', str(tmp_path/'documents')]
    assert main(other) == 2 and 'made these shards' in capsys.readouterr().err
    assert main([*given[:-1], str(tmp_path/'more'), '--collection', str(tmp_path/'queries')]) == 2
    assert 'document: False made these shards' in capsys.readouterr().err
    (tmp_path/'documents'/'frequencies.npz').write_bytes(b'')
    with pytest.warns(UserWarning, match='unreadable'): command(*given[:-1], tmp_path/'again', '--collection', tmp_path/'documents')
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
    if version == 'splade_ko': monkeypatch.setattr(encoding, 'count_collection', lambda *_: pytest.fail('counted once, kept'))
    command(*given, tmp_path/'cut')
    assert contents(tmp_path/'cut') == contents(tmp_path/'at-once')
    assert read_json(tmp_path/'cut'/'shards.json') == read_json(tmp_path/'at-once'/'shards.json')


def test_the_mean_length_is_that_of_the_whole_collection(models, source, tmp_path, monkeypatch):
    model, pieces = load_encoder(models('splade_ko'))
    texts, counts = list(collect(str(source)).texts.values()), []
    true = encoding.count_collection
    monkeypatch.setattr(encoding, 'count_collection', lambda *given: counts.append(1) or true(*given))
    for part in range(3): encode_shards(model, pieces, texts, tmp_path, SIZE, part, 3)
    lengths = [len(bag) for bag in pieces.bags(texts)]
    assert read_json(tmp_path/'shards.json')['mean_length'] == np.mean(lengths) > 1.2 * np.mean(lengths[:SIZE]), 'the shortest come first'
    assert len(counts) == 1, 'later parts read what the first has counted'
    whole = encode(model, pieces, texts, whole=True, cut={})
    assert abs(sparse.vstack(list(read_shards(tmp_path))) - whole).max() < 1e-5
    with pytest.raises(ConfigError, match='only once'): encode_shards(model, pieces, iter(texts), tmp_path/'stream', SIZE)
    assert encode_shards(model, pieces, iter(texts), tmp_path/'given', SIZE, mean_length=float(np.mean(lengths))) == 8
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


def test_cut_texts_are_counted_and_can_be_read_to_their_end(models, tmp_path, capsys):
    texts = ['짧은 글', '서울에서 제주도로 가는 배편과 비행기 ' * 60, '', '부산 바다 ' * 200]
    file, model = tmp_path/'texts.txt', models('v28')
    file.write_text('\n'.join(texts), encoding='utf-8')
    pieces = load_encoder(model)[1]
    lost = [max(0, len(row) - 8 * 30) for row in pieces.ids(texts)]
    command('encode', '--model', model, '--data', file, '--out', tmp_path/'cut', '--size', 2)
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])['collection']['cut'] == dict(texts=2, pieces=sum(lost)) and min(lost[1], lost[3]) > 0
    assert '2 of 4 texts are longer than 8 windows of 30 pieces' in said.err and '1 of 4 texts are empty' in said.err
    command('encode', '--model', model, '--data', file, '--out', tmp_path/'all', '--size', 2, '--windows', 0)
    assert read_json(tmp_path/'all'/'shards.json')['collection']['cut'] == dict(texts=0, pieces=0)
    cut, whole = (sparse.vstack(list(read_shards(tmp_path/name))) for name in ('cut', 'all'))
    assert abs(cut - whole)[[0, 2]].max() < 1e-6 < abs(cut - whole)[[1, 3]].max(axis=1).toarray().min(), 'only long texts differ'
    assert main(['encode', '--model', str(model), '--data', str(file), '--out', str(tmp_path/'cut'), '--size', '2', '--windows', '0']) == 2
    assert 'most_windows: 8 made these shards, 0 is asked for' in capsys.readouterr().err


def test_an_evaluation_says_what_of_its_documents_was_cut(models, source, tmp_path, capsys):
    folder = shutil.copytree(source, tmp_path/'long')
    first, *others = (folder/'corpus.jsonl').read_text(encoding='utf-8').splitlines()
    record = json.loads(first)
    long = json.dumps(record | dict(text=record['text'] + ' 아주 긴 글' * 400), ensure_ascii=False)
    (folder/'corpus.jsonl').write_text('\n'.join([long, *others]), encoding='utf-8')
    told, pieces = {}, load_encoder(models('v28'))[1]
    long = sum(len(row) > 8 * 30 for row in pieces.ids(list(collect(str(folder)).texts.values())))
    for windows in (8, 0):
        command('evaluate', '--model', models('v28'), '--data', folder, '--split', 'all', '--windows', windows)
        told[windows] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told[8]['cut']['texts'] == long > 0 and told[8]['cut']['pieces'] > 500 and f'{long} of {DOCUMENTS} texts' in told[8]['cut']['note']
    assert 'cut' not in told[0]


WRONG = {'size=0': ['--size', 0], 'top_k=-1': ['--top-k', -1], 'threshold=-1.0': ['--threshold', -1], 'most_windows=-1': ['--windows', -1],
         'screen=True makes float32 exact': ['--screen', '--precision', 'bf16']}


@pytest.mark.parametrize('told', WRONG)
def test_what_would_lose_everything_is_refused_before_the_folder_is_taken(told, models, tmp_path, capsys):
    (tmp_path/'texts.txt').write_text('제주도 여행\n서울 맛집', encoding='utf-8')
    given = ['encode', '--model', str(models('v28')), '--data', str(tmp_path/'texts.txt'), '--out', str(tmp_path/'shards')]
    assert main([*given, *map(str, WRONG[told])]) == 2 and told in capsys.readouterr().err
    assert not (tmp_path/'shards').exists() and main(given) == 0


FAULTY = {'no such file': (None, 'texts.txt, file'), 'no text': (b'', 'no text to encode'), 'no utf-8': ('가\n'.encode() + b'\xff\n', 'line 2')}


@pytest.mark.parametrize('fault', FAULTY)
@pytest.mark.parametrize('version', ('splade_ko', 'v28'))
def test_a_faulty_text_file_is_one_line(fault, version, models, tmp_path, capsys):
    content, told = FAULTY[fault]
    if content is not None: (tmp_path/'texts.txt').write_bytes(content)
    assert main(['encode', '--model', str(models(version)), '--data', str(tmp_path/'texts.txt'), '--out', str(tmp_path/'out')]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert told in said or 'texts.txt' in said and fault == 'no such file', said


def test_a_queries_file_holds_each_id_once(models, source, tmp_path, capsys):
    lines = (source/'queries.jsonl').read_text(encoding='utf-8')
    (tmp_path/'queries.jsonl').write_text(lines + lines.splitlines()[0], encoding='utf-8')
    given = ['encode', '--model', str(models('v28')), '--queries', str(tmp_path/'queries.jsonl'), '--out', str(tmp_path/'out')]
    assert main(given) == 2 and 'a second time' in capsys.readouterr().err and not (tmp_path/'out').exists()


def test_converted_shards_keep_ids_and_take_only_their_own_texts(models, source, tmp_path, capsys):
    model, collection, documents = models('v28'), collect(str(source)), tmp_path/'documents'
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
    assert main(['convert', '--vectors', str(documents), '--format', 'jsonl', '--out', str(tmp_path/'wrong'), '--data', str(other)]) == 2
    assert 'made of other texts, or under other ids' in capsys.readouterr().err


def test_a_missing_last_shard_is_missed(models, source, tmp_path):
    command('encode', '--model', models('v28'), '--data', source, '--out', tmp_path/'out', '--size', SIZE)
    last = sorted((tmp_path/'out').glob('shard-*.npz'))[-1]
    last.unlink()
    with pytest.raises(ConfigError, match=f'{last.name} is missing'): list(read_shards(tmp_path/'out'))


def test_a_query_table_takes_no_piece_that_documents_cannot_have(models, source, tmp_path):
    "`--korean` acts on queries that are looked up, and changes no score."
    model, file = models('splade_ko'), source/'queries.jsonl'
    command('encode', '--model', model, '--data', source, '--out', tmp_path/'documents', '--korean')
    for name, more in (('all', ()), ('korean', ('--korean',))):
        command('encode', '--model', model, '--queries', file, '--collection', tmp_path/'documents', '--out', tmp_path/name, *more)
    few, many = (ranked(tmp_path/'documents', tmp_path/name)[0] for name in ('korean', 'all'))
    rows = [sparse.vstack(list(read_shards(tmp_path/name))) for name in ('korean', 'all')]
    assert rows[0].nnz < rows[1].nnz and np.allclose(few.toarray(), many.toarray(), rtol=1e-6)

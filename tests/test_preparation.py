"""Training data are prepared once: the same as from plain lists, shared by processes, resumed part by part."""
import functools, json, os, subprocess, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from sklearn.preprocessing import normalize
from conftest import ROOT
from faults import exit_code_of, start
from splade_nb.config.versions import resolve_quietly
from splade_nb.data import bm25, prepared, tokenizer as tokenizers
from splade_nb.data.bm25 import BM25, best
from splade_nb.data.readers import load
from splade_nb.data.records import collect, toy_corpus
from splade_nb.training import dataset, negatives, teacher
from splade_nb.training.curriculum import adopt, curriculum_key
from splade_nb.training.batch import batch_at
from splade_nb.training.trainer import train

SMALL = dict(hidden=32, layers=1, vocabulary=300, batch_size=8, steps=3, bm25_negatives=3, dense_negatives=3)


@pytest.fixture
def store(tmp_path, monkeypatch):
    "A folder of prepared data for one test."
    monkeypatch.setenv('SPLADE_NB_PREPARED', str(tmp_path/'prepared'))
    return tmp_path/'prepared'


def settings(version='v24', **more): return resolve_quietly(version, scale='mini', **SMALL | more)


def prepare(tmp_path, version='v24', group=None, seed=42, **more):
    return dataset.prepare(settings(version, **more), toy_corpus(), seed, None, 'cpu', group)


def plain_data(setup):
    "The same training data from plain lists, as they were made before there were prepared files."
    data, collection, options = setup.training_data, setup.collection, setup.settings
    queries = {id: query for id, query in collection.split('train').items() if id not in setup.dev_queries}
    index, texts = {id: row for row, id in enumerate(collection.documents)}, list(collection.texts.values())
    query_texts = [query.text for query in queries.values()]
    relevant = [{index[d] for d, grade in collection.qrels[q].items() if grade} for q in queries]
    pairs = [(q, d) for q, documents in enumerate(relevant) for d in sorted(documents)]
    given = {id: {} for id in queries}
    for triplet in collection.triplets:
        given.get(triplet.query_id, {}).update((index[d], None) for d in triplet.negative_ids)
    given = [[d for d in row if d not in answers] for row, answers in zip(given.values(), relevant)]
    fitted = teacher.fit_teacher(query_texts, texts, pairs)
    vectors = [fitted.transform(some).astype(np.float32) for some in (query_texts, texts)]
    words = BM25(collection.texts)
    bag = [*map(set, words.words)].__getitem__
    lists = dict(bm25=[[(index[d], score) for d, score in row] for row in words.ranked(query_texts, options.mining_depth)])
    cosines = normalize(vectors[0]) @ normalize(vectors[1]).T
    lists['dense'] = [[(int(d), float(row[d])) for d in best(row, options.mining_depth)] for row in cosines]
    asked = list(map(set, words.cut(query_texts)))
    mined = {source: [negatives.not_relevant(row, [*answers], bag, 0.8, query=own) for row, answers, own in zip(rows, relevant, asked)]
             for source, rows in lists.items()}
    keys = adopt([curriculum_key(query.kind) for query in queries.values()], options)
    ids = data.tokenizer.ids(query_texts), data.tokenizer.ids(texts)
    return replace(data, queries=ids[0], documents=ids[1], pairs=pairs, keys=[keys[q] for q, _ in pairs], relevant=relevant,
                   given=given, mined=mined, teacher=tuple(map(torch.tensor, vectors)))


def test_batches_and_losses_are_those_of_plain_lists(store, tmp_path):
    losses = []
    for plainly in (False, True):
        setup = prepare(tmp_path)
        data = plain_data(setup) if plainly else setup.training_data
        run = train(setup.model, data, setup.settings, tmp_path/str(plainly), quiet=True)
        losses.append([json.loads(line) for line in (tmp_path/str(plainly)/'log.jsonl').read_text().splitlines()]
                      if (tmp_path/str(plainly)/'log.jsonl').exists() else torch.cat([p.flatten() for p in run.model.parameters()]))
        batch = [batch_at(step, 3, 0, data, setup.settings, 42) for step in range(3)]
        losses[-1] = losses[-1], [(one['documents'], one['same'].tolist(), one['document']['input_ids'].tolist()) for one in batch]
    first, second = losses
    assert first[1] == second[1]
    assert torch.equal(first[0], second[0]) if torch.is_tensor(first[0]) else first[0] == second[0]


@pytest.mark.parametrize('version', ['v24', 'v29'])
def test_nothing_is_prepared_twice(version, store, tmp_path, monkeypatch):
    first = prepare(tmp_path, version)
    def fails(*given, **named): raise AssertionError('prepared a second time')
    for module, name in ((tokenizers.SpladeTokenizer, 'ids'), (tokenizers.SpladeTokenizer, 'bags'), (dataset, 'train_unigram'),
                         (dataset, 'count_rows'), (teacher, 'fit_teacher'), (negatives, 'ranked_blocks'),
                         (bm25, '_block'), (dataset, 'directions'), (prepared, 'write_rows')):
        monkeypatch.setattr(module, name, fails)
    monkeypatch.setitem(bm25.TOKENIZERS, 'kiwi', fails)
    again = prepare(tmp_path, version)
    torch.testing.assert_close([*first.model.parameters()], [*again.model.parameters()], rtol=0, atol=0)
    assert [row.tolist() for row in first.training_data.queries] == [row.tolist() for row in again.training_data.queries]
    assert set(first.training_data.mined) == set(again.training_data.mined)


def test_versions_share_what_their_settings_leave_alike(store, tmp_path, monkeypatch):
    prepare(tmp_path, 'v26')
    def fails(*given, **named): raise AssertionError('prepared a second time')
    for module, name in ((negatives, 'ranked_blocks'), (dataset, 'train_unigram'), (teacher, 'fit_teacher')):
        monkeypatch.setattr(module, name, fails)
    for version in ('v27', 'v28'): assert any(prepare(tmp_path, version).training_data.mined['bm25'])


def test_further_data_prepares_only_what_it_adds(store, monkeypatch):
    texts, calls, cut = [f'문서 {n} 김치' for n in range(25)], [], bm25.TOKENIZERS['whitespace']
    monkeypatch.setitem(bm25.TOKENIZERS, 'whitespace', lambda some: calls.append(len(some)) or cut(some))
    stages, rows = prepared.Preparation(), prepared.Preparation.rows
    monkeypatch.setattr(prepared.Preparation, 'rows', lambda self, stage, number, some, size, *given, **named:
                        rows(self, stage, number, some, 10, *given, **named))
    few, more = bm25.word_rows(stages, texts[:20], 'whitespace'), bm25.word_rows(stages, texts, 'whitespace')
    assert calls == [10, 10, 5] and [row.tolist() for row in few] == [row.tolist() for row in more[:20]]


def with_more_queries(number: int):
    "The toy corpus with further training queries at the end."
    toy = toy_corpus()
    more = {f'q{n}': replace(toy.queries['q00'], id=f'q{n}', text=f'시장 {n}번 가게') for n in range(30, 30 + number)}
    return collect('more', toy.documents, toy.queries | more, toy.qrels | {id: toy.qrels['q00'] for id in more})


def test_further_queries_leave_the_prepared_ones(store, monkeypatch):
    "They are read again, although the dev split is drawn from a longer list and takes out other queries."
    learned = tokenizers.SpladeTokenizer(tokenizers.train_unigram([*toy_corpus().texts.values()], 300))
    def vectors(texts, side): return [[float(len(text)), 1] for text in texts]
    monkeypatch.setattr(dataset, 'prepared_tokenizer', lambda *_, **of: learned)
    monkeypatch.setattr(teacher, 'sentence_encoder', lambda *_: vectors)
    for name in ('rows', 'arrays'):
        def small(self, stage, number, some, size=4, *given, real=getattr(prepared.Preparation, name), **named):
            return real(self, stage, number, some, 4, *given, **named)
        monkeypatch.setattr(prepared.Preparation, name, small)
    setups, parts = [], []
    for number in (0, 5):
        setups.append(dataset.prepare(settings(teacher='some/encoder'), with_more_queries(number), 42, None, 'cpu'))
        parts.append({stage: len([*store.glob(f'{stage}/*/part.*')]) for stage in ('tokens', 'words', 'teacher')})
    assert setups[0].dev_queries != setups[1].dev_queries
    few, more = parts
    assert few == dict.fromkeys(few, 4 + 4) and more == dict.fromkeys(few, 4 + 4 + 2), '14 documents, 16 queries and 5 more'
    data, train = setups[1].training_data, setups[1].collection.split('train')
    texts = [query.text for id, query in train.items() if id not in setups[1].dev_queries]
    assert [row.tolist() for row in data.queries] == learned.ids(texts) and data.teacher[0][:][:, 0].tolist() == [*map(len, texts)]
    assert len(data.mined['bm25']) == len(data.mined['dense']) == len(texts) == 19


def test_the_analyser_goes_after_the_words_of_a_large_collection(store, monkeypatch):
    loaded, stages = functools.cache(object), prepared.Preparation()
    monkeypatch.setattr(bm25, 'kiwi', loaded)
    monkeypatch.setitem(bm25.TOKENIZERS, 'kiwi', lambda texts: [[text] for text in texts])
    monkeypatch.setattr(bm25, 'WORDS_PART', 3)
    for number, kept in ((3, 1), (4, 0)):
        loaded()
        bm25.word_rows(stages, ['김치'] * number)
        assert loaded.cache_info().currsize == kept


def test_a_run_that_was_killed_makes_the_missing_parts_alone(store, tmp_path, monkeypatch):
    calls, ids, token_rows = [], tokenizers.SpladeTokenizer.ids, prepared.Preparation.rows
    monkeypatch.setattr(prepared.Preparation, 'rows', lambda self, stage, number, some, size=4, *given, **named:
                        token_rows(self, stage, number, some, 4, *given, **named))
    def counted(self, texts):
        calls.append(len(texts))
        if len(calls) == 3: raise KeyboardInterrupt
        return ids(self, texts)
    monkeypatch.setattr(tokenizers.SpladeTokenizer, 'ids', counted)
    with pytest.raises(KeyboardInterrupt): prepare(tmp_path)
    assert len([*store.glob('tokens/*/part.arrow')]) == 2 and not [*store.rglob('*.part')]
    prepare(tmp_path)
    assert calls[3:] == [4, 2, 4, 4, 4, 4], 'two parts of the documents, and four of the train split'


def contents(data) -> str:
    "What a process holds, as text."
    rows = {name: [*map(list, map(np.ndarray.tolist, getattr(data, name)))] for name in ('queries', 'documents', 'relevant', 'given')}
    return json.dumps(rows | dict(pairs=data.pairs.tolist(), keys=list(data.keys), idf=data.idf.tolist(), mined={
        source: list(rows) for source, rows in data.mined.items()}))


def one_of_two(rank: int, store: Path, folder: Path) -> None:
    os.environ['SPLADE_NB_PREPARED'] = str(store)
    found = contents(prepare(folder, 'v24', SimpleNamespace(rank=rank, number=2)).training_data)
    (folder/str(rank)).write_text(found, encoding='utf-8')


@pytest.mark.slow
def test_two_processes_share_the_work(store, tmp_path, monkeypatch):
    started = [start(one_of_two, rank, store, tmp_path) for rank in (0, 1)]
    assert [exit_code_of(one) for one in started] == [0, 0]
    monkeypatch.setenv('SPLADE_NB_PREPARED', f'{store}-alone')
    alone = contents(prepare(tmp_path, 'v24').training_data)
    assert [(tmp_path/rank).read_text(encoding='utf-8') for rank in '01'] == [alone, alone]


def test_blocks_of_documents_rank_like_one_index(store):
    texts = load('mini').texts
    chosen, asked = dict(list(texts.items())[:300]), list(texts.values())[5:300:7]
    stages, whole = prepared.Preparation(), BM25(chosen)
    words, queries = (bm25.word_rows(stages, list(part)) for part in (chosen.values(), asked))
    found = bm25.ranked_blocks(bm25.bm25_blocks(stages, words, 70, data='d'), queries, 20)
    for (rows, scores), plain in zip(found, whole.ranked(asked, 20), strict=True):
        assert [(whole.ids[row], score) for row, score in zip(rows, scores.tolist())] == plain


def test_dense_neighbours_of_blocks_are_those_of_the_whole():
    rng = np.random.default_rng(1)
    asked, answers = (rng.normal(size=(n, 16)).astype(np.float32) for n in (9, 200))
    answers[150:] = answers[:50]  # equals
    for row, (rows, values) in zip(normalize(asked) @ normalize(answers).T, negatives.nearest_rows(asked, answers, 10, 'cpu', 30, 4)):
        assert set(rows) == set(best(row.round(5), 10)) and np.allclose(row[rows], values, atol=1e-6)
        equals = [n for n in rows if n < 50 and n + 150 in rows]
        assert all(list(rows).index(n) < list(rows).index(n + 150) for n in equals)


def test_a_large_corpus_is_learned_from_in_part():
    texts = [f'문서 {n}' for n in range(100)]
    some = tokenizers.sentences_of([texts[:30], texts[30:]], most=20)
    assert len(some) == len(set(some)) == 20 and some == sorted(some, key=texts.index)
    assert some == tokenizers.sentences_of([texts], most=20) != tokenizers.sentences_of([texts], most=20, seed=7)
    assert tokenizers.sentences_of([texts[:30], texts[30:]], most=100) == texts


def test_own_dev_queries_choose_the_checkpoint(store, tmp_path):
    toy = toy_corpus()
    train_ids = list(toy.split('train'))
    queries = toy.queries | {id: replace(toy.queries[id], split='dev') for id in train_ids[:3]}
    setup = dataset.prepare(settings(), replace(toy, queries=queries, hash='with dev'), 42, tmp_path, 'cpu')
    assert setup.dev_queries == set(train_ids[:3]) and len(setup.training_data.queries) == len(train_ids) - 3
    assert any('dev queries' in note for note in setup.training_data.notes)


MAKE_LARGE = '''
import numpy as np, sys
from splade_nb.data.prepared import Preparation
n, stages, rng = 100_000, Preparation(), np.random.default_rng(0)
def some(length): return lambda first, last: rng.integers(5, 1000, (last - first, length))
for name, length in dict(queries=12, documents=100, relevant=1, given=5, mined=200).items(): stages.rows(name, n, some(length))
stages.arrays('teacher', n, lambda first, last: np.zeros((last - first, 64), np.float32))
stages.array('pairs', lambda: np.stack([np.arange(n)] * 2, axis=1).astype(np.int32))
'''
OPEN_LARGE = '''
import re, numpy as np, torch
from splade_nb.config.settings import Settings
from splade_nb.data.prepared import Preparation
from splade_nb.training.curriculum import Keys
from splade_nb.training.dataset import TrainingData
from splade_nb.training.negatives import Candidates
from splade_nb.training.batch import batch_at
def own(): # bytes of memory that no other process shares
    return 1024 * int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1])
def opened(n):
    def never(*given): raise AssertionError
    stages, ones = Preparation(), torch.ones(1000)
    rows = {name: stages.rows(name, n, never) for name in ('queries', 'documents', 'relevant', 'given', 'mined')}
    vectors, pairs = stages.arrays('teacher', n, never), stages.array('pairs', never)
    return TrainingData(None, rows['queries'], rows['documents'], pairs, Keys(['original'], np.zeros(n, np.int8)), rows['relevant'],
                        rows['given'], ones, ones, ones, ones < 0, ones < 0, {'bm25': Candidates(rows['mined'])}, (vectors, vectors))
import datasets, pyarrow
settings, before = Settings(batch_size=32, negatives=2, bm25_negatives=2, mining_temperature=0.0), own()
data = opened(100_000)
for step in range(20):
    batch = batch_at(step, 100, 0, data, settings, 42)
    vectors = data.teacher[1][batch['documents']]
print(own() - before)
'''


@pytest.mark.slow
def test_a_further_process_costs_little_memory(store):
    "Less than 200 bytes a pair; the lists of 100,000 pairs would be some hundred megabytes."
    exec(MAKE_LARGE, {})
    done = subprocess.run([sys.executable, '-c', OPEN_LARGE], cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 200 * 100_000

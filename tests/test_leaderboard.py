"""The leaderboard as a whole: what is finished is kept, whoever kills it, and nothing of other data or settings is mixed in."""
import json
import pytest
from conftest import ROOT, run_cells
from splade_nb.config import versions
from splade_nb.config.files import ConfigError, read_json, write_json
from splade_nb.data.records import toy_corpus
from splade_nb.evaluation import benchmark, systems
from splade_nb.evaluation.leaderboard import METRICS, boards, summary_table

SLOW_FIXTURES = 'contest',

STUDY = 'studies/leaderboard.ipynb'
TRAINED = 'splade_v2'


def write_beir(folder):
    "The toy corpus in BEIR form."
    toy = toy_corpus(); folder.mkdir()
    lines = lambda rows: ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    (folder/'corpus.jsonl').write_text(lines(dict(_id=d.id, title=d.title, text=d.text) for d in toy.documents.values()), encoding='utf-8')
    (folder/'queries.jsonl').write_text(lines(dict(_id=q.id, text=q.text) for q in toy.queries.values()), encoding='utf-8')
    for split in ('train', 'test'):
        rows = [f'{query}\t{document}\t{score}' for query in toy.split(split) for document, score in toy.qrels[query].items()]
        (folder/f'qrels_{split}.tsv').write_text('\n'.join(['query-id\tcorpus-id\tscore', *rows]) + '\n', encoding='utf-8')
    return str(folder)


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data')
    return [write_beir(folder/name) for name in ('taught', 'new')]


@pytest.fixture
def small(monkeypatch):
    "Models of a few tokens."
    of = versions.resolve_quietly
    monkeypatch.setattr(versions, 'resolve_quietly', lambda *a, **k: of(*a, **k, hidden=32, layers=1, vocabulary=300, batch_size=8, accumulation=1))


@pytest.fixture
def contest(sources, small, tmp_path):
    def run(*names, steps=2):
        folders = dict(results=str(tmp_path/'results'), work=str(tmp_path/'work'))
        return run_cells(STUDY, data=sources[0], test=sources[1], systems=','.join(names), steps=str(steps), measure=True, **folders)
    return run


def kept(tmp_path, name): return read_json(tmp_path/'results'/'taught'/f'{name}-42.json')


def fail(*arguments, **options): raise AssertionError('done a second time')


def test_a_killed_run_goes_on_where_it_was(contest, tmp_path, monkeypatch):
    measure, seen = benchmark.leaderboard_result, []
    def killed(system, collection, *rest):
        if collection.name == 'new': raise KeyboardInterrupt
        return measure(system, collection, *rest)
    monkeypatch.setattr(benchmark, 'leaderboard_result', killed)
    with pytest.raises(KeyboardInterrupt): contest(TRAINED)
    before = kept(tmp_path, TRAINED)
    assert list(before['collections']) == ['taught'] and before['facts']['steps'] == 2

    monkeypatch.setattr(systems, 'train', fail)
    monkeypatch.setattr(benchmark, 'leaderboard_result', lambda system, collection, *rest: seen.append(collection.name) or measure(system, collection, *rest))
    contest(TRAINED)
    after = kept(tmp_path, TRAINED)
    assert seen == ['new'] and list(after['collections']) == ['taught', 'new'] and after['collections']['taught'] == before['collections']['taught']
    assert after['taught'] == ['taught'] and after['collections']['taught']['queries'] == 8 and after['collections']['new']['queries'] == 24

    monkeypatch.setattr(benchmark, 'leaderboard_result', fail)
    contest(TRAINED)


def test_a_killed_training_goes_on_from_its_checkpoint(contest, tmp_path, monkeypatch):
    keep = systems.save_model_folder
    def killed(*arguments): raise KeyboardInterrupt
    monkeypatch.setattr(systems, 'save_model_folder', killed)
    with pytest.raises(KeyboardInterrupt): contest(TRAINED)
    assert not list((tmp_path/'results'/'taught').iterdir())
    steps, of = [], systems.train
    def counted(*arguments, **options): run = of(*arguments, **options); steps.append(len(run.rates)); return run
    monkeypatch.setattr(systems, 'save_model_folder', keep); monkeypatch.setattr(systems, 'train', counted)
    contest(TRAINED)
    assert steps == [0] and kept(tmp_path, TRAINED)['facts']['steps'] == 2


def test_every_kind_of_system_stands_beside_bm25(contest, tmp_path):
    names = ['bm25-kiwi', 'bm25-kiwi+bigrams', 'bm25-bigrams', 'lsa', 'splade_ko-untrained', 'splade_ko', 'splade_ko+bm25-kiwi', 'splade_ko+lsa', 'splade_ko-encoded-query', 'v28-earlier']
    contest(*names)
    table, = boards(tmp_path/'results').values()
    assert set(table['system']) == set(names) and len(table) == 2 * len(names) and table[list(METRICS)].notna().all(axis=None)
    of = table[table['collection'] == 'new'].set_index('system')
    assert of.loc['splade_ko+lsa', 'flops'] == pytest.approx(of.loc['splade_ko', 'flops'] + of.loc['lsa', 'flops']) and of.loc['splade_ko-untrained', 'steps'] == 0
    assert of.loc['bm25-kiwi', 'difference'] == dict(mean=0, low=0, high=0, p=1)
    assert summary_table(table)['system'].nunique() == len(names)


def test_other_steps_are_another_result(contest, tmp_path):
    contest(TRAINED)
    with pytest.raises(ConfigError, match="asked for is .*'steps': 3.*another results folder"): contest('bm25-kiwi', TRAINED, steps=3)
    assert not (tmp_path/'results'/'taught'/'bm25-kiwi-42.json').exists(), 'refused before anything is measured'


def test_a_result_under_the_earlier_name_of_its_recipe_is_not_measured_again(contest, tmp_path, monkeypatch):
    contest('v28-earlier')
    folder = tmp_path/'results'/'taught'
    (folder/'v28-earlier-42.json').rename(folder/'v28-seed-42.json')
    monkeypatch.setattr(benchmark, 'leaderboard_result', fail)
    contest('v28-seed')
    assert [path.name for path in folder.iterdir()] == ['v28-seed-42.json']


def test_a_collection_that_changed_is_measured_again(contest, tmp_path):
    contest('bm25-kiwi')
    record = kept(tmp_path, 'bm25-kiwi')
    record['collections']['new'] |= dict(hash='other', queries=-1)
    write_json(tmp_path/'results'/'taught'/'bm25-kiwi-42.json', record)
    contest('bm25-kiwi')
    assert kept(tmp_path, 'bm25-kiwi')['collections']['new']['queries'] == 24


@pytest.fixture(scope='module')
def study(): return run_cells(STUDY)


@pytest.mark.slow
def test_patterns_choose_and_refuse(study):
    chosen = study['chosen']
    assert chosen(['splade_ko', 'bm25*']) == ['bm25-kiwi', 'bm25-kiwi+bigrams', 'bm25-whitespace', 'bm25-bigrams', 'splade_ko']
    known = {f'{version}-{recipe}' for version in ('v22', 'v28', 'v28a', 'v28_retrain') for recipe in ('earlier', 'corrected')}
    assert known <= set(chosen([])) and chosen(['v28-seed']) == ['v28-earlier']
    with pytest.raises(ConfigError, match="did you mean 'splade_v2'"): chosen(['splade_v3'])


def test_lists_are_joined_by_commas(study):
    assert study['listed'](' a, b ,,c') == ['a', 'b', 'c'] and study['listed']('') == []


def test_data_without_a_train_split_is_no_data_to_learn_from(study, sources, tmp_path):
    (folder := tmp_path/'bare').mkdir()
    for name in ('corpus.jsonl', 'queries.jsonl', 'qrels_test.tsv'): (folder/name).write_bytes((ROOT/sources[0]/name).read_bytes())
    with pytest.raises(ConfigError, match='give it by test'): study['judged_on'](str(folder), True)
    assert len(study['judged_on'](str(folder), False)[1]) == 8

"""Records: the page is what entries and results say, and an entry that the results do not support is refused by name."""
import importlib, json
from dataclasses import replace
import numpy as np
import pytest
from conftest import ROOT
from splade_nb.config.files import DataError, read_json, write_json
from splade_nb.evaluation.study import known_baselines

EARLIER, FINAL = ([f'docs/results/studies/training/train-splade_ko-{name}-{seed}.json' for seed in (42, 43, 44)] for name in ('earlier-final', 'final'))


@pytest.fixture(scope='module')
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT/'docs')
        yield importlib.import_module('records_page')


@pytest.fixture(scope='module')
def found(made): return made.records()


def test_page_is_what_the_entries_say(made, found):
    assert made.PAGE.read_text(encoding='utf-8') == made.page(found), 'run python docs/records_page.py'
    assert [record.entry['version'] for record in found[:2]] == ['BM25', 'BM25 + bigrams'], 'the floor'


def test_without_records_the_page_says_so(made): assert 'No record is entered yet.' in made.page([])


def test_a_record_is_above_the_one_before_by_the_kept_gains(made, found):
    "By hand: the mean over the sets of the mean gain over BM25, minus that of BM25 with bigrams."
    third, gains = found[2], {name: [] for name in found[2].rows}
    for path in EARLIER:
        for row in read_json(ROOT/path)['found']:
            if row['split'] != 'dev': gains[row['collection']].append(np.mean([float(gain) for gain in row['gains'].split()]))
    splits = {name: next(known_baselines()[name]['splits'][split] for split in ('test', 'all') if split in known_baselines()[name]['splits']) for name in gains}
    expected = np.mean([np.mean(gains[name]) - splits[name]['difference']['mean'] for name in gains])
    assert third.difference['mean'] == pytest.approx(expected, abs=1e-4) and third.difference['low'] > 0


REFUSED = {  # what is changed in the entry of record 2, the field that is named, what is said
    'no run': (dict(results=[]), 'results', 'found no run'),
    'a run that is not kept': (dict(results=['docs/results/studies/training/none.json']), 'results', 'below docs/results'),
    'a run outside the kept results': (dict(results=['data/example_run/summary.json']), 'results', 'below docs/results'),
    'two seeds': (dict(results=EARLIER[:2]), 'results', 'found seeds 42, 43 on tydiqa_ko_goldp; allowed: 3 different seeds'),
    'a seed twice': (dict(results=[*EARLIER, EARLIER[0]]), 'results', 'found seeds 42, 43, 44, 42'),
    'two recipes': (dict(results=[FINAL[0], *EARLIER[1:]]), 'results', 'found 2 recipes'),
    'a result without its queries': (dict(results=['docs/results/studies/training/train-splade_ko-bilingual-42.json']), 'gains', 'bilingual'),
    'a set less': (dict(sets=['mini']), 'sets', 'also tydiqa_ko_goldp'),
    'a set without results': ('more sets', 'results', 'nothing on mini'),
    'another version': (dict(version='v28'), 'version', 'allowed: splade_ko'),
    'quality that does not follow': (dict({'ndcg@10': {}}), 'ndcg@10', 'follows from the results: {"tydiqa_ko_goldp": 0.8592'),
    'a difference that does not follow': (dict(difference=dict(mean=0.5, low=0.4, high=0.6)), 'difference', 'what follows'),
    'a report that is not there': (dict(report='nbs/studies/none.ipynb'), 'report', 'executed notebook'),
    'a report without outputs': (dict(report='nbs/train.ipynb'), 'report', 'without outputs'),
    'an unknown field': (dict(improvment='x'), 'improvment', 'an unknown field'),
    'no words': (dict(improvement=''), 'improvement', 'found nothing'),
    'a field of another kind': (dict(sets='mini'), 'sets', 'a list')}


@pytest.mark.parametrize('change, field, said', REFUSED.values(), ids=REFUSED)
def test_an_entry_is_refused(change, field, said, made, found):
    entry = dict(found[2].entry)
    entry |= dict(sets=[*entry['sets'], 'mini']) if change == 'more sets' else change
    with pytest.raises(DataError) as error: made.checked(entry, 'mine.json', found[1])
    assert error.value.field == field and said in str(error.value)
    assert 'mine.json' in str(error.value) or error.value.file in str(change)


def test_a_difference_within_chance_is_refused(made, found):
    "The variant `final` has three seeds on every set; over record 2 its interval holds 0."
    entry = found[2].entry | dict(results=FINAL)
    for _ in range(2):  # the check names the numbers
        with pytest.raises(DataError) as error: made.checked(entry, 'mine.json', found[2])
        if error.value.field in ('ndcg@10', 'difference') and 'follows' in error.value.allowed:
            entry |= {error.value.field: json.loads(error.value.allowed.split(': ', 1)[1])}
    with pytest.raises(DataError, match=r'mine.json, difference: found \+0\.2 \[-0\.3, \+0\.6\]; allowed: .*above 0 beyond chance'):
        made.checked(entry, 'mine.json', found[2])


def test_results_that_contradict_themselves_are_refused(made, found):
    row = found[2].rows['question_pair'][0]
    assert made.of_known_queries(row, 'run.json') is row
    for wrong, said in ((replace(row, gains=row.gains[1:]), 'found 351'), (replace(row, bm25=0.5), 'and 0.5'), (replace(row, ndcg=0.9), 'found 0.9000'),
                        (replace(row, set='mine'), 'a set whose BM25 is kept')):
        with pytest.raises(DataError, match=said): made.of_known_queries(wrong, 'run.json')


def test_numbers_of_records_follow_one_another(made, tmp_path):
    for name in ('0-bm25.json', '2-splade_ko.json'): write_json(tmp_path/name, read_json(made.RECORDS/name))
    with pytest.raises(DataError, match='2-splade_ko.json, name: .*1-name.json'): made.records(tmp_path)


def test_a_run_folder_is_a_result(made, tmp_path):
    "Of `make train`: summary.json with evaluation.json beside it, whose gains are those of each query."
    part = known_baselines()['mini']['splits']['test']
    ndcg = {system: {'ndcg@10': part[system]['ndcg@10']['mean']} for system in ('bm25', 'bm25_bigrams')}
    summary = dict(version='v28', recipe='corrected', seed=7, changed=dict(steps=[400, 60]), data=dict(name='mini'), metrics=ndcg['bm25_bigrams'],
                   bm25=ndcg['bm25'], active_terms=dict(doc=58.0), seconds=120)
    write_json(tmp_path/'summary.json', summary)
    write_json(tmp_path/'evaluation.json', {})
    assert made.rows_of(tmp_path/'summary.json', 'v28') == [], 'a run that kept no queries'
    write_json(tmp_path/'evaluation.json', dict(gains=part['gains']))
    row, = made.rows_of(tmp_path/'summary.json', 'v28')
    assert (row.set, row.seed, row.recipe, row.minutes) == ('mini', 7, 'v28 corrected: steps 60', 2.0)
    assert made.of_known_queries(row, 'summary.json') is row


def test_the_template_has_the_fields(made):
    assert list(read_json(ROOT/made.TEMPLATE)) == list(made.FIELDS)


def test_the_command_says_what_is_wrong(made, capsys):
    assert made.main([f'--entry={made.RECORDS/"2-splade_ko.json"}']) == 0 and 'a record, +1.6' in capsys.readouterr().out
    assert made.main([f'--entry={ROOT/made.TEMPLATE}']) == 2 and 'records_template.json, results' in capsys.readouterr().err
    assert made.main(['--entry=-none.json']) == 2 and '-none.json, entry' in capsys.readouterr().err
    assert made.main(['--check']) == 0

"""What reports say of a run: their sentences agree with their tables, their commands with the run."""
import json, shlex, shutil, warnings
from dataclasses import replace
from types import SimpleNamespace
import numpy as np
import pandas as pd
import pytest
import torch
from splade_nb.config.files import read_json, root, write_json
from splade_nb.data.records import Document, Query, toy_corpus
from splade_nb.config.settings import as_dict, off
from splade_nb.config.versions import differences, resolve_quietly
from splade_nb.evaluation import compare, error_analysis, metrics, report, validation
from splade_nb.evaluation.exact_search import Search, exact_search
from splade_nb.evaluation.retrieval import compare_systems, evaluate_queries, search_metrics
from splade_nb.model.counted_terms import join_counted
from splade_nb.training.dataset import prepare


@pytest.fixture(scope='module')
def setup():
    "An untrained model of V29, which begins as a lexical index."
    return prepare(resolve_quietly('v29', scale='mini', hidden=64, layers=1, vocabulary=400), toy_corpus(), 42)


@pytest.fixture(scope='module')
def run(): return report.read_run(root()/'data'/'example_run')


@pytest.mark.parametrize('recipe', ['original', 'earlier', 'corrected'])
def test_the_settings_table_has_what_a_recipe_changes_and_what_was_typed(recipe):
    "As written nothing is changed, and the table has one row: a report with it ended in an error."
    resolved = resolve_quietly('v26', recipe, 'mini', steps=6)
    config = dict(differences=differences('v26', 'mini', changed=recipe, also=['steps']), off=off(resolved), overridden={'steps': 6}, settings=as_dict(resolved))
    table = report.settings_table(SimpleNamespace(config=config, summary=dict(recipe=recipe)))
    whole = resolve_quietly('v26', recipe, 'mini').steps
    assert table.loc['steps'].tolist() == [400, *[whole] * (recipe != 'original'), 6, '', 'overridden for this run']
    assert len(table) == {'original': 1, 'earlier': 7}.get(recipe, len(differences('v26', 'mini')) + (whole == 400))
    assert table['reason'].all() and (table['original'].map(str) != '').all()


def test_advice_needs_no_share_of_languages(run):
    "It is null where no document has a Korean term, as over English texts."
    nothing = replace(run, summary=run.summary | dict(korean=dict.fromkeys(run.summary['korean'])))
    assert not any('noise' in seen for seen in error_analysis.next_steps(nothing)[0].index)


def test_runs_of_one_seed_are_one_seed():
    table = pd.DataFrame(dict(version='v28', recipe='corrected', steps=6, seed=[42, 42], **{'nDCG@10': [0.6, 0.7]}))
    assert compare.spread_of(table) is None and compare.spread_of(table.assign(seed=[42, 43])) == pytest.approx(0.1)


def test_a_single_query_has_its_kind():
    rows = pd.DataFrame({'ndcg@10': [.5]}, index=['q'])
    found = compare_systems(dict(model=rows, bm25=rows), SimpleNamespace(queries={'q': Query('q', '배', kind='travel')}))
    assert [*found['by_kind']] == ['travel']


def test_differences_without_variance_are_judged_by_their_signs():
    "A t-test divides by the variance: two queries that both gain 0.1 had p = 0."
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        few, many = (metrics.paired_difference(np.linspace(0, 0.7, n) + 0.1, np.linspace(0, 0.7, n)) for n in (2, 8))
        none = metrics.paired_difference(np.full(8, 0.5), np.full(8, 0.5))
        together = metrics.pooled([few, few, none])
    assert (few['p'], many['p'], none['p']) == (0.5, 2 ** -7, 1) and together['p'] == 2 ** -3, 'the signs of 2 + 2 queries'
    assert metrics.marked([few]) == ['≈'] == metrics.marked([together]) and metrics.marked([many]) == ['▲']
    assert metrics.pooled([many, {name: value if name == 'p' else -value for name, value in many.items()}])['p'] == 1


def test_the_validation_loss_of_a_perfect_model_is_zero():
    "The other relevant document of a query was a negative: two equal scores gave ln 2."
    settings = resolve_quietly('v28', scale='mini').but(similarity='dot', dot_scale=1.0, temperature=1.0, phases=(), score_limit=0.0)
    scores = {'q': {'배': 50.0, '눈': 50.0, '비': 1.0}}
    def loss(grades, documents=10): return validation.pool_loss(SimpleNamespace(run=lambda: scores), {'q': grades}, settings, documents)
    assert loss({'배': 1, '눈': 1, '비': 0}) == 0 and loss({'배': 1}) == round(float(np.log(2)), 5)
    assert loss({'비': 1, '배': 1}) > 20, 'a document that is not relevant is a negative'
    assert loss({'배': 1, '눈': 1, '비': 1, '꽃': 1}, 4) == 0, 'no negative is left'


def test_a_document_of_signs_is_no_collapse(setup):
    "Of 16 documents two are signs: 12 % dead rows made every criterion void."
    signs = {id: Document(id, id) for id in ('.', '※ …')}
    collection = replace(setup.collection, documents=setup.collection.documents | signs)
    found = evaluate_queries(setup.model, setup.training_data.tokenizer, collection, list(collection.split('test')))
    assert found['statistics'].active[-2:].tolist() == [0, 0] and found['dead_rows'] == 0
    assert metrics.void(dict(found, ndcg=found['metrics']['ndcg@10'])) == ''
    assert metrics.dead_share(np.array([0, 0, 0, 5]), np.array([True, True, False, False])) == 1/2, 'a text that lost its terms counts'


def test_counted_terms_hide_no_collapse(run):
    "The columns of BM25 are there whatever training did."
    setup = prepare(resolve_quietly('v28', scale='mini', hidden=64, layers=1, vocabulary=400), toy_corpus(), 42)
    setup.model.eval()
    settings = setup.settings.but(counted_terms=2 ** 12, counted_weight=0.5, most_document_terms=12, most_query_terms=6)
    model, tokenizer = join_counted(setup.model, setup.training_data.tokenizer, setup.collection.texts.values(), settings)
    ids = list(setup.collection.split('test'))
    well = evaluate_queries(model, tokenizer, setup.collection, ids)
    assert well['dead_rows'] == 0 and 0 < well['learned_terms']['doc'] < well['active_terms']['doc']
    assert 'learned_terms' not in evaluate_queries(setup.model, setup.training_data.tokenizer, setup.collection, ids)
    bias = model.decoder.bias.detach().clone()
    with torch.no_grad(): model.decoder.bias -= 1000
    lost = evaluate_queries(model, tokenizer, setup.collection, ids)
    with torch.no_grad(): model.decoder.bias.copy_(bias)
    assert lost['dead_rows'] == 1 and lost['learned_terms']['doc'] == 0 and lost['active_terms']['doc'] > metrics.FLOORS['doc']
    assert metrics.void(dict(lost, ndcg=0.5)).startswith('collapsed') and metrics.void(dict(well, ndcg=0.5)) == ''
    summary = run.summary | {name: lost[name] for name in ('active_terms', 'learned_terms', 'dead_rows')}
    assert '0.0 terms a document' in report.collapse(summary)
    many = replace(run, config=run.config | dict(settings=run.config['settings'] | dict(counted_terms=2 ** 12)),
                   summary=run.summary | dict(active_terms=dict(query=55.0, doc=157.0), learned_terms=dict(query=12.0, doc=60.0)))
    assert not any('too many terms' in seen for seen in error_analysis.next_steps(many)[0].index)


def typed(command: str) -> dict: return dict(part.split('=', 1) for part in shlex.split(command) if '=' in part)


def test_what_to_try_next_trains_this_run_again_with_one_change(run, tmp_path):
    "They named only what changes: another version, recipe and data set would have been trained, some over the run itself."
    config = run.config | dict(version='v22', recipe='original', data='data/my set', overridden=dict(batch_size=4, lambda_flops=0.3))
    here = replace(run, folder=tmp_path/'outputs'/'v22-43', config=config,
                   summary=run.summary | dict(version='v22', recipe='original', planned_steps=60, active_terms=dict(query=50.0, doc=700.0)))
    rising = replace(here, history=[dict(metrics={'ndcg@10': value}) for value in (.5, .6, .7)])
    cut = replace(here, summary=here.summary | dict(planned_steps=400))
    of_run = dict(VERSION='v22', RECIPE='original', SCALE='mini', DATA='data/my set', SEED='42')
    commands = [typed(command) for one in (rising, cut) for command in error_analysis.next_steps(one)[0]['try'] if command.startswith('make')]
    assert len(commands) == 10 and len({command['OUT'] for command in commands}) == 5
    for command in commands:
        assert command['OUT'].startswith('outputs/v22-43-') and of_run.items() <= (command | dict(SEED='42')).items()
        assert command['SEED'] in ('42', '43') and json.loads(command['SETTINGS'])['batch_size'] == 4, 'what was typed stays'
    assert json.loads(commands[0]['SETTINGS']) == dict(batch_size=4, lambda_flops=0.1) and json.loads(commands[3]['SETTINGS'])['steps'] == 120
    whole = next(command for command in commands if command['OUT'].endswith('-whole'))
    assert 'MAX_STEPS' not in whole and commands[-1]['MAX_STEPS'] == '60' and commands[-1]['SEED'] == '43'


def test_the_source_of_a_run_names_the_data_as_they_were_typed(run):
    summary = run.summary | dict(data=dict(name='facts', hash='01234567'), changed={'phase 1 mix': ['a', 'b']})
    config = dict(data='/data/facts', overridden=dict(steps=60))
    assert "DATA=/data/facts SEED=42 'SETTINGS={\"steps\": 60}'`; data `facts@01234567`" in report.run_source(summary, config=config)
    assert 'DATA=facts' in report.run_source(summary) == report.run_source(summary, config={}), 'a kept summary alone'


def test_sentences_follow_the_marks_of_their_table(run):
    "By its own interval the model was above BM25; beside it stood ≈, after Holm over all systems or kinds."
    close, level = dict(mean=.02, low=.001, high=.039, p=.04), dict(mean=.03, low=-.05, high=.11, p=.5)
    by_kind = {kind: row | dict(difference=close if kind == 'original' else level) for kind, row in run.evaluation['by_kind'].items()}
    many = replace(run, evaluation=run.evaluation | dict(difference=close, differences=dict(bm25=close, bm25_bigrams=level), by_kind=by_kind))
    one = replace(run, evaluation=run.evaluation | dict(difference=close, differences=dict(bm25=close)))
    def said(run): return report.quality_bars(run)[1], report.quality_table(run).loc['BM25', 'nDCG@10, after training minus this'][-1]
    assert 'not distinguishable from BM25' in said(many)[0] and said(many)[1] == '≈'
    assert 'above BM25 by 0.020' in said(one)[0] and said(one)[1] == '▲'
    assert 'more than chance (Holm): 0 of 3' in report.kind_bars(many)[1]
    single = dict(original=by_kind['original'])  # all queries: the same comparison as in the table of the systems
    for whole, level in ((many, 'not distinguishable from BM25'), (one, 'above BM25 by 0.020')):
        assert level in report.kind_bars(replace(whole, evaluation=whole.evaluation | dict(by_kind=single)))[1]
    weakest, = (seen for seen in error_analysis.next_steps(many)[0].index if 'gains least' in seen)
    assert weakest == 'original gains least: 0.020 [0.001, 0.039], not distinguishable from BM25'


def test_one_of_a_kind_is_said_in_the_singular(run):
    alone = dict(original=run.evaluation['by_kind']['original'])
    event = dict(step=30, level='fatal', name='dead_rows', value=.6, message='rows without a term')
    one = replace(run, events=[event], evaluation=run.evaluation | dict(by_kind=alone, differences=dict(bm25=alone['original']['difference'])))
    assert report.kind_bars(one)[1] == 'All 60 queries are of kind original: the model is below BM25 by 0.040 [0.020, 0.060].'
    assert report.guard_timeline(one)[1].endswith('reported 1 fatal event, at step 30: rows without a term.')
    assert error_analysis.guard_log(one)[1] == '1 event: dead_rows 1.' and error_analysis.parent_table(one)[1].endswith('overridden for this run: 1.')
    assert report.summary_table(one).loc['time', ''] == '1.5 minutes of training, its validations included'


def worst(setup, collection, ids: list) -> list:
    search = Search({id: collection.queries[id].text for id in ids})
    exact_search(setup.model, setup.training_data.tokenizer, collection.texts, [search])
    rows = search_metrics(search, collection)
    return error_analysis.worst_queries(dict(model=rows, bm25=rows), setup.model, setup.training_data.tokenizer, search, collection)


def test_the_worst_queries_went_wrong(setup, run):
    "Queries of nDCG@10 1 were listed as if another right document were late, and a query's own text as the best wrong one."
    collection = setup.collection
    texts = dict(list(collection.texts.items())[:2])
    (first, text), (other, _) = texts.items()
    itself = Query(first, text, split='test')
    def asked(*right): return replace(collection, queries={first: itself}, qrels={first: dict.fromkeys(right, 1)})
    twin = Document('zz', text)  # the same words: it comes first among the others
    with_twin = replace(asked('zz', other), documents=collection.documents | {'zz': twin})
    miss, = worst(setup, with_twin, [first])
    assert miss['rank'] == 1 and error_analysis.why(miss)[0] == 'partly' and miss['first']['text'] != miss['right']['text']
    found = worst(setup, replace(with_twin, qrels={first: {'zz': 1}}), [first])
    assert found == [], 'found first but for itself: nothing went wrong'
    every, = worst(setup, replace(collection, documents=dict([*with_twin.documents.items()][1:2]), queries={'q': Query('q', '😀', split='test')}, qrels={'q': {other: 1}}), ['q'])
    assert every['first'] == dict(text='-', score=0.0, terms=[]), 'a right document stood there as the best wrong one'
    well = dict(miss, ndcg=dict(model=1.0, bm25=1.0))
    said = error_analysis.worst_table(replace(run, evaluation=run.evaluation | dict(worst=[well, miss])))
    assert len(said[0]) == 1 and said[1] == 'Worst queries: 1, with another right document ranked late 1; BM25 ranks 0 of them better.'
    assert error_analysis.worst_table(replace(run, evaluation=run.evaluation | dict(worst=[])))[1] == 'No query went wrong: each has nDCG@10 1.'


def test_equal_scores_have_the_rank_that_the_metrics_give_them():
    miss, run = dict(right=dict(score=2.0)), {'눈': 2.0, '비': 2.0}
    assert error_analysis._rank_of(miss, run, {'비': 1}, 100) == 2 and error_analysis._rank_of(miss, run, {'꽃': 1}, 1000) == 'over 1,000'


def test_a_run_that_was_cut_is_no_seed_of_its_version(run, tmp_path):
    "Its nDCG@10 went into the mean, the gains and the bar of the whole runs."
    runs = dict(whole={}, cut=dict(seed=43, planned_steps=400, metrics=run.summary['metrics'] | {'ndcg@10': 0.1}), parent=dict(version='v26'))
    for name, changes in runs.items():
        (tmp_path/name).mkdir()
        write_json(tmp_path/name/'summary.json', run.summary | changes)
    table = compare.compare([tmp_path/name for name in runs])
    assert sorted(table['version']) == ['v26', 'v28', 'v28 max_steps 60'] and len(compare.runs_of(table, 'v28', 'corrected')) == 1
    changed = compare.what_changed(table)[0]
    assert changed.loc['v28', 'nDCG@10, corrected'] == '0.664' and changed.loc['v28 max_steps 60', 'changed'] == 'max_steps 400 → 60'
    assert changed.loc['v28 max_steps 60', 'parent'] == 'v28' and compare.gains(table, 'v28', 'corrected').tolist() == [0]
    assert len(compare.version_bars(table)[0].axes[0].patches) == 3 and compare.spread_of(table) is None


def test_a_run_that_was_validated_once_shows_no_curve(run):
    once, caption = replace(run, history=run.history[:1]), 'was not validated while it trained'
    assert caption in report.history_curve(once)[1] and caption not in report.history_curve(run)[1]


def test_a_broken_run_beside_spoils_no_report(tmp_path):
    "A report looks for V26 in the folders beside; a summary there that was cut short stopped it."
    for name in ('v28', 'broken', 'v26', 'cut'): shutil.copytree(root()/'data'/'example_run', tmp_path/name)
    for name in ('v26', 'cut'): write_json(tmp_path/name/'summary.json', read_json(tmp_path/name/'summary.json') | dict(version='v26'))
    (tmp_path/'broken'/'summary.json').write_text('{"version": "v2')
    (tmp_path/'cut'/'evaluation.json').write_text('{}')
    v28 = report.read_run(tmp_path/'v28')
    assert report.unfiltered(v28).folder.name == 'v26' and 'V26' in report.criteria_table(v28, report.unfiltered(v28))
    shutil.rmtree(tmp_path/'v26')
    assert report.unfiltered(v28) is None

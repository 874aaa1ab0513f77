"""What reports say of a run: their sentences agree with their tables, their commands with the run."""
import warnings
from dataclasses import replace
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from splade_nb.config.files import root
from splade_nb.config.versions import resolve_quietly
from splade_nb.data.records import Document, toy_corpus
from splade_nb.evaluation import error_analysis, metrics, report, validation
from splade_nb.evaluation.retrieval import evaluate_queries
from splade_nb.model.counted_terms import join_counted
from splade_nb.training.dataset import prepare


@pytest.fixture(scope='module')
def setup():
    "An untrained model of V29, which begins as a lexical index."
    return prepare(resolve_quietly('v29', scale='mini', hidden=64, layers=1, vocabulary=400), toy_corpus(), 42)


@pytest.fixture(scope='module')
def run(): return report.read_run(root()/'data'/'example_run')


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

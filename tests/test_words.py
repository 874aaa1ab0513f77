"""What tables say: the floor beside every figure, marks corrected over a table, the commit of each result."""
import re, subprocess, sys
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from conftest import ROOT, real, tracked
from splade_nb.data.readers import load
from splade_nb.data.records import toy_corpus
from splade_nb.evaluation.metrics import index_bytes, marked, paired_difference
from splade_nb.data.bm25 import BM25
from splade_nb.config import files
from splade_nb.config.files import revision
from splade_nb.evaluation.retrieval import baselines, compare_systems, index_facts
from splade_nb.lab.study import known_baselines, revision_of

sys.path += [str(ROOT/'docs'), str(ROOT/'benchmarks')]
import readme_table
import report_html
import versions_page

FLOOR = {'tydiqa_ko_goldp': 84.3, 'question_pair': 47.4, 'ko_strategyqa_facts': 83.4, 'techdocs_ko': 47.7, 'parakqc': 84.2}


@pytest.mark.parametrize('name', FLOOR)
def test_the_kept_floor_is_the_published_one(name):
    found = known_baselines()[name]['splits']
    part = found.get('test') or found['all']
    assert 100 * part['bm25_bigrams']['ndcg@10']['mean'] == pytest.approx(FLOOR[name], abs=0.15)


def test_the_kept_bm25_is_whole():
    "Every figure of both BM25 on every split, of which revision, and apart what an earlier one measured."
    for name, kept in known_baselines().items():
        assert re.fullmatch('[0-9a-f]{7,}', kept['revision']) and kept['date'] and kept['data'] == {name: kept['hash']} and '--baselines' in kept['command'], name
        assert {tuple(each) for each in kept['index'].values()} == {('terms', 'bytes')}, name
        for part in [part for each in (kept, *kept.get('earlier', ())) for part in each['splits'].values()]:
            assert len(part['gains'].split()) == part['queries'] and {*part['difference']} >= {'mean', 'low', 'high', 'p'}, name
            assert all({*part[system]} >= {'ndcg@10', 'success@1', 'recall@1', 'recall@10', 'mrr@10'} for system in ('bm25', 'bm25_bigrams')), name
        assert all(each['revision'] and set(each['splits']) == set(kept['splits']) for each in kept.get('earlier', ())), name


@pytest.mark.slow
def test_the_kept_bm25_is_what_the_code_gives():
    "Else: python docs/readme_table.py --baselines DATA ..., in a clean checkout."
    collection = load(str(real('data/question_pair')))
    found, _ = readme_table.both_bm25(collection, list(collection.split('test')))
    kept = known_baselines()['question_pair']
    assert collection.hash == kept['hash'] and found['gains'] == kept['splits']['test']['gains']
    assert found['bm25']['ndcg@10']['mean'] == pytest.approx(kept['splits']['test']['bm25']['ndcg@10']['mean'], abs=1e-6)


def test_an_evaluation_holds_both_bm25_and_a_difference_to_each():
    collection = toy_corpus()
    ids = list(collection.split('test'))
    words, terms = baselines(collection, ids)
    found = compare_systems(dict(model=words['bm25'], before_training=words['bm25_bigrams'], **words), collection)
    assert set(found['systems']) == {'model', 'before_training', 'bm25', 'bm25_bigrams'}
    assert found['difference'] == found['differences']['bm25'] and found['differences']['bm25']['mean'] == 0
    assert set(found['differences']) == {'before_training', 'bm25', 'bm25_bigrams'}
    index = index_facts(terms, len(collection.texts))
    assert index['bm25']['bytes'] == 8 * BM25(collection.texts).entries < index['bm25_bigrams']['bytes']


def test_marks_are_corrected_over_the_table():
    rng = np.random.default_rng(0)
    gains = [rng.normal(0.2, 1, 150) for _ in range(20)]
    differences = [paired_difference(one, np.zeros(150)) for one in gains]
    alone, together = [marked([one])[0] for one in differences], marked(differences)
    assert alone.count('▲') > together.count('▲') > 0 and all(one == '▲' for one, both in zip(alone, together) if both == '▲')


def test_every_kept_result_names_its_commit():
    other = {'evaluation.json', 'revisions.json', 'published.json'}
    results = [path for folder in ('docs', 'benchmarks') for path in tracked(f'{folder}/results/**/*.json') if path.name not in other]
    assert [path for path in results if revision_of(path) == '-'] == []
    assert re.match('[0-9a-f]{7}|[0-9]', revision())


@pytest.mark.parametrize('name', ['docs/results.md', 'docs/results_ko.md'])
def test_the_embedded_set_does_not_lead(name):
    block = (ROOT/name).read_text(encoding='utf-8').split(readme_table.BEGIN)[1].split(readme_table.END)[0]
    assert block.index('ko_strategyqa_facts') < block.index('`mini`')


@pytest.mark.parametrize('name, unseen', [('README.md', 'unseen collections'), ('README.ko.md', '본 적 없는')])
def test_unseen_collections_lead_the_first_page(name, unseen):
    block = (ROOT/name).read_text(encoding='utf-8').split(readme_table.BEGIN)[1].split(readme_table.END)[0]
    found, source, collections = readme_table.unseen_table()
    assert unseen in block.splitlines()[1] and 'mini' not in block and len(found) == len(readme_table.ROWS)
    assert all(value in block for value in found['mean']) and all(f'`{each}@' in source for each in collections)
    points = re.search(r'[+-]\d+\.\d \[.+?\]', block.splitlines()[1])[0]
    assert points == found.set_index('system')['points']['**one index**'], 'the sentence and the table are of one result'


def test_no_page_says_that_test_queries_were_judged_once():
    pages = [ROOT/'docs'/'results.md', ROOT/'README.md', *tracked('nbs/studies/*.ipynb')]
    assert [path.name for path in pages if re.search('judged once', path.read_text(encoding='utf-8'), re.IGNORECASE)] == []


def test_a_run_kept_before_the_bigram_field_takes_it_from_the_baselines():
    runs = readme_table.kept()
    assert runs['BM25 + bigrams'].notna().all() and runs['documents'].notna().all() and (runs['of'] != '-').all()
    one = runs[runs['data'] == 'mini'].iloc[0]
    assert readme_table.megabytes(one['active doc'], one['documents']) == f'{index_bytes(one["active doc"], one["documents"]) / 1e6:.2f}'
    assert readme_table.megabytes(1.0, float('nan')) == '-'


@pytest.mark.slow
def test_the_page_of_versions_is_what_the_results_say():
    for path, text in versions_page.contents().items(): assert path.read_text(encoding='utf-8') == text, f'{path.name}: run docs/versions_page.py'


def test_both_pages_of_versions_have_the_same_numbers():
    english, korean = (re.findall(r'\d+\.\d+', (versions_page.DOCS/versions_page.TEXT[language]['file']).read_text(encoding='utf-8')) for language in ('en', 'ko'))
    assert len(english) > 50 and english == korean


def test_no_picture_needs_the_fonts_of_its_reader():
    "Another font than the one it was laid out in is wider, and labels are cut off at the edge."
    assert [path.name for path in tracked('docs/*.svg') if '<text' in path.read_text(encoding='utf-8')] == []


@pytest.mark.parametrize('rows, told', [
    ('[{"task": "Ko", "ndcg_at_10": 0.5}, {"task": "Law", "ndcg_at_10": 0.7}]', 'Evaluate: outputs/v28: nDCG@10 0.600'),
    ('[{"system": "a", "ndcg@10": 0.5}, {"system": "b", "ndcg@10": 0.7}]', 'Evaluate: outputs/v28: nDCG@10 0.700 (b, highest of 2)'),
    ('done', 'Evaluate: outputs/v28')])
def test_a_report_is_titled_by_what_was_run_and_the_result(rows, told):
    summary = new_code_cell('...', id='summary', outputs=[new_output('stream', name='stdout', text=rows)])
    notebook = new_notebook(cells=[new_markdown_cell('# Evaluate\n\n> A model.'), summary], metadata=dict(papermill=dict(parameters=dict(model='outputs/v28', out='x'))))
    assert report_html.found_title(notebook) == told


def test_a_copy_without_git_names_the_revision_that_it_was_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(files, 'root', lambda: tmp_path)
    without = files.revision()
    (tmp_path/'REVISION').write_text('abc1234\n')
    assert files.revision() == 'abc1234' != without


def test_results_that_a_measurement_writes_do_not_change_the_revision_of_its_code(tmp_path, monkeypatch):
    def git(*words): subprocess.run(['git', '-C', tmp_path, '-c', 'user.name=a', '-c', 'user.email=a@b.c', *words], check=True, capture_output=True)
    for name in ('code.py', 'docs/results/a.json', 'docs/page.md'):
        (tmp_path/name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path/name).write_text('1')
    git('init'); git('add', '.'); git('commit', '-m', 'first')
    monkeypatch.setattr(files, 'root', lambda: tmp_path)
    clean = files.revision()
    (tmp_path/'docs/results/a.json').write_text('2')
    assert files.revision() == clean and 'dirty' not in clean
    (tmp_path/'docs/page.md').write_text('2')
    assert files.revision() == f'{clean}-dirty'

"""Studies: what a notebook shows is what running it on the kept results gives, and what is missing is measured."""
import ast, json, lzma, shutil
import numpy as np
import pytest
from conftest import NOTEBOOKS, ROOT, name, read, run_cells, text
from splade_nb.config import versions
from splade_nb.config.files import ConfigError, read_json, write_json
from splade_nb.data.records import toy_corpus

STUDIES = [notebook for notebook in NOTEBOOKS if notebook.parent.name == 'studies']
EXAMPLE = ROOT/'data'/'example_run'


def markdown_of(notebook, monkeypatch) -> dict:  # cell -> the Markdown that it shows
    "Runs the cells in this process; the value of a last expression counts as shown."
    from IPython.display import Markdown
    names, shown = {}, {}
    for cell in (cell for cell in read(notebook)['cells'] if cell['cell_type'] == 'code'):
        found, body = [], ast.parse(text(cell)).body
        monkeypatch.setattr('IPython.display.display', lambda *values: found.extend(values))
        last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), cell['id'], 'exec'), names)
        if last: found.append(eval(compile(last, cell['id'], 'eval'), names))
        shown[cell['id']] = [value.data.strip() for value in found if isinstance(value, Markdown)]
    return shown


@pytest.mark.slow
@pytest.mark.parametrize('notebook', STUDIES, ids=name)
def test_a_study_shows_what_its_results_say(notebook, monkeypatch):
    kept = {cell['id']: [''.join(output['data']['text/markdown']).strip() for output in cell['outputs']
                         if 'text/markdown' in output.get('data', {})] for cell in read(notebook)['cells'] if cell['cell_type'] == 'code'}
    assert any(kept.values()) and markdown_of(notebook, monkeypatch) == kept, 'run the notebook again and commit its outputs'


# Measuring, on made data

def write_beir(folder, splits=('train', 'test')):
    toy = toy_corpus()
    folder.mkdir()
    lines = lambda rows: ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    (folder/'corpus.jsonl').write_text(lines(dict(_id=d.id, title=d.title, text=d.text) for d in toy.documents.values()), encoding='utf-8')
    (folder/'queries.jsonl').write_text(lines(dict(_id=q.id, text=q.text) for q in toy.queries.values()), encoding='utf-8')
    for split in splits:
        rows = [f'{query}\t{document}\t{score}' for query in toy.split(split) for document, score in toy.qrels[query].items()]
        (folder/f'qrels_{split}.tsv').write_text('\n'.join(['query-id\tcorpus-id\tscore', *rows]) + '\n', encoding='utf-8')
    return str(folder)


@pytest.fixture
def small(monkeypatch):
    "Models of a few tokens."
    of = versions.resolve_quietly
    monkeypatch.setattr(versions, 'resolve_quietly', lambda *a, **k: of(*a, **dict(
        scale='mini', hidden=32, layers=1, vocabulary=300, batch_size=8, accumulation=1, bm25_negatives=0) | k))


@pytest.mark.slow
def test_variants_are_trained_judged_and_cut(tmp_path, small):
    source, other = write_beir(tmp_path/'taught'), write_beir(tmp_path/'new', splits=('test',))
    variant = {'short': {'steps': 2}, 'averaged': {'steps': 2, 'weight_averaging': [0.0, 0.5]}}
    given = dict(data=source, test=f'{source},{other}', variants=variant, seeds='42', measure=True,
                 models=str(tmp_path/'models'), results=str(tmp_path/'kept'))
    study = run_cells('studies/training.ipynb', **given)
    record = read_json(tmp_path/'kept'/'train-splade_ko-averaged-42.json')
    assert record['steps'] == 2 and set(record['shares']) == {'0.0', '0.5'} and list(record['data']) == ['taught']
    assert [(row['collection'], row['split']) for row in record['found']] == [('taught', 'dev'), ('taught', 'test'), ('new', 'all')]
    assert [row['split'] for row in record['untrained']] == ['test', 'all'] and record['revision']
    frame = study['test_frame'](study['JUDGED'][0])
    assert list(frame.index) == ['taught', 'new'] and frame['untrained'].notna().all() and frame['bigrams'].isna().all()
    before = (tmp_path/'kept'/'train-splade_ko-averaged-42.json').read_bytes()
    run_cells('studies/training.ipynb', **given)
    assert (tmp_path/'kept'/'train-splade_ko-averaged-42.json').read_bytes() == before, 'measured once'

    cut = run_cells('studies/pruning.ipynb', models=str(tmp_path/'models'/'short-42'), data=source, results=str(tmp_path/'cut'), measure=True)
    found = cut['RECORDS']['short-42']['found']['taught']
    assert found['weight, 20']['terms'] <= 20 < found['whole']['terms'] and len(found) == 1 + 2 * len(cut['KEPT_TERMS'])

    study = run_cells('studies/terms.ipynb', models=str(tmp_path/'models'/'short-42'), data=source, learn=source, seeds='1', steps=2,
                      work=str(tmp_path/'work'), results=str(tmp_path/'terms'), measure=True)
    record = read_json(tmp_path/'terms'/'short-42'/'taught.json')
    terms = {name: one['terms'] for name, one in record['found'].items()}
    assert terms['all'] == pytest.approx(sum(record['terms'].values())) and terms['tokens'] == record['terms']['tokens'] > 0
    assert 0 < record['terms']['bigrams'] == pytest.approx(terms['all'] - terms['without bigrams'])
    assert study['overall']['tokens']['mean'] == pytest.approx(study['ndcg']('tokens', 'taught').mean() - study['ndcg']('all', 'taught').mean())


@pytest.mark.slow
def test_the_study_of_searches_measures_every_system(tmp_path, small):
    pytest.importorskip('mecab')
    source = write_beir(tmp_path/'few')
    given = dict(data=source, seeds='42', steps=2, measure=True, timed=2, models=str(tmp_path/'models'), results=str(tmp_path/'kept'))
    study = run_cells('studies/searches.ipynb', **given)
    record = read_json(tmp_path/'kept'/'few-42.json')
    assert set(record['systems']) == set(study['SYSTEMS']) and record['queries'] == len(study['values_of']('nori'))
    assert all(each['ms'] > 0 and each['bytes'] > 0 for each in record['systems'].values())
    assert record['systems']['splade_ko']['bytes'] > record['systems']['Kiwi']['bytes']


@pytest.mark.slow
def test_the_study_of_scale_learns_from_triplets_and_judges_elsewhere(tmp_path, small):
    toy, made = toy_corpus(), tmp_path/'made'/'v24.0'
    made.mkdir(parents=True)
    rows = [(query, document) for query in toy.split('train') for document in toy.qrels[query]]
    lines = [json.dumps(dict(query=toy.queries[query].text, positive=toy.texts[document], pair_type='original',
                             negative=next(text for id, text in toy.texts.items() if id != document))) for query, document in rows]
    for file in ('train_toy', 'val'): (made/f'{file}.jsonl').write_text('\n'.join(lines if file == 'train_toy' else lines[:2]), encoding='utf-8')
    source = write_beir(tmp_path/'new', splits=('test',))
    given = dict(data=source, triplets=str(tmp_path/'made'), sizes='10,0', versions='splade_v2', counted='10',
                 variants={'colder': {'version': 'splade_v2', 'temperature': 0.5}}, seeds='1', steps=2, epochs=0.1,
                 work=str(tmp_path/'work'), results=str(tmp_path/'kept'), measure=True)
    study = run_cells('studies/scale.ipynb', **given)
    some, all_of_them = (read_json(tmp_path/'kept'/'near_identity'/f'{size}-splade_v2-1.json') for size in ('10', 'all'))
    assert some['triplets'] < all_of_them['triplets'] and some['facts']['steps'] == all_of_them['facts']['steps'] == 2
    assert [*some['found']['trained']] == ['new'] == [*some['data']] and 'new' not in some['learned_from']
    assert len(study['MEASURED']) == 3 and study['numbers'] == [some['triplets'], all_of_them['triplets']]
    counted = read_json(tmp_path/'kept'/'counted'/'10-1.json')
    assert [*counted['found']] == ['untrained'] and counted['triplets'] == some['triplets'] and counted['facts']['steps'] == 0 < counted['facts']['pairs']
    assert study['FORECASTS'] == [('splade_v2', 'untrained'), ('splade_v2', 'trained')], 'of one number there is no slope'
    assert [*study['measured_at']('splade_ko', 'untrained')] == [counted['triplets']]
    variant = ('colder', 'near_identity', some['triplets'])
    assert study['reference'](variant) == ('splade_v2', *variant[1:]) and ('reference', 'splade_v2') not in {(over, row[0]) for row, over in study['COMPARED']}
    assert study['before_training'](variant)['mean'] == 0, 'the same model before its first step'
    alone, other = study['with_reference']('trained', variant, 'new'), dict(some['found']['trained']['new'], ndcg='0')
    study['records'].append(dict(some, seed=2, found={'trained': {'new': other}}))
    assert np.array_equal(study['with_reference']('trained', variant, 'new'), alone), 'of the seeds that both have'
    assert (variant, 'reference', 'new') in study['gains'] and study['of'](*variant)[0]['changes']['temperature'] == 0.5
    assert len(study['values'](study['known']['found']['kiwi']['new'])) == len(toy_corpus().split('test'))
    own = run_cells('studies/scale.ipynb', **{**given, 'data': write_beir(tmp_path/'own'), 'results': str(tmp_path/'none'), 'measure': False})
    found = own['run_calibration']('near_identity', 0.0)['found']
    assert [*found] == ['own'] and 0 < len(own['values'](found['own'])) < len(toy_corpus().split('train')), 'development queries alone'
    assert own['calibration_row'](dict(start='30M', calibration=4.0, found=found))['calibration'] == '4'


@pytest.mark.slow
def test_the_study_of_labels_counts_and_trains_apart(tmp_path, small):
    source = write_beir(tmp_path/'own')
    given = dict(data=source, sizes='0,5,1000', seeds='1,2', steps=2, models=str(tmp_path/'work'), results=str(tmp_path/'kept'), measure=True)
    study = run_cells('studies/labels.ipynb', systems='counted', **{**given, 'sizes': '0,5,10,1000'})
    assert [*study['parts']()] == [f'counted/own-{number}-{seed}' for seed in (1, 2) for number in (0, 5, 10)], 'no part with more labels than there are'
    assert [key for key, forecast in study['forecasts'].items() if forecast] == [('counted', 'own')]
    assert read_json(tmp_path/'kept'/'counted'/'own-0-1.json')['facts']['pairs'] == 0
    assert [key[:2] for key in study['gains']] == [('counted', 0), ('counted', 5), ('counted', 10)] and not (tmp_path/'kept'/'trained').exists()
    study = run_cells('studies/labels.ipynb', systems='trained', **{**given, 'seeds': '2'})
    assert [*study['parts']()] == ['trained/own-5-2'], 'nothing is trained without a label'
    kept = read_json(tmp_path/'kept'/'trained'/'own-5-2.json')
    assert kept['facts']['steps'] == 2 and 'trained' in kept['found'] and 'counted' not in kept['found']
    both = study['paired_difference'](study['ndcg']('trained', 'own', 5, {2}), study['ndcg']('counted', 'own', 5, {2}))
    assert study['gains']['trained', 5, 'own'] == both, 'of the seed that both have'


@pytest.mark.slow
def test_the_study_of_english_questions_learns_from_the_other_collection(tmp_path, small):
    (tmp_path/'texts.txt').write_text('자동 장애 조치(failover)를 켠다\n쓰기 잠금(write lock)을 푼다\n', encoding='utf-8')
    given = dict(data=f'{write_beir(tmp_path/"one")},{write_beir(tmp_path/"other")}', texts=str(tmp_path/'texts.txt'), seeds='1', steps=2, work=str(tmp_path/'work'), results=str(tmp_path/'kept'), measure=True)
    study = run_cells('studies/english.ipynb', **given)
    assert len(study['parts']()) == 2 * len(study['SYSTEMS']) == len(study['records'])
    facts = {system: read_json(tmp_path/'kept'/system/'one-1.json')['facts'] for system in study['SYSTEMS']}
    assert [facts[system]['pairs'] for system in ('without_keys', 'own')] == [0, 0] and 0 < facts['other']['pairs'] < facts['in_domain']['pairs']
    assert facts['glossary']['pairs'] == 2 and facts['both']['pairs'] == facts['other']['pairs'] + 2
    assert {system for system in facts if facts[system]['steps']} == {'trained', 'aligned', 'v31'} and facts['v31']['steps'] == 2
    assert set(study['gains']) == {(system, name) for system in study['COMPARED'] for name in ('one', 'other')}


@pytest.mark.slow
def test_copies_of_a_pretrained_backbone_are_starts(tmp_path):
    for name in ('10M', '3M', '0.5M'): (tmp_path/'kept'/name).mkdir(parents=True)
    (tmp_path/'model').mkdir()
    (tmp_path/'model'/'pretraining.json').write_text('{"planned_tokens": 15000000}')
    study = run_cells('studies/scale.ipynb', pretrained=str(tmp_path), sizes='10', versions='v28', variants={}, seeds='1,2')
    assert [start for start, *_ in study['parts']().values()] == ['near_identity', '0.5M', '3M', '10M', '15M'] * 2, 'a first seed of all'
    assert study['settings_of']('v28', '3M', 10).backbone == str(tmp_path/'kept'/'3M')
    assert [study['tokens'](start) for start in ('near_identity', '0.5M')] == [0, 0.5]
    tried = [*study['calibration_parts']().values()]
    assert tried[0] == ('near_identity', 0.0) and len(tried) == 1 + 4 * 4 and study['settings_of']('splade_ko', '3M', 10).calibration == 5.0
    assert study['settings_of']('v28', '3M', 10).calibration == 0, 'only where a minimum logit keeps the tokens of a text'


@pytest.fixture(scope='module')
def study(): return run_cells('studies/training.ipynb')


@pytest.mark.slow
def test_untrained_models_of_one_preparation_stand_together(study):
    assert study['before_training']({'steps': 3, 'keep_start': '[0.5]', 'translate': '0'}) == {'model1_threshold': '0'}
    runs = [run for group in study['GROUPS'] for run in group]
    prepared = {(str(sorted(study['before_training'](run['changes']).items())), run['seed'],
                 tuple(row['collection'] for row in run['start'])) for run in runs}
    shown = [(str(sorted(run['changes'].items())), run['seed']) for group in study['untrained_groups']() for run in group]
    assert len(shown) == len(set(prepared)) < len(runs), 'each preparation and seed once'


def test_two_tables_of_terms_make_one_collection(tmp_path):
    for file, row in (('one', '위치\tplace\t.'), ('other', '가격\tprice\t.')):
        (tmp_path/f'{file}.tsv').write_text(row, encoding='utf-8')
    write = run_cells('studies/english.ipynb')['write_english_questions']
    write(sorted(tmp_path.glob('*.tsv')), tmp_path/'out')
    corpus = (tmp_path/'out'/'corpus.jsonl').read_text(encoding='utf-8')
    assert [json.loads(line)['text'] for line in corpus.splitlines()] == ['위치', '가격']


@pytest.mark.slow
def test_lines_of_parallel_text_end_with_the_test_split(tmp_path):
    for file, korean, english in (('dev', '어디입니까', 'Where is it'), ('eval', '얼마입니까', 'How much is it')):
        (tmp_path/f'{file}.ko').write_text(korean, encoding='utf-8')
        (tmp_path/f'{file}.en').write_text(english, encoding='utf-8')
    write = run_cells('studies/english.ipynb')['write_english_questions']
    assert write([tmp_path/'dev.ko', tmp_path/'eval.ko'], tmp_path/'out') == {'train': 1, 'test': 1}
    assert 'q1\td1\t1' in (tmp_path/'out'/'qrels_test.tsv').read_text(encoding='utf-8')


def test_full_scale_measures_and_leaves_out_what_is_not_public(tmp_path, capsys):
    source = write_beir(tmp_path/'taught')
    study = run_cells('studies/full_scale.ipynb', collections=source, dense='', out=str(tmp_path/'full'), results=str(tmp_path/'kept'), measure=True)
    assert study['measured'] == [] and (tmp_path/'full'/'taught'/'bm25_bigrams.json').exists()
    assert 'left out, no public collection: taught, bm25' in capsys.readouterr().out


@pytest.mark.parametrize('notebook', STUDIES, ids=name)
def test_values_joined_by_commas_are_read_by_one_function(notebook):
    "`papermill -p seeds 3` gives a number, which has no `split`."
    cells = [text(cell) for cell in read(notebook)['cells'] if cell['cell_type'] == 'code']
    assert not [cell for cell in cells if ".split(','" in cell], 'use config.files.listed'


@pytest.mark.slow
def test_a_list_of_one_may_be_a_number():
    given = dict(sizes=10_000, seeds=3, versions='v28', variants={})
    assert [*run_cells('studies/scale.ipynb', **given)['parts']()] == ['near_identity/10000-v28-3']


@pytest.mark.slow
def test_the_study_of_one_index_judges_a_model_and_its_parts(tmp_path, tiny_encoder):
    from splade_nb.experiment import fit
    pytest.importorskip('mecab')
    source = write_beir(tmp_path/'few')
    fit(str(source), tmp_path/'own', dict(backbone=tiny_encoder, max_length=48, initial_terms=20, counted_terms=1024))
    shutil.copytree(EXAMPLE, other := tmp_path/'other')
    write_json(other/'config.json', dict(version='v28', recipe='corrected', scale='mini', data='mini', seed=42, overridden={}) | read_json(EXAMPLE/'config.json'))
    given = dict(models=str(tmp_path/'own'), tried=str(other), english=str(source), collections=str(source), encoder=tiny_encoder, results=str(tmp_path/'kept'))
    study = run_cells('studies/one_index.ipynb', **given, measure=True)
    [name], [run] = study['beside'], study['tries']
    history = read_json(EXAMPLE/'training_history.json')
    assert [row['ndcg'] for row in run['validations']] == [row['metrics']['ndcg@10'] for row in history]
    assert study['tried_row'](run)['after'] == study['percent'](history[-1]['metrics']['ndcg@10'])
    assert set(study['beside'][name]['found'][name]) == {*study['LEXICAL'], 'dense', 'hybrid'}
    record = read_json(tmp_path/'kept'/'own'/f'{name}.json')
    assert set(record['found'][name]) == {'model', 'model_hybrid', 'learned', 'counted'} and record['weight'] == 2.0
    own, floor = study['values']('model', name, 'own').mean(), max(study['values'](system, name).mean() for system in study['LEXICAL'])
    assert study['GAINS']['unseen', 'model', 'own']['mean'] == pytest.approx(own - floor)
    assert study['values']('counted', name, 'own').mean() == pytest.approx(study['values']('kiwi+bigrams', name).mean(), abs=0.1)
    assert study['english_row']('model', 'own')['ndcg@10'] == study['percent'](own) and study['owners'] == ['own']
    before = (tmp_path/'kept'/'own'/f'{name}.json').read_bytes()
    run_cells('studies/one_index.ipynb', **given, measure=True)
    assert (tmp_path/'kept'/'own'/f'{name}.json').read_bytes() == before, 'measured once'
    write_json(tmp_path/'own'/'config.json', dict(data=str(source), seed=42))
    left_out, record = study['left_out'](tmp_path/'own'), study['run_model'](tmp_path/'own', study['load_collection'](str(source)))
    assert left_out[name] and {*left_out[name]} <= {*study['load_collection'](str(source)).split('train')}
    assert [*record['tried']] == [f'{weight:g}' for weight in study['COUNTED_WEIGHTS']] and {len(values.split()) for values in record['tried'].values()} == {len(left_out[name])}
    assert study['run_left_out'](tmp_path/'own', [name])['sources'] == {}, 'it is judged'
    [(_, apart)] = study['run_left_out'](tmp_path/'own', [])['sources'].items()
    assert apart['tried'] == record['tried'], 'all of its documents are searched in both'
    (tmp_path/'kept'/'own').rename(tmp_path/'kept'/'released')
    ways = run_cells('studies/ways.ipynb', collections=str(source), encoder=tiny_encoder, settings='{"max_length": 48, "initial_terms": 20, "counted_terms": 1024}',
                     work=str(tmp_path/'work'), index=str(tmp_path/'kept'), results=str(tmp_path/'ways'), measure=True)
    assert ways['names'] == [name] and ways['cell']('trained', name) == ('not judged', 'not judged'), 'the trained models have not seen it'
    assert ways['values']('fitted', name).mean() == pytest.approx(own) == ways['values']('released', name).mean(), 'the same texts give the same model'
    assert [row['way'] for row in ways['cost_rows'](name)] == ['as released', 'fitted to the texts']
    assert ways['gains']['fitted', name]['mean'] == pytest.approx(own - floor)

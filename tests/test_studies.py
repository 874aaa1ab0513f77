"""Studies: what a notebook shows is what running it on the kept results gives, and what is missing is measured."""
import ast, json, shutil
import pytest
from conftest import NOTEBOOKS, ROOT, name, read, run_cells, text
from splade_nb.config.files import read_json, write_json
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


@pytest.mark.slow
def test_the_study_of_searches_measures_every_system(tmp_path):
    pytest.importorskip('mecab')
    source = write_beir(tmp_path/'few')
    given = dict(data=source, measure=True, timed=2, results=str(tmp_path/'kept'))
    study = run_cells('studies/searches.ipynb', **given)
    record = read_json(tmp_path/'kept'/'few.json')
    assert set(record['systems']) == set(study['SYSTEMS']) and record['queries'] == len(study['values_of']('nori'))
    assert all(each['ms'] > 0 and each['bytes'] > 0 for each in record['systems'].values())
    assert record['systems']['one index']['bytes'] > record['systems']['Kiwi']['bytes']


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
def test_the_study_of_one_index_judges_a_model_and_its_parts(tmp_path, tiny_encoder):
    from splade_nb.experiment import fit
    pytest.importorskip('mecab')
    source = write_beir(tmp_path/'few')
    fit(str(source), tmp_path/'own', dict(backbone=tiny_encoder, max_length=48, initial_terms=20, counted_terms=1024))
    shutil.copytree(EXAMPLE, other := tmp_path/'other')
    write_json(other/'config.json', dict(version='v28', recipe='corrected', scale='mini', data='mini', seed=42, overridden={}) | read_json(EXAMPLE/'config.json'))
    given = dict(models=str(tmp_path/'own'), tried=str(other), english=str(source), typed=str(source), collections=str(source), encoder=tiny_encoder, results=str(tmp_path/'kept'))
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
    spaced = study['typed_values']('model', 'own', name, 'no_spaces')
    assert len(spaced) == len(study['values']('model', name, 'own')) and study['TYPED']['by_ear']('거기 있는 돼지') == '거기 잇는 돼지'
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
    assert ways['names'] == [name] and ways['cell']('trained', name) == 'not judged', 'the trained models have not seen it'
    assert ways['values']('fitted', name).mean() == pytest.approx(own) == ways['values']('released', name).mean(), 'the same texts give the same model'
    assert [row['way'] for row in ways['cost_rows'](name)] == ['as released', 'fitted to the texts']
    assert ways['gains']['fitted', name]['mean'] == pytest.approx(own - floor)

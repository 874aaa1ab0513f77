"""The tuning guide: only symptoms that were produced, only settings that exist, only words that the design document has."""
from dataclasses import replace
import pytest
from conftest import ROOT, read, real, run_cells, text
from splade_nb.config.files import ConfigError, read_json
from splade_nb.config.settings import as_dict

STUDY = 'studies/tuning.ipynb'


@pytest.fixture(scope='module')
def study(): return run_cells(STUDY)


@pytest.fixture(scope='module')
def cases(study): return list(study['CASES'].values())


def test_settings_exist_and_change_something(study, cases):
    assert len(cases) > 20
    for case in cases:
        every = [as_dict(study['settings_of'](case, changes)) for changes in study['variants'](case)]
        assert [every.index(settings) for settings in every] == list(range(len(every))), case.name
        with pytest.raises(ConfigError): study['settings_of'](case, dict(lambda_flop=1.0))


def test_each_symptom_was_produced_in_every_seed(study, cases):
    for case in filter(study['sides'], cases):
        (_, _, before), *tries = study['sides'](case)
        assert before and all(len(runs) == len(before) for _, _, runs in tries), case.name
        assert [found[case.measure] for found in before if not study['shows'](case, found)] == [], case.name
        verdicts = {study['verdict'](case, before, runs) for _, _, runs in tries}
        assert verdicts <= {'helped', 'helped but cost', 'eased it', 'did not help'}, case.name


def test_each_symptom_has_its_section(study, cases):
    cells = read(ROOT/'nbs'/STUDY)['cells']
    for case in filter(study['sides'], cases):
        place = next(place for place, cell in enumerate(cells) if text(cell).startswith(f'### {case.symptom}\n'))
        shown = ''.join(cells[place + 1]['outputs'][0]['data']['text/markdown'])
        assert study['MEASURES'][case.measure] in shown and shown.count('\n| ') == 2 + len(study['variants'](case)), case.name


def test_every_line_of_the_design_document_was_tried():
    seed = real('seeds/2-losses.md').read_text(encoding='utf-8')
    rows = [line.strip('| \n') for line in seed.split('## 10.')[1].splitlines() if line.startswith('| ') and '|------' not in line][1:]
    quoted = [line[2:] for cell in read(ROOT/'nbs'/STUDY)['cells'] if cell['id'].startswith('h-')
              for line in text(cell).splitlines() if line.startswith('> ')]
    assert sorted(rows) == sorted(quoted)


def run(**numbers): return dict(dict(dead=0.0, ndcg=0.5), **numbers)


@pytest.mark.parametrize('after, said', [
    (run(), 'helped'), (run(ndcg=0.4), 'helped but cost'), (run(dead=0.6), 'eased it'), (run(dead=0.9), 'did not help'), (run(dead=1.0, ndcg=0.9), 'did not help')])
def test_verdicts(after, said, study, cases):
    case = replace(cases[0], measure='dead', sign='>', limit=0.25)
    assert study['verdict'](case, [run(dead=1.0)] * 3, [after] * 3) == said
    assert study['verdict'](case, [run(dead=1.0)] * 3, [after, after, run(dead=1.0)]) == 'did not help'


@pytest.mark.slow
def test_a_case_is_measured_once(tmp_path):
    given = dict(results=str(tmp_path), measure=True, seeds='42', cases='accumulation')
    case = run_cells(STUDY, **given)['CASES']['accumulation']
    kept = read_json(tmp_path/'accumulation.json')
    assert len(kept['runs']) == 1 + len(case.tries) and kept['revision'] and (tmp_path/'collection.json').exists()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = run_cells(STUDY, **given)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before == {name: before[name] for name in ('accumulation.json', 'collection.json')}
    found = again['sides'](case)[0][2][0]
    assert found['seen'] == pytest.approx(0.25) and found['steps'] == 24

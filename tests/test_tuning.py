"""The tuning guide: only symptoms that were produced, only settings that exist, only words that the design document has."""
import sys
from dataclasses import replace
import pytest
from conftest import ROOT, real

sys.path.insert(0, str(ROOT/'experiments'))
import tuning
from symptoms import CASES, MEASURES
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import as_dict

each_case = pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)

each_shown = pytest.mark.parametrize('case', tuning.whole(), ids=lambda case: case.name)


@each_case
def test_its_settings_exist_and_change_something(case):
    every = [as_dict(tuning.settings_of(case, changes)) for changes in tuning.wanted(case)]
    assert [every.index(settings) for settings in every] == list(range(len(every)))
    with pytest.raises(ConfigError): tuning.settings_of(case, dict(lambda_flop=1.0))


@each_shown
def test_its_symptom_was_produced_in_every_seed(case):
    (_, _, before), *tries = tuning.sides(case)
    assert before and all(len(runs) == len(before) for _, _, runs in tries)
    assert [found[case.measure] for found in before if not tuning.shows(case, found)] == []
    assert {tuning.verdict(case, before, runs) for _, _, runs in tries} <= {'helped', 'helped but cost', 'eased it', 'did not help'}


@each_shown
def test_its_section_is_there(case):
    page = tuning.PAGE.read_text(encoding='utf-8')
    assert f'## {tuning.heading(case)}\n' in page and f'](#{tuning.anchor(case)})' in page and MEASURES[case.measure] in page


def test_every_line_of_the_design_document_was_tried():
    seed = real('seeds/2-losses.md').read_text(encoding='utf-8')
    rows = [line.strip('| \n') for line in seed.split('## 10.')[1].splitlines() if line.startswith('| ') and '|------' not in line][1:]
    assert sorted(rows) == sorted(case.seed for case in CASES if case.seed)


def run(**numbers): return dict(dict(dead=0.0, ndcg=0.5), **numbers)


@pytest.mark.parametrize('after, said', [
    (run(), 'helped'), (run(ndcg=0.4), 'helped but cost'), (run(dead=0.6), 'eased it'), (run(dead=0.9), 'did not help'), (run(dead=1.0, ndcg=0.9), 'did not help')])
def test_verdicts(after, said):
    case = replace(CASES[0], measure='dead', sign='>', limit=0.25)
    assert tuning.verdict(case, [run(dead=1.0)] * 3, [after] * 3) == said
    assert tuning.verdict(case, [run(dead=1.0)] * 3, [after, after, run(dead=1.0)]) == 'did not help'

"""The rehearsal of full scale: smaller sets keep their layout, records are of whole runs, bounds are told apart."""
import json, math
import pytest
from conftest import run_cells
from splade_nb.config.files import ConfigError, write_json
from splade_nb.lab.rehearsal import DATA, bytes_per_triplet, command_of, growth, record_of, take_triplets, write_made

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's


def test_a_smaller_set_has_the_same_files_and_lines_of_each(tmp_path):
    write_made(tmp_path/'made', 500)
    taken = take_triplets(tmp_path/'made', tmp_path/'small', 100, judged=20)
    files = {path.relative_to(tmp_path/'small').as_posix(): path.read_text(encoding='utf-8').splitlines()
             for path in (tmp_path/'small').rglob('*.jsonl')}
    assert set(files) == {path.relative_to(tmp_path/'made').as_posix() for path in (tmp_path/'made').rglob('*.jsonl')}
    assert taken == sum(len(lines) for name, lines in files.items() if 'train' in name) and 96 <= taken <= 100 and {len(files[f'v24.0/{name}.jsonl']) for name in ('val', 'test')} == {20}
    for name, lines in files.items():
        assert set(lines) <= set((tmp_path/'made'/name).read_text(encoding='utf-8').splitlines())
    assert take_triplets(tmp_path/'made', tmp_path/'whole', 10**6) == 500
    with pytest.raises(ConfigError, match='make data NAME=triplets'): take_triplets(tmp_path, tmp_path/'none', 10)


def test_one_process_goes_through_papermill_and_several_through_torchrun():
    assert command_of('v26', 'data', 'out', 1, {})[2] == 'train' and command_of('v28', 'data', 'out', 8, {})[2] == 'train-distributed'
    assert {version: next(part for part in command_of(version, 'd', 'o', 2, {}) if part.startswith('DATA=')) for version in DATA} == {
        'v26': 'DATA=d/v24.0', 'v27': 'DATA=d/v24.0,d/v27.0', 'v28': 'DATA=d/v24.0'}


def test_a_run_without_its_report_is_no_record(tmp_path):
    write_json(tmp_path/'summary.json', {})
    with pytest.raises(FileNotFoundError, match='report.html'): record_of(tmp_path)


def test_growth_is_the_exponent_and_the_slope():
    assert growth([1e4, 1e5, 1e6], [2, 20, 200]) == pytest.approx(1) and growth([1e4, 1e5], [1, 100]) == pytest.approx(2)
    assert math.isnan(growth([1e4], [1])) and bytes_per_triplet([0, 2 ** 20], [100, 150]) == pytest.approx(50)


def part(size, number, scale=1.0):
    "A record of three runs; `scale` multiplies time and memory."
    def rank(): return {stage: dict(seconds=scale * size / 1e4, cpu_seconds=scale * size / 1e4, peak_mb=int(900 * scale), private_mb=int(400 * scale))
                        for stage in ('reading', 'mining', 'training', 'judging')}
    run = dict(stages=[rank() for _ in range(number)], losses=[9.0, 8.0], parts={'infonce': 9.0 * scale}, pairs=size, steps=2,
               planned=size, documents=size, pools=dict(evaluation_documents=40, validation_documents=20, validations=1), metrics=dict(queries=10), seconds=1.0)
    return dict(size=size, processes=number, real=True, cores=2, date='2026-01-01', revision='abc', runs=dict.fromkeys(DATA, run))


@pytest.mark.parametrize('scale, failed', [(1.0, 0), (5.0, 2)])
def test_the_study_tells_what_holds(tmp_path, scale, failed):
    for size in (10_000, 100_000):
        for number in (1, 2): write_json(tmp_path/f'{size:07}-{number}.json', part(size, number, scale if size > 10_000 else 1.0))
    study = run_cells('studies/rehearsal.ipynb', results=str(tmp_path))
    bounds = study['bounds']()
    assert (bounds['holds'] != 'yes').sum() >= failed and (failed or set(bounds['holds']) == {'yes'})
    table = study['stage_table']('v26', 1)
    assert list(table.columns) == ['stage', '10,000', '100,000', 'exponent'] and (table['exponent'] == '1.00').all() == (scale == 1.0)
    assert json.dumps(study['finding']()).count('Not met') == bool(failed)


def test_a_part_that_was_interrupted_keeps_its_whole_runs(tmp_path, monkeypatch):
    from splade_nb.lab import rehearsal
    calls, fails = [], {'v27'}
    def run_one(version, data, out, processes, settings):
        calls.append(version)
        if version in fails: raise RuntimeError('stopped')
        out.mkdir(parents=True)
        record = part(50, 1)['runs'][version] | dict(version=version)
        write_json(out/'record.json', record)
        return record
    monkeypatch.setattr(rehearsal, 'run_one', run_one)
    monkeypatch.setattr(rehearsal, 'record_of', lambda out: json.loads((out/'record.json').read_text()))
    monkeypatch.setattr(rehearsal, 'write_models', lambda *_: ('backbone', 'teacher'))
    write_made(tmp_path/'made', 100)
    given = dict(data=str(tmp_path/'made'), sizes='50', processes='1', fresh='50', measure=True,
                 work=str(tmp_path/'work'), results=str(tmp_path/'kept'))
    with pytest.raises(RuntimeError, match='stopped'): run_cells('studies/rehearsal.ipynb', **given)
    fails.clear()
    run_cells('studies/rehearsal.ipynb', **given)
    assert calls == ['v26', 'v27', 'v27', 'v28'] and not [*(tmp_path/'work'/'runs').glob('*')]
    kept = json.loads((tmp_path/'kept'/'0000050-1.json').read_text())
    assert [run['version'] for run in kept['runs'].values()] == ['v26', 'v27', 'v28']

"""The training notebook through papermill, as a person runs it: parameters, folder, contract, repetition."""
import json, re, subprocess, sys
from pathlib import Path
import pytest
from chromium import faults
from conftest import ROOT, injected, run_cells
from faults import command, exit_code_of, output_of, program, run_notebook, start, summary_of
from test_provenance import unsourced_cells
from splade_nb.data.records import DataError, toy_corpus
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve
from splade_nb.evaluation.report import run_source
from splade_nb.model.load import load_encoder
from splade_nb import experiment
from splade_nb.experiment import begin_run, run_version
from splade_nb.cli import main
from splade_nb.training.check_settings import require_acting_settings
from splade_nb.training.checkpoints import CheckpointError

SLOW_FIXTURES = 'run',

SMALL = 'settings: {steps: 6, hidden: 64, layers: 1, vocabulary: 300, batch_size: 8}'
CONTRACT = {'version', 'recipe', 'scale', 'seed', 'backbone', 'parameters', 'data', 'steps', 'seconds', 'peak_memory_mb', 'device', 'stages', 'validation', 'metrics', 'bm25',
            'before_training', 'active_terms', 'korean', 'context_discrimination', 'dead_rows', 'guard', 'versions'}
METRICS = {'data', 'queries', 'ndcg@10', 'success@1', 'recall@1', 'recall@10', 'recall@1000', 'mrr@10'}

REPORT = ('documents a batch', 'data hash', 'device', 'seed', 'packages', 'set by', 'Quality', 'How training went', 'What the vectors say', 'The worst queries', 'why', 'Success criteria', 'What to try next')


def papermill(*arguments: str) -> subprocess.CompletedProcess:
    program = Path(sys.executable).parent/'papermill'
    return subprocess.run([program, 'nbs/train.ipynb', *arguments], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> Path:
    "A run on the toy corpus; papermill's notebook beside it, its standard output where no path is given."
    folder = tmp_path_factory.mktemp('run')/'v28'  # a report looks at the runs beside it
    folder.mkdir()
    done = papermill('-p', 'version', '28', '-r', 'data', 'toy', '-r', 'scale', 'mini', '-r', 'out', str(folder), '-y', SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    (folder/'train.ipynb').write_text(done.stdout, encoding='utf-8')
    return folder


def test_the_number_28_means_v28_and_a_pipe_takes_the_notebook(run):
    summary = json.loads((run/'summary.json').read_text(encoding='utf-8'))
    assert summary['version'] == 'v28' and summary['steps'] == 6
    assert all(cell['execution_count'] for cell in json.loads((run/'train.ipynb').read_text(encoding='utf-8'))['cells'] if cell['cell_type'] == 'code')


def test_the_folder_holds_what_the_contract_names(run):
    for name in ('config.json', 'metrics.jsonl', 'training_history.json', 'summary.json', 'evaluation.json', 'samples.json'): assert (run/name).stat().st_size, name
    assert list((run/'checkpoints').glob('step-*/state.json')) and list((run/'tensorboard').glob('events*'))
    assert {p.suffix for p in (run/'model').iterdir()} <= {'.json', '.safetensors'}
    summary = json.loads((run/'summary.json').read_text(encoding='utf-8'))
    assert CONTRACT <= set(summary) and {'name', 'hash', 'train_pairs'} <= set(summary['data'])
    for system in ('metrics', 'bm25', 'bm25_bigrams', 'before_training'): assert set(summary[system]) == METRICS
    assert summary['revision'] and summary['documents'] > 0
    assert set(summary['index']) == {'model', 'before_training', 'bm25', 'bm25_bigrams'}
    rates = json.loads((run/'evaluation.json').read_text(encoding='utf-8'))['throughput']
    assert [*rates] == ['1', '8', '16', '32', '64'] and all(rate['documents_per_second'] > 0 for rate in rates.values())


def test_every_table_and_figure_of_a_run_says_where_it_comes_from(run):
    notebook, summary, config = (json.loads((run/name).read_text(encoding='utf-8')) for name in ('train.ipynb', 'summary.json', 'config.json'))
    assert unsourced_cells(notebook) == {}
    source = run_source(summary, config=config)
    assert source.endswith(f'revision `{summary["revision"]}`; {summary["date"]}.') and json.dumps(notebook, ensure_ascii=False).count(json.dumps(source, ensure_ascii=False)[1:-1]) > 15


def test_the_notebook_stops_at_what_is_misspelt(tmp_path):
    given = dict(versoin='v28', out=str(tmp_path/'run'), scale='mini', data='toy')
    with pytest.raises(ConfigError, match="did you mean 'version'"): run_cells('train.ipynb', **given)
    assert not (tmp_path/'run').exists()


@pytest.mark.slow
def test_papermill_ends_where_the_notebook_stops(tmp_path):
    done = papermill(str(tmp_path/'train.ipynb'), '-r', 'out', str(tmp_path/'run'), '-r', 'scale', 'mini', '-r', 'data', 'toy', '-p', 'versoin', 'v28')
    assert done.returncode == 1 and "did you mean 'version'" in done.stderr
    assert not (tmp_path/'run'/'metrics.jsonl').exists()


@pytest.mark.parametrize('wrong, told', [(dict(settings={'lambda_flop': 1}), "did you mean 'lambda_flops'"), (dict(version='v88'), "did you mean 'v28'"), (dict(recipe='corected'), "did you mean 'corrected'"), (dict(source='./nowhere'), './nowhere'),
                                         (dict(seed=-1), 'seed: found -1.*from 0 to'), (dict(seed='a'), 'a whole number'), (dict(settings={'gate_form': 'signed'}), 'is gone.*d39bf7a5')])
def test_a_run_stops_at_what_is_misspelt(wrong, told, tmp_path):
    given = dict(version='v28', recipe='corrected', scale='mini', source='toy', seed=42, out=str(tmp_path/'run'), settings={})
    with pytest.raises((ConfigError, DataError), match=told): begin_run(**given | wrong)
    with pytest.raises(ConfigError, match='max_steps: found -5'): run_version(**given, max_steps=-5)
    assert not (tmp_path/'run').exists()


OWN = """from splade_nb.training.losses import register_loss

@register_loss('even')
def even(batch): return batch.query_vectors.amax(1).mean()

mine = {'extra_losses': {'even': 0.01}}"""


@pytest.mark.slow
def test_a_run_with_a_loss_of_ones_own_goes_on_and_is_shown_again(tmp_path):
    "The loss is registered before anything reads the settings that name it."
    def train(**given) -> dict:
        notebook = injected('train.ipynb', data='toy', scale='mini', out=str(tmp_path/'run'), **given)
        next(cell for cell in notebook.cells if cell.get('id') == 'own').source = OWN
        run_notebook(notebook, ROOT)
        return json.loads((tmp_path/'run/summary.json').read_text(encoding='utf-8'))
    cut = train(settings=dict(steps=6, hidden=32, layers=1, vocabulary=300, batch_size=4), max_steps=3)
    overridden = json.loads((tmp_path/'run/config.json').read_text(encoding='utf-8'))['overridden']
    whole = train(settings=overridden, resume=True)
    assert [(each['steps'], each['planned_steps']) for each in (cut, whole)] == [(3, 6), (6, 6)]
    assert overridden['extra_losses'] == {'even': 0.01} and train(finished=True) == whole


def test_what_cannot_be_gone_on_with_is_refused_before_any_work(tmp_path):
    with pytest.raises(CheckpointError, match='nosuch: there is no checkpoint'):
        run_version('v28', scale='mini', source='toy', out=str(tmp_path/'run'), resume_from=str(tmp_path/'nosuch'))
    assert not (tmp_path/'run').exists()


def test_what_begins_anew_where_no_checkpoint_is_says_what_it_was_launched_with(tmp_path):
    def began(seed: int, **options) -> dict:
        begin_run('v28', 'corrected', 'mini', 'toy', seed, str(tmp_path/'run'), dict(steps=seed), **options)
        return json.loads((tmp_path/'run/config.json').read_text(encoding='utf-8'))
    began(1)  # and dies before its first checkpoint
    found = began(2, resume=True)
    assert (found['seed'], found['settings']['steps'], found['overridden']) == (2, 2, dict(steps=2))
    (tmp_path/'run/checkpoints/step-0').mkdir(parents=True)
    (tmp_path/'run/checkpoints/step-0/manifest.json').touch()
    assert began(3, resume=True) == found, 'a checkpoint is there that says nothing: training opens it, and refuses'


FEW = dict(steps=2, hidden=32, layers=1, vocabulary=300, batch_size=4)


def test_a_resume_that_is_refused_leaves_the_record_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, 'require_acting_settings', require_acting_settings)  # the fixture of a whole run leaves it out
    given = dict(scale='mini', source='toy', out=str(tmp_path/'run'))
    run_version('v28', settings=FEW | dict(lambda_flops=0.006), max_steps=1, **given)
    def record() -> dict: return {path.name: path.read_bytes() for path in (tmp_path/'run').glob('*.json')}
    before = record()
    assert 'lambda_flops' in before['settings_check.json'].decode()
    with pytest.raises(CheckpointError, match=r'has other values: lambda_flops=0\.006 there'):
        run_version('v28', settings=FEW, resume=True, **given)
    with pytest.raises(CheckpointError, match='has other values: seed=42 there, 7 here'):
        run_version('v28', settings=FEW | dict(lambda_flops=0.006), seed=7, resume=True, **given)
    assert record() == before


def begin_twice(folder: Path) -> None:
    try: begin_run('v28', 'corrected', 'mini', 'toy', 2, str(folder), {})
    except ConfigError as error: folder.with_name('refused').write_text(str(error))


@pytest.mark.slow
@pytest.mark.parametrize('during', ('prepare', 'evaluate_run'))
def test_a_second_process_is_refused_while_a_run_prepares_and_while_it_is_judged(during, tmp_path, monkeypatch):
    folder, true = tmp_path/'run', getattr(experiment, during)
    def with_a_second(*arguments, **options):
        exit_code_of(start(begin_twice, folder))
        return true(*arguments, **options)
    monkeypatch.setattr(experiment, during, with_a_second)
    monkeypatch.setattr(experiment, 'require_acting_settings', lambda *arguments: ())
    run = dict(scale='mini', source='toy', seed=1, out=str(folder), settings=dict(steps=1, hidden=32, layers=1, vocabulary=300, batch_size=4))
    summary = run_version(**run)
    told = re.sub(r'process \d+', 'process N', (tmp_path/'refused').read_text().replace(str(folder), 'run'))
    assert told == 'run: process N is training into this folder; choose another with out=, or end it (a notebook holds its folder until its kernel ends)'
    assert summary['seed'] == json.loads((folder/'config.json').read_text(encoding='utf-8'))['seed'] == 1
    monkeypatch.setattr(experiment, during, true)
    (tmp_path/'refused').unlink()
    start(begin_twice, folder).join()
    assert not (tmp_path/'refused').exists(), 'a run that has ended holds nothing'


@pytest.fixture(scope='module')
def page(run) -> Path:
    subprocess.run([sys.executable, 'docs/report_html.py', str(run/'train.ipynb'), str(run/'report.html')], cwd=ROOT, check=True)
    return run/'report.html'


@pytest.mark.slow
def test_the_report_opens_offline(page):
    html = page.read_text(encoding='utf-8')
    assert html.count('data:image/png;base64') > 5 and 'src="http' not in html and '<script' not in html
    assert [part for part in REPORT if f'>{part}<' not in html] == []
    headings = re.findall('<h2 id="([^"]+)"', html)
    assert headings[:3] == ['Quality', 'What-the-vectors-say', 'Success-criteria'] and headings.index('Losses') < headings.index('Settings-and-machine')
    assert re.findall(r'href="(?!#|[a-z]+:)[^"]*"', html) == [], 'a report lies elsewhere than the files that it names'


def test_the_report_is_whole_in_the_browser(page, browser):
    assert faults(browser, page.as_uri()) == {}
    missing = browser.value("[...document.querySelectorAll('img')].filter((image) => !image.alt).length")
    assert missing == 0, 'a picture without its finding'


def test_the_command_line_does_the_same(run, tmp_path, capsys):
    wanted = [f'{name}={value}' for name, value in dict(steps=6, hidden=64, layers=1, vocabulary=300, batch_size=8, scale='mini', data='toy', out=tmp_path).items()]
    done = program('-m', 'splade_nb.training', 'v28', '--set', *wanted, folder=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = map(summary_of, (run, tmp_path))
    assert first == second, 'one seed, one result'
    assert main(['evaluate', '--model', str(tmp_path), '--data', 'toy']) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert METRICS | {'bm25', 'bm25_bigrams', 'active_terms', 'criterion', 'index', 'revision'} == set(last) and last['ndcg@10'] == first['metrics']['ndcg@10']


@pytest.mark.slow
def test_the_notebook_and_the_command_search_alike(tmp_path, monkeypatch):
    "Also by what acts after training: counted terms, the weight that validation chooses for them, bounds on terms."
    settings = dict(steps=4, hidden=32, layers=1, vocabulary=300, batch_size=4, counted_terms=64, most_document_terms=20)
    given = dict(version='splade_ko', scale='mini', seed=42, settings=settings)
    run_notebook(injected('train.ipynb', data='toy', out=str(tmp_path/'notebook'), **given), ROOT)
    monkeypatch.setattr('splade_nb.experiment.require_acting_settings', lambda *arguments: None)
    run_version(source='toy', out=str(tmp_path/'command'), **given)
    first, second = (summary_of(tmp_path/name) for name in ('notebook', 'command'))
    assert first == second and first['validation']['counted_weight'] and {'learned', 'counted'} <= first.keys()
    for name in ('notebook', 'command'):
        model, _ = load_encoder(tmp_path/name)
        assert (model.settings.counted_terms, model.settings.most_document_terms) == (64, 20)


def test_two_processes_encode_one_file(run, tmp_path, capsys):
    from scipy import sparse
    from splade_nb.model.encode import encode
    from splade_nb.model.encode_shards import read_shards
    from splade_nb.serving.formats import read_vectors
    texts = [f'제주도 {number}번 버스는 어디서 타나요' for number in range(25)]
    (tmp_path/'texts.txt').write_text('\n'.join(texts), encoding='utf-8')
    given = [str(part) for part in ('encode', '--model', run, '--data', tmp_path/'texts.txt', '--out', tmp_path/'shards', '--size', 4, '--korean', '--top-k', 9, '--parts', 2, '--part')]
    folders = [tmp_path/part/'out' for part in '01']
    for folder in folders: folder.parent.mkdir()
    both = [start(command, [*given, part, '--screen'], folder) for part, folder in zip('01', folders)]
    assert [exit_code_of(child) for child in both] == [0, 0], [*map(output_of, folders)]
    assert [json.loads(output_of(folder).splitlines()[-1])['written'] for folder in folders] == [4, 3]
    rows, (model, tokenizer) = sparse.vstack(list(read_shards(tmp_path/'shards'))), load_encoder(run)
    whole = encode(model, tokenizer, texts)
    assert rows.shape == whole.shape and 0 < rows.getnnz(axis=1).max() <= 9 and abs(rows - whole.multiply(rows > 0)).max() < 1e-5
    assert main(['convert', '--vectors', str(tmp_path/'shards'), '--format', 'rank_features', '--out', str(tmp_path/'features'), '--data', str(tmp_path/'texts.txt')]) == 0
    converted = list(read_vectors(tmp_path/'features', 'rank_features', tokenizer))
    assert (sparse.vstack([part.rows for part in converted]) != rows).nnz == 0 and [text for part in converted for text in part.texts] == texts
    assert main([*given, '0', '--screen', 'off']) == 2 and 'screen: True made these shards, False is asked for' in capsys.readouterr().err


def test_shards_are_written_as_texts_are_read(run, tmp_path):
    from splade_nb.model.encode_shards import encode_shards
    def stream():
        for number in range(20):
            assert len(list(tmp_path.glob('shard-*.npz'))) == number // 5, 'no more than a shard of texts is held'
            yield f'{number}번 버스'
    assert encode_shards(*load_encoder(run), stream(), tmp_path, size=5) == 4


def test_full_scale_takes_local_folders_for_backbone_and_teacher(tmp_path, monkeypatch):
    monkeypatch.setattr('splade_nb.experiment.require_acting_settings', lambda *given: ()) # proven at full scale in test_check_settings.py
    from splade_nb.model.initialization import mini_backbone
    from splade_nb.data.tokenizer import train_unigram
    tokenizer = train_unigram(list(toy_corpus().texts.values()), 300)
    folder = tmp_path/'backbone'; tokenizer.save_pretrained(folder)
    mini_backbone(resolve('v28', hidden=64, layers=1), len(tokenizer)).save_pretrained(folder)
    small = dict(backbone=str(folder), teacher=str(folder), steps=3, batch_size=4, accumulation=2, max_length=32)
    summary = run_version(scale='full', source='toy', out=str(tmp_path/'run'), settings=small)
    assert summary['scale'] == 'full' and summary['teacher'] == 'backbone' and summary['steps'] == 3
    assert summary['changed'].keys() == small.keys() - {'backbone', 'teacher'}, 'a model from a folder is no change'

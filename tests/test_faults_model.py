"""A run's folder is its user's too, its numbers are those of all its data, and a model is what its folder says."""
import copy, re, shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import torch
import faults
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import off
from splade_nb.config.versions import resolve
from splade_nb.data.prepared import Preparation
from splade_nb.data.records import toy_corpus
from splade_nb.lab.passages import PackedSequences, packed_batch
from splade_nb.model.load import fit, position_table, positions
from splade_nb.hub.export import add_graph
from splade_nb.model.opened import open_model
from splade_nb.training import batch, check_settings, checkpoints, curriculum, dataset, objective
from splade_nb.lab import masked_language
from splade_nb.training import trainer as training
from splade_nb.training.dataset import fix_seeds, prepare, save_model_folder, toy_training_data


# The folder

def trained(folder, resume: bool = False, **options) -> training.Run:
    fix_seeds(42)
    data, model = toy_training_data()
    settings = faults.settings_of(**dict(steps=4, weight_averaging=(0.0,)) | options)
    return training.train(model, data, settings, folder, options.pop('validator', None), quiet=True, resume=resume, save_every=1)


FOREIGN = 'step-2-backup', 'step-best', 'part-1', 'part-step-x', 'old-step-1-mine', 'step-01'

@pytest.mark.parametrize('name', FOREIGN)
def test_what_the_user_puts_beside_checkpoints_stays(name, tmp_path):
    mine = tmp_path/'checkpoints'/name/'manifest.json'
    mine.parent.mkdir(parents=True)
    mine.write_text('{}', encoding='utf-8')
    assert trained(tmp_path).step == 4 and trained(tmp_path, resume=True).step == 4 and mine.read_text() == '{}'


def test_a_folder_with_a_checkpoint_s_name_is_not_replaced(tmp_path):
    (tmp_path/'checkpoints'/'step-2').mkdir(parents=True)
    run = trained(tmp_path)
    assert [event['name'] for event in run.events if event['name'] == 'disk'] == ['disk']
    assert not list((tmp_path/'checkpoints'/'step-2').iterdir()) and (tmp_path/'checkpoints'/'step-4').exists()


def test_training_again_sets_the_earlier_run_aside(tmp_path, capsys):
    trained(tmp_path)
    weights = (tmp_path/'checkpoints'/'step-4'/'model.safetensors').read_bytes()
    (tmp_path/'summary.json').touch()
    trained(tmp_path, steps=3)
    kept = tmp_path/'earlier'/'1'
    assert str(kept) in capsys.readouterr().err and (kept/'summary.json').exists() and not (tmp_path/'summary.json').exists()
    assert (kept/'checkpoints'/'step-4'/'model.safetensors').read_bytes() == weights
    trained(tmp_path, steps=3)
    assert [path.name for path in sorted((tmp_path/'earlier').iterdir())] == ['1', '2']


def test_a_run_that_took_no_step_leaves_nothing(tmp_path):
    (tmp_path/'checkpoints'/'step-0').mkdir(parents=True)
    for name in ('checkpoints/step-0/manifest.json', 'checkpoints/initial.safetensors', 'metrics.jsonl'): (tmp_path/name).write_text('{}')
    assert checkpoints.set_aside(tmp_path) is None and not [path for path in tmp_path.rglob('*') if path.is_file()]


# Numbers

@pytest.mark.parametrize('number, pairs', ((4, 24), (5, 24), (7, 24), (10, 25), (32, 400), (40, 12)))
def test_an_epoch_shows_every_pair_once(number, pairs):
    settings, keys = resolve('splade_v2'), ['original', 'hard_neg'] * pairs
    drawn = [curriculum.sample(step, 60, curriculum.pools_of(keys[:pairs]), settings, 1, number).tolist() for step in range(60)]
    assert not settings.phases
    if number <= pairs: assert all(len(set(each)) == number for each in drawn)
    for batches in range(1, 61):
        seen = Counter(pair for each in drawn[:batches] for pair in each)
        assert max(seen.values()) - min(seen.get(pair, 0) for pair in range(pairs)) <= 1, batches


def test_a_step_is_logged_with_all_its_batches():
    data, model = toy_training_data()
    settings = faults.settings_of(batch_size=4, accumulation=3, gradient_cache=False, dropout=0.0, steps=2)
    run = training.Run(model, data, settings, None, 42, 2, objective.optimizer_for(model, settings), data.special & False)
    alone = [objective.step_loss(model, batch.batch_at(0, 2, part, data, settings, 42), 0, 2, data, settings)
             for part in range(3)]
    row = training.train_step(run)
    assert row['loss'] == pytest.approx(np.mean([loss.item() for loss, *_ in alone]), rel=1e-5)
    for name, value in row['parts'].items(): assert value == pytest.approx(np.mean([parts[name] for _, parts, _ in alone]), rel=1e-5)
    active = np.mean([(out['document']['vectors'] > 0).sum(1).float().mean().item() for *_, out in alone])
    assert row['active_doc'] == pytest.approx(active, rel=1e-5)


@pytest.mark.parametrize('kind', ('Bert', 'XLMRoberta', 'Camembert', 'MPNet', 'Nystromformer', 'RobertaPreLayerNorm'))
def test_positions_begin_where_the_model_says(kind):
    import transformers
    sizes = dict(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = getattr(transformers, f'{kind}Config')(**sizes, max_position_embeddings=20, pad_token_id=1)
    model = getattr(transformers, f'{kind}ForMaskedLM')(config).eval()
    _, first = position_table(model)
    longest = int(positions(model))
    ids = torch.arange(longest)[None] % 50 + 5
    assert model(ids, torch.ones_like(ids)).logits.shape == (1, longest, 60)
    if kind != 'Nystromformer':  # which has no mask between tokens
        texts = [np.array([10, 11, 12]), np.array([20, 21])]
        rows = {name: torch.from_numpy(each) for name, each in
                packed_batch(PackedSequences(texts, [3, 2], np.arange(2), 9, begin=0, end=2), 0, 1).items()}
        seen = []
        table = next(each for name, each in model.named_modules() if name.endswith('.position_embeddings'))
        table.register_forward_hook(lambda table, given, made: seen.append(given[0].flatten().tolist()))
        model(torch.tensor([[0, 10, 11, 12, 2]]), torch.ones(1, 5))
        model(**masked_language.backbone_inputs(model, rows))
        assert seen[1][:5] == seen[0] == list(range(first, first + 5)), 'as the model counts by itself'
    with pytest.raises((IndexError, RuntimeError)): model(torch.full((1, longest + 1), 7), torch.ones(1, longest + 1))


def test_the_model_is_that_of_the_last_step_and_the_best_one_opens(tmp_path):
    scores = iter((0.1, 0.9, 0.2))
    fix_seeds(42)
    data, model = toy_training_data()
    validator = lambda model: {'metrics': {'ndcg@10': next(scores)}, 'active_terms': {}}
    run = training.train(model, data, faults.settings_of(steps=4, validations=2, weight_averaging=(0.0,)), tmp_path, validator, quiet=True)
    from safetensors.torch import load_file
    last, best = (load_file(tmp_path/'checkpoints'/name/'model.safetensors') for name in ('step-4', 'best'))
    assert run.best == {'step': 2, 'ndcg@10': 0.9} and [row['epoch'] for row in run.history] == [0, run.settings.epochs / 2, run.settings.epochs]
    here = dict(run.model.named_parameters())
    assert all(torch.equal(value, last[name]) for name, value in here.items() if name in last)
    assert any(not torch.equal(value, best[name]) for name, value in here.items() if name in best)


# A model's folder

def cut_short(path) -> None: path.write_bytes(path.read_bytes()[:-40])


def of_another_size(path) -> None: path.write_text(path.read_text().replace('"counted_terms": 0', '"counted_terms": 64'))


def no_number(path) -> None:
    from safetensors.numpy import load_file, save_file
    weights = load_file(path)
    weights['mean_length'] = np.float32([np.nan]).reshape(weights['mean_length'].shape)
    path.unlink()
    save_file(weights, path, dict(format='pt'))


DAMAGES = [('text.json', Path.unlink, 'text.json is missing'), ('text.json', of_another_size, 'do not belong together'),
           ('model.safetensors', no_number, 'NaN or infinite weights in mean_length'),
           ('model.safetensors', cut_short, 'model.safetensors: damaged'), ('splade.json', cut_short, 'splade.json: damaged'),
           ('tokenizer.json', cut_short, 'tokenizer.json: damaged'), ('tokenizer.json', Path.unlink, 'tokenizer.json'),
           ('config.json', cut_short, 'config.json'), ('model.onnx', cut_short, 'model.onnx: damaged'),
           ('queries.npy', cut_short, 'queries.npy: damaged')]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "A model with a table of queries, for both libraries."
    setup = prepare(resolve('v29', hidden=64, layers=1, vocabulary=300), toy_corpus(), 42, place='cpu')
    folder = save_model_folder(setup, tmp_path_factory.mktemp('whole'))
    add_graph(setup.model.eval(), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('runtime', ('torch', 'onnx'))
@pytest.mark.parametrize('name, damage, said', DAMAGES)
def test_a_model_that_is_not_whole_does_not_open(name, damage, said, runtime, whole, tmp_path):
    if runtime == 'torch' and name in ('model.onnx', 'queries.npy'): pytest.skip('PyTorch reads the weights alone')
    for path in whole.iterdir(): shutil.copyfile(path, tmp_path/path.name)
    damage(tmp_path/name)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught: open_model(tmp_path, runtime)
    assert str(tmp_path) in str(caught.value) and '\n' not in str(caught.value)


def test_a_checkpoint_without_its_tokenizer_does_not_open(tmp_path):
    from transformers import BertConfig, BertForMaskedLM
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    backbone = BertForMaskedLM(BertConfig(vocab_size=3000, **sizes))
    backbone.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match='no tokenizer: found neither tokenizer.json nor'): open_model(tmp_path)
    with pytest.raises(ConfigError, match='holds 3000 tokens, its tokenizer 40: they do not belong together'): fit(backbone, resolve('v26'), 40)


# What a setting says and what it does

@pytest.fixture(scope='module')
def small(tmp_path_factory):
    tiny = dict(hidden=32, layers=1, vocabulary=300, batch_size=8, bm25_negatives=0, dense_negatives=0, max_length=24, segment='kiwi')
    return prepare(resolve('v28', scale='mini', **tiny), toy_corpus(), 1, tmp_path_factory.mktemp('cache'))


def test_scores_of_one_pair_have_no_spread(small):
    settings = small.settings.but(score_spread=3.0, similarity='dot')
    factors = [dataset._score_factor(small.model, settings, replace(small.training_data, pairs=small.training_data.pairs[:pairs])) for pairs in (1, 2)]
    assert factors[0] == 1.0 != factors[1]


def test_documents_of_every_length_calibrate(small, monkeypatch):
    "Of a small collection only the sixteen shortest had."
    lengths, (model, data) = [], (copy.deepcopy(small.model), small.training_data)
    monkeypatch.setattr(dataset, '_batches', lambda *_: [dict(input_ids=torch.ones(16, length, dtype=torch.long)) for length in range(1, 8)])
    size = len(data.language)
    monkeypatch.setattr(dataset, 'logit_moments', lambda model, texts: (torch.zeros(size), torch.ones(size)))
    monkeypatch.setattr(dataset, 'deviations_for', lambda model, texts, *_: lengths.extend(rows['input_ids'].shape[1] for rows in texts) or 0.0)
    dataset._calibrate(Preparation(), model, small.settings.but(initial_terms=5), data)
    assert lengths == [1, 2, 3, 4, 5, 6, 7]


def test_a_named_backbone_has_its_own_vocabulary():
    with pytest.raises(ConfigError, match='vocabulary=8000: a named backbone brings its own tokens; the nearest is 0'): resolve('v26', scale='small', vocabulary=8000)


def test_cosines_are_distilled_without_a_spread():
    torch.manual_seed(0)
    queries, documents, teacher = torch.rand(3, 9), torch.rand(4, 9), torch.rand(3, 4)
    settings = resolve('v26', scale='small', similarity='cosine', score_limit=0.0)
    found = [objective._distil(queries, documents, teacher, settings.but(score_spread=spread), 1.0).item() for spread in (0.0, 3.0)]
    assert 'score_spread' in off(settings) and found[0] == found[1]


@pytest.mark.parametrize('idle', [dict(document_share=0.0, document_terms=20), dict(initialization='random', initial_terms=400)])
def test_what_is_off_does_not_steer(idle, tmp_path):
    def factor(**changes) -> dict:
        run = SimpleNamespace(settings=resolve('v26', scale='small').but(**dict(query_terms=3, document_terms=0, initial_terms=0, flops_ramp=1.0) | changes), damping={}, steps=10, step=1)
        training.steer(run, dict(active_query=9.0, active_doc=9.0), dict(query=[9], document=[9]))
        return run.damping
    plain = {name: value for name, value in idle.items() if name not in ('document_terms', 'initial_terms')}
    assert factor(**idle) == factor(**plain)


def test_a_phase_begins_for_data_and_losses_alike():
    "With accumulation the batches of a step are all of its phase."
    settings, pools = resolve('v28', 'original', 'full'), curriculum.pools_of(['single_term'] * 400 + ['multi_term'] * 400 + ['hard_neg'] * 400 + ['original'] * 400)
    for number in (1, 4):
        drawn = [curriculum.sample(batch, 7, pools, settings, 1, 16, number) for batch in range(7 * number)]
        kinds = [{'single_term', 'multi_term', 'hard_neg', 'original'}.intersection(key for key, pool in pools.items() if np.isin(indices, pool).any()) for indices in drawn]
        mixes = [dict(curriculum.phase_at(batch // number, 7, settings).mix) for batch in range(7 * number)]
        assert all(found <= mix.keys() for found, mix in zip(kinds, mixes)), number


def test_a_run_that_goes_on_from_a_saved_one_keeps_its_gate_and_its_words(small, tmp_path, capsys):
    first = replace(small, model=copy.deepcopy(small.model))
    with torch.no_grad():
        for value in first.model.gate.parameters(): value += 0.25
    save_model_folder(first, tmp_path)
    def goes_on(**changes):
        again = resolve('v28', scale='small', backbone=str(tmp_path/'model'), max_length=24, query_length=24, bm25_negatives=0, teacher='lsa', **changes)
        assert again.segment == 'kiwi'
        return prepare(again, toy_corpus(), 1, tmp_path/'cache').model.gate.state_dict()
    assert all(value.equal(first.model.gate.state_dict()[name]) for name, value in goes_on(gate_hidden=small.settings.gate_hidden).items())
    goes_on(gate_hidden=small.settings.gate_hidden + 8)
    assert 'has another shape, so the new run begins with its own' in capsys.readouterr().err


def test_a_changed_setting_that_others_switch_off_is_said(capsys):
    settings = resolve('v28', scale='mini').but(temperature=0.5)
    check_settings.require_acting_settings(settings, ['temperature'])
    assert 'temperature=0.5 does nothing here: every phase sets its own' in capsys.readouterr().err

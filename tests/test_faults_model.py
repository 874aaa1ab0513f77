"""A run's folder is its user's too, its numbers are those of all its data, and a model is what its folder says."""
import re, shutil
from collections import Counter
from pathlib import Path
import numpy as np
import pytest
import torch
import faults
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve
from splade_nb.data.records import toy_corpus
from splade_nb.lab.passages import PackedSequences, packed_batch
from splade_nb.model.load import fit, position_table, positions
from splade_nb.hub.export import add_graph
from splade_nb.model.opened import open_model
from splade_nb.training import batch, checkpoints, curriculum, objective
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

"""The versions after V28: what each takes from its paper, in one process, in several, and over a resumed run."""
from dataclasses import replace
import pytest
pytest.register_assert_rewrite('faults')
import torch
from faults import in_processes
from splade_nb import experiment
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import off
from splade_nb.config.versions import PARENTS, VERSIONS, resolve, resolve_quietly
from splade_nb.data.records import toy_corpus
from splade_nb.model.encode import encode
from splade_nb.model.initialization import toy_model
from splade_nb.model.load import load_encoder
from splade_nb.model.splade import texts_of
from splade_nb.model.splade_doc import input_counts, sparse_batch
from splade_nb.training import check_settings
from splade_nb.training.dataset import fix_seeds, prepare, save_model_folder, toy_training_data
from splade_nb.config.processes import ProcessGroup
from splade_nb.training.batch import make_batch
from splade_nb.training.objective import alignment_term, density, encoded, optimizer_for
from splade_nb.training.trainer import Run, train, train_step

LATER = [version for version in VERSIONS if version[0] == 'v' and version[1:].isdigit() and int(version[1:]) > 28]
SMALL = dict(steps=12, batch_size=4, accumulation=2, gradient_cache=True, df_steps=3, flops_form='df', flops_ramp=0.0)


@pytest.mark.parametrize('version', LATER)
def test_a_later_version_is_a_difference_of_a_few_settings(version):
    changed = {name for name, value in vars(VERSIONS[version]).items() if value != getattr(VERSIONS[PARENTS[version]], name)}
    assert 0 < len(changed) <= 7
    assert not changed & set(off(resolve_quietly(version, 'corrected', 'full')))


# ---- document frequencies

def counted_run(group=ProcessGroup(), steps: int = 4, **changes) -> Run:
    "Some steps of a version whose FLOPS is weighted by its own document frequencies."
    torch.set_num_threads(1)
    fix_seeds(42)
    data, model = toy_training_data()
    settings = resolve('v28', **SMALL | changes)
    run = Run(model.eval(), data, settings, None, 42, 12, optimizer_for(model, settings),
              torch.zeros_like(data.special), group)
    for run.step in range(steps): train_step(run)
    return run


def keep_counted(folder) -> None:
    group = experiment._processes()
    torch.save(counted_run(group).counted.state_dict(), folder/f'{group.rank}.pt')


def test_processes_count_the_same_documents(tmp_path):
    alone = counted_run().counted
    assert in_processes(2, keep_counted, tmp_path) == [0, 0]
    for rank in range(2):
        found = torch.load(tmp_path/f'{rank}.pt')
        assert found['counts'].equal(alone.counts) and found['penalty'].equal(alone.penalty)


def test_counts_do_not_depend_on_how_a_batch_is_passed():
    whole, parts = counted_run(batch_size=8, accumulation=1), counted_run()
    assert whole.counted.counts.equal(parts.counted.counts) and whole.counted.penalty.equal(parts.counted.penalty)
    assert whole.counted.counts[-1] == 16, 'eight pairs and a negative for each; the step after a measurement'


def trained(folder, **more) -> Run:
    torch.set_num_threads(1)
    fix_seeds(42)
    data, model = toy_training_data()
    return train(model, data, resolve('v28', **SMALL), folder, save_every=5, quiet=True, **more)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_counts(tmp_path):
    whole = trained(tmp_path/'whole')
    trained(tmp_path/'resumed', max_steps=5)  # between two measurements
    resumed = trained(tmp_path/'resumed', resume=True)
    assert resumed.rates == whole.rates[5:] and not whole.counted.penalty.eq(1).all()
    for one, other in zip(whole.counted.state_dict().values(), resumed.counted.state_dict().values()): assert one.equal(other)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters()): assert one.equal(other)


def test_other_forms_of_flops_count_nothing(tmp_path):
    run = trained(tmp_path)
    plain = counted_run(flops_form='plain', steps=1)
    assert plain.counted is None and counted_run(lambda_flops=0.0, steps=1).counted is None
    files = {path.name for path in (tmp_path/'checkpoints'/'step-12').iterdir()}
    assert run.counted is not None and 'counted.safetensors' in files


def test_measured_weights_lower_frequent_terms():
    "After a measurement the gradient of FLOPS is zero for a rare term and not for a frequent one."
    run = counted_run(steps=5, df_cutoff=0.5)
    rare, frequent = run.counted.penalty.argmin(), run.counted.penalty.argmax()
    assert run.counted.penalty[rare] < 1e-3 < 0.5 < run.counted.penalty[frequent]


@pytest.mark.parametrize('changes, message', [
    (dict(df_cutoff=0.0), 'the nearest is 1e-06'), (dict(df_cutoff=1.0), 'the nearest in use is 0.99'),
    (dict(df_cutoff=1.5), 'the nearest is 1'), (dict(df_steps=0), 'the nearest is 1')])
def test_what_document_frequencies_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message): resolve('v29', **changes)


# ---- thresholds and limits

def test_short_texts_feel_no_penalty():
    "V30's mask: the gradient of FLOPS reaches the rows with more active terms than the threshold, and no other."
    vectors = torch.tensor([[1., 1, 1, 0], [2., 0, 0, 0], [1., 1, 0, 0]], requires_grad=True)
    data = toy_training_data()[0]
    density(vectors, data, resolve_quietly('v30', flops_threshold=2)).backward()
    assert vectors.grad.any(1).tolist() == [True, False, False]


@pytest.mark.parametrize('limit', (0.5, 1.0, 2.0))
def test_no_document_is_expanded_beyond_its_limit(limit):
    "Also in windows, which share the count of their text, and in what `sparse_batch` writes to an index."
    model = toy_model(expansion_limit=limit).eval()
    whole = toy_model().eval()
    whole.load_state_dict(model.state_dict())
    ids = torch.tensor([[0, 9, 11, 2], [0, 8, 2, 1], [0, 7, 7, 2]])
    rows = ids, (ids != 1).long()
    for windows in (None, [1, 2]):
        found, free = (each(*rows, windows=windows)[0] for each in (model, whole))
        own = input_counts(model, *rows, texts_of(rows[1], windows)[1], len(found), None, None)[0] > 0
        beyond = (found > 0) & ~own
        assert (beyond.sum(1) <= (limit * own.sum(1)).long()).all() and beyond.any()
        assert found[own].equal(free[own]) and found[beyond].equal(free[beyond])
        text, token, weight = sparse_batch(model, None, *rows, windows=windows)
        assert weight.equal(found[found > 0]) and len(text) < (free > 0).sum()
    assert model(*rows, document=False)[0].equal(whole(*rows, document=False)[0]), 'queries stay as they are'


def test_a_frequent_bigram_stays_out_of_documents():
    "Also in windows and in what `sparse_batch` writes to an index; tokens, rarer bigrams and queries stay as they are."
    changes = dict(hashed_bigrams=6, min_input_logit=3.0, idf_prior_documents=20)
    model, whole = (toy_model(bigram_share=share, **changes).eval() for share in (0.2, 1.0))
    tokens, columns = len(model.decoder.weight), len(model.special)
    whole.frequencies[:] = torch.tensor([10.0] * tokens + [0, 1, 2, 3, 9, 10] + [10])
    model.load_state_dict(whole.state_dict())
    ids = torch.tensor([[0, 9, 11, 2], [0, 8, 2, 1], [0, 7, 7, 2]])
    bag = torch.tensor([[9, 11, *range(tokens, tokens + 6)], [7, 8, *range(tokens, tokens + 6)]])
    rows = dict(input_ids=ids, attention_mask=(ids != 1).long(), windows=[1, 2], bag=bag, counts=torch.ones(bag.shape))
    found, free = (each(**rows)[0] for each in (model, whole))
    assert (free[:, tokens:] > 0).all() and found[:, :tokens + 3].equal(free[:, :tokens + 3]) and not found[:, tokens + 3:].any()
    text, token, weight = sparse_batch(model, None, **rows)
    assert weight.equal(found[found > 0]) and token.max() == columns - 4
    assert model(**rows, document=False)[0].equal(whole(**rows, document=False)[0])
    whole.frequencies[:] = 0
    model.load_state_dict(whole.state_dict())
    assert model(**rows)[0].equal(free), 'nothing is known of the training documents'


def test_a_pretrained_decoder_is_calibrated(tmp_path):
    "A document has the fewer terms of a named backbone, the further each stands above its mean; the saved model too."
    texts = [*toy_corpus().texts.values()]
    with check_settings.quiet(): checkpoint = check_settings.tiny_checkpoint(tmp_path/'backbone', texts, 0)
    def prepared(deviations, folder='cache'):
        settings = check_settings.small(resolve('splade_v2', scale='full', calibration=deviations), checkpoint)
        return prepare(settings, toy_corpus(), 42, tmp_path/folder, 'cpu')
    setups = [prepared(deviations) for deviations in (0.0, 1.0, 3.0)]
    vectors = [encode(setup.model, setup.training_data.tokenizer, texts) for setup in setups]
    assert vectors[0].nnz > vectors[1].nnz > vectors[2].nnz
    again = prepared(3.0, 'elsewhere')
    assert again.model.decoder.bias.equal(setups[2].model.decoder.bias), 'the same without what was prepared'
    loaded, tokenizer = load_encoder(save_model_folder(setups[1], tmp_path/'saved'))
    assert abs(encode(loaded, tokenizer, texts) - vectors[1]).max() < 1e-6


# ---- across languages

def test_alignment_reads_pairs_across_languages_alone(tmp_path):
    "Of the toy collection: Korean questions about the two English documents."
    settings = check_settings.small(resolve('v31'), '')
    setup = prepare(settings, toy_corpus(), 42, tmp_path, 'cpu')
    data, pairs = setup.training_data, [*map(tuple, setup.training_data.pairs)]
    texts, found = list(setup.collection.documents), []
    for place, (_, document) in enumerate(pairs):
        rows = make_batch([place], data, settings, 0, (42, 0))
        out = encoded(setup.model, rows, settings)
        term = alignment_term(out, data, settings)
        assert bool(term) == (texts[document] in ('python', 'hanok')), texts[document]
        found += [term['alignment'].item()] if term else []
        assert not alignment_term(out, data, replace(settings, lambda_alignment=0.0))
    assert found and min(found) > 0


@pytest.mark.slow
def test_every_setting_of_the_later_versions_acts():
    "Those that they brought; all of them are checked before each run."
    for version, names in dict(v29=['df_cutoff', 'df_steps', 'flops_form'],
                               v30=['flops_threshold', 'log_twice'], v31=['lambda_alignment', 'expansion_limit']).items():
        states = {check.name: check.state for check in check_settings.check_settings(resolve(version), names, False)}
        assert states == dict.fromkeys(names, 'live'), version
    idle = off(resolve('v28'))
    assert {'df_cutoff', 'df_steps'} <= set(idle) and 'flops_threshold' not in idle

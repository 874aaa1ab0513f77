"""Every kind of checkpoint through the whole life of a model: create, step, save, load in another process."""
import copy, json, subprocess, sys, threading
from functools import partial
from pathlib import Path
from unittest.mock import patch
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, AutoModelForMaskedLM, BertConfig, DistilBertConfig, ElectraConfig, ElectraForPreTraining, GPT2Config,
                          GPT2LMHeadModel, ModernBertConfig, MPNetConfig, RemBertConfig, RobertaConfig, XLMRobertaConfig)
from conftest import ROOT, SHARED, is_real, real_or_made
from faults import program
from splade_nb.config.files import ConfigError
from splade_nb.config.settings import Settings
from splade_nb.data.tokenizer import load_tokenizer
from splade_nb.model.head_start import head_start
from splade_nb.model.initialization import create, toy_model
from splade_nb.model import term_weights
from splade_nb.model.splade import encode_documents
from splade_nb.model.load import SAVED_SETTINGS, load, named_config, open_checkpoint_folder, pretrained_backbone, save
from splade_nb.model.splade_doc import decoder_for, sides_differ, sparse_batch, token_weights
from splade_nb.model.term_weights import TermWeight, register_term_weight
from splade_nb.model.xlmr import create_splade_xlmr
from splade_nb.training.check_settings import other_value
from splade_nb.training.teacher import load_teacher

SMALL = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=20)
MARKS = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)
CONFIGS = {
    'xlm_roberta': lambda: XLMRobertaConfig(**SMALL, **MARKS),
    'roberta': lambda: RobertaConfig(**SMALL, **MARKS),
    'mpnet': lambda: MPNetConfig(**SMALL, **MARKS),
    'bert': lambda: BertConfig(**SMALL),
    'electra': lambda: ElectraConfig(**SMALL, embedding_size=16),
    'modernbert': lambda: ModernBertConfig(**SMALL, **MARKS, cls_token_id=0, sep_token_id=2, decoder_bias=False),
    'distilbert': lambda: DistilBertConfig(vocab_size=60, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=20),
}
FORMS = {'no gate': {}, 'attention': dict(context_gate=True), 'heads': dict(context_gate=True, gate_pooler='heads'),
         'importance': dict(mlm_head=False), 'gated importance': dict(mlm_head=False, context_gate=True, gate_pooler='heads')}
IDS = torch.tensor([[0, 9, 8, 7, 2], [0, 9, 2, 1, 1]])
MASK = (IDS != 1).long()


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory):
    "A folder for each architecture with its MLM head, and one of its encoder alone."
    folder = tmp_path_factory.mktemp('checkpoints'); torch.manual_seed(0)
    for name, config in CONFIGS.items():
        AutoModelForMaskedLM.from_config(config()).save_pretrained(folder/name)
        AutoModel.from_config(config()).save_pretrained(folder/f'{name}-encoder')
    return folder


def settings(source, **changes) -> Settings:
    return Settings(**{**dict(backbone=str(source), max_length=16, gate_hidden=8, dropout=0.0, top_k=3), **changes})


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('family', CONFIGS)
def test_a_life(family, form, checkpoints, tmp_path):
    source = checkpoints/(family if FORMS[form].get('mlm_head', True) else f'{family}-encoder')
    model = create(settings(source, output_idf=0.5, term_frequency=True, **FORMS[form]), 60, [0, 1, 2, 3, 4], idf=torch.arange(60).numpy(), mean_length=4.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        vectors, logits = model.train()(IDS, MASK)
        assert vectors.shape == logits.shape == (2, 60) and vectors.isfinite().all() and (vectors > 0).any()
        optimizer.zero_grad(); vectors.square().sum().backward(); optimizer.step()
    assert [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.isfinite().all())] == []
    back = load(save(model.eval(), tmp_path))
    with torch.inference_mode():
        for document in (True, False): torch.testing.assert_close(back(IDS, MASK, document=document)[0], model(IDS, MASK, document=document)[0])
        torch.testing.assert_close(token_weights(back, IDS, MASK), token_weights(model, IDS, MASK))
        assert torch.allclose(model(IDS, MASK)[0][1], model(IDS[1:, :3], MASK[1:, :3])[0][0], atol=1e-5), 'padding is seen'
    kept, state = load_file(tmp_path/'model.safetensors'), back.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in kept.items())
    assert bool(FORMS[form].get('context_gate')) == any(name.startswith('gate.') for name in kept)


@pytest.mark.parametrize('family', CONFIGS)
def test_a_new_head_on_an_encoder_with_spare_rows_is_saved_and_opened(family, checkpoints, tmp_path):
    "Where rows are cut off, transformers ties the decoder's bias to the head's, or leaves that long; a new model has two of one length."
    model = create(settings(checkpoints/f'{family}-encoder', initialization='closed_form'), 56, [0, 1, 2, 3, 4])
    decoder = model.backbone.get_output_embeddings()
    assert len(decoder.weight) == 56 and decoder.weight is not model.backbone.get_input_embeddings().weight
    model(IDS, MASK)[0].square().sum().backward()
    assert decoder.bias.grad.abs().sum() > 0
    head_start(model, [dict(input_ids=IDS, attention_mask=MASK)] * 2)
    assert decoder.bias.abs().sum() > 0
    back = load(save(model, tmp_path))
    with torch.inference_mode(): torch.testing.assert_close(back(IDS, MASK)[0], model(IDS, MASK)[0])


@pytest.mark.parametrize('family', CONFIGS)
def test_a_head_in_closed_form_knows_the_own_tokens_of_texts(family, checkpoints, tmp_path):
    "Also where the head of a family has no biases, as ModernBERT's has none: those of the map are kept and saved."
    model = create(settings(checkpoints/f'{family}-encoder', initialization='closed_form'), 60, [0, 1, 2, 3, 4])
    texts = torch.randint(5, 60, (10, 16, 8), generator=torch.Generator().manual_seed(0))
    head_start(model, [dict(input_ids=ids, attention_mask=torch.ones_like(ids)) for ids in texts])
    with torch.inference_mode(): high = model(texts[0], torch.ones_like(texts[0]))[1] > 2
    assert high.gather(1, texts[0]).float().mean() > 3 * high.float().mean() > 0
    back = load(save(model.eval(), tmp_path))
    with torch.inference_mode(): torch.testing.assert_close(back(IDS, MASK)[0], model(IDS, MASK)[0])


@pytest.mark.parametrize('family', CONFIGS)
def test_a_trained_model_is_a_backbone_again(family, checkpoints, tmp_path):
    "Also one whose decoder had no bias: it has one since, which the start and a release write."
    model = create(settings(checkpoints/family), 60, [])
    with torch.no_grad(): model.decoder.bias.normal_()
    again = create(settings(save(model, tmp_path)), 60, [])
    with torch.inference_mode(): torch.testing.assert_close(again(IDS, MASK)[0], model(IDS, MASK)[0])
    assert again.decoder.bias.requires_grad


@pytest.mark.parametrize('family', CONFIGS)
def test_a_model_trained_without_a_head_is_a_backbone_again(family, checkpoints, tmp_path):
    "It lacks the pooler that transformers gives a new encoder."
    model = create(settings(checkpoints/f'{family}-encoder', mlm_head=False), 60, [])
    again = create(settings(save(model, tmp_path), mlm_head=False), 60, [])
    with torch.inference_mode(): torch.testing.assert_close(again.backbone(IDS, MASK)[0], model.backbone(IDS, MASK)[0])


def test_a_decoder_of_another_size_than_the_word_vectors_is_not_made_of_them(tmp_path):
    AutoModel.from_config(RemBertConfig(**SMALL, input_embedding_size=16, output_embedding_size=24)).save_pretrained(tmp_path)
    model = create(settings(tmp_path, initialization='closed_form'), 60, [])
    with pytest.raises(ConfigError, match='reads 24 numbers, word vectors have 16'): head_start(model, [dict(input_ids=IDS, attention_mask=MASK)] * 2)


EARLIER = json.loads((Path(__file__).parent/'saved_models.json').read_text(encoding='utf-8'))


def frozen_weights(shapes: dict) -> dict:
    "The same numbers for the same names, whatever the code is like."
    found = {}
    for name, shape in shapes.items():
        wave = np.sin(0.7 * np.arange(max(1, int(np.prod(shape)))) + sum(name.encode()) % 97).reshape(shape)
        if name == 'special': found[name] = torch.arange(*shape) < 5
        elif name == 'mean_length': found[name] = torch.tensor(4.0)
        else: found[name] = torch.tensor(1 + 0.5 * wave if name in ('output_weight', 'query_weight', 'frequencies') else 0.5 * wave, dtype=torch.float32)
    return found


@pytest.mark.parametrize('kind', EARLIER)
def test_a_model_saved_before_the_parts_were_divided(kind, tmp_path):
    "Names, shapes and vectors of models in the form of commit c3ad3df, as revision 369c0e0b encoded with them."
    saved = EARLIER[kind]
    for name in ('config', 'splade'): (tmp_path/f'{name}.json').write_text(json.dumps(saved[name]))
    save_file(frozen_weights(saved['shapes']), tmp_path/'model.safetensors')
    model = load(tmp_path)
    with torch.inference_mode():
        for document in (True, False):
            vectors = model(IDS, MASK, document=document)[0]
            torch.testing.assert_close(vectors, torch.tensor(saved['vectors'][str(document).lower()]), atol=1e-4, rtol=1e-4)
    assert {name: list(value.shape) for name, value in load_file(save(model, tmp_path/'again')/'model.safetensors').items()} == saved['shapes']


def test_registered_parts_through_a_life(tmp_path, monkeypatch):
    "A part with learned numbers: trained, saved, loaded, refused where it is not registered."
    monkeypatch.setattr(term_weights, 'TERM_WEIGHTS', {})
    @register_term_weight('scale')
    class Scale(torch.nn.Module, TermWeight):
        def __init__(self, settings, columns):
            super().__init__(); self.scale = torch.nn.Parameter(torch.full((columns,), 2.0))
        def on_weights(self, weights, texts): return weights * self.scale
    plain, model = toy_model(), toy_model(term_weights=('scale',))
    torch.testing.assert_close(model(IDS, MASK)[0], 2 * plain(IDS, MASK)[0])
    model(IDS, MASK)[0].sum().backward()
    assert model.term_weight_scale.scale.grad.abs().sum() > 0
    twin = copy.deepcopy(model); twin.term_weight_scale.scale.data.fill_(3.0)
    torch.testing.assert_close(twin(IDS, MASK)[0], 3 * plain(IDS, MASK)[0])
    back = load(save(twin, tmp_path))
    text, token, weight = sparse_batch(back, decoder_for(back), IDS, MASK)
    torch.testing.assert_close(torch.zeros(2, 60).index_put_((text, token), weight), twin(IDS, MASK)[0].detach())
    del term_weights.TERM_WEIGHTS['scale']
    with pytest.raises(ConfigError, match="'scale' is not registered"): load(tmp_path)


SAME_WEIGHTS = [name for name in SAVED_SETTINGS if name != 'term_weights']


def test_models_of_the_same_weights_have_one_digest_where_they_give_the_same_vectors():
    "Saved vectors are named by the digest. Settings that change the weights change it in any case."
    base, differ = toy_model(context_gate=True, gate_pooler='heads'), set()
    base.decoder.bias.data += 3
    def vectors(model): return torch.cat([model(IDS, MASK, document=document)[0] for document in (True, False)])
    for name in SAME_WEIGHTS:
        value = 'rectified_heads' if name == 'gate_pooler' else other_value(name, base.settings, '')
        other, weights = toy_model(**dict(context_gate=True, gate_pooler='heads') | {name: value}), base.state_dict()
        if {key: given.shape for key, given in other.state_dict().items()} != {key: given.shape for key, given in weights.items()}: continue
        other.load_state_dict(weights)
        same = torch.equal(vectors(base), vectors(other))
        assert (other.digest() == base.digest()) == same, name
        if not same: differ.add(name)
    assert differ >= {'most_query_terms', 'most_document_terms', 'document_norm', 'gate_pooler'}


def test_words_that_are_never_noise_are_saved_with_a_model(tmp_path):
    save(toy_model(language_allows=('ai', 'tv')), tmp_path)
    assert load(tmp_path).settings.language_allows == ('ai', 'tv')


def test_what_is_left_out_beside_a_registered_part_counts_in_no_norm(monkeypatch):
    monkeypatch.setattr(term_weights, 'TERM_WEIGHTS', {})
    register_term_weight('nothing')(lambda weights, texts: weights)
    given, found = dict(document_norm=1.0, most_document_terms=5), []
    for model in (toy_model(**given), own := toy_model(**given, term_weights=('nothing',))):
        text, token, weight = sparse_batch(model, decoder_for(model, list(range(5, 60, 2))), IDS, MASK)
        found.append(torch.zeros(2, 60).index_put_((text, token), weight))
    torch.testing.assert_close(*found)
    assert found[0].count_nonzero(dim=1).tolist() == [5, 5] and sides_differ(own), 'its queries may have other weights'


@pytest.mark.slow
def test_another_process_reads_the_same_model(tmp_path):
    model = toy_model(gate_pooler='heads'); save(model, tmp_path/'model')
    script = ('import sys, torch; from splade_nb.model.load import load\n'
              f'ids = torch.tensor({IDS.tolist()}); m = load(sys.argv[1])\n'
              'torch.save(m(ids, (ids != 1).long())[0].detach(), sys.argv[2])')
    done = program('-c', script, tmp_path/'model', tmp_path/'vectors', folder=tmp_path)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(tmp_path/'vectors', weights_only=True), model(IDS, MASK)[0].detach())


@pytest.mark.parametrize('damage, said', [('drop', 'gate.project.0.weight'), ('add', 'foreign'), ('reshape', 'gate.project.0.weight')])
def test_weights_that_do_not_fit_are_refused(damage, said, tmp_path):
    path = save(toy_model(), tmp_path)/'model.safetensors'; kept = load_file(path)
    if damage == 'drop': del kept['gate.project.0.weight']
    if damage == 'add': kept['foreign'] = torch.ones(2)
    if damage == 'reshape': kept['gate.project.0.weight'] = torch.ones(3, 32)
    save_file(kept, path)
    with pytest.raises(ConfigError, match=said): load(tmp_path)


def test_a_setting_that_no_model_has_is_refused(tmp_path):
    path = save(toy_model(), tmp_path)/'splade.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'gate_head': 4}))
    with pytest.raises(ConfigError, match="did you mean 'gate_heads'"): load(tmp_path)


def refused(said, source, **changes):
    with pytest.raises(ConfigError, match=said): create(settings(source, **changes), 60, [])


@pytest.mark.parametrize('family', CONFIGS)
def test_an_encoder_alone_is_refused(family, checkpoints): refused('no trained MLM head.*mlm_head=False', checkpoints/f'{family}-encoder')


def test_a_discriminator_is_refused(tmp_path):
    ElectraForPreTraining(CONFIGS['electra']()).save_pretrained(tmp_path)
    refused('no trained MLM head', tmp_path)


def test_a_decoder_of_its_own_must_be_there(tmp_path):
    "An untied decoder that is missing would be random."
    config = XLMRobertaConfig(**SMALL, **MARKS, tie_word_embeddings=False)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    kept = load_file(tmp_path/'model.safetensors'); del kept['lm_head.decoder.weight']
    save_file(kept, tmp_path/'model.safetensors', metadata={'format': 'pt'})
    refused('no trained MLM head', tmp_path)


def test_half_an_encoder_is_refused(checkpoints, tmp_path):
    for form, source in ((True, 'bert'), (False, 'bert-encoder')):
        AutoModel.from_pretrained(checkpoints/source).config.save_pretrained(tmp_path)
        kept = load_file(checkpoints/source/'model.safetensors')
        kept.pop(next(name for name in kept if 'layer.1.attention' in name))
        save_file(kept, tmp_path/'model.safetensors', metadata={'format': 'pt'})
        for start in ('pretrained', 'closed_form'): refused('weights missing', tmp_path, mlm_head=form, initialization=start)
        for name in ('tokenizer.json', 'tokenizer_config.json'):
            if (checkpoints/source/name).exists(): shutil.copy(checkpoints/source/name, tmp_path)
        with pytest.raises(ConfigError, match='^teacher=.*weights missing'): load_teacher(str(tmp_path))


def test_opening_an_encoder_prints_no_table_of_weights(checkpoints):
    "What transformers prints on weights that a closed-form head or a pooler replaces frightens whoever reads it."
    script = ('import sys\nfrom splade_nb.model.load import pretrained_backbone\nfrom splade_nb.training.teacher import load_teacher\n'
              'pretrained_backbone(sys.argv[1], new_head=True)\nload_teacher(sys.argv[2])')
    done = subprocess.run([sys.executable, '-c', script, *map(str, (checkpoints/'bert-encoder', checkpoints/'bert'))], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and 'LOAD REPORT' not in done.stdout + done.stderr, done.stderr


def test_what_is_no_masked_language_model_is_refused(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True) # a hub name must not reach the network
    GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=2)).save_pretrained(tmp_path/'gpt')
    refused('no masked language model', tmp_path/'gpt')
    (tmp_path/'empty').mkdir()
    for source in (tmp_path/'empty', tmp_path/'nowhere', 'no/such-model'):
        for changes in ({}, dict(mlm_head=False), dict(initialization='random')): refused('backbone=', source, **changes)


@pytest.mark.parametrize('opened', [load_teacher, load_tokenizer, open_checkpoint_folder, partial(named_config, 'backbone'), pretrained_backbone,
                                    partial(pretrained_backbone, random=True)])
def test_without_a_network_the_hub_is_asked_once(opened, monkeypatch):
    "transformers' own loading waits and asks again. Only the hub's clock is watched: other threads may sleep."
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', False)
    monkeypatch.setattr('huggingface_hub.constants.ENDPOINT', 'http://127.0.0.1:9')
    with pytest.raises(ConfigError, match='hf download no/such-model'), patch('huggingface_hub.utils._http.time') as clock: opened('no/such-model')
    assert not clock.sleep.called


@pytest.mark.parametrize('changes, said', [(dict(top_k=61), 'top_k=61.*nearest is 60'), (dict(max_length=19), 'max_length=19.*nearest is 18'),
                                           (dict(query_length=30), 'query_length=30.*nearest is 18'),
                                           (dict(context_gate=True, gate_heads=5), 'gate_heads=5.*nearest is 4'),
                                           (dict(output_idf=1.0), 'needs idf'), (dict(initialization='near_identity'), 'near_identity')])
def test_what_the_checkpoint_cannot_serve_is_refused(changes, said, checkpoints): refused(said, checkpoints/'xlm_roberta', **changes)


@pytest.mark.parametrize('family', CONFIGS)
def test_spare_rows_are_cut_off(family, checkpoints, tmp_path):
    whole, cut = (create(settings(checkpoints/family), v, []).eval() for v in (60, 50))
    with torch.inference_mode(): assert torch.allclose(cut(IDS, MASK)[0], whole(IDS, MASK)[0][:, :50], atol=1e-6)
    torch.testing.assert_close(load(save(cut, tmp_path))(IDS, MASK)[0], cut(IDS, MASK)[0])
    with pytest.raises(ConfigError, match='holds 60 tokens, its tokenizer 70'): create(settings(checkpoints/family), 70, [])


@pytest.mark.parametrize('family', CONFIGS)
def test_half_precision_checkpoints_become_whole(family, checkpoints, tmp_path):
    "Training keeps float32 weights, and what it saves comes back as float32 though the config says bfloat16."
    AutoModelForMaskedLM.from_pretrained(checkpoints/family, dtype=torch.bfloat16).save_pretrained(tmp_path/'half')
    for start in ('pretrained', 'random'):
        model = create(settings(tmp_path/'half', initialization=start), 60, [])
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        with torch.no_grad(): model.backbone.get_input_embeddings().weight.add_(1e-6)
        back = load(save(model.eval(), tmp_path/start))
        torch.testing.assert_close(back(IDS, MASK)[0], model(IDS, MASK)[0])


@pytest.mark.parametrize('family', CONFIGS)
def test_a_random_start_takes_the_architecture_alone(family, checkpoints):
    first, second = (create(settings(checkpoints/family, initialization='random', mlm_head=form), 60, []) for form in (True, False))
    assert type(first.backbone) is type(AutoModelForMaskedLM.from_config(CONFIGS[family]())) and second.importance is not None
    assert create(settings(checkpoints/f'{family}-encoder', initialization='random'), 60, [])(IDS, MASK)[0].shape == (2, 60)


@pytest.mark.parametrize('family', CONFIGS)
def test_checkpointing_changes_memory_only(family, checkpoints):
    def run(**changes):
        torch.manual_seed(0); model = create(settings(checkpoints/family, context_gate=True, **changes), 60, []).train()
        torch.manual_seed(1); kept = {}
        def pack(x): kept[x.data_ptr()] = x.nbytes; return x
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): loss = model(IDS.repeat(16, 1), MASK.repeat(16, 1))[0].sum()
        loss.backward()
        return sum(kept.values()), loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if family == 'mpnet':  # transformers has none for it
        with pytest.raises(ConfigError, match='gradient_checkpointing: MPNetForMaskedLM does not support it'): run(gradient_checkpointing=True)
        return
    plain, spared = run(), run(gradient_checkpointing=True)
    torch.testing.assert_close(plain[1:], spared[1:])
    assert spared[0] < 0.8 * plain[0]


@pytest.mark.parametrize('form', FORMS)
def test_autocast(form):
    model = toy_model(**{'context_gate': False, **FORMS[form]})
    with torch.autocast('cpu', torch.bfloat16): vectors, logits = model(IDS, MASK); weights = token_weights(model, IDS, MASK)
    vectors.sum().backward()
    assert vectors.dtype == logits.dtype == weights.dtype == torch.float32
    assert torch.allclose(vectors, model(IDS, MASK)[0], atol=0.05) and torch.allclose(weights, token_weights(model, IDS, MASK), atol=0.05)


def test_threads_share_a_model():
    model, rows = toy_model(), [torch.randint(5, 60, (2, n)) for n in range(3, 15)]
    expected, found, wrong = [encode_documents(model, row, torch.ones_like(row)) for row in rows], {}, []
    def work(i):
        try:
            for _ in range(20): found[i] = encode_documents(model, rows[i], torch.ones_like(rows[i])); torch.testing.assert_close(found[i], expected[i])
        except BaseException as error: wrong.append(error)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(rows))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong and len(found) == len(rows)


def test_a_copy_stands_alone():
    model = toy_model(); twin = copy.deepcopy(model)
    before = model(IDS, MASK)[0].detach()
    for part in model.parameters(): part.data.zero_()
    torch.testing.assert_close(twin(IDS, MASK)[0], before)
    assert not twin.seen and not model.seen


@pytest.mark.parametrize('family', CONFIGS)
def test_seed_names_take_every_family(family, checkpoints, tmp_path):
    for head in (True, False):
        model = create_splade_xlmr(str(checkpoints/family), idf_weights=torch.linspace(0, 2, 60), use_mlm_head=head).eval()
        sparse_repr, weights = model(IDS, MASK)
        assert sparse_repr.shape == (2, 60) and weights.shape == (2, 5) and (weights[MASK == 0] == 0).all()
        torch.testing.assert_close(model.encode_documents(IDS, MASK), sparse_repr)


@pytest.mark.slow
def test_the_published_tokenizers_keep_their_pieces_apart():
    folders = list((SHARED/'tokenizers').iterdir()) if is_real('tokenizers') else [real_or_made('tokenizers/xlm-roberta-base')]
    from transformers import AutoTokenizer
    from splade_nb.model.xlmr import top_k_tokens
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert len(top_k_tokens(torch.ones(len(tokenizer)), tokenizer, len(tokenizer))) == len(tokenizer)



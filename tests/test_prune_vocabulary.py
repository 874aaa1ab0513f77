"""Vocabulary pruning on true tokenizers, on every family of model, and against files and disks that fail."""
import json, os, platform, re, resource, shutil
from pathlib import Path
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig, ByT5Tokenizer, DistilBertConfig, ElectraConfig, ModernBertConfig,
                          MPNetConfig, PreTrainedTokenizerFast, RobertaConfig, XLMRobertaConfig)
from conftest import real
from faults import program
from splade_nb.config.files import ConfigError, new_folder, root
from splade_nb.config.settings import Settings
from splade_nb.data.readers import load
from splade_nb.model.initialization import create
from splade_nb.model.load import save
from splade_nb.model.prune_vocabulary import differences, kept_rows, main, open_checkpoint, prune, tokenizer_state
from splade_nb.data.tokenizer import batch, load_tokenizer, save_tokenizer, special_ids, train_unigram

MARKS = dict(pad_token='<pad>', cls_token='<s>', sep_token='</s>', bos_token='<s>', eos_token='</s>', unk_token='<unk>', mask_token='<mask>')
SPECIALS = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']


def texts_of(name: str) -> list:
    collection = load(real(f'data/{name}'))
    return [*collection.texts.values(), *(query.text for query in collection.queries.values())]


def true_checkpoint(folder: Path, name: str, config) -> Path:
    "A true tokenizer with a small model of its vocabulary from random weights."
    shutil.copytree(real(f'tokenizers/{name}'), folder, copy_function=shutil.copyfile); folder.chmod(0o755)
    torch.manual_seed(0); model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        if model.get_output_embeddings().bias is not None: model.get_output_embeddings().bias.normal_()
    model.save_pretrained(folder)
    return folder


def same_split(before, after, kept, texts: list) -> int: # texts
    "Every text whose tokens all stay splits as before; the others are left out."
    rows, held = kept.tolist(), set(kept.tolist())
    pairs = [(a, b) for a, b in zip(before.ids(texts), after.ids(texts)) if set(a) <= held]
    assert all(a == [rows[i] for i in b] for a, b in pairs)
    return len(pairs)


def compare(source, cut, texts: list) -> dict:
    "Largest differences as the two folders are read by transformers, over batches with padding."
    before, after = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (source, cut))
    tokenizer = load_tokenizer(source); kept = kept_rows(cut).tolist()
    found = [differences(before, after, kept, batch(tokenizer, tokenizer.ids(texts[low:low + 4]), 32)) for low in range(0, len(texts), 4)]
    return {name: max(one[name] for one in found) for name in found[0]}


# True tokenizers

@pytest.fixture(scope='module')
def xlmr(tmp_path_factory):
    "XLM-R's whole vocabulary, cut to a Korean collection."
    folder = tmp_path_factory.mktemp('xlmr')
    config = XLMRobertaConfig(vocab_size=250_002, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                              max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    source, texts = true_checkpoint(folder/'source', 'xlm-roberta-base', config), texts_of('tydiqa_ko_goldp')[:1500]
    return source, folder/'cut', texts, prune(source, texts, folder/'cut'), load_tokenizer(source)


@pytest.mark.slow
def test_xlmr_splits_its_corpus_as_before(xlmr):
    source, cut, texts, report, tokenizer = xlmr
    own = report['coverage']['corpus']
    assert own['texts'] >= 1000 and own['kept'] == 1 and own['changed_texts'] == own['newly_unknown'] == 0
    backend, kept = AutoTokenizer.from_pretrained(cut), kept_rows(cut).tolist()
    assert [[kept[i] for i in row] for row in backend(texts)['input_ids']] == tokenizer.backend(texts)['input_ids'], 'with their begin and end marks'
    assert backend.convert_ids_to_tokens([0, 1, 2, 3, len(kept) - 1]) == SPECIALS and backend.mask_token_id == len(kept) - 1
    assert backend('가 <mask> 나')['input_ids'].count(len(kept) - 1) == 1


@pytest.mark.slow
def test_xlmr_splits_any_text_of_kept_pieces_as_before(xlmr):
    source, cut, _, _, tokenizer = xlmr
    after, kept = load_tokenizer(cut), kept_rows(cut)
    scores = dict(json.loads(tokenizer.backend.backend_tokenizer.to_str())['model']['vocab'])
    held = dict(json.loads(after.backend.backend_tokenizer.to_str())['model']['vocab'])
    assert held.items() <= scores.items() and min(held.values()) == min(scores.values()), 'scores to the last bit'
    assert same_split(tokenizer, after, kept, texts_of('question_pair')) > 5000


@pytest.mark.slow
def test_xlmr_gives_the_same_numbers(xlmr):
    source, cut, texts, _, _ = xlmr
    found = compare(source, cut, texts[:8] + texts[-8:])
    assert found['hidden_states'] == 0 and found['logits'] <= 1e-6 and found['largest_logit'] > 1
    weights = load_file(cut/'model.safetensors')
    assert sum(len(kept_rows(cut)) in value.shape for value in weights.values()) == 2, 'one tied matrix and one bias on the disk'


@pytest.mark.slow
def test_wordpiece_with_padding_at_its_end(tmp_path):
    config = ModernBertConfig(vocab_size=50_000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=66,
                              pad_token_id=49_999, bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1)
    source, texts = true_checkpoint(tmp_path/'source', 'ax-encoder-base', config), texts_of('question_pair')[:2000]
    report = prune(source, texts, tmp_path/'cut')
    read = AutoModelForMaskedLM.from_pretrained(tmp_path/'cut').config
    assert (read.pad_token_id, read.vocab_size) == (report['savings']['rows'][1] - 1, report['savings']['rows'][1])
    assert same_split(load_tokenizer(source), load_tokenizer(tmp_path/'cut'), kept_rows(tmp_path/'cut'), texts_of('question_pair')[2000:]) > 1000
    found = compare(source, tmp_path/'cut', texts[:8])
    assert found['hidden_states'] == 0 and found['logits'] <= 1e-6


# Every family

TEXTS = ['서울 맛집 추천', '부산 여행 코스', '서울에서 부산까지 기차 여행', '강남 맛집과 서울 여행', 'Seoul travel 2026!', '맛집 naengmyeon 7곳'] * 4
OTHERS = ['제주 바다와 한라산', 'Jeju island', '도시 야경 사진', '김치찌개 끓이는 법'] * 6


def unigram(): return train_unigram(TEXTS + OTHERS, 200)


def trained(model, trainer, before, **rest):
    backend = Tokenizer(model); backend.pre_tokenizer = before
    backend.train_from_iterator(TEXTS + OTHERS, trainer(vocab_size=500, special_tokens=SPECIALS, show_progress=False, **rest))
    backend.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0), add_prefix_space=False)
    return backend


def wordpiece(): return PreTrainedTokenizerFast(tokenizer_object=trained(models.WordPiece(unk_token='<unk>'), trainers.WordPieceTrainer, pre_tokenizers.BertPreTokenizer()), **MARKS)


def bytes_of():
    backend = trained(models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel(), initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.decoder = decoders.ByteLevel(); backend.enable_padding(pad_id=1, pad_token='<pad>')
    return PreTrainedTokenizerFast(tokenizer_object=backend, **MARKS)


SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=40, pad_token_id=1)
FAMILIES = {
    'xlm_roberta': (unigram, lambda v: XLMRobertaConfig(vocab_size=v, **SMALL)),
    'roberta, padding late': (bytes_of, lambda v: RobertaConfig(vocab_size=v, **{**SMALL, 'max_position_embeddings': 400, 'pad_token_id': 300})),
    'mpnet': (bytes_of, lambda v: MPNetConfig(vocab_size=v, **SMALL)),
    'bert': (wordpiece, lambda v: BertConfig(vocab_size=v, **SMALL)),
    'bert, untied': (unigram, lambda v: BertConfig(vocab_size=v, tie_word_embeddings=False, **SMALL)),
    'electra': (wordpiece, lambda v: ElectraConfig(vocab_size=v, embedding_size=16, **SMALL)),
    'modernbert': (bytes_of, lambda v: ModernBertConfig(vocab_size=v, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2, decoder_bias=False, **SMALL)),
    'distilbert, spare rows': (wordpiece, lambda v: DistilBertConfig(vocab_size=v + 24, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=40, pad_token_id=1)),
}


def small_checkpoint(folder: Path, family: str = 'xlm_roberta', kind=AutoModelForMaskedLM) -> Path:
    make, config = FAMILIES[family]; torch.manual_seed(0)
    backend = make(); backend.save_pretrained(folder)
    model = kind.from_config(config(len(backend)))
    with torch.no_grad():
        for value in model.parameters(): value.add_(torch.randn_like(value), alpha=0.05)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize('family, start', [('bert', 'closed_form'), ('modernbert', 'closed_form'), ('modernbert', 'pretrained'), ('bert', 'importance')])
def test_a_trained_model_is_cut_with_its_head(family, start, tmp_path):
    "One that began as an encoder alone is named so in its config; a decoder that had no bias has one since."
    head = start != 'importance'
    source = small_checkpoint(tmp_path/'source', family, AutoModelForMaskedLM if start == 'pretrained' else AutoModel)
    tokenizer = load_tokenizer(source)
    settings = Settings(backbone=str(source), initialization=start if head else 'pretrained', max_length=16, top_k=3, mlm_head=head)
    model = create(settings, len(tokenizer), [])
    if head: model.decoder.bias.data.normal_()
    save_tokenizer(tokenizer, save(model, tmp_path/'trained'))
    assert prune(tmp_path/'trained', TEXTS, tmp_path/'cut')['savings']['rows'][1] < len(tokenizer)
    if not head: return
    cut = create(Settings(backbone=str(tmp_path/'cut'), max_length=16, top_k=3), len(kept_rows(tmp_path/'cut')), [])
    rows = (model(**batch(tokenizer, tokenizer.ids(TEXTS[:4]), 16))[0], cut(**batch(load_tokenizer(tmp_path/'cut'), load_tokenizer(tmp_path/'cut').ids(TEXTS[:4]), 16))[0])
    torch.testing.assert_close(rows[1], rows[0][:, kept_rows(tmp_path/'cut')])


@pytest.mark.parametrize('family', FAMILIES)
def test_a_family(family, tmp_path):
    source, cut = small_checkpoint(tmp_path/'source', family), tmp_path/'cut'
    report = prune(source, TEXTS, cut, held_out=OTHERS)
    assert report['savings']['rows'][1] < report['savings']['rows'][0] and report['coverage']['held-out']['newly_unknown'] >= 0
    found = compare(source, cut, TEXTS[:6])
    assert found['hidden_states'] == 0 and found['logits'] <= 1e-6 * max(1, found['largest_logit'])
    kept, before, after = kept_rows(cut), load_tokenizer(source), load_tokenizer(cut)
    rows = kept.tolist()
    assert [[rows[i] for i in row] for row in after.backend(TEXTS, padding=True)['input_ids']] == before.backend(TEXTS, padding=True)['input_ids']
    vectors = []
    for folder, tokenizer in ((source, before), (cut, after)):
        torch.manual_seed(0)
        model = create(Settings(backbone=str(folder), initialization='pretrained', max_length=16, dropout=0.0, top_k=3), len(tokenizer), special_ids(tokenizer)).eval()
        with torch.inference_mode(): vectors.append(model(**batch(tokenizer, tokenizer.ids(TEXTS[:6]), 16))[0])
    assert torch.allclose(vectors[0][:, rows], vectors[1], atol=1e-5) and (vectors[1] > 0).any()
    tied = AutoModelForMaskedLM.from_pretrained(cut)
    assert (tied.get_output_embeddings().weight is tied.get_input_embeddings().weight) == ('untied' not in family)


def test_twice_is_once(tmp_path):
    source = small_checkpoint(tmp_path/'source'); prune(source, TEXTS, tmp_path/'once'); prune(tmp_path/'once', TEXTS, tmp_path/'twice')
    assert kept_rows(tmp_path/'twice').tolist() == list(range(len(kept_rows(tmp_path/'once'))))
    for name in ('model.safetensors', 'tokenizer.json'): assert (tmp_path/'once'/name).read_bytes() == (tmp_path/'twice'/name).read_bytes()


def test_morphemes_and_lists(tmp_path):
    source = small_checkpoint(tmp_path/'source')
    prune(source, TEXTS[:2], tmp_path/'cut', words=['기차'], segment='kiwi')
    assert load_tokenizer(tmp_path/'cut').segment == 'kiwi'
    names, whole = load_tokenizer(tmp_path/'cut').names, load_tokenizer(source).names
    assert {name for name in whole if name.strip('▁') == '기차'} <= set(names) and len(names) < len(whole)


# Faults: one line, exit code 2, nothing left behind

def truncate(path: Path, size: int): path.write_bytes(path.read_bytes()[:size])


def tokenizer_of_nobody(source: Path):
    state = json.loads((source/'tokenizer.json').read_text(encoding='utf-8')); state['model']['vocab'] = 7
    (source/'tokenizer.json').write_text(json.dumps(state), encoding='utf-8')


BROKEN = {
    'no folder': (lambda source: shutil.rmtree(source), 'neither a local folder'),
    'half a tokenizer': (lambda source: truncate(source/'tokenizer.json', 500), 'tokenizer.json: damaged'),
    'not a tokenizer': (tokenizer_of_nobody, 'tokenizer'),
    'no tokenizer': (lambda source: [path.unlink() for path in source.glob('tokenizer*')], 'tokenizer'),
    'no weights': (lambda source: (source/'model.safetensors').unlink(), 'neither a local folder'),
    'half the weights': (lambda source: truncate(source/'model.safetensors', 5000), 'weights cannot be read'),
    'another tokenizer': (lambda source: train_unigram(TEXTS + OTHERS + ['가나다라마바사아자차카타파하 거너더러머버서어저처커터퍼허'] * 5, 900).save_pretrained(source), 'do not belong together'),
}


def refused(capsys, arguments: list, said: str, out: Path):
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and re.search(said, lines[0]), lines
    assert not out.exists() and not list(out.parent.glob('*.part'))


@pytest.fixture(scope='module')
def small(tmp_path_factory): return small_checkpoint(tmp_path_factory.mktemp('small')/'source')


@pytest.fixture
def corpus(tmp_path):
    (tmp_path/'corpus.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    return tmp_path/'corpus.txt'


@pytest.mark.parametrize('fault', BROKEN)
def test_a_broken_checkpoint(fault, small, corpus, tmp_path, capsys):
    shutil.copytree(small, tmp_path/'source'); damage, said = BROKEN[fault]; damage(tmp_path/'source')
    refused(capsys, [tmp_path/'source', corpus, tmp_path/'cut'], said, tmp_path/'cut')


@pytest.mark.parametrize('arguments, said', [(['--kinds', 'korean,englsh'], "'english'"), (['--words', 'no/such/words.txt'], 'no such file'),
                                             (['--held-out', 'nowhere'], 'no such file')])
def test_a_wrong_argument(arguments, said, small, corpus, tmp_path, capsys):
    refused(capsys, [small, corpus, tmp_path/'cut', *arguments], said, tmp_path/'cut')


@pytest.mark.parametrize('content, said', [(b'', 'one text a line'), (b'\xec\x84\xff\n', 'UTF-8')])
def test_a_wrong_corpus(content, said, small, tmp_path, capsys):
    (tmp_path/'corpus.txt').write_bytes(content)
    refused(capsys, [small, tmp_path/'corpus.txt', tmp_path/'cut'], said, tmp_path/'cut')


def test_a_folder_that_is_there(small, corpus, tmp_path, capsys):
    (tmp_path/'cut').mkdir(); (tmp_path/'cut'/'mine').write_text('1')
    assert main([str(small), str(corpus), str(tmp_path/'cut')]) == 2 and 'is there already' in capsys.readouterr().err
    assert [path.name for path in (tmp_path/'cut').iterdir()] == ['mine']
    (tmp_path/'file').write_text('1')
    assert main([str(small), str(corpus), str(tmp_path/'file')]) == 2 and main([str(small), str(corpus), str(small)]) == 2
    refused(capsys, [small, corpus, tmp_path/'file'/'cut'], 'cannot be written', tmp_path/'elsewhere')


@pytest.mark.parametrize('limit', [3_000, 30_000]) # bytes of a file: the tokenizer's, the weights'
def test_a_disk_that_refuses(limit, small, corpus, tmp_path, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try: refused(capsys, [small, corpus, tmp_path/'cut'], 'cannot be written', tmp_path/'cut')
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_kill_left_is_cleared(small, corpus, tmp_path):
    left, other, own = (tmp_path/name for name in (f'cut.{platform.node()}-999999999.part', f'cut.{platform.node()}-{os.getppid()}.part', 'cut.part'))
    for folder in (left, other, own, tmp_path/'cut'): folder.mkdir()
    for folder in (left, other, own): (folder/'model.safetensors').write_text('half')
    assert main([str(small), str(corpus), str(tmp_path/'cut')]) == 0, 'an empty folder may be filled'
    assert not left.exists() and other.exists() and own.exists() and (tmp_path/'cut'/'kept.json').exists()


def test_of_two_that_write_one_folder_the_first_is_kept(tmp_path):
    with pytest.raises(ConfigError, match='is there already'), new_folder(tmp_path/'cut') as part:
        (tmp_path/'cut').mkdir(); (tmp_path/'cut'/'first').write_text('whole'); (part/'second').write_text('whole')
    assert [path.name for path in tmp_path.rglob('*')] == ['cut', 'first']


def test_a_python_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match='Unigram, WordPiece, WordLevel, BPE'): tokenizer_state(tmp_path, ByT5Tokenizer())


@pytest.mark.slow
def test_the_command_line(small, corpus, tmp_path):
    done = program('-m', 'splade_nb.model.prune_vocabulary', small, 'mini', tmp_path/'cut', '--kinds', 'korean,english', '--held-out', corpus, folder=root())
    assert done.returncode == 0, done.stderr
    assert 'before' in done.stdout and '0 in 0 of' in done.stdout and 'held-out: 100.00%' in done.stdout and 'hidden states 0.0e+00' in done.stdout
    tokenizer, _, backbone = open_checkpoint(tmp_path/'cut')
    assert len(tokenizer) == backbone.config.vocab_size == len(kept_rows(tmp_path/'cut'))

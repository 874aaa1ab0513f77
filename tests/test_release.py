"""The model that the repository publishes is whole, small, licensed, and found by those who have trained nothing."""
import re, shutil, subprocess, sys
import numpy as np
import pytest
from conftest import ROOT
from splade_nb import cli
from splade_nb.api import RELEASED, load
from splade_nb.config.files import ConfigError, read_json
from splade_nb.data.encoders import encoder_record
from splade_nb.data.readers import load as load_data
from splade_nb.hub.export import write_form
from splade_nb.hub.release import BLOCKED, check_release, matching_facts, release
from splade_nb.model.encode import encode
from splade_nb.model.load import pretrained_backbone
from splade_nb.model.opened import open_model

LARGEST = 60 * 2 ** 20  # bytes, of which the graph takes most


def test_every_file_is_as_it_was_released(): assert check_release(RELEASED)['files']['model/model.onnx']['bytes']


def test_it_is_small():
    assert sum(path.stat().st_size for path in RELEASED.rglob('*')) < LARGEST


def test_its_figures_are_those_of_its_weights(): assert 'metrics' in matching_facts(RELEASED)['summary']


def test_it_says_what_made_it():
    label = read_json(RELEASED/'release.json')
    assert label['command'].startswith('make train') and label['licence'] != 'unknown' and 'dirty' not in label['revision']
    assert 'NVIDIA' in label['device'] or 'threads' in label['device'], 'how a processor rounds depends on them'
    licences = label['data']['licences']
    assert licences and not any(licence.startswith('unknown') for licence in licences.values())
    card = (RELEASED/'README.md').read_text(encoding='utf-8')
    assert all(f'{name}: {licence}' in card for name, licence in licences.items())
    assert label['release'].startswith('splade-nb release --rounded') and f'`{label["release"]}`' in card
    parser = cli.parser()
    assert parser.parse_args([*label['release'].split()[1:], '--model', 'x', '--out', 'y']).rounded, 'a command that there is'


def test_no_release_is_made_of_a_release(tmp_path):
    with pytest.raises(ConfigError, match='released: a release already'): release('released', tmp_path/'out')
    assert not (tmp_path/'out').exists()


@pytest.mark.parametrize('damage, said', [(lambda folder: (folder/'README.md').unlink(), 'README.md'),
                                          (lambda folder: (folder/'more.txt').touch(), 'more.txt'),
                                          (lambda folder: (folder/'release.json').unlink(), 'no release')])
def test_a_damaged_release_is_named(damage, said, tmp_path):
    shutil.copytree(RELEASED, tmp_path/'copy')
    damage(tmp_path/'copy')
    with pytest.raises(ConfigError, match=said): check_release(tmp_path/'copy')


def test_foreign_weights_are_refused(tmp_path):
    shutil.copytree(RELEASED, tmp_path/'copy')
    with open(tmp_path/'copy'/'model'/'model.onnx', 'ab') as file: file.write(b'0')
    with pytest.raises(ConfigError, match='not those of this model'): matching_facts(tmp_path/'copy')


@pytest.mark.slow
def test_it_finds_before_anything_is_trained():
    encoder, mini = load(), load_data('mini')
    (query, judged), texts = next(iter(mini.qrels.items())), mini.texts
    documents = encoder.encode_document([*texts.values()][:200] + [texts[next(iter(judged))]])
    scores = encoder.similarity(encoder.encode_query([mini.queries[query].text], documents), documents)[0]
    assert scores.argsort()[::-1].tolist().index(200) < 10


def test_pytorch_reads_its_weights_and_what_runs_in_onnx_runtime_is_not_exported(tmp_path):
    texts = ['서울 맛집 추천', '환불은 사흘 걸립니다.']
    with pytest.raises(ConfigError, match="open it with runtime='torch'"): write_form(*open_model(RELEASED), 'opensearch', tmp_path/'zip')
    assert not [*tmp_path.iterdir()]
    light, whole = (encode(*open_model(RELEASED, runtime), texts) for runtime in ('onnx', 'torch'))
    cosine = light.multiply(whole).sum(1).A1 / np.sqrt(light.power(2).sum(1).A1 * whole.power(2).sum(1).A1)
    assert (cosine > 0.998).all() and (cosine < 1).all(), 'inputs are rounded by one of them'


def test_training_goes_on_from_it_and_says_its_licence():
    wanted, found = open_model(RELEASED, 'torch')[0].backbone.state_dict(), pretrained_backbone('released').state_dict()
    assert wanted.keys() == found.keys() and all((value == found[name]).all() for name, value in wanted.items())
    record = encoder_record('released')
    assert record['licence'] == 'cc-by-sa-4.0' and {'model.onnx', 'weights.json'} <= record['sha256'].keys()


def test_it_adds_no_advert_of_web_pages():
    "XLM-R's vocabulary contains adverts for prostitution from web pages, which no training text contains."
    model, tokenizer = open_model(RELEASED, 'torch')
    adverts = [place for place, name in enumerate(tokenizer.backend.convert_ids_to_tokens([*range(len(tokenizer.backend))])) if re.search('출장(샵|안마|만남|마사지)', name)]
    assert len(adverts) > 10 and (model.decoder.bias[adverts] == BLOCKED).all()
    assert (model.decoder.bias == BLOCKED).sum() < len(tokenizer.backend) / 20


def test_it_opens_without_what_takes_seconds_to_import():
    code = "import sys; from splade_nb import load; load(); print(sorted({'torch', 'transformers'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == '[]', done.stderr[-2000:]

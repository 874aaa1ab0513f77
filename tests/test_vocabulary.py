"""The study of vocabularies: shortcuts that change no number, and tables that say what was measured."""
import numpy as np
import pytest
from conftest import real, run_cells
from splade_nb.config.files import write_json
from splade_nb.config.versions import resolve_quietly
from splade_nb.data import tokenizer as tokens
from splade_nb.data.readers import load
from splade_nb.lab import study as studies
from splade_nb.lab.study import dev_ids, without_held_out
from splade_nb.model.encode import encode
from splade_nb.training.dataset import prepare


def row(name: str, tokenizer: int, found: str) -> dict:
    return dict(vocabulary=name, segment='none', seed=42, pieces=tokenizer, seen=100, document=20.5, word=2.25,
                unknown=dict(documents=0.0, queries=0.001), parameters=1.5e6, peak=2.5e9, training=120.0, steps=60,
                stopped='', preparation=9.0, speed=12.5, terms=dict(query=10.0, doc=50.0), dead=0.0, korean=0.75,
                noise=0.05, hidden=128, layers=2, length=128, batch=32, threads=1,
                start=dict(mini='0.5 0.5 0.5 0.5'), found=dict(mini=found))


@pytest.fixture
def study(tmp_path, monkeypatch):
    "The names that the notebook's cells define, over made results: its parameters in, a dictionary out."
    known = studies.known_baselines()
    known['mini']['splits']['dev']['bm25']['ndcg@10']['mean'] = 0.5  # of the revision of the made results
    monkeypatch.setattr(studies, 'known_baselines', lambda: known)
    write_json(tmp_path/'bm25.json', dict(kiwi=400.0, found=dict(mini='0.5 0.5 0.5 0.5')))
    for part in (row('xlmr', 250_002, '0.5 0.5 1 1'), row('own-8k', 8000, '1 1 1 1')):
        write_json(tmp_path/f'{part["vocabulary"]}-none-42.json', part)
    return lambda **parameters: run_cells('studies/vocabulary.ipynb', results=str(tmp_path), scratch=str(tmp_path), **parameters)


pytestmark = pytest.mark.filterwarnings('ignore:Precision loss')


def test_kiwi_reads_a_text_once(monkeypatch, study):
    asked, names = [], study()
    monkeypatch.setattr(tokens, 'analysed', lambda texts: asked.append(texts) or [text.split() for text in texts])
    for _ in range(2):
        read = names['with_morphemes'](tokens.morphemes, ['제주도 여행', '부산 국밥', '제주도 여행'])
        assert read == [['제주도', '여행'], ['부산', '국밥'], ['제주도', '여행']]
    assert [texts for texts in asked if texts] == [['제주도 여행', '부산 국밥']]


@pytest.mark.slow
def test_only_columns_of_queries_rank(study):
    names, mini = study(), load('mini')
    settings = resolve_quietly('splade_v2', vocabulary=1500, hidden=64, segment='none')
    setup = prepare(settings, without_held_out('mini'), 42)
    found, queries = names['evaluated'](setup, [mini])
    documents = encode(setup.model, setup.training_data.tokenizer, list(mini.texts.values()), whole=True)
    of = lambda text: np.array(text.split(), dtype=float)
    whole = of(names['ndcg'](mini, dev_ids(mini), queries @ documents.T))
    assert len(whole) > 50 and 0.2 < whole.mean() < 1
    assert np.allclose(of(found['mini']), whole, atol=1e-4)


@pytest.mark.slow
def test_a_cut_vocabulary_splits_as_before(study):
    names = study(data='mini', tokenizers=str(real('tokenizers')))
    names['cut']('none')
    whole, cut = (tokens.load_tokenizer(names['settings_of'](name, 'none', 1).backbone) for name in ('xlmr', 'xlmr-cut'))
    texts = list(load('mini').texts.values())[:50]
    assert [[cut.names[i] for i in row] for row in cut.ids(texts)] == [[whole.names[i] for i in row] for row in whole.ids(texts)]
    assert len(whole) == 250_002 and len(cut) < 20_000


def test_the_tables_say_what_was_measured(study):
    names = study()
    first, second = names['quality']
    assert (first['vocabulary'], first['tokens'], first['words']) == ('XLM-R', '250,002', 'texts')
    assert first['mini'].startswith('75.0 ') and first['over XLM-R'] == ''
    assert second['mini'] == '100.0 [+50.0, +50.0]' and (second['all, untrained'], second['all']) == ('50.0', '100.0')
    assert second['over BM25'] == '+50.0 [+50.0, +50.0] ≈' and second['over XLM-R'].startswith('+25.0 ')
    assert list(names['table']['vocabulary']) == ['BM25', 'BM25 + bigrams', 'XLM-R', 'own, 8k']
    assert names['sparsity'].iloc[0, 3:].tolist() == [
        '100 (0%)', '20.5', '2.25', '0.000% / 0.100%', '10 / 50', '75%', '5.0%', '0.0%']
    assert names['cost'].iloc[0, 3:].tolist() == ['1.5 M', '2.50 GB', '2.00 s', '2.0 min', '9 s', '12.5/s']

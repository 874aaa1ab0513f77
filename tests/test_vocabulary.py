"""The comparison of vocabularies: shortcuts that change no number, and a page that says what was measured."""
import sys
from types import SimpleNamespace
import numpy as np
import pytest
from conftest import ROOT, real
sys.path.append(str(ROOT/'experiments'))
import vocabulary
from splade_nb.data import tokenizer as tokens
from splade_nb.config.versions import resolve_quietly
from splade_nb.model.encode import encode
from splade_nb.training.dataset import prepare


def test_kiwi_reads_a_text_once(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(tokens, 'analysed', lambda texts: asked.append(texts) or [text.split() for text in texts])
    for _ in range(2):
        read = vocabulary.reading(tmp_path/'found.sqlite', tokens.morphemes, ['제주도 여행', '부산 국밥', '제주도 여행'])
        assert read == [['제주도', '여행'], ['부산', '국밥'], ['제주도', '여행']]
    assert [texts for texts in asked if texts] == [['제주도 여행', '부산 국밥']]


def test_only_columns_of_queries_rank(tmp_path):
    part, collection = vocabulary.Judged('mini'), vocabulary.without_held_out(['mini'])
    setup = prepare(resolve_quietly('splade_v2', vocabulary=1500, hidden=64, segment='none'), collection, 42, tmp_path)
    found, asked = vocabulary.evaluate_queries(setup, [part])
    whole = part.measure(asked @ encode(setup.model, setup.training_data.tokenizer, part.texts, whole=True).T)
    assert len(part.queries) > 50 and 0.2 < np.mean(whole) < 1
    assert np.allclose(vocabulary.unpacked(found[part.name]), whole, atol=1e-4)


def test_a_cut_vocabulary_splits_as_before(tmp_path):
    source = real('tokenizers')
    collection = vocabulary.without_held_out(['mini'])
    whole, cut = (tokens.load_tokenizer(vocabulary.settings_for(name, 'none', SimpleNamespace(tokenizers=source, steps=1, morphemes=tmp_path/'found.sqlite'), collection, tmp_path).backbone) for name in ('xlmr', 'xlmr-cut'))
    texts = list(collection.texts.values())[:50]
    assert [[cut.names[i] for i in row] for row in cut.ids(texts)] == [[whole.names[i] for i in row] for row in whole.ids(texts)]
    assert len(whole) == 250_002 and len(cut) < 20_000


def row(name: str, tokenizer: int, found: str) -> dict:
    return dict(vocabulary=name, segment='none', seed=42, pieces=tokenizer, seen=100, document=20.5, word=2.25, unknown=dict(documents=0.0, queries=0.001), parameters=1.5e6, peak=2.5e9, training=120.0, steps=60,
                stopped='', preparation=9.0, speed=12.5, terms=dict(query=10.0, doc=50.0), dead=0.0, korean=0.75, noise=0.05, hidden=128, layers=2, length=128, batch=32, threads=1,
                start=dict(one='0.5 0.5 0.5 0.5'), found=dict(one=found))


@pytest.mark.filterwarnings('ignore:Precision loss')
def test_the_page_says_what_was_measured():
    results = vocabulary.Results([row('xlmr', 250_002, '0.5 0.5 1 1'), row('own-8k', 8000, '1 1 1 1')], dict(command='python experiments/vocabulary.py', kiwi=400.0, found=dict(one='0.5 0.5 0.5 0.5')))
    said = vocabulary.page(results)
    assert '| XLM-R | 250,002 | texts | 75.0 ' in said and '| own, 8k | 8,000 | texts | 100.0 [+50.0, +50.0] | 50.0 | 100.0 | +50.0 [+50.0, +50.0] ▲ | +25.0 ' in said
    assert '100 (1%) | 20.5 | 2.25 | 0.000% / 0.100% | 10 / 50 | 75% | 5.0% | 0.0% |' in said and '| 1.5 M | 2.50 GB | 2.00 s | 2.0 min | 9 s | 12.5/s |' in said

"""The words that a search server would index."""
import json, sys
from pathlib import Path
import pytest
from splade_nb.config.files import ConfigError
from splade_nb.data import analyzers
from splade_nb.data.analyzers import cjk, nori
from splade_nb.data.bm25 import BM25
from splade_nb.lab.systems import words_system

LUCENE = json.loads((Path(__file__).parent/'cjk_terms.json').read_text(encoding='utf-8'))['terms']


@pytest.mark.parametrize('text', LUCENE)
def test_cjk_gives_the_terms_of_lucene(text): assert cjk([text]) == [LUCENE[text]]


def test_nori_discards_compounds_and_leaves_out_particles():
    pytest.importorskip('mecab')
    [found] = nori(['삼성전자의 주가가 올랐습니다. 매우 좋다!'])
    assert found[:3] == ['삼성', '전자', '주가'] and '오르' in found and not {'의', '가', '매우', '.', '!'} & {*found}
    assert nori(['樂園', 'iPhone'])[1] == ['iphone'] and '원' in nori(['樂園'])[0], 'the reading of a Chinese character'


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mecab', None)
    analyzers._mecab.cache_clear()
    with pytest.raises(ConfigError, match='python-mecab-ko'): nori(['주가'])
    analyzers._mecab.cache_clear()


def test_two_fields_are_added_and_a_repeated_word_counts_twice():
    texts = {'a': '서울 지하철 첫차 시간', 'b': '서울 시내버스 막차 시간'}
    both, words, pairs = (words_system(texts, name) for name in ('kiwi+cjk', 'kiwi', 'cjk'))
    assert both.scores(['지하철'])[0].tolist() == pytest.approx((words.scores(['지하철']) + pairs.scores(['지하철']))[0].tolist())
    assert BM25(texts, 'cjk', repeats=True).scores(['첫차 첫차'])[0, 0] == pytest.approx(2 * BM25(texts, 'cjk').scores(['첫차 첫차'])[0, 0])

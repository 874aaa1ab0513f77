"""Write the tables of results in README.md and README.ko.md from the run summaries kept in docs/results.

    python docs/readme_table.py            rewrite the tables
    python docs/readme_table.py --check    exit 1 if one is not what the summaries say
    python docs/readme_table.py --keep outputs/v28 ...   copy the summaries of these runs first
"""
import json, re, shutil, sys
from pathlib import Path
import pandas as pd
from splade_nb.config import ABOUT, VERSIONS
from splade_nb.versions import compare_row, markdown_table

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT/'experiments'))
import report
RESULTS = ROOT/'docs'/'results'
BEGIN, END = '<!-- results: docs/readme_table.py -->', '<!-- /results -->'


def keep(folder: Path) -> None:
    "Copy a run's summary and evaluation under the name of its version, recipe, data and seed."
    summary = json.loads((folder/'summary.json').read_text(encoding='utf-8'))
    target = RESULTS/f'{summary["version"]}-{summary["recipe"]}-{summary["data"]["name"]}-{summary["seed"]}'
    target.mkdir(parents=True, exist_ok=True)
    for name in ('summary.json', 'evaluation.json'): shutil.copy(folder/name, target/name)


def kept() -> pd.DataFrame:
    "Every kept run: its summary and the difference to BM25."
    rows = []
    for path in sorted(RESULTS.glob('*/summary.json')):
        summary = json.loads(path.read_text(encoding='utf-8'))
        gain = json.loads((path.parent/'evaluation.json').read_text(encoding='utf-8'))['difference']
        rows.append(compare_row(summary) | {'queries': summary['metrics']['queries'], 'gain': f'{gain["mean"]:+.3f} [{gain["low"]:+.3f}, {gain["high"]:+.3f}]'})
    return pd.DataFrame(rows)


def said(runs: pd.DataFrame) -> str:
    "nDCG@10 of one version and recipe, the mean over seeds; what became of failed runs."
    if not len(runs): return 'not run'
    spread = f' ({len(runs)} seeds, {runs["nDCG@10"].min():.3f} to {runs["nDCG@10"].max():.3f})' if len(runs) > 1 else ''
    failed = next((outcome for outcome in runs['outcome'] if outcome), '')
    return f'{runs["nDCG@10"].mean():.3f}{spread}' + (f', {failed}' if failed else '')


def versions_table(runs: pd.DataFrame) -> pd.DataFrame:
    "The versions on the embedded set, a row each."
    runs = runs[runs['data'] == 'mini']
    of = lambda version, recipe: runs[(runs['version'] == version) & (runs['recipe'] == recipe)]
    terms = lambda found: f'{found["active query"].mean():.0f} / {found["active doc"].mean():.0f}' if len(found) else '-'
    return pd.DataFrame([{'version': version, 'what changed': ABOUT[version][0], 'as written': said(of(version, 'seed')), 'corrected': said(of(version, 'corrected')),
                          'terms': terms(of(version, 'corrected')), 'minutes': f'{of(version, "corrected")["minutes"].mean():.1f}' if len(of(version, 'corrected')) else '-'}
                         for version in VERSIONS])


def public_table(runs: pd.DataFrame) -> pd.DataFrame:
    "Public collections, a row a run."
    runs = runs[runs['data'] != 'mini'].sort_values(['data', 'seed'])
    return pd.DataFrame([{'version': r['version'], 'data': r['data'], 'seed': str(r['seed']), 'BM25': r['BM25'], 'untrained': r['before'], 'trained': r['nDCG@10'],
                          'over BM25 [95 %]': r['gain'], 'terms': f'{r["active query"]:.0f} / {r["active doc"]:.0f}', 'minutes': f'{r["minutes"]:.1f}'} for _, r in runs.iterrows()])


def table() -> str:
    "The block between the marks."
    runs = kept(); mini = runs[runs['data'] == 'mini']
    told = f'Embedded set `mini`, {mini["queries"].max()} test queries: BM25 {mini["BM25"].mean():.3f}, corrected start {mini[mini["recipe"] == "corrected"]["before"].mean():.3f}.'
    return (f'{BEGIN}\n{told}\n\n{markdown_table(versions_table(runs))}\n\nPublic collections, test queries, nDCG@10 in percent. {report.tested(report.widest_first(report.trained_results())[0])}\n\n'
            f'V28 corrected, a model a collection:\n\n{markdown_table(public_table(runs))}\n{END}')


KOREAN = {  # what the English block says: the same in Korean
    r'Embedded set `mini`, (\S+) test queries: BM25 (\S+), corrected start (\S+)\.': r'내장 데이터 `mini`, 시험 질의 \1개: BM25 \2, 학습 전(corrected) \3.',
    r'Public collections, test queries, nDCG@10 in percent\.': '공개 컬렉션, 시험 질의, nDCG@10(백분율).',
    r'`(\w+)` as `([\w-]+)`, (\d+) steps on all train splits together, seeds ([\d, ]+), (\S+) minutes of training with (\d+) thread:': r'`\1`(`\2`), 모든 학습 분할을 합쳐 \3 스텝, 시드 \4, 스레드 \6개로 학습 \5분:',
    r'V28 corrected, a model a collection:': 'V28 corrected, 컬렉션마다 모델 하나:',
    r'\| version \| what changed \| as written \| corrected \| terms \| minutes \|': '| 버전 | 달라진 점 | 설계 그대로 | corrected | 활성 용어 | 분 |',
    r'\| collection \| queries \| BM25 \| mean of seeds \| lowest to highest \| over BM25 \| significant \| terms \|': '| 컬렉션 | 질의 | BM25 | 시드 평균 | 최저~최고 | BM25 대비 | 유의 | 활성 용어 |',
    r'\| version \| data \| seed \| BM25 \| untrained \| trained \| over BM25 \[95 %\] \| terms \| minutes \|': '| 버전 | 데이터 | 시드 | BM25 | 학습 전 | 학습 후 | BM25 대비 [95 %] | 활성 용어 | 분 |',
    r'\| mean of those asked in Korean \|': '| 한국어 질의 평균 |', r'\| yes \|': '| 예 |', r', collapsed': ', 붕괴', r', stopped': ', 중단', r'not run': '미실행', r'(\d+\.\d+) to (\d+\.\d+)': r'\1~\2', r'\((\d+) seeds, ': r'(시드 \1개, ',
    'curriculum learning, six losses': '커리큘럼 학습, 손실 여섯 가지', 'weights rebalanced, IDF-aware FLOPS, first distillation': '가중치 재조정, IDF를 아는 FLOPS, 첫 증류',
    'XLM-RoBERTa and the BGE-M3 teacher': 'XLM-RoBERTa와 교사 BGE-M3', 'IDF reaches FLOPS, stopwords cost more': 'IDF가 FLOPS에 닿고 불용어 벌점이 커짐',
    'steeper IDF curve, special pieces out of its range': '더 가파른 IDF 곡선, 특수 토큰은 범위 밖', 'travel data in every phase': '모든 단계에 여행 데이터',
    'Korean filter and context gate': '한국어 필터와 문맥 게이트', 'Korean filter without the gate': '게이트 없는 한국어 필터',
    'V28 after the collapse: weaker filter, stronger minimum': '붕괴 뒤의 V28: 약한 필터, 강한 최소 활성화', 'control: InfoNCE and FLOPS on both sides, nothing else': '대조군: 양쪽의 InfoNCE와 FLOPS뿐',
    'a floor under own pieces, pairs, sounds and translations; queries from a table': '자기 조각·글자쌍·소리·번역의 하한, 표로 만드는 질의'}
LEFT = re.compile('[a-z]{4,} [a-z]{2,}')  # English that nobody translated


def in_korean(block: str) -> str:
    "The block in Korean, every number as it was; raises `ValueError` for words that have no Korean yet."
    for english, korean in KOREAN.items(): block = re.sub(english, korean, block)
    if left := LEFT.search(block.replace(BEGIN, '')): raise ValueError(f'{left[0]!r} has no Korean in docs/readme_table.py')
    return block


def pages() -> dict:  # path -> its text with the tables of today
    "Both READMEs."
    block, new = table(), {}
    for path, told in ((ROOT/'README.md', block), (ROOT/'README.ko.md', in_korean(block))):
        before, rest = path.read_text(encoding='utf-8').split(BEGIN)
        new[path] = before + told + rest.split(END)[1]
    return new


def main(arguments: list[str]) -> int:
    if arguments[:1] == ['--keep']:
        for folder in arguments[1:]: keep(Path(folder))
    new = pages()
    if arguments == ['--check']: return int(any(path.read_text(encoding='utf-8') != text for path, text in new.items()))
    for path, text in new.items(): path.write_text(text, encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main(sys.argv[1:]))

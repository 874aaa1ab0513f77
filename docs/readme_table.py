"""Write the tables of results from the run summaries kept in docs/results, and README.md from nbs/index.ipynb.

The short table stands in README.md, README.ko.md and nbs/index.ipynb, the full ones in docs/results.md and its Korean twin.

    python docs/readme_table.py            rewrite the tables and README.md
    python docs/readme_table.py --check    exit 1 if one is not what the summaries say
    python docs/readme_table.py --keep outputs/v28 ...   copy the summaries of these runs first
    python docs/readme_table.py --baselines mini ...     measure both BM25 on these collections first
"""
import json, os, re, shutil, sys
from pathlib import Path
import pandas as pd
from splade_nb.config.files import read_json, write_json
from splade_nb.config.versions import ABOUT, VERSIONS
from splade_nb.data.readers import load
from splade_nb.evaluation.compare import compare_row, markdown_table
from splade_nb.evaluation.figures import source_line
from splade_nb.evaluation.metrics import index_bytes, marked, paired_difference, summarise
from splade_nb.evaluation.retrieval import baselines, index_facts
from splade_nb.lab.study import KeptResults, baselines_beside, dev_ids, known_baselines, revision_of, stamp

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT/'docs'/'results'
BEGIN, END = '<!-- results: docs/readme_table.py -->', '<!-- /results -->'


def keep(folder: Path) -> None:
    "Copy a run's summary and evaluation under the name of its version, recipe, data and seed."
    summary = json.loads((folder/'summary.json').read_text(encoding='utf-8'))
    target = RESULTS/f'{summary["version"]}-{summary["recipe"]}-{summary["data"]["name"]}-{summary["seed"]}'
    target.mkdir(parents=True, exist_ok=True)
    for name in ('summary.json', 'evaluation.json'): shutil.copy(folder/name, target/name)


def both_bm25(collection, ids: list) -> tuple:  # figures of a split; terms of a document
    found, terms = baselines(collection, ids)
    gains = found['bm25_bigrams']['ndcg@10'] - found['bm25']['ndcg@10']
    return dict(queries=len(ids), **{name: summarise(rows) for name, rows in found.items()},
                difference=paired_difference(gains, 0 * gains), gains=' '.join(f'{gain:.5g}' for gain in gains)), terms


def baselines_of(collection) -> dict:  # what `known_baselines` reads
    "Both BM25 on the test queries and on those training queries that judge; on all where the source names no train and test split."
    named = collection.split('train') and not any(note.startswith('no test split') for note in collection.notes)
    asked = {'test': list(collection.split('test')), 'dev': dev_ids(collection)} if named else {'all': list(collection.qrels)}
    found = {split: both_bm25(collection, ids) for split, ids in asked.items()}
    documents, terms = len(collection.texts), next(iter(found.values()))[1]
    return stamp('python docs/readme_table.py --baselines', [collection]) | dict(
        hash=collection.hash, documents=documents, index=index_facts(terms, documents), splits={split: part for split, (part, _) in found.items()})


def keep_baselines(name: str, new: dict) -> None:
    "Figures of an earlier revision stay, for the runs that were compared with them."
    path = KeptResults('baselines').path(name)
    before = read_json(path) if path.exists() else {}
    earlier = before.get('earlier', [])
    ranks = lambda record: {split: (part['gains'], round(part['bm25']['ndcg@10']['mean'], 6)) for split, part in record['splits'].items()}
    if before and ranks(before) != ranks(new):
        earlier = [*earlier, dict(revision=revision_of(path, before), date=before.get('date', ''), splits=before['splits'])]
    write_json(path, new | (dict(earlier=earlier) if earlier else {}))


def words_of(data: str, bm25: float) -> dict:  # column -> what BM25 with a bigram field has, and how many documents there are
    "Of summaries kept before they held it."
    found, field = known_baselines().get(data), baselines_beside(data, 'test', bm25)
    return {'BM25 + bigrams': field['bm25_bigrams']['ndcg@10']['mean'] if field else float('nan'),
            'documents': found['documents'] if found else float('nan')}


def kept() -> pd.DataFrame:
    "Every kept run: its summary, the difference to BM25, both BM25, and of which commit it is."
    rows = []
    for path in sorted(RESULTS.glob('*/summary.json')):
        summary = json.loads(path.read_text(encoding='utf-8'))
        gain = json.loads((path.parent/'evaluation.json').read_text(encoding='utf-8'))['difference']
        row, words = compare_row(summary), words_of(summary['data']['name'], summary['bm25']['ndcg@10'])
        own = {'documents': summary['documents']} if 'documents' in summary else {}
        if 'bm25_bigrams' in summary: own['BM25 + bigrams'] = row['BM25 + bigrams']
        own |= {name: summary.get(name, {}).get('ndcg@10', float('nan')) for name in ('learned', 'dense')}
        rows.append(row | words | own | {'queries': summary['metrics']['queries'], 'difference': gain, 'of': revision_of(path, summary), 'date': summary.get('date', '')})
    return pd.DataFrame(rows)


def source_of(runs: pd.DataFrame) -> str:
    "Where a table of kept runs, and both BM25 beside them, comes from."
    words = [known_baselines()[name] for name in dict.fromkeys(runs['data']) if name in known_baselines()]
    return source_line('python docs/readme_table.py', dict(zip(runs['data'], runs['hash'])), [*runs['of'], *(one['revision'] for one in words)],
                       [*runs['date'], *(one['date'] for one in words)])


def points(difference: dict) -> str: return f'{difference["mean"]:+.3f} [{difference["low"]:+.3f}, {difference["high"]:+.3f}]'


def megabytes(terms: float, documents: float) -> str:  # of the postings
    return '-' if pd.isna(documents) else f'{index_bytes(terms, documents) / 1e6:.2f}'


def said(runs: pd.DataFrame) -> str:
    "nDCG@10 of one version and recipe, the mean over seeds; what became of failed runs."
    if not len(runs): return 'not run'
    spread = f' ({len(runs)} seeds, {runs["nDCG@10"].min():.3f} to {runs["nDCG@10"].max():.3f})' if len(runs) > 1 else ''
    failed = next((outcome for outcome in runs['outcome'] if outcome), '')
    return f'{runs["nDCG@10"].mean():.3f}{spread}' + (f', {failed}' if failed else '')


def versions_table(runs: pd.DataFrame) -> pd.DataFrame:
    "The versions on the embedded set, a row each."
    def row(version):
        of = lambda recipe: runs[(runs['version'] == version) & (runs['recipe'] == recipe)]
        own, both = of('corrected'), runs[runs['version'] == version]
        mean = lambda name, form: form.format(own[name].mean()) if len(own) else '-'
        return {'version': version, 'what changed': ABOUT[version][0], 'original': said(of('original')), 'earlier': said(of('earlier')), 'before training': mean('before', '{:.3f}'),
                'corrected': said(own), 'query terms': mean('active query', '{:.0f}'), 'document terms': mean('active doc', '{:.0f}'),
                'index, MB': megabytes(own['active doc'].mean(), own['documents'].max()) if len(own) else '-',
                'least minutes': f'{own["minutes"].min():.1f}' if len(own) else '-', 'of': ', '.join(f'`{name}`' for name in dict.fromkeys(both['of']))}
    return pd.DataFrame([row(version) for version in VERSIONS])


def words_rows(data: str) -> str:
    "Both BM25 on a collection's test queries in one line."
    found = known_baselines().get(data)
    if not found: return ''
    one = lambda system: (f'{found["splits"]["test"][system]["ndcg@10"]["mean"]:.3f} ({found["index"][system]["terms"]:.0f} terms a document, '
                          f'{found["index"][system]["bytes"] / 1e6:.2f} MB)')
    return f'BM25 {one("bm25")}, BM25 + bigrams {one("bm25_bigrams")}'


def public_table(runs: pd.DataFrame) -> pd.DataFrame:
    "Public collections, a row a run; marks corrected over the table."
    runs, columns = runs.sort_values(['data', 'seed']), {'before': 'before training', 'learned': 'learned terms alone', 'nDCG@10': 'one index'}
    return pd.DataFrame([{'data': r['data'], 'seed': str(r['seed']), **{name: f'{r[name]:.3f}' for name in ('BM25', 'BM25 + bigrams', 'dense')},
                          **{title: f'{r[name]:.3f}' for name, title in columns.items()}, 'over BM25 [95 %]': f'{points(r["difference"])} {sign}',
                          'query terms': f'{r["active query"]:.0f}', 'document terms': f'{r["active doc"]:.0f}',
                          'index, MB': megabytes(r['active doc'], r['documents']), 'minutes': f'{r["minutes"]:.1f}', 'of': f'`{r["of"]}`'}
                         for (_, r), sign in zip(runs.iterrows(), marked(list(runs['difference'])))])


def shown(cell: str, form: str, study: str) -> list:  # texts
    "What a cell of a study shows."
    cells = json.loads((ROOT/'nbs'/'studies'/f'{study}.ipynb').read_text(encoding='utf-8'))['cells']
    return [''.join(output['data'][form]) for output in next(one['outputs'] for one in cells if one['id'] == cell) if form in output['data']]


ROWS = 'BM25 + bigrams, Kiwi', 'dense, multilingual-e5-small', 'dense and BM25 + bigrams', '**one index**', 'one index and dense'
COLUMNS = 'system', 'mean', 'points', 'collections', 'terms'


def cells(table: str) -> pd.DataFrame:  # of Markdown
    lines = [[cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines() if line.startswith('|')]
    return pd.DataFrame(lines[2:], columns=lines[0])


def unseen_table() -> tuple:  # DataFrame of the first page, the line of source, names of the collections
    "What the study of one index shows, its most telling rows and columns."
    table, source, _ = re.split(r'^(\*Source:\*.*)\n', shown('ranking', 'text/markdown', 'one_index')[0], maxsplit=1, flags=re.M)  # the first one: unseen collections
    rows = cells(table)
    _, *head = rows.columns  # the first column has the name of a group of collections
    found = rows.set_axis(['system', *head], axis=1).set_index('system').loc[[*ROWS]].reset_index()[[*COLUMNS]]
    found['points'] = found['points'].str.replace(' [▲▼≈]$', '', regex=True)
    return found, source, head[:head.index('mean')]


def unseen() -> str:
    "What the released model gives on collections that it has not seen, on those that it learned from, asked in English, and without spaces."
    (finding,) = shown('finding', 'text/markdown', 'one_index')
    def found(title): return re.search(title + r', one index \(\w+\): (\S+ \[.+?\]) points over the best lexical ranking of each of (\d+) ', finding).groups()
    (points, number), (known, others) = found('Unseen'), found('Learned from')
    span = unseen_table()[0].set_index('system').loc['**one index**', 'collections']
    english = re.search(r'English questions, .*?: one index (\S+), with dense vectors (\S+), dense vectors alone (\S+); the best of four BM25 (\S+)\.$', finding, re.M).groups()
    typed = re.search(r'As typed, parakqc .*', finding)[0]
    lost = [re.search(how + r': one index -(\S+) .*?, dense vectors -(\S+) ', typed).groups() for how in ('no spaces', 'spaces inserted')]
    return (f'On {number} unseen collections the packaged model ranks {points} points above '
            f'the best of four BM25 ({span}); on {others} it learned from, {known}. '
            'Korean sentences searched in English: {}, with dense vectors {}, dense alone {}, BM25 {}. '
            'Questions without spaces lose {} points (dense {}); where `search` inserts them, {} ({}).'.format(*english, *lost[0], *lost[1]))


def both_ways(chosen) -> str:  # chosen: of a kind of query
    "nDCG@10 of `splade_ko` on some kinds of the embedded test queries, the mean over seeds: one index, and its learned terms alone."
    found = [read_json(path)['by_kind'] for path in sorted(RESULTS.glob('splade_ko-corrected-mini-*/evaluation.json'))]
    rows = [row for kinds in found for kind, row in kinds.items() if chosen(kind)]
    one = lambda system: sum(row[system] * row['queries'] for row in rows) / sum(row['queries'] for row in rows)
    return f'{one("model"):.3f} and {one("learned"):.3f}'


def table() -> str:
    "The block between the marks."
    runs = kept()
    mini = runs[runs['data'] == 'mini']
    told = (f'Embedded set `mini`, {mini["queries"].max()} test queries, which ask for documents that training queries ask for too, so that it shows no transfer. All start from random weights, `splade_ko` too; the packaged model starts from multilingual-e5-small. '
            f'{words_rows("mini")}. nDCG@10 of `splade_ko` by one index and by its learned terms alone: Korean queries {both_ways(lambda kind: kind != "cross_lingual")}, English ones {both_ways("cross_lingual".__eq__)}:')
    public = runs[(runs['data'] != 'mini') & (runs['version'] == 'splade_ko') & (runs['scale'] == 'small')]
    return (f'{BEGIN}\n{unseen()}\n\n`splade_ko` at scale `small`, trained from multilingual-e5-small ({", ".join(dict.fromkeys(public["device"]))}), a model for each collection; nDCG@10 of its test queries:\n\n'
            f'{markdown_table(public_table(public), source=source_of(public))}\n\n{told}\n\n'
            f'{markdown_table(versions_table(mini), source=source_of(mini))}\n{END}')


NOTE = "nDCG@10 (%); 95 % intervals over queries, then collections; terms a document. One seed; weights chosen after seeing test queries."


def short() -> str:
    "The block of the first page."
    found, source, _ = unseen_table()
    return f'{BEGIN}\n{unseen()}\n\n{markdown_table(found)}\n\n{source}\n\n{NOTE}\n{END}'


KOREAN = {  # what the English block says: the same in Korean
    r'\. nDCG@10 of `splade_ko` by one index and by its learned terms alone: Korean queries (\S+) and (\S+), English ones (\S+) and (\S+):':
        r'. `splade_ko`의 nDCG@10(한 색인, 배운 용어만): 한국어 질의 \1, \2, 영어 질의 \3, \4:',
    r'On (\d+) unseen collections the packaged model ranks (\S+ \[.+?\]) points above '
    r'the best of four BM25 \((\S+) to (\S+)\); on (\d+) it learned from, (\S+ \[.+?\])\. Korean sentences searched in English: (\S+), with dense vectors (\S+), dense alone (\S+), BM25 (\S+)\. Questions without spaces lose (\S+) points \(dense (\S+)\); where `search` inserts them, (\S+) \((\S+)\)\.':
        r'본 적 없는 컬렉션 \1개에서 패키지에 든 모델의 nDCG@10은 BM25 네 가지 가운데 가장 좋은 것보다 \2점 높습니다(\3~\4). '
        r'배운 컬렉션 \5개에서는 \6점입니다. 한국어 문장을 영어로 찾으면 \7, 밀집 벡터를 더하면 \8, 밀집 벡터만은 \9, BM25는 \g<10>입니다. 질문의 띄어쓰기를 없애면 \g<11>점(밀집 \g<12>점) 낮아지고, `search`가 띄어 읽으면 \g<13>점(\g<14>점)입니다.',
    r"nDCG@10 \(%\); 95 % intervals over queries, then collections; terms a document\. One seed; weights chosen after seeing test queries\.":
        'nDCG@10(백분율). 95 % 구간(질의, 그다음 컬렉션). 용어: 문서당. 시드 하나, 가중치는 시험 질의를 본 뒤에 골랐습니다.',
    r'\| system \| mean \| points \| collections \| terms \|': '| 방식 | 평균 | 점수 차 | 컬렉션 구간 | 용어 |',
    r'dense and BM25': '밀집 벡터 + BM25', r'dense, multilingual-e5-small': '밀집 벡터, multilingual-e5-small', r'learned terms alone': '배운 용어만', r'\*\*one index\*\*': '**한 색인**', r'one index and dense': '한 색인 + 밀집 벡터',
    r'(-?\+?\d+\.\d) to (\+?-?\d+\.\d)': r'\1 ~ \2',
    r'`splade_ko` at scale `small`, trained from multilingual-e5-small \(([^)]+)\), a model for each collection; nDCG@10 of its test queries:':
        r'multilingual-e5-small로 시작해 학습한 규모 `small`의 `splade_ko`(\1), 컬렉션마다 모델 하나, 시험 질의의 nDCG@10:',
    r'Embedded set `mini`, (\S+) test queries, which ask for documents that training queries ask for too, so that it shows no transfer\. All start from random weights, `splade_ko` too; the packaged model starts from multilingual-e5-small\.':
        r'내장 데이터 `mini`, 시험 질의 \1개. 학습 질의가 찾는 문서를 시험 질의도 찾으므로 다른 문서에서의 성능은 알 수 없습니다. 모두 무작위 가중치에서 시작하며 `splade_ko`도 그렇습니다. 패키지에 든 모델은 multilingual-e5-small에서 시작합니다.',
    r'\((\d+) terms a document, (\S+) MB\)': r'(문서당 용어 \1개, \2 MB)',
    r'over BM25 \+ bigrams': 'BM25 + 글자쌍 대비', r'over BM25': 'BM25 대비', r'BM25 \+ bigrams': 'BM25 + 글자쌍',
    r'\| collection \|': '| 컬렉션 |', r'\| queries \|': '| 질의 |', r'\| mean of seeds \| lowest to highest \|': '| 시드 평균 | 최저~최고 |',
    r'\| query terms \| document terms \| index, MB \|': '| 질의 용어 | 문서 용어 | 색인, MB |', r'\| minutes \| of \|': '| 분 | 커밋 |', r'\| least minutes \| of \|': '| 분(가장 짧은 것) | 커밋 |',
    r'\| version \| what changed \| original \| earlier \|': '| 버전 | 달라진 점 | original | earlier |', r'\| data \| seed \|': '| 데이터 | 시드 |', r'\| dense \|': '| 밀집 벡터 |', r'\| one index \|': '| 한 색인 |',
    r'\| before training \|': '| 학습 전 |', r'\| mean \|': '| 평균 |',
    r'(\d+) to (\d+)개씩': r'\1~\2개씩', r', collapsed': ', 붕괴', r', stopped': ', 중단', r'not run': '미실행', r'(\d+\.\d+) to (\d+\.\d+)': r'\1~\2', r'\((\d+) seeds, ': r'(시드 \1개, ',
    'curriculum learning, six losses': '커리큘럼 학습, 손실 여섯 가지', 'weights rebalanced, IDF-aware FLOPS, first distillation': '가중치 재조정, IDF를 아는 FLOPS, 첫 증류',
    'XLM-RoBERTa and the BGE-M3 teacher': 'XLM-RoBERTa와 교사 BGE-M3', 'IDF reaches FLOPS, stopwords cost more': 'IDF가 FLOPS에 닿고 불용어 벌점이 커짐',
    'steeper IDF curve, special tokens out of its range': '더 가파른 IDF 곡선, 특수 토큰은 범위 밖', 'travel data in every phase': '모든 단계에 여행 데이터',
    'Korean filter and context gate': '한국어 필터와 문맥 게이트', 'Korean filter without the gate': '게이트 없는 한국어 필터',
    'V28 after the collapse: weaker filter, stronger minimum': '붕괴 뒤의 V28: 약한 필터, 강한 최소 활성화', 'control: InfoNCE and FLOPS on both sides, nothing else': '대조군: 양쪽의 InfoNCE와 FLOPS뿐',
    'control with inference-free queries: a learned table': '대조군에 추론 없는 질의: 학습된 표',
    'learned terms, and BM25 over morphemes and bigrams, in one index: the released recipe': '배운 용어와 형태소, 글자쌍의 BM25를 한 색인에: 패키지에 든 모델의 레시피'}
SOURCE = {r'\*Source:\* ': '*출처:* ', r'; data ': '; 데이터 ', r'; revision ': '; 커밋 ', r'; undated\.': '; 날짜 없음.', r'(\d{4}-\d\d-\d\d) to (?=\d{4})': r'\1~',
          r'\(hash not kept\)': '(해시 없음)', r'커밋 unknown': '커밋 모름'}  # of a line of source
LEFT = re.compile('[a-z]{4,} [a-z]{2,}')  # English that nobody translated


def in_korean(block: str) -> str:
    "The block in Korean, every number as it was; raises `ValueError` for words that have no Korean yet."
    for english, korean in (KOREAN | SOURCE).items(): block = re.sub(english, korean, block)
    if left := LEFT.search(re.sub('`[^`]*`', '', block.replace(BEGIN, ''))): raise ValueError(f'{left[0]!r} has no Korean in docs/readme_table.py')
    return block


def from_root(text: str, folder: str = 'nbs') -> str:
    "Markdown of a folder with its links as they are from the project's root."
    return re.sub(r'\]\((?![a-z]+:|#)([^)]+)\)', lambda link: f']({Path(os.path.normpath(f"{folder}/{link[1]}")).as_posix()})', text)


def cell_text(cell: dict) -> str:
    "A cell of the index notebook as the README has it: code and its output in fences."
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown': return from_root(source)
    code = re.sub(r'^#\|.*\n', '', source, flags=re.M)
    printed = ''.join(''.join(output.get('text', '')) for output in cell['outputs'] if output.get('name') != 'stderr').strip()
    return f'```python\n{code}\n```' + f'\n\n```text\n{printed}\n```' * bool(printed)


def readme(index: dict) -> str:
    "README.md: the text of `nbs/index.ipynb`."
    text = '\n\n'.join(map(cell_text, index['cells'])) + '\n'
    return text.replace('```\n\n```python\n', '\n')  # an import cell and the code below it are one


def replaced(text: str, block: str) -> str:
    "A page with its block between the marks."
    before, rest = text.split(BEGIN)
    return before + block + rest.split(END)[1]


OUTPUT = re.compile(r'(?<=```\n\n```text\n).*?(?=\n```)', re.S)  # behind a cell of code


def with_outputs(text: str, source: str) -> str:
    "A page whose outputs of code are those of another page with the same cells, in order."
    found = iter(OUTPUT.findall(source))
    return OUTPUT.sub(lambda _: next(found), text)


def pages() -> dict:  # path -> its text with the tables of today
    "Both READMEs, the index notebook, both pages of results, the figure of the first page."
    full, brief, read = table(), short(), lambda name: (ROOT/name).read_text(encoding='utf-8')
    index = json.loads(read('nbs/index.ipynb'))
    for cell in index['cells']:
        if cell['id'] == 'results': cell['source'] = replaced(''.join(cell['source']), brief).splitlines(keepends=True)
    new = {'nbs/index.ipynb': json.dumps(index, indent=1, ensure_ascii=False) + '\n', 'README.md': readme(index),
           'README.ko.md': with_outputs(replaced(read('README.ko.md'), in_korean(brief)), readme(index)),
           'docs/results.md': replaced(read('docs/results.md'), full),
           'docs/results_ko.md': replaced(read('docs/results_ko.md'), in_korean(full)),
           'docs/over-bm25.svg': shown('figure', 'image/svg+xml', 'one_index')[0].rstrip() + '\n'}
    return {ROOT/name: text for name, text in new.items()}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ['--keep']:
        for folder in arguments[1:]: keep(Path(folder))
    if arguments[:1] == ['--baselines']:
        measured = {each.name: baselines_of(each) for each in map(load, arguments[1:])}  # of one revision: a written file changes the checkout
        for name, found in measured.items(): keep_baselines(name, found)
    new = pages()
    if arguments == ['--check']: return int(any(path.read_text(encoding='utf-8') != text for path, text in new.items()))
    for path, text in new.items(): path.write_text(text, encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main(sys.argv[1:]))

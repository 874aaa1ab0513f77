"""Write docs/versions.md and its Korean twin: V22 to V28 from a pretrained encoder, in one picture and one table.

    python docs/versions_page.py            write both pages and their figures
    python docs/versions_page.py --check    exit 1 if one is not what the versions and the kept results say
"""
import re, sys, tempfile, textwrap
from pathlib import Path
import numpy as np
import pandas as pd
import readme_table
from splade_nb.config.files import read_json
from splade_nb.config.versions import ABOUT, VERSIONS
from splade_nb.evaluation.compare import RECIPES
from splade_nb.evaluation.figures import SYSTEMS, canvas, legend_below, write_svg

DOCS = Path(__file__).resolve().parent
SHOWN = [version for version in VERSIONS if version[1:3].isdigit() and 22 <= int(version[1:3]) <= 28]
BESIDE = {'BM25': 'bm25', 'BM25 + bigrams': 'bm25_bigrams', 'dense, multilingual-e5-small': 'dense', 'start': 'before_training'}  # row of the study: its style
PANELS = 'mean', 'parakqc', 'terms'  # columns of the study's table
TEXT = {
 'en': dict(file='versions.md', figure='versions.svg', title='# V22 to V28 in one picture',
  line='> What each version adds, and what it is worth beside BM25 and dense vectors.',
  result='V22 to V28 from a pretrained encoder: nDCG@10 {low} to {high}, BM25 {bm25}, BM25 + bigrams {bigrams}',
  alt='A line each for BM25, BM25 with bigrams, dense vectors, the start and the versions: nDCG@10 on five collections and on an unseen one, terms of a document',
  read=('Every version as five unpublished design documents mean it ([where they contradict each other](../nbs/errata.ipynb)), from multilingual-e5-small with a head in closed form, some minutes of training on two processor cores and four collections, three of them of passages; what it adds to the one before stands below its name (V28: to V26); multilingual-e5-small stands in for every encoder and teacher that is named there. '
        'Left: how well its learned terms alone rank on five collections; further right is better, and the dashed lines learn nothing from the pairs. Middle: the one of them that no run has seen. Right: how many terms it stores for a document, which is what the index costs.'),
  panels=('five collections, nDCG@10', 'parakqc, nDCG@10', 'terms of a document'), recipe='recipe {}',
  beside={'BM25': ('BM25', 'words, no training'), 'BM25 + bigrams': ('BM25 + bigrams', 'words and character pairs, no training'),
          'dense, multilingual-e5-small': ('dense', 'vectors of the encoder'), 'start': ('start', 'the encoder with its head, before training')},
  found='By learned terms alone the versions reach {low} to {high} on average, BM25 {bm25}, BM25 with bigrams {bigrams} and dense vectors {dense}: {above} of {all} have a higher mean than BM25 with bigrams, and for {certain} of them the difference is certain. In one index with counted terms they reach {joined} at the best of the weights tried ([the study](../nbs/studies/encoder.ipynb)).',
  alone='Learned from question_pair alone, before the weights of a document were divided by the root of its norm (`document_norm`), without which long documents rank too high; with three seeds of V26 and V28, and as written. The corrected versions reach {low} to {high}, BM25 with bigrams {bigrams}. As written they do not collapse from a pretrained encoder: {written_low} to {written_high}, with {written_few} to {written_many} terms of a document instead of {few} to {many}.',
  table=('nDCG@10 of the test queries in percent; points: over BM25 with bigrams, with the 95 % interval (▲ above, ▼ below, ≈ neither can be claimed, by Holm over the table, so an interval may leave out 0); terms of a query / a document; MB of the index. *start* is the model before training, *as written* the recipe `original`. V22 of seed 42, V23, V24, V25 and V28a were trained with [an earlier form of one loss](../nbs/studies/encoder.ipynb). '
         'Criteria of V28, expansions and what each idea is worth: [the study](../nbs/studies/encoder.ipynb).'),
  head=(), words={}, none='none',
  card=('Trained on a GPU on four collections and open triplets of many sources, {steps} steps ([table](gpu.md#v22-to-v28)), one seed each; the mean of {sets} sets, some of them unseen, nDCG@10 of the learned terms alone and noise, the share of terms that are neither Korean nor in the text: {rows}. '
        'Noise grows from V22 to V26, of which not the IDF penalty alone differs; with its Korean filter V28 has the least, though its criterion asks for 5 % at most.'),
  card_row='{version} {ndcg} (noise {noise})',
  whole='With all 250,002 rows of the vocabulary, most of them of other languages, on two cores: {rows}. V26 has no filter, and so few steps do not teach it which rows to leave out; V28 starts without most of what it filters (`initial_filter`). `small` trains with the rows that the texts use, in a fraction of the time.',
  which=('Which to take: to search your texts the packaged model, or `splade_ko`, which ranks by counted and learned terms together; V28 where added terms must be Korean; V22 to V27 to study one idea each. '
         '[What each way needs](../nbs/studies/ways.ipynb).'),
  more='V27 is V26 with travel data, which these collections have not, so it was not run. Each version has [its settings](../nbs/0_config/04_versions.ipynb) and [all its runs](results.md), those from random weights too; `make train VERSION=v26` trains one.'),
 'ko': dict(file='versions_ko.md', figure='versions_ko.svg', title='# V22부터 V28까지 한 그림으로',
  line='> 버전마다 무엇을 더했고, BM25와 밀집 벡터에 견주어 얼마나 좋은지.',
  result='사전학습된 인코더에서 시작한 V22~V28: nDCG@10 {low}~{high}, BM25 {bm25}, BM25 + 글자쌍 {bigrams}',
  alt='BM25, 글자쌍을 더한 BM25, 밀집 벡터, 학습 전, 버전마다 한 줄: 컬렉션 다섯 개와 본 적 없는 하나의 nDCG@10, 문서의 용어 수',
  read=('공개되지 않은 설계 문서 다섯 편의 뜻대로([서로 어긋나는 곳](../nbs/errata.ipynb)), 모든 버전을 multilingual-e5-small과 닫힌 형태로 구한 출력층에서 시작해 컬렉션 네 개(셋은 긴 글)로 CPU 코어 두 개에서 몇 분 동안 학습했습니다. 이름 아래에 바로 앞 버전에 더한 것을 적었습니다(V28은 V26에 더한 것). 거기에 적힌 인코더와 교사는 모두 multilingual-e5-small로 대신했습니다. '
        '왼쪽은 컬렉션 다섯 개에서 배운 용어만으로 매긴 순위의 품질로, 오른쪽일수록 좋고, 세로 점선은 짝에서 배우지 않는 것들입니다. 가운데는 그 가운데 어느 실행도 본 적이 없는 것입니다. 오른쪽은 문서 하나에 저장하는 용어의 수, 곧 색인의 비용입니다.'),
  panels=('컬렉션 다섯 개, nDCG@10', 'parakqc, nDCG@10', '문서의 용어'), recipe='레시피 {}',
  beside={'BM25': ('BM25', '단어, 학습 없음'), 'BM25 + bigrams': ('BM25 + 글자쌍', '단어와 글자쌍, 학습 없음'),
          'dense, multilingual-e5-small': ('밀집', '인코더의 벡터'), 'start': ('학습 전', '인코더와 닫힌 형태의 출력층')},
  found='배운 용어만의 평균은 {low}~{high}, BM25는 {bm25}, 글자쌍을 더한 BM25는 {bigrams}, 밀집 벡터는 {dense}입니다. {all}개 가운데 {above}개의 평균이 글자쌍을 더한 BM25보다 높고, 차이가 확실한 것은 {certain}개입니다. 배운 용어를 센 용어와 한 색인에 두면 시도한 가중치 가운데 가장 좋은 것에서 {joined}입니다([연구](../nbs/studies/encoder.ipynb)).',
  alone='question_pair만으로 학습한 결과입니다. 문서의 가중치를 그 노름의 제곱근으로 나누기(`document_norm`) 전에 잰 것으로, 그러지 않으면 긴 문서의 순위가 너무 높아집니다. V26과 V28은 시드 세 개로, 또 모든 버전을 적힌 대로도 학습했습니다. corrected 버전은 {low}~{high}, 글자쌍을 더한 BM25는 {bigrams}입니다. 사전학습된 인코더에서는 적힌 대로도 무너지지 않아 {written_low}~{written_high}이고, 문서의 용어는 {few}~{many}개가 아니라 {written_few}~{written_many}개입니다.',
  table=('시험 질의의 nDCG@10(백분율), BM25 + 글자쌍과의 차이와 95 % 구간(▲ 위, ▼ 아래, ≈ 어느 쪽이라고도 할 수 없음: 표 전체에 Holm 보정을 하므로 구간에 0이 없어도 그럴 수 있음), 질의 / 문서의 용어 수, 색인의 MB입니다. *학습 전*은 학습하기 전의 모델, *적힌 대로*는 레시피 `original`입니다. 시드 42의 V22와 V23, V24, V25, V28a는 [한 손실의 이전 형태](../nbs/studies/encoder.ipynb)로 학습했습니다. '
         'V28의 기준, 확장, 착상마다의 값어치는 [연구](../nbs/studies/encoder.ipynb)에 있습니다.'),
  none='0', head=('시스템', '시드'), words={'BM25 + bigrams': 'BM25 + 글자쌍', 'hybrid, dense and BM25 + 글자쌍': '하이브리드, 밀집과 BM25 + 글자쌍', 'dense,': '밀집,', ', all rows': ', 모든 행', 'start of v28': 'V28의 학습 전', 'start': '학습 전', ', as written': ', 적힌 대로', '| mean |': '| 평균 |', '| points |': '| BM25 + 글자쌍 대비 |', '| terms |': '| 용어 |', ', without document_norm': ', document_norm 없이', '| steps | minutes |': '| 스텝 | 분 |'},
  card=('GPU에서 컬렉션 네 개와 여러 출처의 공개 트리플렛으로 학습한 결과입니다({steps}스텝, [표](gpu.md#v22-to-v28), 시드 하나씩). 데이터 {sets}개(본 적 없는 것도 있음)의 평균이며, 배운 용어만의 nDCG@10과 잡음(한국어도 아니고 글에도 없는 용어의 비율): {rows}. '
        'V22에서 V26으로 갈수록 잡음이 늘지만 IDF 벌점 말고 다른 설정도 함께 달라졌습니다. 한국어 필터가 있는 V28이 가장 적지만 그 기준은 5 % 이하입니다.'),
  card_row='{version} {ndcg}(잡음 {noise})',
  whole='어휘의 250,002행을 모두 쓰면(대부분 다른 언어의 것) 코어 두 개에서 {rows}입니다. V26에는 필터가 없고, 이만한 스텝으로는 어느 행을 버릴지 배우지 못합니다. V28은 걸러낼 용어를 대부분 뺀 채 시작합니다(`initial_filter`). 규모 `small`은 글에 나오는 행으로 학습하며, 훨씬 짧은 시간이 걸립니다.',
  which=('고르기: 내 글을 검색하려면 패키지에 든 모델이나, BM25로 센 용어와 모델이 배운 용어로 함께 순위를 매기는 `splade_ko`. 더하는 용어가 한국어여야 하면 V28. 착상을 하나씩 살펴보려면 V22~V27. '
         '[방법마다 필요한 것](../nbs/studies/ways.ipynb).'),
  more='V27은 여행 데이터를 더한 V26인데, 이 컬렉션에는 그런 데이터가 없어 돌리지 않았습니다. 버전마다 [설정](../nbs/0_config/04_versions.ipynb)과 무작위 가중치에서 시작한 것까지 담은 [모든 실행](results_ko.md)이 있고, `make train VERSION=v26`으로 학습합니다.')}


def study_tables(cell: str = 'ranking-table') -> list:
    "Tables of the study of a pretrained encoder, one for the models that learned from the same collections; each names its own source."
    (text,) = readme_table.shown(cell, 'text/markdown', 'encoder')
    return [part.split('\n', 1)[1].strip() for part in re.split('^### ', text, flags=re.M)[1:]]


def unrounded(group: int, run: str) -> tuple:  # nDCG@10 in percent: the mean of the collections, parakqc
    "Of a kept run of the study: means over seeds are not those of rounded figures."
    found = read_json(DOCS/'results'/'studies'/'encoder'/('question_pair' if group else '4_collections')/f'{run}.json')['found']
    values = {name: 100 * np.mean([float(value) for value in each['ndcg@10'].split()]) for name, each in found.items()}
    return np.mean([*values.values()]), values.get('parakqc', np.nan)


def rows(group: int = 0) -> pd.DataFrame:  # of `study_tables`: 0 learned from several collections, -1 from one
    "The study's systems: name, recipe ('' for those beside the versions), nDCG@10 in percent, terms of a document."
    found = readme_table.cells(study_tables()[group])
    names = found['system'].str.removesuffix(', as written')
    recipe = ('corrected' if name == system else 'original' if name in SHOWN else '' for name, system in zip(names, found['system']))
    found = found.assign(name=names, certain=found['points'].str.contains('▲'), recipe=[how if name in SHOWN else '' for name, how in zip(names, recipe)], terms=found['terms'].str.split('/').str[-1])
    numbers = {column: pd.to_numeric(found[column], errors='coerce') for column in (*PANELS, 'mean')}
    table = found[['name', 'recipe', 'seed', 'certain']].assign(**numbers)[names.isin([*BESIDE, *SHOWN])]
    for place, row in table[table['recipe'] != ''].iterrows(): table.loc[place, ['mean', 'parakqc']] = unrounded(group, f'{row["name"]}-{row["recipe"]}-{row["seed"]}')
    return table


def lines_of(language: str) -> dict:  # name -> its label, what it adds in one line
    "Of the versions as `config.versions` says it."
    judged, said = set(rows()['name']), {version: ABOUT[version][0] for version in SHOWN}
    said = said if language == 'en' else {version: readme_table.in_korean(line) for version, line in said.items()}
    return TEXT[language]['beside'] | {version: (version.replace('v', 'V'), line) for version, line in said.items() if version in judged}


def figure(language: str):
    "Three panels that share their lines: two collections, and the terms of a document; a mark for each seed."
    said, table, lines = TEXT[language], rows(), lines_of(language)
    places = {name: place for place, name in enumerate([*lines][::-1])}
    drawn, axes = canvas(1, 3, width=11, height=0.56 * len(places) + 1.3, sharey=True)
    for axis, column in zip(axes, PANELS):
        for name, style in BESIDE.items():
            value, colour = table.loc[table['name'] == name, column].item(), SYSTEMS[style][1]
            if pd.isna(value): continue
            if name != 'start' and column != 'terms': axis.axvline(value, color=colour, linestyle='--', linewidth=1, zorder=1)
            axis.scatter(value, places[name], marker='s', s=46, color=colour, zorder=3)
        for recipe, (colour, shape) in RECIPES.items():
            points = table[table['recipe'] == recipe]
            if len(points): axis.scatter(points[column], points['name'].map(places), marker=shape, s=52, color=colour, zorder=3, label=said['recipe'].format(recipe))
        for name, value in table[table['recipe'] != 'original'].groupby('name')[column].mean().dropna().items():
            axis.annotate(f'{value:.0f}' if column == 'terms' else f'{value:.1f}', (value, places[name]), (0, 6), textcoords='offset points', ha='center', fontsize=8.5,
                          bbox=dict(facecolor='white', edgecolor='none', pad=0.3))
    for axis, title in zip(axes, said['panels']): axis.set_title(title)
    axes[2].set_xlim(left=0)
    axes[0].set(yticks=list(places.values()), yticklabels=[f'{lines[name][0]}\n{textwrap.fill(lines[name][1], 40)}' for name in places])
    for text in axes[0].get_yticklabels(): text.set_linespacing(1.3)
    legend_below(drawn, columns=2)
    return drawn


def numbers(group: int = 0) -> dict:  # of `study_tables`
    "What the sentences about a table are filled with."
    table, joined = rows(group), readme_table.cells(study_tables('joined-table')[group])
    ranked = table[table['recipe'] == 'corrected']
    versions, beside = ranked.groupby('name')['mean'].mean(), table[table['recipe'] == ''].set_index('name')['mean']
    shown = dict(low=versions.min(), high=versions.max(), bm25=beside['BM25'], bigrams=beside['BM25 + bigrams'], dense=beside['dense, multilingual-e5-small'],
                 joined=joined.loc[joined['learned part'].isin(VERSIONS), 'mean'].astype(float).max())
    ours, written = (table[table['recipe'] == recipe] for recipe in ('corrected', 'original'))
    shown |= dict(written_low=written['mean'].min(), written_high=written['mean'].max())
    counts = dict(few=ours['terms'].min(), many=ours['terms'].max(), written_few=written['terms'].min(), written_many=written['terms'].max())
    return {name: f'{value:.1f}' for name, value in shown.items()} | {name: f'{value:.0f}' for name, value in counts.items()} | dict(all=len(versions), certain=ranked.loc[ranked['certain'], 'name'].nunique(), above=int((versions > beside['BM25 + bigrams']).sum()))


def page_title(language: str) -> str: return TEXT[language]['result'].format(**numbers())


def translated(table: str, language: str) -> str:
    said = TEXT[language]
    for old, new in zip(('system', 'seed'), said['head']): table = table.replace(f'| {old} |', f'| {new} |', 1)
    for old, new in said['words'].items(): table = table.replace(old, new)
    for old, new in (readme_table.SOURCE if language == 'ko' else {}).items(): table = re.sub(old, new, table)
    return table


def page(language: str) -> str:
    said = TEXT[language]
    facts = numbers()
    facts['certain'] = facts['certain'] or said['none']
    several, one = (translated(table, language) for table in study_tables())
    source = next(line for line in several.splitlines() if line.startswith('*'))
    return '\n\n'.join([said['title'], said['line'], said['read'], f'![{said["alt"]}]({said["figure"]})', source, said['found'].format(**facts), said['which'],
                        said['table'], several, said['alone'].format(**numbers(-1)), one, whole_rows(said), on_a_card(said), said['more']]) + '\n'


def whole_rows(said: dict) -> str:
    "What the study found with every row of the vocabulary."
    (finding,) = readme_table.shown('finding', 'text/markdown', 'encoder')
    found = re.findall(r'^- (v\d+), all rows: (\S+) beside .*?; noise (\S+) of the terms', finding, re.M)
    return said['whole'].format(rows=', '.join(said['card_row'].format(version=version.upper(), ndcg=ndcg, noise=f'{noise} %') for version, ndcg, noise in found))


def on_a_card(said: dict) -> str:
    "What `make gpu STAGE=versions` gave, the mean over its sets; empty where it was not run."
    runs = [run for path in sorted((DOCS.parent/'benchmarks'/'results'/'gpu').glob('*/versions.json')) for run in read_json(path)['runs'] if run['recipe'] == 'corrected']
    if not runs: return ''
    def mean(run, read): return sum(map(read, run['sets'].values())) / len(run['sets'])
    rows = [said['card_row'].format(version=run['version'].upper(), ndcg=f'{100 * mean(run, lambda one: one["ndcg"]):.1f}', noise=f'{mean(run, lambda one: one["korean"]["noise"]):.0%}')
            for run in sorted(runs, key=lambda run: (run['version'], run['seed']))]
    return said['card'].format(steps=runs[0]['of'], sets=len(runs[0]['sets']), rows='; '.join(rows))


def contents() -> dict:  # path -> its text
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for language, said in TEXT.items():
            write_svg(figure(language), Path(folder)/said['figure'])
            found |= {DOCS/said['file']: page(language), DOCS/said['figure']: (Path(folder)/said['figure']).read_text(encoding='utf-8')}
    return found


def main() -> int:
    found = contents()
    wrong = [path for path, text in found.items() if not path.exists() or path.read_text(encoding='utf-8') != text]
    if '--check' in sys.argv:
        for path in wrong: print(f'{path.name} is not what the versions and the kept results say: run docs/versions_page.py', file=sys.stderr)
        return int(bool(wrong))
    for path, text in found.items(): path.write_text(text, encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main())

"""Write docs/versions.md and its Korean twin: V22 to V28 in one picture, what each adds and what it is worth.

    python docs/versions_page.py            write both pages and their figures
    python docs/versions_page.py --check    exit 1 if one is not what the versions and the kept results say
"""
import re, sys, tempfile, textwrap
from pathlib import Path
import pandas as pd
import readme_table
from splade_nb.config.versions import ABOUT, VERSIONS
from splade_nb.evaluation.compare import RECIPES, markdown_table
from splade_nb.config.files import read_json
from splade_nb.evaluation.figures import SYSTEMS, canvas, legend_below, source_line, write_svg
from splade_nb.evaluation.leaderboard import BASELINE, FLOOR, boards, summary_rows
from splade_nb.evaluation.metrics import index_bytes
from splade_nb.evaluation.study import known_baselines, revision_of

DOCS = Path(__file__).resolve().parent
SHOWN = [version for version in VERSIONS if version[1:].isdigit() and 22 <= int(version[1:]) <= 28]
LEXICAL = {'bm25': BASELINE, 'bm25_bigrams': FLOOR}  # key of a kept baseline: system of the leaderboard
TEXT = {
 'en': dict(file='versions.md', figure='versions.svg', title='# V22 to V28 in one picture',
  line='> What each version adds, and what it is worth beside BM25.',
  result='V22 to V28, corrected: nDCG@10 {low} to {high} on mini (BM25 {bm25}), {public_low} to {public_high} on {n} public Korean collections (BM25 {public_bm25})',
  alt='Nine lines, for BM25, BM25 with bigrams and V22 to V28: nDCG@10 on the embedded set, nDCG@10 on the public collections, terms per document',
  read=('One line for each version, with what it adds to the one before (V27 and V28: to V26). Left and middle: how well it ranks; further right is better, '
        'and the dashed lines are both BM25, which learn nothing. Right: how many terms it stores for a document, which is what the index costs; fewer is cheaper.'),
  panels=('embedded set, nDCG@10', 'public collections, nDCG@10', 'terms per document'), untrained='untrained', recipe='recipe {}', failed='collapsed or stopped',
  lexical={'bm25': ('BM25', 'words, no training'), 'bm25_bigrams': ('BM25 + bigrams', 'words and character pairs, no training')},
  columns=('version', 'what it adds', 'embedded set: untrained', '{}', 'public: {}', 'terms', 'index, MB'),
  none=('Recipe `original` has the versions exactly as the design documents write them. No result of it is kept{but}; '
        '`make train VERSION=v28 RECIPE=original` measures one. What was measured as written is recipe `earlier`: `original` and what the repository that first trained these versions had added.'),
  but=' for {}',
  found=('On the embedded set the corrected versions reach {low} to {high}, BM25 {bm25} and BM25 with bigrams {bigrams}; its training and test queries ask for the same documents, so this shows what is learned, not what carries over. '
         'On the public collections (mean of {n}, one model trained for all) they reach {public_low} to {public_high}, BM25 {public_bm25} and BM25 with bigrams {public_bigrams}: {above} of {all} rank above BM25, {over} above BM25 with bigrams. '
         'On the embedded set, {original_failed} of {original_runs} runs of recipe `original` and {failed} of {runs} runs of recipe `earlier` collapsed or were stopped.'),
  small=('These are small models without pretraining, trained on a CPU, on the embedded set for {mini_steps} steps ({seeds} in recipe `corrected`), on the public collections for {public_steps} steps ({public_seeds}, one model for each version, learned from {taught} of them); '
         'the designs mean XLM-RoBERTa on a GPU. `corrected`, the default recipe, changes what in `earlier` had no effect or made training collapse. nDCG@10 in percent, test queries; - : not measured.'),
  seeds=('seed {}', 'mean of seeds {}'),
  pretrained=('## From a pretrained encoder\n\nAs the designs mean them: every version from multilingual-e5-small with a head in closed form, some minutes of training on two processor cores. '
              'nDCG@10 of the test queries in percent; points: over BM25 with bigrams, with the 95 % interval; terms of a query / a document; MB of the index. No run has seen parakqc. *start* is the model before training, *as written* the recipe `original`. Criteria of V28, expansions and what each idea is worth: [the study](../nbs/studies/encoder.ipynb).'),
  head=(), words={},
  card=('Trained on a GPU on four collections and open triplets of many sources, {steps} steps ([table](gpu.md#v22-to-v28)), one seed each, mean nDCG@10 of the learned terms alone: {rows}. With a steeper IDF penalty more '
        'of the weight goes to rare foreign terms (noise: the share of terms that are neither Korean nor in the text), and the Korean filter of V28 reverses that.'),
  card_row='{version} {ndcg} (noise {noise})',
  more='V27 equals V26 on the public collections, because they have no travel pairs. Each version has [its settings](../nbs/0_config/04_versions.ipynb) and [all its runs](results.md); `make train VERSION=v26` trains one.'),
 'ko': dict(file='versions_ko.md', figure='versions_ko.svg', title='# V22부터 V28까지 한 그림으로',
  line='> 버전마다 무엇을 더했고, BM25와 견주어 얼마나 좋아졌는지.',
  result='V22~V28 비교, corrected: nDCG@10 내장 데이터 {low}~{high}(BM25 {bm25}), 공개 한국어 컬렉션 {n}개 {public_low}~{public_high}(BM25 {public_bm25})',
  alt='아홉 줄, BM25와 글자쌍을 더한 BM25와 V22부터 V28까지: 내장 데이터의 nDCG@10, 공개 컬렉션의 nDCG@10, 문서당 용어 수',
  read=('버전마다 한 줄이고, 이름 아래에 바로 앞 버전에 더한 것을 적었습니다(V27과 V28은 V26에 더한 것). 왼쪽과 가운데는 순위의 품질로, 오른쪽일수록 좋습니다. '
        '세로 점선은 아무것도 학습하지 않는 두 BM25입니다. 오른쪽은 문서 하나에 저장하는 용어의 수, 곧 색인의 비용이며 적을수록 쌉니다.'),
  panels=('내장 데이터, nDCG@10', '공개 컬렉션, nDCG@10', '문서당 용어'), untrained='학습 전', recipe='레시피 {}', failed='붕괴 또는 중단',
  lexical={'bm25': ('BM25', '단어, 학습 없음'), 'bm25_bigrams': ('BM25 + 글자쌍', '단어와 글자쌍, 학습 없음')},
  columns=('버전', '더한 것', '내장 데이터: 학습 전', '{}', '공개: {}', '용어', '색인, MB'),
  none=('레시피 `original`은 설계 문서에 적힌 그대로의 버전입니다. 남아 있는 결과가 없으며{but}, `make train VERSION=v28 RECIPE=original`로 잴 수 있습니다. '
        '적힌 대로 잰 것은 레시피 `earlier`로, `original`에 이 버전들을 처음 학습한 저장소의 설정을 더한 것입니다.'),
  but='({})',
  found=('내장 데이터에서 corrected 버전은 {low}~{high}, BM25는 {bm25}, 글자쌍을 더한 BM25는 {bigrams}입니다. 학습 질의와 시험 질의의 정답 문서가 겹치므로 배운 만큼을 보여 줄 뿐, 다른 문서에도 통하는지는 보여 주지 않습니다. '
         '공개 컬렉션(모델 하나로 {n}개의 평균)에서는 {public_low}~{public_high}, BM25는 {public_bm25}, 글자쌍을 더한 BM25는 {public_bigrams}입니다. {all}개 가운데 BM25보다 높은 것은 {above}개, 글자쌍을 더한 BM25보다 높은 것은 {over}개입니다. '
         '내장 데이터에서 레시피 `original`은 {original_runs}개 가운데 {original_failed}개가, `earlier`는 {runs}개 가운데 {failed}개가 붕괴하거나 중단되었습니다.'),
  small=('모두 사전학습 없이 CPU로 학습한 작은 모델입니다. 내장 데이터에서는 {mini_steps}스텝(레시피 `corrected`는 {seeds}), 공개 컬렉션에서는 {public_steps}스텝({public_seeds}, 버전마다 그 가운데 {taught}개에서 배운 모델 하나) 학습했습니다. '
         '설계 문서가 뜻하는 것은 GPU에서 학습한 XLM-RoBERTa입니다. 기본 레시피 `corrected`는 `earlier`에서 효과가 없거나 학습을 무너뜨린 설정을 고친 것입니다. nDCG@10은 시험 질의의 백분율이고, -는 재지 않은 것입니다.'),
  seeds=('시드 {}', '시드 {}의 평균'),
  pretrained=('## 사전학습된 인코더에서\n\n설계 문서가 뜻하는 대로, 모든 버전을 multilingual-e5-small과 닫힌 형태로 구한 헤드에서 시작해 CPU 코어 두 개로 몇 분 동안 학습했습니다. '
              '시험 질의의 nDCG@10(백분율), BM25 + 글자쌍과의 차이와 95 % 구간, 질의 / 문서의 용어 수, 색인의 MB입니다. parakqc는 어느 실행도 본 적이 없습니다. *학습 전*은 학습하기 전의 모델, *적힌 대로*는 레시피 `original`입니다. V28의 기준, 확장, 착상마다의 값어치는 [연구](../nbs/studies/encoder.ipynb)에 있습니다.'),
  head=('시스템', '시드'), words={'BM25 + bigrams': 'BM25 + 글자쌍', 'hybrid, dense and BM25 + 글자쌍': '혼합, 밀집과 BM25 + 글자쌍', 'dense,': '밀집,', ', all rows': ', 모든 행', 'start': '학습 전', ', as written': ', 적힌 대로', '| mean |': '| 평균 |', '| points |': '| BM25 + 글자쌍 대비 |', '| terms |': '| 용어 |', '| steps | minutes | stopped |': '| 스텝 | 분 | 중단 |'},
  card=('GPU에서 컬렉션 네 개와 여러 출처의 공개 트리플렛으로 학습한 결과입니다({steps}스텝, [표](gpu.md#v22-to-v28), 시드 하나씩). 배운 용어만의 평균 nDCG@10과 잡음(한국어도 아니고 글에도 없는 용어의 비율): {rows}. '
        'IDF 벌점이 가파를수록 드문 외국어 용어가 무거워지고, V28의 한국어 필터가 그것을 되돌립니다.'),
  card_row='{version} {ndcg}(잡음 {noise})',
  more='공개 컬렉션에는 여행 데이터가 없어서 V27은 V26과 같습니다. 버전마다 [설정](../nbs/0_config/04_versions.ipynb)과 [모든 실행](results_ko.md)이 있고, `make train VERSION=v26`으로 학습합니다.')}


def public() -> pd.DataFrame:
    "The leaderboard of public collections, a row for each system that finished all of them."
    name = max(boards(), key=lambda name: name.count('+'))
    return summary_rows(boards()[name]).query('whole').set_index('system')


def rows() -> pd.DataFrame:
    "Both BM25 and every version: a row for each recipe and place where it was judged, nDCG@10 in percent."
    mini, board, known, found = readme_table.kept().query('data == "mini"'), public(), known_baselines()['mini'], []
    for key, system in LEXICAL.items():
        index = known['index'][key]
        found.append(dict(name=key, recipe='', place='mini', ndcg=100 * known['splits']['test'][key]['ndcg@10']['mean'], terms=index['terms'], megabytes=index['bytes'] / 1e6, outcome=''))
        found.append(dict(name=key, recipe='', place='public', ndcg=100 * board.loc[system, 'ndcg@10'], outcome=''))
    for version, recipe in ((version, recipe) for version in SHOWN for recipe in RECIPES):
        own, system = mini[(mini['version'] == version) & (mini['recipe'] == recipe)], f'{version}-{recipe}'
        if len(own):
            terms = own['active doc'].mean()
            found.append(dict(name=version, recipe=recipe, place='mini', ndcg=100 * own['nDCG@10'].mean(), untrained=100 * own['before'].mean(), terms=terms,
                              megabytes=index_bytes(terms, own['documents'].max()) / 1e6, outcome=', '.join(filter(None, dict.fromkeys(own['outcome'])))))
        if system in board.index:
            found.append(dict(name=version, recipe=recipe, place='public', ndcg=100 * board.loc[system, 'ndcg@10'], outcome=board.loc[system, 'outcome']))
    return pd.DataFrame(found)


def lines_of(language: str) -> dict:  # name -> its label, what it adds in one line
    "Of the versions as `config.versions` says it."
    said = {version: ABOUT[version][0] for version in SHOWN}
    said = said if language == 'en' else {version: readme_table.in_korean(line) for version, line in said.items()}
    return TEXT[language]['lexical'] | {version: (version.upper(), line) for version, line in said.items()}


def draw_recipe(axis, rows: pd.DataFrame, places: dict, column: str, recipe: str, said: dict) -> None:
    "A mark for each row; hollow where a run collapsed or was stopped."
    (colour, shape), healthy = RECIPES[recipe], rows['outcome'] == ''
    for chosen, face, text in ((healthy, colour, said['recipe'].format(recipe)), (~healthy, 'white', f'{said["recipe"].format(recipe)}, {said["failed"]}')):
        points = rows[chosen & rows[column].notna()]
        if len(points): axis.scatter(points[column], points['name'].map(places), marker=shape, s=52, color=face, edgecolor=colour, linewidth=1.3, zorder=3, label=text)
    if recipe != 'corrected': return
    for value, name in zip(rows[column], rows['name']):
        axis.annotate(f'{value:.1f}' if column == 'ndcg' else f'{value:.0f}', (value, places[name]), (0, 6), textcoords='offset points', ha='center', fontsize=8.5,
                      bbox=dict(facecolor='white', edgecolor='none', pad=0.3))


def figure(language: str):
    "Three panels that share their lines: the embedded set, the public collections, the terms of a document."
    said, table, lines = TEXT[language], rows(), lines_of(language)
    places = {name: place for place, name in enumerate([*LEXICAL, *SHOWN][::-1])}
    drawn, axes = canvas(1, 3, width=11, height=0.56 * len(places) + 1.3, sharey=True)
    for axis, column, place in zip(axes, ('ndcg', 'ndcg', 'terms'), ('mini', 'public', 'mini')):
        here = table[table['place'] == place]
        for key in LEXICAL:
            name, colour = lines[key][0], SYSTEMS[key][1]
            value = here.loc[here['name'] == key, column].item()
            axis.axvline(value, color=colour, linestyle='--', linewidth=1, zorder=1)
            axis.scatter(value, places[key], marker='s', s=46, color=colour, zorder=3, label=name)
        if place == 'mini' and column == 'ndcg':
            own = here[(here['recipe'] == 'corrected') & here['untrained'].notna()]
            axis.scatter(own['untrained'], own['name'].map(places), s=80, color=SYSTEMS['before_training'][1], zorder=2, label=said['untrained'])
        for recipe in RECIPES: draw_recipe(axis, here[here['recipe'] == recipe], places, column, recipe, said)
    for axis, title in zip(axes, said['panels']): axis.set_title(title)
    for axis in axes[:2]: axis.set_xlim(left=0)
    axes[2].set_xscale('log')
    axes[2].xaxis.set_major_formatter('{x:,g}')
    axes[0].set(yticks=list(places.values()), yticklabels=[f'{lines[name][0]}\n{textwrap.fill(lines[name][1], 40)}' for name in places])
    for text in axes[0].get_yticklabels(): text.set_linespacing(1.3)
    legend_below(drawn, columns=3)
    return drawn


def numbers(table: pd.DataFrame) -> dict:
    "What the sentence about the picture is filled with."
    of = lambda place, recipe: table[(table['place'] == place) & (table['recipe'] == recipe)]
    mini, outside, original, earlier = of('mini', 'corrected')['ndcg'], of('public', 'corrected')['ndcg'], of('mini', 'original'), of('mini', 'earlier')
    lexical = {(row['place'], row['name']): row['ndcg'] for _, row in table[table['recipe'] == ''].iterrows()}
    shown = dict(low=mini.min(), high=mini.max(), bm25=lexical['mini', 'bm25'], bigrams=lexical['mini', 'bm25_bigrams'], public_low=outside.min(),
                 public_high=outside.max(), public_bm25=lexical['public', 'bm25'], public_bigrams=lexical['public', 'bm25_bigrams'])
    return {name: f'{value:.1f}' for name, value in shown.items()} | dict(
        n=int(public()['collections'].max()), all=len(outside), above=int((outside > lexical['public', 'bm25']).sum()),
        over=int((outside > lexical['public', 'bm25_bigrams']).sum()), runs=len(earlier), failed=int((earlier['outcome'] != '').sum()),
        original_runs=len(original), original_failed=int((original['outcome'] != '').sum()))


def page_title(language: str) -> str: return TEXT[language]['result'].format(**numbers(rows()))


def versions_table(language: str) -> str:
    said, table, lines = TEXT[language], rows(), lines_of(language)
    recipes, judged = ([recipe for recipe in RECIPES if recipe in set(table.loc[table['place'].isin(places), 'recipe'])] for places in (('mini',), ('public',)))
    def cells(name):
        own = table[table['name'] == name]
        def value(place, recipe, column='ndcg', form='{:.1f}'):
            found = own[(own['place'] == place) & (own['recipe'] == ('' if name in LEXICAL else recipe))]
            if not len(found) or found[column].isna().all() or (name in LEXICAL and recipe != 'corrected'): return '-'
            return form.format(found[column].item()) + (f' ({said["failed"]})' if column == 'ndcg' and found['outcome'].item() else '')
        values = [value('mini', 'corrected', 'untrained'), *(value('mini', recipe) for recipe in recipes), *(value('public', recipe) for recipe in judged),
                  value('mini', 'corrected', 'terms', '{:.0f}'), value('mini', 'corrected', 'megabytes', '{:.2f}')]
        return [*lines[name], *('-' if cell == 'nan' else cell for cell in values)]
    head = said['columns']
    columns = [*head[:3], *(head[3].format(recipe) for recipe in recipes), *(head[4].format(recipe) for recipe in judged), *head[5:]]
    return markdown_table(pd.DataFrame([cells(name) for name in (*LEXICAL, *SHOWN)], columns=columns))


def trained(runs: pd.DataFrame, language: str) -> dict:
    "With how many steps and seeds the shown models were trained."
    name, (one, several) = max(boards(), key=lambda name: name.count('+')), TEXT[language]['seeds']
    board = boards()[name]
    shown = board[board['system'].isin([f'{version}-corrected' for version in SHOWN])]
    mini = runs[runs['recipe'] == 'corrected']
    def listed(values): return ', '.join(f'{value:,.0f}' for value in sorted(set(values)))
    def of_seeds(values): return (several if values.nunique() > 1 else one).format(listed(values))
    return dict(mini_steps=listed(mini['steps']), seeds=of_seeds(mini['seed']), public_steps=listed(shown['steps']), public_seeds=of_seeds(shown['seed']), taught=name.count('+') + 1)


def source_of(runs: pd.DataFrame, language: str) -> str:
    "Where figure and table come from: kept runs on the embedded set, and the leaderboard of the public collections."
    name = max(boards(), key=lambda name: name.count('+'))
    paths = [*sorted((DOCS/'results'/'studies'/'leaderboard'/name).glob('v2[2-8]-*.json')), DOCS/'results'/'studies'/'baselines'/'mini.json']
    public = {each: known_baselines().get(each, {}).get('hash', '') for each in boards()[name]['collection'].unique()}
    line = source_line('python docs/versions_page.py', dict(zip(runs['data'], runs['hash'])) | public, [*runs['of'], *map(revision_of, paths)],
                       [*runs['date'], *(read_json(path).get('date', '') for path in paths)])
    return line if language == 'en' else readme_table.in_korean(line)


def page(language: str) -> str:
    said, table = TEXT[language], rows()
    runs = readme_table.kept().query('data == "mini" and version in @SHOWN')
    known = [version for version in SHOWN if len(table[(table['name'] == version) & (table['recipe'] == 'original')])]
    missing = [version.upper() for version in SHOWN if version not in known]
    note = [said['none'].format(but=said['but'].format(', '.join(missing)) if known else '')] if missing else []
    source = source_of(runs, language)
    return '\n\n'.join([said['title'], said['line'], said['read'], f'![{said["alt"]}]({said["figure"]})', source, said['found'].format(**numbers(table)),
                        *note, versions_table(language), source, said['small'].format(**trained(runs, language)), said['more'],
                        said['pretrained'], pretrained_table(language), on_a_card(said)]) + '\n'


def pretrained_table(language: str) -> str:
    "The ranking of the study of a pretrained encoder, which names its own source."
    (table,), said = readme_table.shown('ranking-table', 'text/markdown', 'encoder'), TEXT[language]
    for old, new in zip(('system', 'seed'), said['head']): table = table.replace(f'| {old} |', f'| {new} |', 1)
    for old, new in said['words'].items(): table = table.replace(old, new)
    for old, new in (readme_table.SOURCE if language == 'ko' else {}).items(): table = re.sub(old, new, table)
    return table.strip()


def on_a_card(said: dict) -> str:
    "What `make gpu STAGE=versions` gave, the mean over its sets; empty where it was not run."
    runs = [run for path in sorted((DOCS.parent/'benchmarks'/'results'/'gpu').glob('*/versions.json')) for run in read_json(path)['runs'] if run['recipe'] == 'corrected']
    if not runs: return ''
    def mean(run, read): return sum(map(read, run['sets'].values())) / len(run['sets'])
    rows = [said['card_row'].format(version=run['version'].upper(), ndcg=f'{100 * mean(run, lambda one: one["ndcg"]):.1f}', noise=f'{mean(run, lambda one: one["korean"]["noise"]):.0%}')
            for run in sorted(runs, key=lambda run: (run['version'], run['seed']))]
    return said['card'].format(steps=runs[0]['of'], rows='; '.join(rows))


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

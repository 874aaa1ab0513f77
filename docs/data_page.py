"""Write docs/data.md and its Korean twin from the registry of data sets: source, licence, sizes, hashes.

    python docs/data_page.py            write both pages
    python docs/data_page.py --check    exit 1 if one is not what the registry says
"""
import sys
from pathlib import Path
from splade_nb.config.files import read_json, sha256_of
from splade_nb.data.collections import FORMS, listing, registry
from splade_nb.evaluation.figures import source_line

ROOT = Path(__file__).resolve().parent.parent
PAGES = {'en': ROOT/'docs'/'data.md', 'ko': ROOT/'docs'/'data_ko.md'}
WORDS = {'en': dict(title='# Data sets', about='> Source, licence, size and hash of every set that is named here.', columns=listing()[0][:6],
  text="""`make data` lists these sets, `make data NAME=miracl_ko` fetches and checks one into `data/miracl_ko`, and `DATA=miracl_ko` finds it there.
`FROM=folder` takes a local copy, or an address that serves one. `make data NAME=triplets` makes training triplets in
the folders of the design documents, `data/v24.0` and `data/v27.0`: from sets that may be learned from ({learned}), or with `FROM=folder` from a folder of
[pairs](../nbs/9_lab/13_pairs.ipynb). The open pairs below give about a million. `TRIPLETS=10000` makes so many, `INTO=folder` puts them
elsewhere; [a notebook](../nbs/9_lab/15_mixture.ipynb) has the rules. A set whose form below is "a folder that was prepared elsewhere" cannot
be fetched: give that folder by `FROM`. Its files have the hashes below; how its preparer made them is not described here. The remarks
name the sets that no reader of the package takes. The embedded set is
described [by itself](../data/mini/README.md). Written by `python docs/data_page.py` from `data/collections`; what is unknown says so.""",
  sets='## Sets', facts='## How each is read', note=('name', 'form', 'split', 'revision', 'sizes from', 'remarks'), hashes='## Hashes',
  hash=('set', 'file', 'SHA-256'), pairs='## Pairs', pair=('name', 'from', 'licence', 'pairs', 'SHA-256'), unknown='unknown',
  pairs_text='Open pairs that a mixture can be made of (`FROM`); they are not part of the project.'),
 'ko': dict(title='# 데이터', about='> 이름이 나오는 모든 데이터의 출처, 라이선스, 크기, 해시.', columns=('이름', '무엇', '라이선스', '문서', '질의', '출처'),
  text="""`make data`는 이 목록을 보여 주고, `make data NAME=miracl_ko`는 하나를 `data/miracl_ko`에 받아 확인합니다. 그러면 `DATA=miracl_ko`로 씁니다.
`FROM=folder`는 로컬 사본이나 그 주소를 받습니다. `make data NAME=triplets`는 학습용 트리플렛을 설계 문서의 폴더인 `data/v24.0`과 `data/v27.0`에 만듭니다.
학습에 써도 되는 데이터({learned})에서 만들고, `FROM`에 [쌍](../nbs/9_lab/13_pairs.ipynb)의 폴더를 주면 그것으로 만듭니다. 아래의 열린 쌍으로는 약 백만 개가 됩니다. `TRIPLETS=10000`은 개수를, `INTO=folder`는 놓을 곳을 정합니다. [규칙](../nbs/9_lab/15_mixture.ipynb)은 노트북에 있습니다.
아래 형식이 "a folder that was prepared elsewhere"인 데이터는 내려받을 수 없고 준비된 폴더(`FROM`)가 있어야 합니다. 읽는 코드가 없는 데이터는 비고에 적혀 있습니다.
내장 데이터는 [따로](../data/mini/README.md) 설명합니다. 이 글은 `python docs/data_page.py`가 `data/collections`에서 씁니다.""",
  sets='## 목록', facts='## 읽는 법', note=('이름', '형식', '분할', '리비전', '크기의 출처', '비고'), hashes='## 해시',
  hash=('데이터', '파일', 'SHA-256'), pairs='## 쌍', pair=('이름', '출처', '라이선스', '쌍', 'SHA-256'), unknown='unknown',
  pairs_text='트리플렛을 만들 수 있는 공개된 쌍(`FROM`). 이 저장소에는 들어 있지 않습니다.')}


def table(names: tuple, rows: list) -> str:
    lines = [names, ['---'] * len(names), *rows]
    return '\n'.join('| ' + ' | '.join(str(value).replace('|', r'\|') or '-' for value in line) + ' |' for line in lines)


def source(*files: str) -> str:
    "Of the files that list the sets; what they say of a set has its own revision."
    return source_line('python docs/data_page.py', {name: sha256_of(ROOT/'data'/'collections'/name) for name in files}, [], [])


def page(language: str) -> str:
    said, sets = WORDS[language], registry()
    facts = [(name, FORMS[one.form], one.split, one.revision, one.facts, one.note) for name, one in sets.items()]
    hashes = [(name, f'`{file}`', f'`{value}`') for name, one in sets.items() for file, value in one.sha256.items()]
    hashes += [(name, '-', said['unknown']) for name, one in sets.items() if not one.sha256]
    pairs = [(name, ', '.join(one['repositories']), one['licence'], f'{one["pairs"]:,}', f'`{one["sha256"]}`')
             for name, one in read_json(ROOT/'data'/'collections'/'pairs.json').items()]
    parts = [said['title'], said['about'], said['text'].format(learned=', '.join(f'`{name}`' for name, one in sets.items() if one.train)), said['sets'], table(said['columns'], [row[:6] for row in listing()[1:]]), source('sets.json'),
             said['facts'], table(said['note'], facts), source('sets.json'), said['hashes'], table(said['hash'], hashes), source('sets.json'),
             said['pairs'], said['pairs_text'], table(said['pair'], pairs), source('pairs.json')]
    return '\n\n'.join(parts) + '\n'


def main() -> int:
    wrong = [path for language, path in PAGES.items() if not path.exists() or path.read_text(encoding='utf-8') != page(language)]
    if '--check' in sys.argv:
        for path in wrong: print(f'{path.name} is not what the registry says: run docs/data_page.py', file=sys.stderr)
        return int(bool(wrong))
    for language, path in PAGES.items(): path.write_text(page(language), encoding='utf-8')
    return 0


if __name__ == '__main__': sys.exit(main())

"""The public Korean collections at full scale: published figures beside those measured here, which `make evaluate-full` brings.

    python experiments/full_scale.py --keep outputs/full   take its results over, then write the page
    python experiments/full_scale.py --page                write docs/full-scale.md again
    python experiments/full_scale.py --check               exit 1 if the page is not what the results say
"""
import sys
from pathlib import Path
import pandas as pd
from splade_nb.config.command_line import CommandLine
from splade_nb.config.files import read_json, write_json
from splade_nb.data.corpus import STANDARD
from splade_nb.evaluation.benchmark import published_table, read_results, results_table, whole_table
from splade_nb.evaluation.compare import markdown_table

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent/'docs'/'full-scale.md', HERE/'results'/'full-scale'
TEXT = """# Full scale: published figures and cells to fill

Written by `experiments/full_scale.py` from `experiments/published.json` and {found} measured results. An empty cell was not measured: every number here comes from a run.

## The collections

{collections}

All three are in BEIR form, so that nothing but data is downloaded. The test split is evaluated, else the development split.

## Success@1 beside published figures

In percent; ours with the 95 % interval (bootstrap over queries). MIRACL-ko and Mr.TyDi-ko on their 10,000-document subsamples, Ko-StrategyQA whole.

{published}

Published: {source}. Its subsample holds every judged passage, relevant or not, and others drawn once with seed 42. Ours repeats that rule on the hub's rows; whether these come in the order that was drawn from, nobody has checked. Never compare a subsample with its whole collection: only one document in 150 is left to be confused with. The earlier in-house figures (V22 to V26) have no public collection, so there is no cell to fill.

## The whole collections

In percent, over all documents. Nothing was published for MIRACL-ko and Mr.TyDi-ko here.

{whole}

## How to fill them

```text
make evaluate-full MODEL=outputs/v28 SAMPLE=10000
make evaluate-full MODEL=outputs/v28
python experiments/full_scale.py --keep outputs/full
```

BGE-M3 (`BAAI/bge-m3`, 512 tokens, cosine), BM25 over Kiwi morphemes and BM25 with a bigram field are evaluated once and their results are kept; each further `MODEL` adds one file for each collection. After an interruption the same command continues at the first missing shard. Without the hub: `hf download NAME --repo-type dataset --local-dir FOLDER` where there is one, then `COLLECTIONS=miracl_ko=FOLDER`; for BGE-M3 `hf download BAAI/bge-m3 --local-dir bge-m3` and `DENSE=bge-m3`, or `DENSE=lsa` on subsamples.

Of a collection only the ids are in memory, texts are read from disk, and models and BGE-M3 are scored one shard at a time. BM25 keeps a pointer for each word of the collection in memory. How much memory and time the two large collections take in all was not measured.

{measured}"""


def collections_table() -> pd.DataFrame:
    return pd.DataFrame([{'collection': known.title, 'name here': f'`{name}`', 'on the hub': f'`{known.source}`', 'documents': f'{known.documents:,}', 'queries': str(known.queries)}
                         for name, known in STANDARD.items()])


def page() -> str:
    "The page, wholly made from the two sources of figures."
    published, results = read_json(HERE/'published.json'), read_results(RESULTS)
    names = {'bm25': 'BM25, Kiwi', 'bm25_bigrams': 'BM25, Kiwi and bigrams', 'bge-m3': 'BGE-M3'} | {row['system']: row['name'] for row in published['rows'] if row['system'] in ('v26', 'v28')}
    names |= {result['system']: result['system'] for result in results if result['system'] not in names}
    measured = f'## Everything measured\n\nIn percent, 95 % intervals; p by the paired t-test.\n\n{markdown_table(results_table(results))}\n' if results else ''
    return TEXT.format(found=len(results), collections=markdown_table(collections_table()), published=markdown_table(published_table(published, results)), source=published['source'],
                       whole=markdown_table(whole_table(results, names)), measured=measured).rstrip() + '\n'


def keep(folder: Path) -> None:
    "Copy what was measured on the public collections; anything else is named and left."
    for path in sorted(folder.glob('*/*.json')):
        result, target = read_json(path), RESULTS/path.parent.name/path.name
        if not result['as_published']: print(f'left out, no public collection: {path}'); continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, result)


def main() -> None:
    reader = CommandLine(description=__doc__.splitlines()[0])
    reader.add_argument('--keep', type=Path, metavar='OUT')
    reader.add_argument('--page', action='store_true', help='write it; so does --keep')
    reader.add_argument('--check', action='store_true')
    options = reader.parse_args()
    if options.keep: keep(options.keep)
    if options.keep or options.page: PAGE.write_text(page(), encoding='utf-8')
    elif PAGE.read_text(encoding='utf-8') != page(): sys.exit('docs/full-scale.md is not what the results say: run python experiments/full_scale.py --page')


if __name__ == '__main__': main()

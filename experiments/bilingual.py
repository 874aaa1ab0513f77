"""English questions to Korean texts, as collections in BEIR form: a list of terms (Korean, English, domain) and lines of parallel text.

    python experiments/bilingual.py koen_terms.tsv ... OUT/koen_terms
    python experiments/bilingual.py jhe-koen-dev.ko jhe-koen-eval.ko OUT/koen_parallel    (English beside each, as .en; the last file is the test split)
"""
import itertools, json, sys, zlib
from pathlib import Path
from splade_nb.data.readers import normalise


def of_terms(path: Path):  # yields Korean, English, split
    "A fifth of the English terms, by hash, is the test split."
    for line in path.read_text(encoding='utf-8').splitlines():
        korean, english, *_ = line.split('\t')
        yield korean, english, 'test' if zlib.crc32(english.encode()) % 5 == 1 else 'train'


def of_lines(paths: list):  # yields Korean, English, split
    for path in paths:
        both = (file.read_text(encoding='utf-8').splitlines() for file in (path, path.with_suffix('.en')))
        yield from ((*pair, 'test' if path is paths[-1] else 'train') for pair in zip(*both, strict=True))


def write(pairs, folder: Path) -> dict:  # split: judgments
    "Each text once; `corpus.jsonl`, `queries.jsonl` and judgments by split."
    folder.mkdir(parents=True)
    documents, queries, judged = {}, {}, {'train': [], 'test': []}
    for korean, english, split in pairs:
        document, query = documents.setdefault(korean, f'd{len(documents)}'), queries.setdefault(english, f'q{len(queries)}')
        judged[split].append(f'{query}\t{document}\t1')
    for name, texts in (('corpus', documents), ('queries', queries)):
        (folder/f'{name}.jsonl').write_text(''.join(json.dumps(dict(_id=id, text=text), ensure_ascii=False) + '\n' for text, id in texts.items()), encoding='utf-8')
    for split, rows in judged.items():
        (folder/f'qrels_{split}.tsv').write_text('\n'.join(['query-id\tcorpus-id\tscore', *dict.fromkeys(rows), '']), encoding='utf-8')
    return {split: len(rows) for split, rows in judged.items()}


if __name__ == '__main__':
    *sources, folder = map(Path, sys.argv[1:])
    tables = [path for path in sources if path.suffix == '.tsv']
    lines = [path for path in sources if path.suffix != '.tsv']
    pairs = itertools.chain(*map(of_terms, tables), of_lines(lines))
    print(write((normalise([part.strip() for part in pair]) for pair in pairs), folder))

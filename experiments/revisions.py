"""Of which commit a kept result is: what it says itself, else the commit that wrote it last, kept in results/revisions.json.

    python experiments/revisions.py     add the results that do not say it; needs the history of the repository
"""
import functools, subprocess
from collections.abc import Iterable
from pathlib import Path
from splade_nb.config.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT/'experiments'/'results'/'revisions.json'
FOLDERS = ('docs/results', 'experiments/results', 'benchmarks/results')


@functools.cache
def kept() -> dict: return read_json(PLACE) if PLACE.exists() else {}  # path in the repository -> commit


def name_of(path: Path) -> str: return path.resolve().relative_to(ROOT).as_posix()


def silent() -> list:  # paths of results that do not say their revision
    files = [path for folder in FOLDERS for path in sorted((ROOT/folder).rglob('*.json'))]
    silent_file = lambda path: path != PLACE and path.name != 'evaluation.json' and 'revision' not in read_json(path)
    return [path for path in files if silent_file(path)]


def revision_of(path: Path, record: dict | None = None) -> str:  # a commit, or -
    "What a result is of."
    told = (read_json(path) if record is None else record).get('revision')
    return told or (kept().get(name_of(path), '-') if path.resolve().is_relative_to(ROOT) else '-')


def told(paths: Iterable) -> str:  # each revision once, in order
    return ', '.join(dict.fromkeys(f'`{revision_of(path)}`' for path in sorted(paths)))


def last_commit(path: Path) -> str:
    command = ['git', '-C', str(ROOT), 'log', '-1', '--format=%h', '--', str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    found = {name_of(path): kept().get(name_of(path)) or last_commit(path) for path in silent()}
    write_json(PLACE, {name: commit for name, commit in found.items() if commit})


if __name__ == '__main__': main()

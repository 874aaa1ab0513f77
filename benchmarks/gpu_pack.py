"""A folder for a machine that has a GPU and its own torch, and neither network nor git nor pip.

`make gpu PACK=INTO` writes it. It holds the project, what the stages read, and the packages that images with torch lack; there: bash INTO/run.sh [options of gpu.py].
"""
import struct, subprocess, sys, tarfile, zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
from splade_nb.config.files import ConfigError, revision, root
from splade_nb.data import encoders
from splade_nb.data.encoders import BLOCK
from measure import say

PIECE = 24 * 2 ** 20  # bytes of a file: some machines take 64 MiB at once, and the checkout has 39 of them
PACKAGES = ('transformers', 'sentence-transformers', 'bm25s', 'pytrec-eval-terrier', 'datasets', 'pyarrow', 'dill', 'multiprocess')
PLATFORMS = [f'manylinux{form}_x86_64' for form in ('_2_28', '_2_27', '_2_17', '2014')]
PROJECT = ('splade_nb', 'benchmarks', 'data/mini', 'data/toy', 'data/collections', 'nbs/index.ipynb', 'settings.ini', 'pyproject.toml', 'LICENSE')
UNUSED = ('pyarrow/include', 'pyarrow/tests', 'pyarrow/src', 'splade_nb/released')  # and servers of Arrow
RUN = """#!/usr/bin/env bash
# Measures on this machine's GPU; what is done is not done again. Results: benchmarks/results/gpu, the model: outputs/gpu-encoder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); there=${SPLADE_NB_PACK:-$here/unpacked}
[ -e "$there/.whole" ] || { mkdir -p "$there"; for part in project material site; do cat "$here/$part".tar.xz.* | tar xJ -C "$there"; done; touch "$there/.whole"; }
cd "$there"; export PYTHONPATH=$there:$there/site HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
"""


def add(archive, path: Path, name: str) -> None:
    def kept(info):
        unused = any(part in info.name for part in ('__pycache__', '/tests/', 'libarrow_flight', '_flight', 'libarrow_s3', '_s3fs', '/results/'))
        return None if unused or info.name.startswith(UNUSED) or info.name.removeprefix('site/').startswith(UNUSED) else info
    archive.add(path, name, filter=kept)


def packed(into: Path, name: str, members: dict) -> int:  # {name inside: path}; bytes
    part = into/f'.{name}.part'
    with tarfile.open(part, 'w:xz', preset=6) as archive:
        for inside, path in members.items(): add(archive, path, inside)
    for old in into.glob(f'{name}.tar.xz.*'): old.unlink()
    raw = part.read_bytes()
    part.unlink()
    pieces = {f'{name}.tar.xz.{number:02}': raw[first:first + PIECE] for number, first in enumerate(range(0, len(raw), PIECE))}
    for piece, held in pieces.items(): (into/piece).write_bytes(held)
    say(f'  {name}: ' + ', '.join(f'{piece} {len(held) / 2 ** 20:.1f} MiB' for piece, held in pieces.items()))
    return len(raw)


def versions() -> list:  # name==version, of constraints.txt
    known = dict(line.split('==') for line in (root()/'constraints.txt').read_text().split() if '==' in line)
    return [f'{name}=={known[name]}' if name in known else name for name in PACKAGES]


def packages(folder: Path, python: str) -> None:
    "The wheels' contents, without compiling or running anything. Raises `ConfigError` where the package index is not reached."
    wheels = folder.parent/'wheels'
    command = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary=:all:', '--python-version', python,
               '--implementation', 'cp', *(word for name in PLATFORMS for word in ('--platform', name)), '-d', str(wheels), *versions()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode: raise ConfigError(f'packages: {(done.stderr.strip().splitlines() or ["pip failed"])[-1]}')
    for wheel in wheels.iterdir(): zipfile.ZipFile(wheel).extractall(folder)


def sparse_file(raw: bytes, kept: list) -> bytes:
    "The file of 4-bit weights with the rows of other tokens at zero, which compress to nothing."
    at = raw.index(b'emb.word') + len(b'emb.word')
    _, number, first, size = struct.unpack_from('<BIQQ', raw, at)
    sizes, _, _ = encoders.read_file(raw)
    rows = np.frombuffer(raw, BLOCK, size // BLOCK.itemsize, first).reshape(sizes['vocabulary'], -1)
    left = np.zeros_like(rows)
    left[kept] = rows[kept]
    return raw[:first] + left.tobytes() + raw[first + size:]


def pack(into: Path, python: str = '3.12', material: Path | None = None) -> int:  # bytes
    from gpu_encoder import material as make_material
    from splade_nb.config.files import read_json
    into.mkdir(parents=True, exist_ok=True)
    reads = material or make_material(root()/'data'/'gpu', False)
    with TemporaryDirectory() as scratch:
        (named := Path(scratch)/'REVISION').write_text(revision())
        size = packed(into, 'project', {name: root()/name for name in PROJECT if (root()/name).exists()} | dict(REVISION=named))
        if not material:
            (weights := Path(scratch)/'encoder.bin').write_bytes(sparse_file(encoders._from_index(), read_json(reads/'backbone'/'kept.json')))
        files = {path: path.relative_to(reads) for path in sorted(reads.rglob('*')) if path.is_file() and path.name != '.lock'}
        members = {f'data/gpu/{name}': path for path, name in files.items() if material or path.name != 'model.safetensors'}
        size += packed(into, 'material', members | ({} if material else {'data/gpu/encoder.bin': weights}))
        packages(site := Path(scratch)/'site', python)
        size += packed(into, 'site', dict(site=site))
    (into/'run.sh').write_text(RUN)
    say(f'{into}: {size / 2 ** 20:.1f} MiB in files of at most {PIECE / 2 ** 20:.0f}')
    return size


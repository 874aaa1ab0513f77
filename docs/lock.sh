#!/usr/bin/env bash
# Remake constraints.txt: the newest versions that fit together. torch's CUDA build names its own libraries.
#   docs/lock.sh .venv/bin
set -euo pipefail
unset CDPATH
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
"$bin/python" -m pip install -q uv
"$bin/uv" pip compile -q pyproject.toml --extra all --extra cluster --python-version 3.11 --upgrade \
  --no-annotate --no-header --no-emit-index-url -c constraints.in -o constraints.new
grep -vE '^(nvidia-|cuda-|triton)' constraints.new > constraints.txt && rm constraints.new

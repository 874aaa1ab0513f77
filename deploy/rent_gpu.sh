#!/usr/bin/env bash
# Train V28 at full scale on a rented Ubuntu machine with a GPU, from nothing to an archive of the results.
# The same command goes on where it stopped: data, measurements and checkpoints that are there are kept.
#
#   deploy/rent_gpu.sh              in a checkout, or alone: it clones REPOSITORY into ./splade_nb
#   deploy/rent_gpu.sh --dry-run    only print the commands
#
# Settings by environment: VERSION (v28), TRIPLETS (0: all), MINUTES (of `make gpu`, 40), PROCESSES (auto: all GPUs),
# OUT (outputs/VERSION), REPOSITORY, REVISION (main).
set -euo pipefail

version=${VERSION:-v28} triplets=${TRIPLETS:-0} minutes=${MINUTES:-40} processes=${PROCESSES:-auto}
out=${OUT:-outputs/$version} repository=${REPOSITORY:-https://github.com/splade-nb/splade_nb} revision=${REVISION:-main}
dry=
case ${1:-} in
  '') ;;
  --dry-run) dry=yes ;;
  *) printf '%s: found %s; allowed: --dry-run, or nothing\n' "$0" "$1" >&2; exit 2 ;;
esac
run() { printf '+ %s\n' "$*"; [ -n "$dry" ] || "$@"; }

install_packages() {
  local missing=() root=()
  command -v git > /dev/null || missing+=(git)
  command -v make > /dev/null || missing+=(make)
  command -v gcc > /dev/null || missing+=(gcc)  # builds what launches the kernel on the GPU
  new_python > /dev/null && "$(new_python)" -c 'import ensurepip' 2> /dev/null || missing+=(python3-venv)
  new_python > /dev/null || missing+=(python3.11 python3.11-venv)  # on Ubuntu 22.04, whose python3 is 3.10
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || root=(sudo)
  run "${root[@]}" apt-get update -qq
  run "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
}

new_python() {  # the first Python that is 3.11 or later
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && { echo "$name"; return; }
  done
  return 1
}

enter_checkout() {
  local here
  here=$(cd "$(dirname "$0")/.." && pwd)
  if [ -e "$here/settings.ini" ]; then cd "$here"; return; fi
  [ -e splade_nb/settings.ini ] || run git clone --branch "$revision" "$repository" splade_nb
  if [ -z "$dry" ]; then cd splade_nb; fi
}

fetch() {  # the card is written last
  [ ! -e data/v24.0/README.md ] || return 0
  if [ "$triplets" = 0 ]; then run make data NAME=triplets; else run make data NAME=triplets "TRIPLETS=$triplets"; fi
}

train() {
  if [ -e "$out/summary.json" ]; then run make report "OUT=$out"; return; fi
  local target=train-distributed
  if compgen -G "$out/checkpoints/step-*" > /dev/null; then target=resume-distributed; fi
  run make "$target" "VERSION=$version" SCALE=full DATA=data/v24.0 "OUT=$out" "PROCESSES=$processes"
}

pack() {
  local archive="outputs/rented-$version.tar.gz" parts=("$out")
  [ ! -e benchmarks/results/gpu ] || parts+=(benchmarks/results/gpu docs/gpu.md)
  run tar --create --gzip --exclude=checkpoints --file "$archive.part" "${parts[@]}"
  run mv "$archive.part" "$archive"
  run sha256sum "$archive"
}

install_packages
if [ -z "$dry" ] && ! nvidia-smi --list-gpus; then
  printf '%s: found no GPU: nvidia-smi lists none; allowed: a machine with the NVIDIA driver\n' "$0" >&2
  exit 1
fi
enter_checkout
run make environment "PYTHON=$(new_python || echo python3.11)"
fetch
run make gpu "MINUTES=$minutes" || echo 'make gpu: a stage did not end well; docs/gpu.md has the others, and training goes on'
train
pack

#!/usr/bin/env bash
# Export and clean the notebooks; fail if either changed a file. The state before is the yardstick, not the last
# commit, so it holds with uncommitted work too; in a fresh clone the two are the same.
#   tests/in_step.sh .venv/bin
set -euo pipefail
state() { find nbs splade_nb -type f ! -path '*/.*' ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; }
for command in nbdev_export nbdev_clean; do
  before=$(state)
  "$1/$command"
  if ! changed=$(diff <(echo "$before") <(state)); then
    echo "$command changed files that were not in step (now they are: look at them and commit them):" >&2
    sed -nE 's/^[<>] [0-9a-f]+  //p' <<< "$changed" | sort -u >&2
    exit 1
  fi
done

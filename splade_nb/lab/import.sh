#!/usr/bin/env bash
# Imports the models of this folder into Elasticsearch, deploys them, makes an index and searches it once:
#   ELASTICSEARCH_URL=https://localhost:9200 ELASTICSEARCH_USER=elastic ELASTICSEARCH_PASSWORD=... bash import.sh
# INDEX    its name; it must not exist yet; models and pipeline are named after it
# CHUNK    bytes of a part of a model, at most 4194304
# CURL_OPTIONS, such as --insecure; PATIENCE: seconds until a request has failed
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source "$here/request.sh"
at ELASTICSEARCH_URL http://localhost:9200
index=${INDEX:-splade} chunk=$(count CHUNK 4194304 4194304)
log_in "${ELASTICSEARCH_USER:-}" "${ELASTICSEARCH_PASSWORD:-}"

upload() { # side: its parts, each in base64
  local file=$here/$1.pt model=_ml/trained_models/$index-$1 size total number
  size=$(wc -c < "$file")
  total=$(((size + chunk - 1) / chunk))
  for ((number = 0; number < total; number++)); do
    split_off "$file" "$number" "$chunk"
    printf '{"total_definition_length": %d, "total_parts": %d, "definition": "' "$size" "$total" > "$work/part"
    base64 < "$work/chunk" | tr -d '\n' >> "$work/part"
    printf '"}' >> "$work/part"
    send PUT "$model/definition/$number" "$work/part" > "$work/done"
  done
}

start() { # side
  local model=_ml/trained_models/$index-$1
  send PUT "$model" "$here/$1.json" > "$work/done"
  upload "$1"
  send PUT "$model/vocabulary" "$here/vocabulary.json" > "$work/done"
  call POST "$model/deployment/_start?wait_for=started&timeout=${patience}s" > "$work/done"
}

filled() { # name of a body; prints a file with the names of the models
  fill "$here/$1.json" document_model "$index-document" query_model "$index-$query" pipeline "$index" > "$work/$1"
  echo "$work/$1"
}

check_index "$index"
query=document
[ ! -e "$here/query.json" ] || query=query
start document
[ "$query" = document ] || start query
send PUT "_ingest/pipeline/$index" "$(filled pipeline)" > "$work/done"
send PUT "$index" "$(filled index)" > "$work/done"
send POST "$index/_doc/1?refresh=true" "$here/example.json" > "$work/done"
found=$(send POST "$index/_search" "$(filled search)")
echo "$found"
[ "$(value _id <<< "$found")" = 1 ] || fail "the index $index does not find its document"

#!/usr/bin/env bash
# Registers the models of this folder on an OpenSearch server, deploys them, makes an index and searches it once:
#   OPENSEARCH_URL=https://localhost:9200 OPENSEARCH_USER=admin OPENSEARCH_PASSWORD=... bash register.sh
# FIELD    rank_features (OpenSearch 2.12), semantic (3.1) or sparse_vector (3.3)
# ENGINE   of sparse_vector: lucene, or native (3.9); nothing: the server's default
# INDEX    its name; it must not exist yet
# MODELS   an address under which the server itself finds the zip files; nothing: they are uploaded in chunks
# SERVICE  the address of `make serve`, and TOKEN, its SPLADE_NB_TOKEN, where this folder holds connectors: it becomes
#          the only trusted address of connectors, which may be a private one (2.15)
# SETTINGS keep: the settings of the cluster are left as they are
# CHUNK    bytes of a chunk, at most 10000000
# CURL_OPTIONS, such as --insecure; PATIENCE and PAUSE: seconds until a task has failed, and between two looks at it
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source "$here/request.sh"
at OPENSEARCH_URL http://localhost:9200
field=${FIELD:-rank_features} index=${INDEX:-splade}
chunk=$(count CHUNK 10000000 10000000)
log_in "${OPENSEARCH_USER:-}" "${OPENSEARCH_PASSWORD:-}"

wait_for() { # task; prints the id of its model
  local state end=$((SECONDS + patience))
  [ -n "$1" ] || fail 'the server gave no task'
  while ((SECONDS < end)); do
    state=$(call GET "_plugins/_ml/tasks/$1")
    case $(value state <<< "$state") in
      COMPLETED) value model_id <<< "$state"; return ;;
      FAILED | CANCELLED | COMPLETED_WITH_ERROR) fail "task $1: $state" ;;
    esac
    sleep "$pause"
  done
  fail "task $1 is not done after $patience seconds: $state"
}

upload() { # name; prints the id of the model
  local zip=$here/$1.zip id size total number
  size=$(wc -c < "$zip")
  total=$(((size + chunk - 1) / chunk))
  begin "$here/$1.json" "\"total_chunks\": $total" > "$work/body"
  id=$(send POST _plugins/_ml/models/_register_meta "$work/body" | value model_id)
  for ((number = 0; number < total; number++)); do
    split_off "$zip" "$number" "$chunk"
    call POST "_plugins/_ml/models/$id/upload_chunk/$number" --header 'content-type: application/octet-stream' \
      --data-binary "@$work/chunk" > "$work/done"
  done
  echo "$id"
}

fetch() { # name; prints the id of the model, which the server fetches
  local url pattern='^https?://[^][:space:]"<>|\\]+$'
  [[ $MODELS =~ $pattern ]] || fail "MODELS=$MODELS: an address is expected"
  url=$(quoted "${MODELS%/}/$1.zip")
  begin "$here/$1.json" "\"url\": \"$url\"" > "$work/body"
  wait_for "$(send POST _plugins/_ml/models/_register "$work/body" | value task_id)"
}

connect() { # name; prints the id of the model, which our service answers for
  fill "$here/connector-$1.json" service "${SERVICE%/}" token "${TOKEN:-none}" > "$work/body"
  local connector
  connector=$(send POST _plugins/_ml/connectors/_create "$work/body" | value connector_id)
  fill "$here/$1.json" connector "$connector" > "$work/body"
  wait_for "$(send POST _plugins/_ml/models/_register "$work/body" | value task_id)"
}

register() { # name; prints the id of the deployed model
  local id
  if [ -e "$here/connector-$1.json" ]; then id=$(connect "$1")
  elif [ -n "${MODELS:-}" ]; then id=$(fetch "$1")
  else id=$(upload "$1"); fi
  [ -n "$id" ] || fail "$1: the server gave no id: $(cat "$work/answer")"
  wait_for "$(call POST "_plugins/_ml/models/$id/_deploy" | value task_id)" > "$work/done"
  echo "$id"
}

filled() { # file of JSON; prints another with the ids of the models
  local text method='"name": "seismic"'
  text=$(fill "$here/$1" document_model "$document" query_model "$query" pipeline "$index")
  printf '%s\n' "${text//"$method"/"$method${ENGINE:+, \"engine\": \"$ENGINE\"}"}" > "$work/$1"
  echo "$work/$1"
}

case $field in rank_features | semantic | sparse_vector) ;; *) fail "FIELD=$field: rank_features, semantic or sparse_vector" ;; esac
case ${ENGINE:-lucene} in lucene | native) ;; *) fail "ENGINE=$ENGINE: lucene or native" ;; esac
check_index "$index"
[ -e "$here/index-$field.json" ] || fail "$(cat "$here/no-$field.txt")"

trusted=
if [ -e "$here/connector-document.json" ]; then
  [[ ${SERVICE:-} =~ ^https?://[][A-Za-z0-9.:_/-]+$ ]] || fail "SERVICE=${SERVICE:-}: the address of make serve is expected"
  [[ ${TOKEN:-} =~ ^[A-Za-z0-9._~+/=-]*$ ]] || fail 'TOKEN: letters, digits and . _ ~ + / = - are expected'
  trusted=$(sed 's|[].[]|\\\\&|g' <<< "${SERVICE%/}")
  trusted=", \"plugins.ml_commons.trusted_connector_endpoints_regex\": [\"^$trusted/.*\$\"],
    \"plugins.ml_commons.connector.private_ip_enabled\": true"
fi
if [ "${SETTINGS:-}" != keep ]; then
  printf '{"persistent": {"plugins.ml_commons.only_run_on_ml_node": false,
    "plugins.ml_commons.allow_registering_model_via_url": true%s}}' "$trusted" > "$work/settings"
  send PUT _cluster/settings "$work/settings" > "$work/done"
fi
document=$(register document)
query=$document
[ ! -e "$here/query.json" ] || query=$(register query)
echo "document model $document, query model $query" >&2

[ "$field" = semantic ] || send PUT "_ingest/pipeline/$index" "$(filled pipeline.json)" > "$work/done"
send PUT "$index" "$(filled "index-$field.json")" > "$work/done"
send POST "$index/_doc/1?refresh=true" "$here/example.json" > "$work/done"
found=$(send POST "$index/_search" "$(filled "search-$field.json")")
echo "$found"
[ "$(value _id <<< "$found")" = 1 ] || fail "the index $index does not find its document"

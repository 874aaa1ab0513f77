#!/usr/bin/env bash
# Deploys the application of this folder to Vespa, waits until it runs, writes a document and searches once:
#   VESPA_URL=http://localhost:8080 VESPA_CONFIG_URL=http://localhost:19071 bash deploy.sh
# A server to try it on: docker run --detach --hostname vespa --publish 8080:8080 --publish 19071:19071 vespaengine/vespa
# SEARCH   exact: every document is scored; rerank: the best 100 by BM25
# CURL_OPTIONS, such as --cert and --key; PATIENCE and PAUSE: seconds until it has failed, and between two looks at it
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source "$here/request.sh"
at VESPA_CONFIG_URL http://localhost:19071
search=${SEARCH:-exact}
[ -e "$here/search-$search.json" ] || fail "SEARCH=$search: exact or rerank"
tar -czf "$work/application" -C "$here/application" .
call POST application/v2/tenant/default/prepareandactivate --header 'content-type: application/x-gzip' \
  --data-binary "@$work/application" > "$work/done"

at VESPA_URL http://localhost:8080
end=$((SECONDS + patience))
# shellcheck disable=SC2086
until curl --silent --fail ${CURL_OPTIONS:-} "$server/state/v1/health" 2> "$work/done" | grep -q '"code" *: *"up"'; do
  ((SECONDS < end)) || fail "$server is not up after $patience seconds"
  sleep "$pause"
done
send POST document/v1/doc/doc/docid/1 "$here/example.json" > "$work/done"
found=$(send POST search/ "$here/search-$search.json")
echo "$found"
grep -q '"id:doc:doc::1"' <<< "$found" || fail 'the application does not find its document'

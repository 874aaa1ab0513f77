#!/usr/bin/env bash
# Requests to the server at `$server`, read by the script beside this file; its head lists what can be set.
shopt -s inherit_errexit
patience=${PATIENCE:-600} pause=${PAUSE:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
login=()

fail() { echo "$*" >&2; exit 1; }

# The password stands in a file that others cannot read, not among the arguments that every user of a machine sees.
log_in() { # user, password
  [ -n "$1" ] || return 0
  local quoted
  quoted=$(sed 's/[\\"]/\\&/g' <<< "$1:$2")
  (umask 077; printf 'user = "%s"\n' "$quoted" > "$work/login")
  login=(--config "$work/login")
}

call() { # method, path, more options of curl; prints the answer
  local method=$1 path=$2 status
  shift 2
  # shellcheck disable=SC2086
  status=$(curl --silent --show-error --max-time "$patience" "${login[@]}" ${CURL_OPTIONS:-} --request "$method" \
    --output "$work/answer" --write-out '%{http_code}' "$@" "$server/$path") || fail "$server does not answer"
  [[ $status == 2* ]] || fail "$method $path: $status: $(cat "$work/answer")"
  cat "$work/answer"
}

send() { call "$1" "$2" --header 'content-type: application/json' --data-binary "@$3"; } # method, path, file of JSON
value() { sed -n "s/.*\"$1\" *: *\"\\([^\"]*\\)\".*/\\1/p" | head -n 1; }                # of a name in JSON

split_off() { # file, number, bytes: the part of that number into $work/chunk
  dd if="$1" of="$work/chunk" bs="$3" skip="$2" count=1 status=none
}

check_index() { [[ $1 =~ ^[a-z0-9][a-z0-9._-]*$ ]] || fail "INDEX=$1: lower case letters, digits, . _ - are expected"; }

#!/usr/bin/env bash
# Requests to the server at `$server`, read by the script beside this file; its head lists what can be set.
shopt -s inherit_errexit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
login=()

fail() { echo "$*" >&2; exit 1; }

at() { # name of a setting, its default; the address of `$server`
  server=${!1:-$2}
  server=${server%/}
  [[ $server =~ ^https?://[^@?#[:space:]]+$ ]] || fail "$1: http://host:port is expected; user and password have settings of their own"
}

count() { # name of a setting, its default, the most; prints the whole number
  local number=${!1:-$2}
  [[ $number =~ ^[1-9][0-9]{0,8}$ ]] && ((number <= $3)) || fail "$1=$number: a whole number from 1 to $3 is expected"
  echo "$number"
}

quoted() { # text; prints it as it stands in a string of JSON, and of a file of curl's options
  local text=$1 back='\'
  text=${text//"$back"/"$back$back"}
  text=${text//\"/"$back\""}
  text=${text//$'\n'/"${back}n"}
  text=${text//$'\r'/"${back}r"}
  text=${text//$'\t'/"${back}t"}
  [[ ! $text =~ [[:cntrl:]] ]] || fail 'a control character in a setting'
  printf '%s' "$text"
}

fill() { # file of JSON, name, value, name, value, ...; prints it with each value in the place of {name}
  local text value
  text=$(cat "$1")
  shift
  while (($#)); do
    value=$(quoted "$2")
    text=${text//"{$1}"/"$value"}
    shift 2
  done
  printf '%s\n' "$text"
}

begin() { # file of JSON, members; prints it with these before its own
  local text
  text=$(cat "$1")
  printf '{%s,%s\n' "$2" "${text#*\{}"
}

patience=$(count PATIENCE 600 1000000) pause=${PAUSE:-2}
[[ $pause =~ ^[0-9]{1,9}(\.[0-9]{1,9})?$ ]] || fail "PAUSE=$pause: a number of seconds is expected"

# The password stands in a file that others cannot read, not among the arguments that every user of a machine sees.
log_in() { # user, password
  [ -n "$1" ] || return 0
  [[ $1 != *:* ]] || fail 'a user without a colon is expected'
  local both
  both=$(quoted "$1:$2")
  (umask 077; printf 'user = "%s"\n' "$both" > "$work/login")
  login=(--config "$work/login")
}

call() { # method, path, more options of curl; prints the answer
  local method=$1 path=$2 status
  shift 2
  # shellcheck disable=SC2086
  status=$(curl --silent --show-error --max-time "$patience" "${login[@]}" ${CURL_OPTIONS:-} --request "$method" \
    --output "$work/answer" --write-out '%{http_code}' "$@" "$server/$path") || fail "$server does not answer"
  [[ $status == 2* ]] || fail "$method $path: $status: $(tr -d "[:cntrl:]" < "$work/answer")"
  cat "$work/answer"
}

send() { call "$1" "$2" --header 'content-type: application/json' --data-binary "@$3"; } # method, path, file of JSON
value() { sed -n "s/.*\"$1\" *: *\"\\([^\"]*\\)\".*/\\1/p" | head -n 1; }                # of a name in JSON

split_off() { # file, number, bytes: the part of that number into $work/chunk
  dd if="$1" of="$work/chunk" bs="$3" skip="$2" count=1 status=none
}

check_index() { [[ $1 =~ ^[a-z0-9][a-z0-9._-]*$ ]] || fail "INDEX=$1: lower case letters, digits, . _ - are expected"; }

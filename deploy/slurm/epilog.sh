#!/usr/bin/env bash
# Slurm's Epilog. Nothing, unless HEADRACE_PER_JOB=1 in the settings: what one job has read the next one may want.
# With it the node hands over what it owns and goes; the cache folder stays. Never fails: a host is not to be drained
# for that.
set -uo pipefail

# Prints the first part of a path that another user could exchange, and fails where there is none. Links are followed
# here, one by one, as every directory on their way counts. Sticky directories let users exchange only what is theirs.
exchangeable() {
  local rest=$1/ place="" name target status links=0
  [[ $1 == /* ]] || rest=$PWD/$rest
  while :; do
    if status=$(stat -c '%u %g %a %F' -- "${place:-/}" 2>/dev/null); then
      set -- $status
      if [ "$1" != 0 ] && [ "$1" != "$EUID" ]; then echo "${place:-/}" && return; fi
      if [ "$4" != directory ] && ((8#$3 & 022)); then echo "${place:-/}" && return; fi
      if ! ((8#$3 & 01000)) && ((8#$3 & 2 || (8#$3 & 020 && $2 != 0))); then echo "${place:-/}" && return; fi
    fi
    while [[ $rest == /* ]]; do rest=${rest#/}; done
    [ -n "$rest" ] || return 1
    name=${rest%%/*} rest=${rest#*/}
    case $name in
      .) continue ;;
      ..) place=${place%/*} && continue ;;
    esac
    if [ -L "$place/$name" ]; then
      target=$(readlink -- "$place/$name")
      status=$(stat -c %u -- "$place/$name")
      if { [ "$status" != 0 ] && [ "$status" != "$EUID" ]; } || ((++links > 40)); then
        echo "$place/$name" && return
      fi
      [[ $target != /* ]] || place=""
      rest=$target/$rest
    elif [ -e "$place/$name" ]; then
      place=$place/$name
    else
      # What is missing can be created by those who write here, and be a link.
      if ((8#$(stat -c %a -- "${place:-/}") & 2)); then echo "${place:-/}" && return; fi
      return 1
    fi
  done
}

settings=${HEADRACE_SETTINGS:-/etc/headrace/headrace.env}
if [ -r "$settings" ]; then
  # This runs as root, and the file is a program to it: only root may have written it, nor can others exchange it.
  if place=$(exchangeable "$settings"); then
    echo "headrace epilog: $place is not root's alone to change; settings are not read" >&2
    exit 0
  fi
  set -a
  # shellcheck disable=SC1090
  . "$settings"
  set +a
fi
headrace=${HEADRACE_PROGRAM:-/opt/headrace/bin/headrace}

run() {
  if [ "${HEADRACE_DRY_RUN:-0}" = 1 ]; then
    echo "would run: $*"
  else
    "$@"
  fi
}

[ "${HEADRACE_PER_JOB:-0}" = 1 ] || exit 0
[ -n "${MOUNTPOINT:-}" ] || exit 0
cache=${HEADRACE_CACHE:-}
cache=${cache%%:*}
if [ -n "${HEADRACE_CLUSTER:-}" ]; then
  run timeout 300 "$headrace" node drain ${cache:+--cache "$cache"} || echo "headrace epilog: not all was handed over" >&2
fi
run timeout 60 "$headrace" down "$MOUNTPOINT" || echo "headrace epilog: the mount does not end" >&2
exit 0

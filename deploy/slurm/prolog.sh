#!/usr/bin/env bash
# Slurm's Prolog (slurm.conf: Prolog=/etc/headrace/prolog.sh): the mount is there before the job begins.
# A host where it can't be had must not run the job: a failure here makes Slurm drain the host.
# Settings: /etc/headrace/headrace.env, as of the systemd unit; HEADRACE_DRY_RUN=1 prints what it would do.
set -euo pipefail

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
    echo "headrace prolog: $place is not root's alone to change; settings are not read" >&2
    exit 1
  fi
  set -a
  # shellcheck disable=SC1090
  . "$settings"
  set +a
fi
: "${ORIGIN:?headrace prolog: ORIGIN is not set in $settings}"
: "${MOUNTPOINT:?headrace prolog: MOUNTPOINT is not set in $settings}"
headrace=${HEADRACE_PROGRAM:-/opt/headrace/bin/headrace}

run() {
  if [ "${HEADRACE_DRY_RUN:-0}" = 1 ]; then
    echo "would run: $*"
  else
    "$@"
  fi
}

is_mounted() { # without a call on the mount: it fails where all processes of it were killed, and hangs where they hang
  local place
  place=$(realpath -m -- "$(dirname -- "$MOUNTPOINT")")/$(basename -- "$MOUNTPOINT")
  place=${place/#\/\//\/}
  place=${place//\\/\\134}
  place=${place// /\\040} awk '$5 == ENVIRON["place"] { found = 1 } END { exit !found }' /proc/self/mountinfo
}

if is_mounted; then
  run timeout 30 "$headrace" status "$MOUNTPOINT" --json >/dev/null && exit 0
  run timeout 60 "$headrace" down "$MOUNTPOINT" || true # what a killed one left
fi
if [ ! -d "$MOUNTPOINT" ]; then
  if place=$(exchangeable "$MOUNTPOINT"); then # a link there would lead root's mkdir anywhere
    echo "headrace prolog: $place is not root's alone to change; $MOUNTPOINT is not created" >&2
    exit 1
  fi
  run mkdir -p -- "$MOUNTPOINT"
fi
run timeout 120 "$headrace" up "$ORIGIN" "$MOUNTPOINT" --allow-other --detach

#!/usr/bin/env bash
# Slurm's Prolog (slurm.conf: Prolog=/etc/headrace/prolog.sh): the mount is there before the job begins.
# A host where it can't be had must not run the job: a failure here makes Slurm drain the host.
# Settings: /etc/headrace/headrace.env, as of the systemd unit; HEADRACE_DRY_RUN=1 prints what it would do.
set -euo pipefail

settings=${HEADRACE_SETTINGS:-/etc/headrace/headrace.env}
if [ -r "$settings" ]; then
  # This runs as root, and the file is a program to it: only root may have written it, nor can others exchange it.
  for one in "$settings" "$(dirname "$settings")"; do
    if [ -n "$(find -H "$one" -maxdepth 0 \( ! -user 0 ! -user "$(id -u)" -o -perm /022 \) -print 2>&1)" ]; then
      echo "headrace prolog: $one is not root's alone to change; settings are not read" >&2
      exit 1
    fi
  done
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
run mkdir -p "$MOUNTPOINT"
run timeout 120 "$headrace" up "$ORIGIN" "$MOUNTPOINT" --allow-other --detach

#!/usr/bin/env bash
# Slurm's Epilog. Nothing, unless HEADRACE_PER_JOB=1 in the settings: what one job has read the next one may want.
# With it the node hands over what it owns and goes; the cache folder stays. Never fails: a host is not to be drained
# for that.
set -uo pipefail

settings=${HEADRACE_SETTINGS:-/etc/headrace/headrace.env}
if [ -r "$settings" ]; then
  # This runs as root, and the file is a program to it: only root may have written it, nor can others exchange it.
  for one in "$settings" "$(dirname "$settings")"; do
    if [ -n "$(find -H "$one" -maxdepth 0 \( ! -user 0 ! -user "$(id -u)" -o -perm /022 \) -print 2>&1)" ]; then
      echo "headrace epilog: $one is not root's alone to change; settings are not read" >&2
      exit 0
    fi
  done
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

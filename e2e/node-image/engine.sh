#!/bin/bash
# A Docker Engine for the kind tier where none answers: of its own, beside any
# other, with its socket and process state in $run and its images in the cache.
#
#   engine.sh start   prints the DOCKER_HOST to use, nothing when an engine answers
#                     at the usual place already, or in one line why there is none
#   engine.sh stop    stops the engine that start started, and takes away what an
#                     engine leaves behind; does nothing where there is none
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# A short path, for a socket's may have no more than 107 bytes.
run=/run/refvol-e2e
host=unix://$run/docker.sock
cgroup=refvol-e2e

ours() { docker -H "$host" info >/dev/null 2>&1; }

# lacks_sys_resource tells whether CAP_SYS_RESOURCE (bit 24) is out of reach, as
# in some virtual machines and containers.
lacks_sys_resource() {
  local bounding
  bounding=$(awk '$1 == "CapBnd:" {print $2}' /proc/self/status)
  [ $((16#$bounding >> 24 & 1)) = 0 ]
}

start() {
  # A DOCKER_HOST that the caller set, or the system's own engine, goes first.
  if docker info >/dev/null 2>&1; then return; fi
  if ! ours; then
    if [ "$(id -u)" != 0 ]; then
      echo "no container engine answers, and only root can start one"
      exit 1
    fi
    mkdir -p "$run" "$cache/engine"
    local args=(
      --host "$host" --pidfile "$run/dockerd.pid" --exec-root "$run/exec"
      --data-root "$cache/engine/data"
      # Not by systemd, so that stop can tell what is this engine's, and take it away.
      --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/$cgroup"
      # kind makes a network of its own.
      --bridge none
    )
    if lacks_sys_resource; then
      args+=(--add-runtime "capped=$here/runc-wrapper" --default-runtime capped
        --oom-score-adjust 0)
    fi
    say "starting dockerd (its log: $cache/engine/dockerd.log)"
    setsid nohup dockerd "${args[@]}" >"$cache/engine/dockerd.log" 2>&1 </dev/null &
    local pid=$!
    # One that doesn't come up, or isn't waited for to the end, must not stay.
    # shellcheck disable=SC2064
    trap "kill $pid 2>/dev/null || true" EXIT
    for _ in $(seq 120); do
      ours && break
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.5
    done
    ours || { tail -n 15 "$cache/engine/dockerd.log" >&2; die "dockerd did not come up"; }
    trap - EXIT
  fi
  echo "$host"
}

stop() {
  local pid
  pid=$(cat "$run/dockerd.pid" 2>/dev/null) || return 0
  # The bridge of a network would stay without its engine.
  docker -H "$host" network prune -f >/dev/null 2>&1 || true
  # By the command line, for the pid may have been given to another process since;
  # and one that has ended but is not reaped has none.
  running() { grep -qs -- "$run/dockerd.pid" "/proc/$pid/cmdline"; }
  if running; then
    kill "$pid"
    for _ in $(seq 120); do
      running || break
      sleep 0.25
    done
    if running; then die "dockerd (pid $pid) did not end"; fi
  fi
  # An engine that was killed leaves mounts: of its data, and of its networks'
  # namespaces.
  awk -v run="$run/" -v data="$cache/engine/data" \
    'index($2, run) == 1 || index($2, data) == 1 {print $2}' /proc/self/mounts | sort -r |
    while read -r mount; do umount -l "$mount"; done
  rm -rf --one-file-system "$run"
  # Where dockerd looks for plugins, whatever its settings say.
  rmdir /run/docker/plugins /run/docker 2>/dev/null || true
  # Empty ones only: rmdir refuses the others.
  find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" -exec rmdir {} + 2>/dev/null || true
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) die "usage: engine.sh start|stop" ;;
esac

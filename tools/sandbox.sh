#!/bin/bash
# Usage: sandbox.sh COMMAND...
# Runs a command in a world that it can't harm: tests that remove, link or mount, also as go test -exec.
# For root, all file systems are overlays, whose changes live in a tmpfs and go with the command. It has a mount and a
# process namespace and a /dev of its own. For a user, who can't have these, all is read-only, for good, but /dev/shm.
# These last: the caches of go and refvol, the directory in which go has built the command, and those that
# SANDBOX_KEEP names, separated by colons. The network, the control groups and /proc/sys are the machine's.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
trap 'echo "sandbox.sh: no sandbox on this machine: line $LINENO failed (it needs root, or user namespaces)" >&2' ERR

stage=${1:-}
case $stage in
--root | --read-only | --locked) # this script itself, in new namespaces
  if [ "${SANDBOX_FROM:-$(readlink /proc/self/ns/mnt)}" = "$(readlink /proc/self/ns/mnt)" ]; then exit 2; fi
  shift
  ;;
*)
  if [ "${REFVOL_SANDBOX:-}" = "$(readlink /proc/self/ns/mnt)" ]; then exec "$@"; fi
  SANDBOX_KEEP=${SANDBOX_KEEP:-}:${REFVOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/refvol}
  if command -v go >/dev/null; then SANDBOX_KEEP+=:$(go env GOCACHE):$(go env GOMODCACHE); fi
  case $1 in */go-build*/b[0-9]*/*) SANDBOX_KEEP+=:$(dirname "$1") ;; esac
  SANDBOX_FROM=$(readlink /proc/self/ns/mnt)
  export SANDBOX_KEEP SANDBOX_FROM
  if [ "$(id -u)" = 0 ]; then
    # It ends with whoever started it, for go test may be killed.
    exec setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$BASH" "$0" --root "$@"
  fi
  exec unshare --map-root-user --mount "$BASH" "$0" --read-only "$@"
  ;;
esac

# Shows the directories that last in the new root.
keep() {
  local path
  while IFS= read -r -d : path; do
    if [ -z "$path" ]; then continue; fi
    mkdir -p "$path"
    path=$(realpath "$path")
    mkdir -p "$1$path"
    mount --bind "$path" "$1$path"
  done <<<"$SANDBOX_KEEP:"
}

# Starts the command, and not by exec: this process is the parent of orphans.
arrived() {
  trap - ERR
  set +e
  unset SANDBOX_KEEP SANDBOX_FROM
  export REFVOL_SANDBOX_PID TMPDIR=/dev/shm
  REFVOL_SANDBOX=$(readlink /proc/self/ns/mnt)
  export REFVOL_SANDBOX
  "$@"
  exit $?
}

read -r REFVOL_SANDBOX_PID _ </proc/self/stat # the number that it has outside
mount --make-rprivate /

if [ "$stage" = --read-only ]; then
  keep ""
  while read -r path options; do
    path=$(printf %b "$path")
    if [ ! -e "$path" ]; then continue; fi # out of the user's reach
    case :$SANDBOX_KEEP: in *":$path:"*) continue ;; esac
    case $path in /proc | /proc/* | /sys/fs/cgroup | /sys/fs/cgroup/*) continue ;; esac
    mount -o "remount,bind,$options,ro" "$path"
  done < <(awk '{ print $5, $6 }' /proc/self/mountinfo)
  # In a user namespace below this one nobody can clear the flag.
  exec unshare --map-root-user --mount "$BASH" "$0" --locked "$@"
fi
if [ "$stage" = --locked ]; then
  mount -t tmpfs -o nosuid,mode=1777 tmpfs /dev/shm
  arrived "$@"
fi

cwd=$PWD world=/dev/shm root=/dev/shm/root layers=0

# Mounts an overlay of what is at a path.
overlay() {
  layers=$((layers + 1))
  local upper=$world/upper$layers work=$world/work$layers
  mkdir "$upper" "$work"
  chmod --reference="$1" "$upper"
  chown --reference="$1" "$upper"
  # The path may have characters that mean something in the options.
  (cd "$1" && mount -t overlay overlay -o "lowerdir=.,upperdir=$upper,workdir=$work" "$root$1")
}

mapfile -t mounts < <(awk '{ print $5 }' /proc/self/mountinfo)
mount -t tmpfs -o nosuid,mode=1777 tmpfs "$world"
mkdir "$root"
overlay /
declare -A made
for path in "${mounts[@]}"; do
  path=$(printf %b "$path")
  case $path in / | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;; esac
  if [ -n "${made[$path]:-}" ]; then continue; fi
  made[$path]=1
  # What can't be copied is left out: nothing of the machine is in its place.
  if [ -d "$path" ]; then
    overlay "$path" 2>/dev/null || true
  elif [ -f "$path" ]; then # such as a container's /etc/resolv.conf
    cp "$path" "$root$path" 2>/dev/null || true
  fi
done

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# What else is mounted in /sys leads outside.
mount --bind /sys "$root/sys"
for path in /sys/fs/cgroup /sys/fs/selinux; do
  if mountpoint -q "$path"; then mount --rbind "$path" "$root$path"; fi
done
mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/dev/shm"
if [ -e /dev/pts/ptmx ]; then mount --rbind /dev/pts "$root/dev/pts"; fi
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for fd in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${fd%:*}" "$root/dev/${fd#*:}"; done

keep "$root"

mkdir "$root/oldroot"
cd "$root"
pivot_root . oldroot
cd /
umount -l /oldroot
rmdir /oldroot
cd "$cwd"
arrived "$@"

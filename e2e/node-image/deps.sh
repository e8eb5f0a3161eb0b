#!/bin/bash
# Sees to it that this machine has what the kind tier needs.
#
#   deps.sh engine   what runs a container engine, unless one answers
#   deps.sh image    what builds the node image
#   deps.sh suite    what the images of the suite's pods are made of
#   deps.sh          all, and starts the engine
#
# As root on Debian (or a system with its packages) what is missing is installed
# with apt-get; elsewhere one line on stdout says what is missing, and the script
# fails. It never touches an engine that is already running.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

has() { command -v "$1" >/dev/null 2>&1; }

# suite_packages prints the packages that the images of the suite's pods lack. The busybox that runs
# in them is a static one.
suite_packages() {
  has busybox || echo busybox-static
  has jq || echo jq
  has curl || echo curl
}

# engine_packages prints the packages that are missing to run an engine here.
engine_packages() {
  has docker && has dockerd || echo docker.io
  has containerd || echo containerd
  has runc || echo runc
  has iptables || echo iptables
  # dockerd fails on a kernel with AppArmor when the parser isn't there.
  if grep -qs Y /sys/module/apparmor/parameters/enabled; then
    has apparmor_parser || echo apparmor
  fi
}

# image_packages prints the packages that are missing to build the node image.
image_packages() {
  has debootstrap || echo debootstrap
  has jq || echo jq
  has gcc || echo gcc
  [ -e /usr/include/stdlib.h ] || echo libc6-dev
  has pkg-config || echo pkg-config
  # runc is linked statically with it, so the library alone isn't enough.
  pkg-config --exists libseccomp 2>/dev/null || echo libseccomp-dev
}

install() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] || ! has apt-get; then
    echo "this machine lacks what only root on Debian can install: $*"
    exit 1
  fi
  say "installing $*"
  # A source that doesn't answer must not stop the installation from the others.
  apt-get -qq update >/dev/null 2>&1 || say "apt-get update reported errors; going on"
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 install "$@" >"$cache/apt.log" 2>&1 ||
    { tail -n 20 "$cache/apt.log" >&2; die "apt-get could not install $*"; }
}

mkdir -p "$cache"
what=${1:-all} packages=()
case $what in engine | image | suite | all) ;; *) die "usage: deps.sh [engine|image|suite]" ;; esac

if [ "$what" = engine ] || [ "$what" = all ] && ! docker info >/dev/null 2>&1; then
  mapfile -t -O "${#packages[@]}" packages < <(engine_packages)
fi
if [ "$what" = image ] || [ "$what" = all ]; then
  mapfile -t -O "${#packages[@]}" packages < <(image_packages)
fi
case $what in suite | all) mapfile -t -O "${#packages[@]}" packages < <(suite_packages) ;; esac
install "${packages[@]}"
if [ "$what" = engine ] || [ "$what" = all ] && ! has docker; then
  # Newer Debians have the client in a package of its own.
  install docker-cli
fi
if [ "$what" = all ]; then
  "$here/engine.sh" start >/dev/null
fi

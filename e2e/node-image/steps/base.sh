#!/bin/bash
# base.sh OUT: a Debian root with what a node needs beside Kubernetes and the
# container runtime.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
out=$1 release=bookworm

packages=(
  systemd systemd-sysv kmod procps bash ca-certificates jq
  # of the kubelet, kube-proxy and kubeadm
  iptables nftables iproute2 conntrack ethtool
  containernetworking-plugins
  # of pods that run deploy/examples/smoke.yaml with the node's own programs
  curl
)
# archive prints where this machine's apt gets the release from; nothing where apt has no such
# source, as on another release or system.
archive() {
  command -v apt-get >/dev/null || return 0
  apt-get indextargets --format '$(SITE)' "Release: $release" 'Component: main' 'Created-By: Packages' |
    grep -E -m 1 '^(https?|file):' || true
}

# An apt that uses a proxy names it in its configuration; debootstrap takes it from here.
if [ -z "${http_proxy:-}" ] && command -v apt-config >/dev/null; then
  eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
  if [ -n "${http_proxy:-}" ]; then export http_proxy; fi
fi

mirror=${DEBIAN_MIRROR:-$(archive)}
mirror=${mirror:-http://deb.debian.org/debian}
echo "debootstrap of ${#packages[@]} packages from $mirror"
nice debootstrap --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" \
  "$release" "$out" "$mirror" >&2
rm -rf "$out"/var/cache/apt/archives/*.deb "$out"/var/lib/apt/lists/* \
  "$out"/usr/share/{doc,info,locale,man}/*

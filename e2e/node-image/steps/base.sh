#!/bin/bash
# base.sh OUT: a Debian root with what a node needs beside Kubernetes and the
# container runtime.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
out=$1

packages=(
  systemd systemd-sysv kmod procps bash ca-certificates jq
  # of the kubelet, kube-proxy and kubeadm
  iptables nftables iproute2 conntrack ethtool
  containernetworking-plugins
)
echo "debootstrap of ${#packages[@]} packages"
nice debootstrap --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" \
  bookworm "$out" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >&2
rm -rf "$out"/var/cache/apt/archives/*.deb "$out"/var/lib/apt/lists/* \
  "$out"/usr/share/{doc,info,locale,man}/*

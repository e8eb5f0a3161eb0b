#!/bin/bash
# runtime.sh OUT: containerd and runc as people run them today, static, from the
# module in runtime/. Debian's are too old for a test to mean much: that runc keeps
# a read-only mount read-only where today's makes it writable on request, and knows
# no user namespaces for pods.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
out=$1
cd "$(dirname "$0")/../runtime"

containerd=github.com/containerd/containerd/v2
runc=github.com/opencontainers/runc
version() { go list -m -f '{{.Version}}' "$1"; }

echo "building containerd $(version $containerd)"
nice go build -tags "no_btrfs no_devmapper no_zfs" \
  -ldflags "-s -w -X $containerd/version.Version=$(version $containerd)" \
  -o "$out/" $containerd/cmd/{containerd,containerd-shim-runc-v2,ctr}

echo "building runc $(version $runc)"
runc_version=$(version $runc)
CGO_ENABLED=1 nice go build -tags "netgo osusergo seccomp" \
  -ldflags "-s -w -X main.version=${runc_version#v} -extldflags -static" -o "$out/" $runc

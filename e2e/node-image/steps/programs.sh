#!/bin/bash
# programs.sh OUT MODFILE: the cluster's programs, static, from the module e2e/node-image/kubernetes
# with MODFILE in the place of its go.mod.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
out=$1
cd "$(dirname "$0")/../kubernetes"
export GOFLAGS="$GOFLAGS -modfile=$2"

kubernetes=k8s.io/kubernetes/cmd
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
# What `make release` of Kubernetes would link in: kubeadm decides by it what it
# may install.
ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  ldflags+=" -X $package.gitVersion=$version -X $package.gitTreeState=clean"
  ldflags+=" -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
done

build() {
  echo "building ${*##*/}"
  nice go build -ldflags "$ldflags" -o "$out/" "$@"
}
build ./etcd $kubernetes/kube-apiserver
build $kubernetes/{kube-controller-manager,kube-scheduler}
build $kubernetes/{kubelet,kube-proxy}
build $kubernetes/{kubeadm,kubectl}
build ./coredns ./nodenet ./pause

#!/bin/bash
# Shows refvol on your own kind cluster, that of kubectl's current context. Any other cluster is refused.
#
#   try.sh         build the image, load it, install the chart, start an example, and show a change arrive
#   try.sh clean   remove all of that, but for what was built in bin/
#
# It needs docker (or CONTAINER_ENGINE), kind, kubectl, helm and Go.
set -euo pipefail
cd "$(dirname "$0")/.."

namespace=refvol-system
example=refvol-try
tag=try
engine=${CONTAINER_ENGINE:-docker}

say() { printf '\n=== %s\n' "$*"; }
fail() {
  echo "try.sh: $*" >&2
  exit 1
}

for program in "$engine" kind kubectl helm go; do
  command -v "$program" >/dev/null || fail "$program is missing: make demo needs none of docker, kind, kubectl and helm"
done

# The context alone says which cluster it is: each command names it, so that a switch meanwhile harms nobody.
context=$(kubectl config current-context) || fail "kubectl has no current context: kind create cluster makes one"
[[ $context == kind-* ]] || fail "the current context is $context, which is not kind's"
cluster=${context#kind-}
kind get clusters | grep -qxF -e "$cluster" || fail "kind has no cluster $cluster, as the context $context says"

# The name of a context is anybody's choice: its server must be the one that kind made.
server() { kubectl config view --raw --minify --output 'jsonpath={.clusters[0].cluster.server}' "$@"; }
of_kind=$(mktemp)
trap 'rm -f "$of_kind"' EXIT
kind get kubeconfig --name "$cluster" >"$of_kind"
[ "$(server --context "$context")" = "$(server --kubeconfig "$of_kind")" ] || fail "the context $context leads to another server than kind's cluster $cluster"

k() { kubectl --kubeconfig "$of_kind" "$@"; }
h() { helm --kubeconfig "$of_kind" "$@"; }

installed() { h status refvol --namespace "$namespace" >/dev/null 2>&1; }

# An installation that this script hasn't made is somebody's own.
not_foreign() {
  if ! installed; then return; fi
  h get values refvol --namespace "$namespace" | grep -qx " *tag: $tag" || fail "the cluster $cluster has a refvol that make try has not installed: leaving it alone"
}

clean() {
  not_foreign
  say "Removing the example"
  k delete namespace "$example" --ignore-not-found --wait
  if ! installed; then return; fi
  say "Removing refvol"
  # The chart's hook is left out, as its image was not loaded: the same check runs here.
  go -C cmd/kubectl-refvol run . --kubeconfig "$of_kind" uninstall-check || fail "these pods use the driver: delete them first"
  h uninstall refvol --namespace "$namespace" --no-hooks --wait
  k delete namespace "$namespace" --ignore-not-found --wait
}

# The node's identity is recommended, and needs Kubernetes 1.36. Before that the pods' rights would have to be granted: this
# cluster is for a trial, so the plugin may read all.
identity() {
  local minor
  minor=$(k version --output json | sed -n '/serverVersion/,$ s/.*"minor": "\([0-9]*\).*/\1/p')
  [ "${minor:-0}" -ge 36 ] && echo node || echo plugin
}

build() {
  local architecture image=$1
  architecture=$("$engine" exec "$cluster-control-plane" uname -m)
  case $architecture in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  esac
  GOOS=linux GOARCH=$architecture make image IMAGE="$image"
  kind load image-archive bin/refvol-plugin.tar --name "$cluster"
}

start_example() {
  k create namespace "$example" --dry-run=client --output yaml | k apply --filename -
  k --namespace "$example" apply --filename deploy/examples/volume-configmap.yaml
  k --namespace "$example" wait --for condition=Ready pod/refvol-volume-configmap --timeout 3m
}

# shown TEXT: waits until the pod has printed it.
shown() {
  local i
  for i in $(seq 300); do
    if k --namespace "$example" logs refvol-volume-configmap | grep -qF -e "$1"; then return; fi
    sleep 0.1
  done
  k --namespace "$example" describe pod refvol-volume-configmap >&2
  fail "the pod did not show $1 within $((i / 10)) s"
}

try() {
  local image=ghcr.io/refvol/refvol-plugin:$tag text
  not_foreign
  say "Building the image, and loading it into the cluster $cluster"
  build "$image"
  say "Installing the chart"
  h upgrade --install refvol deploy/charts/refvol --namespace "$namespace" --create-namespace \
    --set "image.tag=$tag,image.pullPolicy=Never,uninstallCheck.enabled=false,identity=$(identity)" --wait --timeout 5m
  # The tag is always the same: pods of an earlier try would keep their image.
  k --namespace "$namespace" rollout restart daemonset/refvol-plugin
  k --namespace "$namespace" rollout status daemonset/refvol-plugin --timeout 5m
  say "Starting a pod that prints a ConfigMap's file when it changes"
  start_example
  shown "level: info"
  text="changed at $(date +%T)"
  say "Changing the ConfigMap: $text"
  k --namespace "$example" patch configmap live-settings --type merge --patch "{\"data\":{\"settings.yaml\":\"$text\\n\"}}"
  shown "$text"
  k --namespace "$example" logs refvol-volume-configmap
  say "The file has changed. Look around with: kubectl --namespace $example exec -it refvol-volume-configmap -- sh"
  echo "make try-clean removes all of this."
}

case ${1-} in
'') try ;;
clean) clean ;;
*) fail "unknown argument $1" ;;
esac

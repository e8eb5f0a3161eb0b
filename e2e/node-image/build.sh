#!/bin/bash
# Builds the node image for kind from Go modules and Debian packages, without an
# image registry. Each step's output is kept in the cache under a key over all that
# it is made from, and is made again only when the key changes.
#
#   build.sh            prints the image's name; the progress goes to stderr
#   K8S=1.35 build.sh   takes that version of Kubernetes: see kubernetes/versions
#
# Needs root, what deps.sh installs, and an engine (DOCKER_HOST, or the usual one).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
store=$cache/kind-node
[ "$(id -u)" = 0 ] || die "the node image can be built only as root: it needs chroot and debootstrap"
version=${K8S:-newest} modfile=go.mod
if [ -n "${K8S:-}" ]; then modfile=versions/$K8S.mod; fi
[ -f "$here/kubernetes/$modfile" ] || die "K8S=$K8S: there is no $modfile in $here/kubernetes"
mkdir -p "$store/$version"
# One build at a time; the lock goes with this process.
exec 9>"$store/lock"
flock 9

# run NAME OUT ARGUMENT...: runs steps/NAME.sh with the output directory OUT.
run() {
  local name=$1 out=$2 start=$SECONDS
  shift 2
  rm -rf --one-file-system "$out"
  mkdir "$out"
  if ! "$here/steps/${name##*/}.sh" "$out" "$@" 2>"$store/$name.log" |
    while read -r line; do say "$name: $line"; done; then
    tail -n 30 "$store/$name.log" >&2
    die "$name failed; all of its log: $store/$name.log"
  fi
  say "$name: done in $((SECONDS - start)) s"
}

# step NAME INPUTS [ARGUMENT...]: sets $output to the directory that holds the
# step's output for INPUTS, a key over what the step is made from beside its own
# script. Outputs for other inputs are dropped. A slash in NAME is that of a directory in the store,
# which keeps the outputs of several versions.
step() {
  local name=$1 inputs=$2
  shift 2
  output=$store/$name-$(key "$here/steps/${name##*/}.sh" "$here/lib.sh" "$inputs")
  if [ -d "$output" ]; then return; fi
  run "$name" "$output.partial" "$@"
  find "$(dirname "$output")" -mindepth 1 -maxdepth 1 -name "${name##*/}-*" ! -path "$output.partial" \
    -exec rm -rf --one-file-system {} +
  mv "$output.partial" "$output"
}

toolchain=$(go env GOVERSION GOARCH)
step "$version/programs" "$(key "$toolchain" "modfile=$modfile" "$here/kubernetes")" "$modfile"
programs=$output
step runtime "$(key "$toolchain" "$here/runtime")"
runtime=$output
step base "${DEBIAN_MIRROR:-}"
base=$output
step "$version/components" "${programs##*/} ${base##*/}" "$programs" "$base"
components=$output

# The image lives in the engine, so its key is a label there.
name=localhost/refvol/kind-node:$("$programs/kubeadm" version -o short)
image_key=$(key "$here/steps/image.sh" "$here/lib.sh" "$here/node" \
  "${programs##*/} ${runtime##*/} ${base##*/} ${components##*/}")
label='{{index .Config.Labels "dev.refvol.node-key"}}'
if [ "$(docker image inspect -f "$label" "$name" 2>/dev/null)" != "$image_key" ]; then
  docker image rm -f "$name" >/dev/null 2>&1 || true
  run image "$store/image.partial" "$programs" "$runtime" "$base" "$components" "$name" "$image_key"
  rm -rf --one-file-system "$store/image.partial"
fi
echo "$name"

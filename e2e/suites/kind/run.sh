#!/bin/bash
# Runs the end-to-end tier: makes a kind cluster, installs the plugin in it as a user would, runs the suite, and leaves
# the machine as it was. Its arguments go to the suite's test binary, for example -test.run=TestParity. The environment:
#
#   K8S           the minor version of Kubernetes, as 1.35, of a node image that is built here; e2e/node-image/kubernetes/versions
#                 has them. Empty: kind's usual image where its registry answers, else the newest that is built here.
#   CRIO          a checkout of CRI-O, which the workers run in the place of containerd.
#   KUBELET_SYNC  how often kubelets sync pods, and with them their own volumes; default 20s, where Kubernetes' is 1m.
#   KEEP=1        keep the cluster and print how to use it.
#   REFVOL_CACHE  what is kept between runs; default ~/.cache/refvol.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/e2e/suites/kind node_image=$root/e2e/node-image module=$root/e2e/node-image/kubernetes
REFVOL_CACHE=$(realpath -m "${REFVOL_CACHE:-$HOME/.cache/refvol}")
export REFVOL_CACHE
# shellcheck source-path=SCRIPTDIR source=../../node-image/lib.sh
. "$node_image/lib.sh" # with go's settings of all static builds
cluster=refvol-e2e
export KUBECONFIG=$REFVOL_CACHE/$cluster.kubeconfig
work=$REFVOL_CACHE/e2e
made=$work/made # exists from the moment a cluster may exist, and says whether kind's network is this run's own
kind=$work/kind kubectl=$work/programs/kubectl helm=$work/programs/helm
modfile=go.mod
if [ -n "${K8S:-}" ]; then modfile=versions/$K8S.mod; fi
images=localhost/refvol
# The suite upgrades from this commit and rolls back to it: the last one before the format of what the plugin keeps on a
# node was frozen. A release takes its place once there is one. Its image has a version that a log shows.
upgraded_from=12c071036f4b61892874ad61be1958730480ca0d other_version=v0.0.0-other

say() { printf 'e2e [%2d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

die() {
  say "$*" >&2 # the output may go into a file
  exit 1
}

# quiet COMMAND...: shows what the program wrote only if it fails.
quiet() {
  "$@" >"$work/command.log" 2>&1 </dev/null && return
  cat "$work/command.log" >&2
  die "$* failed"
}

# image PROGRAM ENTRYPOINT NAME: makes the image and the archive NAME of one static program.
image() { quiet go -C "$root/tools" run ./image -binary "$1" -entrypoint "$2" -reference "$images/$3:e2e" -output "$work/$3.tar"; }

make_in() { quiet make --no-print-directory -C "$@"; }

# build_kubectl builds kubectl in the version of the nodes, with that version built in.
build_kubectl() {
  local version minor package ldflags="-s -w"
  version=$(go -C "$module" list -modfile="$modfile" -m -f '{{.Version}}' k8s.io/kubernetes)
  minor=${version#v1.}
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.gitTreeState=clean"
  done
  quiet go -C "$module" build -modfile="$modfile" -ldflags "$ldflags" -o "$kubectl" k8s.io/kubernetes/cmd/kubectl
}

# check_out_older sets $older to a directory with the files of $upgraded_from. A checkout without history, as a shallow clone
# or an archive, lacks that commit: then the suite rolls between two names of the same code.
check_out_older() {
  older=$root
  if git -C "$root" cat-file -e "$upgraded_from^{commit}" 2>/dev/null; then
    say "checking out ${upgraded_from::8}, which the upgrade test starts from"
    older=$work/older
    rm -rf "$older"
    mkdir "$older"
    git -C "$root" archive $upgraded_from Makefile go.mod go.sum cmd pkg internal tools deploy | tar -x -C "$older"
  elif [ "$(git -C "$root" rev-parse --is-shallow-repository 2>/dev/null)" = false ]; then
    die "this repository lacks commit $upgraded_from, which the upgrade test starts from"
  else
    say "SKIPPED: an upgrade from commit ${upgraded_from::8}, which this checkout lacks (git fetch --unshallow)"
  fi
}

# build comes before the cluster, so that what doesn't compile fails early and compilers don't disturb the tests' timing.
build() {
  say "building kubectl, the plugin, the suite and the image of its pods"
  rm -rf "$work/programs"
  mkdir -p "$work/programs" "$work/other"
  build_kubectl
  quiet go -C "$root/tools" build -o "$work/gotestsum" gotest.tools/gotestsum
  quiet go -C "$root/e2e/tools/helm" build -ldflags "-s -w" -o "$helm" helm.sh/helm/v4/cmd/helm
  check_out_older
  make_in "$older" image IMAGE=$images/refvol-plugin:$other_version VERSION=$other_version \
    OUT="$work/other/refvol-plugin" BINARIES="$work/other/refvol-plugin" ARCHIVE="$work/other.tar"
  quiet go -C "$root/e2e" test -c -o "$work/suite.test" ./suites/kind/suite
  make_in "$root" build image IMAGE="$plugin_image"
  make_in "$root" pack PROGRAM=kubectl-refvol IMAGE=$images/kubectl-refvol:e2e # for deploy/examples/gate.yaml
  make_in "$root" image PROGRAM=refvol-notify IMAGE=$images/refvol-notify:e2e
  quiet go -C "$root/e2e" build -ldflags "-s -w" -o "$work/probe" ./tools/probe
  image "$work/probe" /probe probe # of the suite's pods
  quiet "$node_image/deps.sh" suite
  image "$(command -v busybox)" /bin/sh shell # for docs/recipes.md and deploy/examples/smoke.yaml
  quiet go -C "$module" build -o "$kind" sigs.k8s.io/kind
}

# choose_node_image sets $node to the node image's name, whose tag tells the version. kind's sources name its usual one. An answer
# counts only with the registry's header, because a proxy or a captive gateway may answer too.
choose_node_image() {
  local answer sources
  if [ -z "${K8S:-}" ] && answer=$(curl --silent --max-time 5 --head https://registry-1.docker.io/v2/) &&
    grep -qi '^docker-distribution-api-version: *registry/2.0' <<<"$answer"; then
    say "node image: kind's usual one"
    sources=$(go -C "$module" list -f '{{.Dir}}' sigs.k8s.io/kind/pkg/apis/config/defaults)
    node=$(sed -n 's/^const Image = "\(.*\)"$/\1/p' "$sources/image.go")
    [ -n "$node" ] || die "$sources names no image"
    return
  fi
  say "node image: the project's own, ${K8S:-the newest, since the registry of the usual one does not answer}"
  "$node_image/deps.sh" image
  node=$("$node_image/build.sh")
}

# build_crio builds CRI-O static, as this machine may have a newer libc than the nodes. The tags leave out what needs other C libraries.
build_crio() {
  say "building CRI-O from $CRIO"
  rm -rf "$work/crio"
  cp -r "$node_image/crio" "$work/crio"
  CGO_ENABLED=1 quiet go -C "$CRIO" build -tags "containers_image_openpgp exclude_graphdriver_btrfs netgo osusergo" \
    -ldflags "-s -w -extldflags -static" -o "$work/crio/crio" ./cmd/crio
  make_in "$CRIO/pinns"
  cp "$CRIO/bin/pinns" "$work/crio/"
}

# replace FROM TO: changes each FROM in $text, where there must be one.
replace() {
  [[ $text == *"$1"* ]] || die "there is no '$1' to replace any more"
  text=${text//"$1"/"$2"}
}

# configuration prints that of the cluster, with the gates that the suite wants of the version of Kubernetes. On cgroup v1, runc would
# freeze each container at its start through systemd, which fails on a busy machine (kubernetes/kubernetes#131087).
configuration() {
  local text minor=${node##*:v1.} runc='[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]'
  minor=${minor%%.*}
  [[ $minor =~ ^[0-9]+$ ]] || die "the node image $node has no tag with a version of Kubernetes"
  text=$(<"$here/cluster.yaml")
  replace "syncFrequency: 20s" "syncFrequency: ${KUBELET_SYNC:-20s}"
  if [ "$(docker info --format '{{.CgroupVersion}}')" = 1 ]; then
    replace "  failCgroupV1: false" $'  failCgroupV1: false\n  cgroupDriver: cgroupfs'
    replace "containerdConfigPatches:" $'containerdConfigPatches:\n- |\n  '"$runc"$'\n    SystemdCgroup = false'
  fi
  printf '%s\n' "$text"
  if [ "$minor" -ge 37 ]; then echo "featureGates: {AtomicWriteVolumeUserFields: true}"; fi
  if [ "$minor" -lt 36 ]; then echo "featureGates: {ConstrainedImpersonation: true}"; fi # on by default from then on
}

create_cluster() {
  say "creating a cluster of four nodes"
  if docker network inspect kind >/dev/null 2>&1; then echo >"$made"; else echo network >"$made"; fi
  quiet "$kind" delete cluster --name $cluster # of an earlier run
  configuration >"$work/cluster.yaml"
  "$kind" create cluster --name $cluster --config "$work/cluster.yaml" --wait 180s --quiet --image "$node"
}

# use_crio switches the workers to CRI-O. Of the project's own node image, containerd has kept only what containers need.
use_crio() {
  local worker workers archive inside archives=("$@")
  case $node in localhost/*) archives+=("$REFVOL_CACHE/kind-node/${K8S:-newest}"/components-*/*.tar) ;; esac
  say "switching the workers to CRI-O"
  workers=$("$kind" get nodes --name $cluster | grep -v control-plane)
  for worker in $workers; do
    quiet docker cp "$work/crio" "$worker:/crio"
    inside=()
    for archive in "${archives[@]}"; do
      inside+=("/crio/image-${#inside[@]}.tar")
      quiet docker cp "$archive" "$worker:${inside[-1]}"
    done
    quiet docker exec "$worker" /crio/install.sh "${inside[@]}"
  done
}

# render CHECKOUT IMAGE NAME ARGUMENTS COMPONENT...: prints the manifests of a plugin, with logs that have all that they can, as JSON.
# It has a NAME where it runs beside the first: the driver's name begins with it, and the namespace's ends with it.
render() {
  local image=$2 name=$3 arguments=$4 argument text dir=$work/kustomization deploy component
  rm -rf "$dir"
  mkdir "$dir"
  deploy=$(realpath --relative-to="$dir" "$1/deploy") # kustomize takes other directories by relative paths only
  shift 4
  printf 'resources: [%s/base]\ncomponents:\n' "$deploy" >"$dir/kustomization.yaml"
  for component; do echo "- $deploy/components/$component" >>"$dir/kustomization.yaml"; done
  text=$("$kubectl" kustomize "$dir")
  replace "image: ghcr.io/refvol/refvol-plugin:v0.1.0" "image: $image"$'\n        imagePullPolicy: IfNotPresent'
  for argument in $arguments --logging-format=json --v=10; do
    replace "- --http-address=:9810" "- --http-address=:9810"$'\n        - '"$argument"
  done
  case " $* " in *" restart "*) replace ghcr.io/refvol/refvol-notify:v0.1.0 $images/refvol-notify:e2e ;; esac
  if [ -n "$name" ]; then
    replace csi.refvol.dev "$name.refvol.dev"
    replace refvol-system "refvol-$name"
    # Roles are the cluster's.
    replace $'  name: refvol-plugin\nrules:' "  name: refvol-$name"$'\nrules:'
    replace $'  name: refvol-plugin\nroleRef:' "  name: refvol-$name"$'\nroleRef:'
    replace $'  kind: ClusterRole\n  name: refvol-plugin' $'  kind: ClusterRole\n'"  name: refvol-$name"
  fi
  printf '%s\n' "$text"
}

# deploy NAME ARGUMENTS COMPONENT...: installs a plugin and waits until it serves on every node.
deploy() {
  render "$root" "$plugin_image" "$@" >"$work/manifests.yaml"
  quiet "$kubectl" apply --filename "$work/manifests.yaml"
  quiet "$kubectl" --namespace "refvol-${1:-system}" rollout status daemonset/refvol-plugin --timeout=10m
}

# deploy_all installs a plugin of every identity, and renders what the upgrade test installs.
deploy_all() {
  local labels=() served
  say "installing the plugin, with each identity"
  served=$("$kubectl" get --raw=/apis/admissionregistration.k8s.io/v1)
  # They need policies that Kubernetes has from 1.36 on.
  if [[ $served == *'"mutatingadmissionpolicies"'* ]]; then labels=(live live-node-selector restart); fi
  deploy "" "" cross-namespace
  deploy pod-identity --resync-interval=5s pod-identity cross-namespace
  deploy node-identity "" node-identity "${labels[@]}"
  mkdir -p "$work/upgrades"
  render "$root" "$plugin_image" upgrade "" cross-namespace >"$work/upgrades/newest.yaml"
  render "$older" $images/refvol-plugin:$other_version upgrade "" cross-namespace >"$work/upgrades/other.yaml"
}

show() {
  printf '\n=== %s\n' "$1"
  timeout 20 "${@:2}" 2>&1 || echo "no answer"
}

# show_failure prints the logs that explain a failure: the last lines of every component, and what the cluster says of its pods.
show_failure() {
  local node unit namespace pod
  for node in $("$kind" get nodes --name $cluster); do
    for unit in kubelet containerd crio; do
      show "$unit of $node" docker exec "$node" journalctl --no-pager --output=cat --lines=25 --unit=$unit
    done
  done
  show "nodes and pods" "$kubectl" get nodes,pods --all-namespaces --output=wide
  show "events of pods" "$kubectl" get events --all-namespaces --sort-by=.lastTimestamp \
    --field-selector='involvedObject.kind=Pod,type!=Normal'
  for namespace in kube-system refvol-system; do
    for pod in $(timeout 20 "$kubectl" get pods --namespace $namespace --output=name); do
      show "$namespace $pod" "$kubectl" logs --namespace $namespace "$pod" --all-containers --tail=25
    done
  done
}

# run_tier ARGUMENT... does all that an interrupt ends.
run_tier() {
  local archives=() name
  trap 'trap - EXIT; exit 130' INT TERM # then nobody asks why
  trap '[ $? = 0 ] || [ ! -e "$made" ] || { show_failure & timeout 120 tail --pid=$! -f /dev/null || kill $!; }' EXIT
  cd "$root"
  # A name of this run's own, so that a cluster which has run an older build takes the new one.
  plugin_image=$images/refvol-plugin:e2e-$(date +%s)
  build
  choose_node_image
  if [ -n "${CRIO:-}" ]; then build_crio; fi
  create_cluster
  for name in refvol-plugin kubectl-refvol refvol-notify; do archives+=("$root/bin/$name.tar"); done
  for name in other probe shell; do archives+=("$work/$name.tar"); done
  say "loading ${#archives[@]} images"
  for name in "${archives[@]}"; do quiet "$kind" load image-archive "$name" --name $cluster; done
  if [ -n "${CRIO:-}" ]; then use_crio "${archives[@]}"; fi
  deploy_all
  say "running the suite"
  cd "$here/suite"
  export REFVOL_PROBE_IMAGE=$images/probe:e2e REFVOL_SHELL_IMAGE=$images/shell:e2e REFVOL_GATE_IMAGE=$images/kubectl-refvol:e2e
  export REFVOL_NOTIFY_IMAGE=$images/refvol-notify:e2e REFVOL_PLUGIN_IMAGE=$plugin_image REFVOL_UPGRADES=$work/upgrades
  export REFVOL_KUBECTL=$kubectl REFVOL_KUBECTL_REFVOL=$root/bin/kubectl-refvol REFVOL_HELM=$helm REFVOL_CHART=$root/deploy/charts/refvol
  # Parallel tests wait for the cluster most of the time, not for a processor, and some of them for the node that they need to
  # themselves. On a slow machine 16 at a time ran into the limits of the kubelet's own volumes.
  # Parallel tests write in between each other: gotestsum repeats at the end what each failed one wrote.
  "$work/gotestsum" --format=standard-verbose --raw-command -- go tool test2json -t \
    "$work/suite.test" -test.v=test2json -test.timeout=60m -test.parallel=10 "$@" 2>&1 | tee -i "$work/suite.log"
  if grep -q '^testing: warning: no tests to run' "$work/suite.log"; then die "no test has run: $*"; fi
  say "all that ran have passed"
}

# clean_up ends what runs, and takes away the cluster and the engine, whatever signals come meanwhile.
clean_up() {
  local status=$?
  trap '' INT TERM HUP
  set +e
  if [ -n "$tier" ]; then
    # Until setsid has run, there is no group.
    { kill -INT -- "-$tier" || kill -INT "$tier"; } && timeout 20 tail --pid="$tier" -f /dev/null
    kill -KILL -- "-$tier" || kill -KILL "$tier"
  fi 2>/dev/null
  kill "$watcher" 2>/dev/null
  if [ -e "$made" ] && [ "${KEEP:-}" = 1 ]; then
    printf '%s\n' "The cluster stays. To use it:" "  export KUBECONFIG=$KUBECONFIG" ${engine:+"  export DOCKER_HOST=$engine"} \
      "  kubectl -n refvol-system get pods -o wide" "To end it, with those variables set:" \
      "  $kind delete cluster --name $cluster" ${engine:+"  $node_image/engine.sh stop"}
    exit $status
  fi
  if [ -e "$made" ]; then
    say "taking the cluster away"
    timeout 180 "$kind" delete cluster --name $cluster --quiet || status=1
    # kind never removes its network. It isn't there if kind didn't come that far.
    if grep -q network "$made" && [ -n "$(docker network ls --quiet --filter name='^kind$')" ]; then
      docker network rm kind >/dev/null || status=1
    fi
  fi
  if [ -n "$engine" ]; then timeout 180 "$node_image/engine.sh" stop || status=1; fi
  exit $status
}

if [ "${1:-}" = --tier ]; then
  SECONDS=$2
  run_tier "${@:3}"
  exit
fi
if [ -n "${CRIO:-}" ]; then
  [ "${CRIO#/}" != "$CRIO" ] || die "CRIO=$CRIO: must be an absolute path"
  [ -d "$CRIO/cmd/crio" ] || die "CRIO=$CRIO: must be a checkout of github.com/cri-o/cri-o"
fi
[ -f "$module/$modfile" ] || die "K8S=$K8S: e2e/node-image/kubernetes/versions has those that can be named"
mkdir -p "$work"
tier='' engine='' waiting=''
trap 'trap "" INT TERM HUP; kill $waiting 2>/dev/null; exit 130' INT TERM HUP # make passes one on that this process may have got already
# Whoever started this one may end without passing a signal on.
{
  while [ "$(awk '{print $4}' /proc/$$/stat)" = $PPID ]; do sleep 1; done
  kill -TERM $$
} >/dev/null 2>&1 &
watcher=$!
disown "$watcher" # the shell need not report that it was killed
trap 'kill "$watcher" 2>/dev/null' EXIT
# One run at a time: what is built lies in the cache, and root's engine is the machine's, whatever the cache.
lock=$REFVOL_CACHE/e2e.lock
if [ "$(id -u)" = 0 ]; then lock=/run/refvol-e2e.lock; fi
exec 9>"$lock"
if ! flock --nonblock 9; then
  say "waiting for another run"
  flock 9 & # a signal would not end it in the foreground
  waiting=$!
  wait $waiting
fi
rm -f "$made"
trap clean_up EXIT
# First, for here it shows whether this machine can run the tier at all. An interrupt from the terminal must not reach apt.
setsid --wait "$node_image/deps.sh" engine 9>&-
engine=$("$node_image/engine.sh" start 9>&-) || { reason=$engine engine='' && die "$reason"; }
if [ -n "$engine" ]; then export DOCKER_HOST=$engine; fi
# All that takes long is in a session of its own: an interrupt from the terminal reaches this process alone, which ends that session.
setsid env --default-signal=INT,QUIT "$BASH" "$0" --tier $SECONDS "$@" 9>&- </dev/null &
tier=$!
wait "$tier"

#!/bin/bash
# image.sh OUT PROGRAMS RUNTIME BASE COMPONENTS NAME KEY: the node image, loaded
# into the engine as NAME with the label dev.refvol.node-key=KEY. OUT is scratch
# space; it must be on a file system that overlayfs can stand on.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$here/lib.sh"
out=$1 programs=$2 runtime=$3 base=$4 components=$5 name=$6 key=$7
root=$out/root

# kind's own entrypoint, units and configuration belong to its version, so they
# are taken out of its module.
add_kind_files() {
  local module
  module=$(cd "$here/kubernetes" && go mod download -json sigs.k8s.io/kind | jq -r .Dir)
  for directory in etc kind usr; do
    cp -r --no-preserve=mode,ownership "$module/images/base/files/$directory" "$root/"
  done
  install -m 755 "$here/node/mask-cgroups.sh" "$root/kind/bin/"
  mkdir -p "$root"/kind/manifests "$root"/etc/kubernetes/manifests
  install -m 644 "$here/node/default-cni.yaml" "$here/node/default-storage.yaml" "$root/kind/manifests/"
  chmod 755 "$root"/usr/local/bin/* "$root"/kind/bin/*
  "$programs/kubeadm" version -o short | tr -d '\n' >"$root/kind/version"
}

add_programs() {
  install -m 755 "$programs"/{kubeadm,kubectl,kubelet} "$root/usr/bin/"
  install -m 755 "$runtime"/{containerd,containerd-shim-runc-v2,ctr} "$root/usr/local/bin/"
  install -m 755 "$runtime/runc" "$root/usr/local/sbin/"
  mkdir -p "$root"/opt/cni "$root"/etc/cni/net.d
  ln -s /usr/lib/cni "$root/opt/cni/bin"
}

configure_containerd() {
  local pause
  pause=$(cat "$components/pause-image")
  # A negative OOM score needs CAP_SYS_RESOURCE, which the machine may lack.
  sed -i -e "s#sandbox_image = .*#sandbox_image = \"$pause\"#" \
    -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
    "$root/etc/containerd/config.toml"
  sed -i '/^OOMScoreAdjust/d' "$root/etc/systemd/system/containerd.service"
  # Limits above the node's own would be refused.
  "$runtime/ctr" oci spec | jq 'del(.process.rlimits)' >"$root/etc/containerd/cri-base.json"
}

# Only what a container needs starts at boot.
configure_systemd() {
  local units=$root/lib/systemd/system
  find "$units"/{basic,local-fs,multi-user}.target.wants "$root"/etc/systemd/system/*.wants \
    -mindepth 1 -delete 2>/dev/null || true
  rm -f "$units"/sysinit.target.wants/systemd-tmpfiles-setup.service \
    "$units"/sockets.target.wants/*{initctl,udev}*
  echo 'ReadKMsg=no' >>"$root/etc/systemd/journald.conf"
  chroot "$root" systemctl -q enable containerd.service kubelet.service undo-mount-hacks.service
  chroot "$root" systemctl -q mask systemd-binfmt.service
}

# preload imports the components' images with the node's own containerd, run here
# on the node's directory.
preload() {
  local socket=$out/containerd.sock state=$out/state pid ctr archive image
  mkdir -p "$state"
  cat >"$out/containerd.toml" <<END
version = 3
root = "$root/var/lib/containerd"
state = "$state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
]
[grpc]
address = "$socket"
[ttrpc]
address = "$socket.ttrpc"
END
  "$runtime/containerd" -c "$out/containerd.toml" >"$out/containerd.log" 2>&1 &
  pid=$!
  # shellcheck disable=SC2064
  trap "kill $pid 2>/dev/null || true" EXIT
  ctr="$runtime/ctr -a $socket -n k8s.io"
  for _ in $(seq 100); do
    $ctr version >/dev/null 2>&1 && break
    sleep 0.2
  done
  for archive in "$components"/*.tar; do
    $ctr images import --local --discard-unpacked-layers --snapshotter overlayfs "$archive" >&2
  done
  # The mark by which the node's CRI knows an image for its own.
  for image in $($ctr images ls -q); do
    $ctr images label "$image" io.cri-containerd.image=managed >&2
  done
  kill "$pid"
  wait "$pid" || true
  trap - EXIT
}

echo "laying out the node's root"
cp -a "$base" "$root"
add_kind_files
add_programs
configure_containerd
configure_systemd
echo "preloading the components' images"
preload
echo "packing and loading $name"
config=$(jq -nc --arg key "$key" '{
  Entrypoint: ["/kind/bin/mask-cgroups.sh", "/usr/local/bin/entrypoint", "/sbin/init"],
  Env: ["container=docker", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  Labels: {"dev.refvol.node-key": $key},
  StopSignal: "SIGRTMIN+3"}')
image_archive "$out/node.tar" "$name" "$root" "$config"
docker load -q -i "$out/node.tar" >&2

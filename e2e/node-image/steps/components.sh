#!/bin/bash
# components.sh OUT PROGRAMS BASE: the images of the pods that make up the cluster,
# an archive each, under the names that this kubeadm asks for. So a cluster needs no
# configuration to use them, and kubelets find them present and pull nothing.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
out=$1 programs=$2 base=$3
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT

# program_root NAME: a root directory with one static program; prints its path.
program_root() {
  local root=$work/$1
  mkdir -p "$root"/{etc,tmp,usr/local/bin,var}
  chmod 1777 "$root/tmp"
  cp "$programs/$1" "$root/usr/local/bin/"
  echo "$root"
}

# add_firewall ROOT: iptables, nft and conntrack with the libraries that they load.
add_firewall() {
  local root=$1 file name suffix
  local tools=(/usr/sbin/{xtables-nft-multi,xtables-legacy-multi,nft,conntrack})
  local plugins=("$base"/usr/lib/*/xtables)
  plugins=("${plugins[@]#"$base"}")
  mkdir -p "$root/run" "$root"/usr/{bin,lib,lib64,sbin}
  for name in bin lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done
  {
    printf '%s\n' "${tools[@]}"
    find "$base${plugins[0]}" -name '*.so' -printf "${plugins[0]}/%f\n"
    chroot "$base" sh -c "ldd ${tools[*]} ${plugins[0]}/*.so" | grep -oE '/[^ :]+ \(0x' | cut -d' ' -f1
  } | sort -u | while read -r file; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$base$file" "$root$file"
  done
  for name in iptables ip6tables; do
    for suffix in "" -save -restore; do
      ln -s xtables-nft-multi "$root/usr/sbin/$name$suffix"
    done
  done
}

# component IMAGE NAME: the archive OUT/NAME.tar
component() {
  local image=$1 name=$2 root config
  root=$(program_root "$name")
  case $name in kube-proxy | nodenet) add_firewall "$root" ;; esac
  config=$(jq -nc --arg program "/usr/local/bin/$name" \
    '{Entrypoint: [$program], Env: ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}')
  image_archive "$out/$name.tar" "$image" "$root" "$config"
}

"$programs/kubeadm" config images list \
  --kubernetes-version "$("$programs/kubeadm" version -o short)" >"$work/images"
echo localhost/refvol/nodenet:1 >>"$work/images"
echo "packing $(wc -l <"$work/images") images"
while read -r image; do
  name=${image##*/}
  component "$image" "${name%:*}"
done <"$work/images"
grep /pause: "$work/images" >"$out/pause-image"

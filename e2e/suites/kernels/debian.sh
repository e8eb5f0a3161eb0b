#!/bin/bash
# debian.sh RELEASE DIRECTORY
#
# Makes DIRECTORY with what a machine of a release of Debian is made of: vmlinuz, the
# release's kernel for virtual machines; modules/, those of its modules that reach the
# network; and busybox. The versions are those that Debian's mirror has now, whichever
# release this machine runs. It needs apt, but no root, and installs nothing.
set -euo pipefail
release=$1 directory=$2
mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/lists/partial "$work"/packages "$work"/files "$work"/machine/modules

# Nothing of this machine's own apt is read or written.
cat >"$work/apt.conf" <<CONF
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/lists";
Dir::State::Status "/dev/null";
Dir::Cache "$work";
APT::Sandbox::User "";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
CONF
export APT_CONFIG=$work/apt.conf
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $release main" >"$work/sources.list"
apt-get -qq update

# depends PACKAGE PATTERN: what the package depends on.
depends() { apt-cache depends --important "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p"; }

# The package of this name is empty, and depends on the current kernel, which newer releases
# have in parts.
kernel=$(depends linux-image-cloud-amd64 'linux-image-.*')
mapfile -t parts < <(depends "$kernel" 'linux-\(binary\|modules\)-.*')
(cd "$work/packages" && apt-get -qq download "$kernel" "${parts[@]}" busybox-static)
for package in "$work"/packages/*.deb; do
  dpkg-deb -x "$package" "$work/files"
done

find "$work/files" -type f -name 'vmlinuz*' -exec cp {} "$work/machine/vmlinuz" \;
find "$work/files" -type f -name busybox -perm -u+x -exec cp {} "$work/machine/busybox" \;
# A module that is not there is built in.
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net; do
  find "$work/files" -name "$module.ko*" -exec cp {} "$work/machine/modules/" \;
done
for module in "$work"/machine/modules/*.xz; do
  [ ! -e "$module" ] || "$work/machine/busybox" unxz "$module"
done
mv "$work/machine" "$directory"

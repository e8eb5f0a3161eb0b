#!/bin/bash
# Makes what a machine needs of a release of Debian, in the versions that Debian's mirror has
# now, whichever release this machine runs. It needs apt, but no root, and installs nothing.
#
#   debian.sh kernel RELEASE DIRECTORY
#       makes DIRECTORY, with vmlinuz, the release's kernel for virtual machines; modules/,
#       those of its modules that reach the network; and busybox
#   debian.sh policy RELEASE DIRECTORY
#       makes DIRECTORY, with policy, the release's SELinux policy, for the kernel to load
set -euo pipefail
what=$1 release=$2 directory=$3
mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/lists/partial "$work"/packages "$work"/files "$work"/result

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

# unpack PACKAGE...: their files, in $work/files.
unpack() {
  local package
  (cd "$work/packages" && apt-get -qq download "$@")
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/files"
  done
}

# depends PACKAGE PATTERN: what the package depends on.
depends() { apt-cache depends --important "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p"; }

kernel() {
  local kernel parts module
  # The package of this name is empty, and depends on the current kernel, which newer
  # releases have in parts.
  kernel=$(depends linux-image-cloud-amd64 'linux-image-.*')
  mapfile -t parts < <(depends "$kernel" 'linux-\(binary\|modules\)-.*')
  unpack "$kernel" "${parts[@]}" busybox-static
  mkdir "$work/result/modules"
  find "$work/files" -type f -name 'vmlinuz*' -exec cp {} "$work/result/vmlinuz" \;
  find "$work/files" -type f -name busybox -perm -u+x -exec cp {} "$work/result/busybox" \;
  # A module that is not there is built in.
  for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net; do
    find "$work/files" -name "$module.ko*" -exec cp {} "$work/result/modules/" \;
  done
  for module in "$work"/result/modules/*.xz; do
    [ ! -e "$module" ] || "$work/result/busybox" unxz "$module"
  done
}

policy() {
  local libraries=$work/files/usr/lib/x86_64-linux-gnu module
  # The compiler is the release's own, and so are its libraries.
  unpack selinux-policy-default policycoreutils secilc libsepol2 libc6 busybox-static
  # The first word goes on the path, the others stay words.
  # shellcheck disable=SC2145
  run() { "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$work/files/usr/$@"; }
  mkdir "$work/modules"
  for module in "$work"/files/usr/share/selinux/default/*.pp.bz2; do
    "$work/files/usr/bin/busybox" bunzip2 -c "$module" >"$work/module"
    run libexec/selinux/hll/pp "$work/module" "$work/modules/$(basename "$module" .pp.bz2).cil" 2>/dev/null
  done
  # What a container runtime may do, the test may do too, in the domain of a privileged
  # container: start a confined one.
  cat >"$work/modules/test.cil" <<'CIL'
(allow spc_t container_t (process (transition)))
(allow container_t spc_t (process (sigchld)))
(allow container_t spc_t (fd (use)))
CIL
  # Version 33 is the newest that Linux 6.1 takes.
  run bin/secilc --multiple-decls --policyvers=33 --mls=true --filecontext=/dev/null --output="$work/result/policy" "$work"/modules/*.cil
}

"$what"
mv "$work/result" "$directory"

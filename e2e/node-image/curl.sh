#!/bin/bash
# Makes an image with a shell, curl and the usual small programs, of Debian packages, for pods that
# run the scripts of deploy/examples where no registry has their image. It needs apt and jq, but no
# root, and installs nothing.
#
#   curl.sh ARCHIVE NAME
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
out=$1 name=$2
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/archives/partial "$work"/root/usr/{bin,sbin,lib,lib64}
for directory in bin sbin lib lib64; do
  ln -s "usr/$directory" "$work/root/$directory"
done
# As for a machine on which nothing is installed, so that all that these need comes along.
apt-get -qq -o Dir::State::Status=/dev/null -o Dir::Cache::Archives="$work/archives" -o Debug::NoLocking=1 \
  -o APT::Sandbox::User= --no-install-recommends --download-only --yes install dash coreutils sed grep curl >&2
for package in "$work"/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --no-same-owner -C "$work/root"
done
rm -rf "$work"/root/usr/share
image_archive "$out" "$name" "$work/root" '{"Env": ["PATH=/usr/bin:/usr/sbin"]}'

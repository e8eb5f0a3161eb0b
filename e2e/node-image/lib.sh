# Sourced by the scripts of this directory: where the cache is, what a step's
# output depends on, and how a directory becomes an image.
# shellcheck shell=bash

# shellcheck disable=SC2034
cache=${REFVOL_CACHE:-${HOME:-/root}/.cache/refvol}

# Every Go program is built with the same flags, so that go's build cache serves
# this build, the embedded control plane and the runner alike.
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOWORK=off

say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

die() { say "$*"; exit 1; }

# key THING...: a short hash over the contents of files and directories, and over
# the text of whatever is neither.
key() {
  local thing
  for thing in "$@"; do
    if [ -d "$thing" ]; then
      (cd "$thing" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
    elif [ -f "$thing" ]; then
      sha256sum <"$thing"
    else
      echo "$thing"
    fi
  done | sha256sum | cut -c1-16
}

# image_archive OUT NAME ROOT CONFIG: writes the directory ROOT as an image of one
# layer, in the archive format that `docker load` and `ctr images import` read.
# CONFIG is the image's runtime configuration in JSON.
image_archive() {
  local out=$1 name=$2 root=$3 config=$4 work digest arch
  arch=$(go env GOARCH)
  work=$(mktemp -d "$out.XXXXXX")
  tar --numeric-owner --sort=name -C "$root" -cf "$work/layer.tar" .
  digest=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  jq -nc --argjson config "$config" --arg arch "$arch" --arg digest "sha256:$digest" \
    '{architecture: $arch, os: "linux", config: $config,
      rootfs: {type: "layers", diff_ids: [$digest]}}' >"$work/config.json"
  jq -nc --arg name "$name" \
    '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  tar -C "$work" -cf "$out" manifest.json config.json layer.tar
  rm -r "$work"
}

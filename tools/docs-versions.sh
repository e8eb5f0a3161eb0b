#!/bin/bash
# Builds the site of the checkout into bin/site, and below it those of the newest five minor releases, as /v1.2/ for
# v1.2.3. SITE_BASE is the path of the whole. A release whose site can't be built is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${SITE_BASE:-/}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# newest prints the newest patch of each minor release, the newest first. A candidate such as v1.2.0-rc.1 is none.
newest() {
  git tag --list 'v*' --sort=-version:refname |
    awk -F. '/^v[0-9]+[.][0-9]+[.][0-9]+$/ && !seen[$1 FS $2]++ && ++n <= 5'
}

# build TAG: builds the site of a release from its own files, with its own modules.
build() {
  local tree=$work/$1
  rm -rf "$tree"
  mkdir "$tree" && git archive "$1" | tar -x -C "$tree" || return
  if cmp -s site/package-lock.json "$tree/site/package-lock.json"; then
    ln -s "$PWD/site/node_modules" "$tree/site/node_modules" || return
  else
    npm --prefix "$tree/site" ci --ignore-scripts --no-audit --no-fund || return
  fi
  SITE_BASE=$base${1%.*}/ SITE_VERSION=$1 npm --prefix "$tree/site" run --silent build
}

# build_all builds the releases. Each site lists them all, so a release that is left out means to begin again.
build_all() {
  local tag
  export SITE_VERSIONS="${tags[*]}"
  for tag in "${tags[@]}"; do
    if build "$tag"; then continue; fi
    echo "SKIPPED: the site of $tag can't be built" >&2
    mapfile -t tags < <(printf '%s\n' "${tags[@]}" | grep -vxF "$tag")
    return 1
  done
}

list=$(newest)
tags=()
for tag in $list; do
  if git cat-file -e "$tag:site/package.json" 2>/dev/null; then tags+=("$tag"); else echo "SKIPPED: $tag has no site" >&2; fi
done
until build_all; do :; done
rm -rf bin/site
npm --prefix site run --silent build
for tag in "${tags[@]}"; do cp -R "$work/$tag/bin/site" "bin/site/${tag%.*}"; done

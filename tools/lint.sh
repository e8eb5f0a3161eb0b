#!/bin/bash
# Checks every Go module, every shell script and every tracked file of the checkout, says
# all that is wrong, and fails if anything is.
#
#   lint.sh       check
#   lint.sh fmt   format the Go files as the check wants them
set -uo pipefail
cd "$(dirname "$0")/.." || exit

cache=${REFVOL_CACHE:-$HOME/.cache/refvol}/lint
# The flags of the static builds, so that go's build cache serves both.
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOWORK=off
export GOLANGCI_LINT_CACHE=$cache/results
failures=()

# check WHAT COMMAND...: runs the command and notes a failure.
check() {
  local what=$1
  shift
  printf '%s\n' "$what"
  "$@" || failures+=("$what")
}

# modules prints the directory of each Go module, followed by a NUL.
modules() {
  find . -name .git -prune -o -name node_modules -prune -o -path ./bin -prune -o -name go.mod -printf '%h\0' | sort -z
}

# fetch downloads what the modules require.
fetch() {
  local module
  while IFS= read -r -d '' module; do
    (cd "$module" && go mod tidy -diff)
  done < <(modules)
}

# golangci_lint prints the path of the linter. It is built once for each version of
# itself and of Go, which it must match. The network is idle meanwhile, and all modules
# are likely to be missing where the linter is: they are fetched beside the build.
golangci_lint() {
  local key binary
  key=$(cat tools/go.mod tools/go.sum <(go env GOVERSION) | cksum | cut -d' ' -f1) || return
  binary=$cache/golangci-lint-$key
  if [ ! -x "$binary" ]; then
    echo "building golangci-lint (about 2 minutes, once)" >&2
    mkdir -p "$cache"
    fetch >/dev/null 2>&1 &
    go -C tools build -o "$binary.$$" github.com/golangci/golangci-lint/v2/cmd/golangci-lint || return
    mv "$binary.$$" "$binary"
    wait
  fi
  echo "$binary"
}

# scripts prints the files that a shell runs, each followed by a NUL.
scripts() {
  local file line
  while IFS= read -r -d '' file; do
    line=
    IFS= read -r line <"$file"
    case $line in '#!'*sh*) printf '%s\0' "$file" ;; esac
  done < <(find . -name .git -prune -o -name node_modules -prune -o -path ./bin -prune -o -type f \( -perm -u+x -o -name '*.sh' \) -print0)
}

check_scripts() {
  local file status=0
  while IFS= read -r -d '' file; do
    bash -n "$file" || status=1
  done < <(scripts)
  return "$status"
}

# check_module DIRECTORY: runs all checks of one module.
check_module() (
  cd "$1" || exit
  status=0
  go mod tidy -diff || status=1
  # The versions of Kubernetes that the node image may have, each with a go.mod of its own.
  for modfile in versions/*.mod; do
    if [ -f "$modfile" ]; then go mod tidy -diff -modfile="$modfile" || status=1; fi
  done
  go mod verify >/dev/null || status=1
  # A module may be there for the versions of its tools alone.
  if [ -n "$(go list ./... 2>/dev/null)" ]; then
    # go vet's checks are among the linter's.
    "$linter" run --allow-serial-runners ./... || status=1
  fi
  exit "$status"
)

linter=$(golangci_lint) || exit
if [ "${1-}" = fmt ]; then
  exec "$linter" fmt
fi
check "configuration of golangci-lint" "$linter" config verify
check "tracked files" tools/tracked.sh
check "shell scripts" check_scripts
while IFS= read -r -d '' module; do
  check "module $module" check_module "$module"
done < <(modules)

if [ ${#failures[@]} -gt 0 ]; then
  printf 'lint failed: %s\n' "${failures[@]}" >&2
  exit 1
fi

#!/bin/bash
# Usage: mutant-test.sh TEST ARGUMENT... (by go test -exec and go run -exec, for gremlins)
# Runs the test of a package. For mount and refvol-plugin it also runs the suites that prove most of them, which are in another module. For
# binding, failure and opened it also runs the tests of the publisher, which does with them what a kubelet and the pods ask for. In the packages
# that the simulation proves, a mutant that survives also runs its usual seeds, so that no unit test repeats a property. A coverage profile then
# says that each line of the package has run: gremlins judges only what has, and Go counts no conditions of cases, no constants, and no code
# that another process runs.
profile='' limit=10m
for argument; do
  case $argument in
  -test.coverprofile=*) profile=${argument#*=} ;;
  -test.timeout=*) limit=${argument#*=} ;;
  esac
done
is_simulated() {
  case $PWD in */pkg/publisher | */pkg/binding | */pkg/opened | */pkg/stage | */pkg/manager | */pkg/access) ;; *) return 1 ;; esac
}
# The limit follows the time of all tests, most of which the simulation takes. A mutant that loops ends earlier: it may take all memory.
if is_simulated; then
  set -- "${@/#-test.timeout=*/-test.timeout=1m}"
  limit=4m
fi
# A mutant of a program that signals processes may signal all that it sees.
case $PWD in
*/cmd/refvol-notify)
  unshare --mount --pid --fork --kill-child --mount-proc -- bash -c 'export REFVOL_SANDBOX=$(readlink /proc/self/ns/mnt); "$@"; exit' - "$@" || exit
  ;;
*) "$@" || exit ;;
esac
case $PWD in
*/pkg/mount) GOFLAGS='-count=1 -vet=off -short' go -C ../../e2e test -failfast -timeout "$limit" ./suites/mount || exit ;;
*/cmd/refvol-plugin) GOFLAGS='-count=1 -vet=off -short' go -C ../../e2e test -failfast -timeout "$limit" ./suites/seen ./suites/receipts || exit ;;
*/pkg/binding | */pkg/failure | */pkg/opened) GOFLAGS='-count=1 -vet=off -short' go test -failfast -timeout 1m ../publisher || exit ;;
esac
if is_simulated; then
  GOFLAGS='-count=1 -vet=off' go test -failfast -timeout "$limit" ../../internal/simulation || exit
fi
if [ -n "$profile" ]; then
  package=$(sed -n '2s|/[^/]*:.*||p' "$profile")
  for file in *.go; do echo "$package/$file:1.1,1000000.1 1 1"; done >>"$profile"
fi

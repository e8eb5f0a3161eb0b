#!/bin/bash
# Usage: nightly.sh [PART...]
# Proves what every change can't wait for, in parts of an hour at most. Without arguments it runs all that have not passed on
# this commit yet, so a run that was ended goes on. Each part leaves bin/nightly/PART.log, and a line in PART.result: its
# outcome, seconds, date and commit.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

limit=3600
results=${NIGHTLY_RESULTS:-bin/nightly}
packages=(access authz apiclient binding check clientlog csi envfile events failure fleet health loglimit manager metrics mount opened payload permissions pod publisher-a publisher-b question receipts record refvol-notify refvol-plugin report requests room stage status taint volume writer-a writer-b)
parts=(unit random simulation crash crash-churn crash-calls faults consent limits receipts seen suites kernels-5.10 kernels-6.1 kernels-6.12 kernels-newest kind-1.35 kind-1.36 kind-newest kind-crio kind-long release arm64 fuzz)
for package in "${packages[@]}"; do parts+=("mutants-$package"); done

# Unit tests of another architecture need a processor of that kind, or QEMU in user mode.
arm64() {
  if ! command -v qemu-aarch64-static >/dev/null; then
    # A new container has no lists of packages.
    apt-get -qq update || return
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install qemu-user-static >/dev/null || return
  fi
  GOARCH=arm64 CGO_ENABLED=0 go test -trimpath -buildvcs=false -vet=off -timeout 50m -exec qemu-aarch64-static \
    ./pkg/access ./pkg/authz ./pkg/envfile ./pkg/payload ./pkg/pod ./pkg/question ./pkg/record ./pkg/report ./pkg/requests ./pkg/room ./pkg/stage ./pkg/status ./pkg/volume
}

# A suite with a control plane is a part. Two kinds of long tests of the suite crash are parts of their own: churn runs by itself, and calls
# kill the plugin or unmount a volume at one system call after another.
churn='^(TestChurnEndsWhereItBegan)$'
calls='^(TestKilledAnywhere|TestMountRemovedAtAnyCall)$'
suite() {
  local suite=$1
  shift
  REFVOL_LONG=1 tools/sandbox.sh go -C e2e test -race -trimpath -buildvcs=false -timeout 55m -count=1 -shuffle=on -v "$@" "./suites/$suite"
}

# The random tests of units, with new seeds, and the long forms of unit tests.
random() {
  local flags=(-race -trimpath -buildvcs=false -vet=off -count=1 -timeout 55m)
  REFVOL_SEEDS=2000 tools/sandbox.sh go test "${flags[@]}" -cpu 1 -run TestRandom ./pkg/publisher &&
    REFVOL_SEEDS=300 tools/sandbox.sh go test "${flags[@]}" -run FuzzSequences ./pkg/writer &&
    REFVOL_SEEDS=300 tools/sandbox.sh go test "${flags[@]}" -run TestModel ./cmd/refvol-notify &&
    REFVOL_SEEDS=50 tools/sandbox.sh go -C e2e test "${flags[@]}" ./suites/envfile &&
    REFVOL_LONG=1 go -C deploy test "${flags[@]}" . &&
    REFVOL_LONG=1 REFVOL_SEEDS=5000 go -C cmd/kubectl-refvol test "${flags[@]}" -run 'TestRolloutModel|TestWhatIsLinked' . &&
    REFVOL_LONG=1 tools/sandbox.sh go test "${flags[@]}" -run Faults ./pkg/writer &&
    REFVOL_LONG=1 go test "${flags[@]}" -run TestMemory ./pkg/report
}

# New seeds for half an hour, each under the race detector, with one processor as the unit tier has it.
simulation() {
  local end=$((SECONDS + 1800)) first
  go test -race -trimpath -buildvcs=false -vet=off -c -o bin/simulation.test ./internal/simulation || return
  while [ "$SECONDS" -lt "$end" ]; do
    first=$((RANDOM * 32768 + RANDOM + 1000))
    (cd internal/simulation && REFVOL_SIM_SEEDS=$first-$((first + 39)) ../../tools/sandbox.sh ../../bin/simulation.test -test.v -test.cpu 1 -test.run TestSimulation) || return
  done
}

# The long forms of the suites that have no part of their own.
suites() {
  local flags=(-race -trimpath -buildvcs=false -count=1 -v)
  REFVOL_LONG=1 tools/sandbox.sh go -C e2e test "${flags[@]}" -timeout 35m ./suites/envfile ./suites/fleet ./suites/manifests ./suites/notify &&
    REFVOL_LONG=1 tools/sandbox.sh go -C e2e/suites/bench test "${flags[@]}" -timeout 20m .
}

# A mutant that loops, links or removes does so in the sandbox. A survivor without a reason in survivors.txt fails the part. The time of the
# first run of the tests is the measure of the limit, so it neither compiles them nor comes from the cache. A package has hundreds of mutants,
# so their tests are not vetted. The files of the two largest packages are in two parts. gremlins gives the name of the module for a package
# main, which has no tests, so its go is a script that tests the directory.
mutants() {
  local package=${1%-[ab]} other='^$' dir gremlins=$PWD/bin/nightly/gremlins times=10
  dir=pkg/$package
  [ -d "$dir" ] || dir=cmd/$package
  [ "$package" = refvol-notify ] && times=4 # many of its mutants wait for a change that does not come
  if [ "$package" = writer ]; then export REFVOL_LONG=1; fi # each fault of the system calls
  case $1 in *-a) other='^[n-z]' ;; *-b) other='^[a-m]' ;; esac
  GOBIN=$gremlins go install github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 || return
  printf '#!/bin/bash\nargs=("$@")\n[ "${args[-1]}" = github.com/refvol/refvol ] && args[-1]=.\nexec %q "${args[@]}"\n' "$(command -v go)" >"$gremlins/go" &&
    chmod +x "$gremlins/go" || return
  go test -vet=off -cover -c -o /dev/null "./$dir" || return
  go test -vet=off -c -o /dev/null ./internal/simulation || return
  case $package in
  mount) go -C e2e test -vet=off -c -o /dev/null ./suites/mount || return ;;
  refvol-plugin) go -C e2e test -vet=off -run '^$' ./suites/seen ./suites/receipts || return ;;
  esac
  GOFLAGS="${GOFLAGS:-} -count=1 -vet=off -short -exec=$PWD/tools/mutant-test.sh" PATH=$gremlins:$PATH tools/sandbox.sh "$gremlins/gremlins" unleash --workers 2 --timeout-coefficient $times --exclude-files "$other" "./$dir" |
    go -C tools run ./survivors "../$dir" survivors.txt
}

# The kind tier with CRI-O on the workers, from a checkout that CRIO names, or else from GitHub.
crio() {
  local version=v1.36.3 cache
  if [ -z "${CRIO:-}" ]; then
    cache=$(realpath -m "${REFVOL_CACHE:-$HOME/.cache/refvol}")
    CRIO=$cache/cri-o-$version
    if [ ! -d "$CRIO" ]; then
      rm -rf "$CRIO.partial"
      git clone --quiet --depth 1 --branch $version https://github.com/cri-o/cri-o "$CRIO.partial" || return
      mv "$CRIO.partial" "$CRIO"
    fi
  fi
  make e2e CRIO="$CRIO"
}

run() {
  case $1 in
  unit) make test-unit TEST='test -race -trimpath -buildvcs=false -vet=off -timeout 55m -shuffle=on -count=5' ;;
  crash) suite crash -skip="$churn|$calls" ;;
  crash-churn) suite crash -run="$churn" ;;
  crash-calls) suite crash -run="$calls" ;;
  faults | consent | limits | receipts | seen) suite "$1" ;;
  random) random ;;
  simulation) simulation ;;
  suites) suites ;;
  kernels-*) make test-kernels KERNELS="${1#kernels-}" ;;
  kind-long) REFVOL_LONG=1 make e2e ARGS=-test.timeout=55m ;;
  kind-newest) make e2e ;;
  kind-crio) crio ;;
  kind-*) make e2e K8S="${1#kind-}" ;;
  release) go -C tools/release test -trimpath -buildvcs=false -count=1 -timeout 55m -v . ;;
  arm64) arm64 ;;
  fuzz) make test-fuzz FUZZTIME=1m ;;
  mutants-*) mutants "${1#mutants-}" ;;
  *)
    echo "nightly.sh: no part $1; the parts: ${parts[*]}" >&2
    return 2
    ;;
  esac
}

# A part runs in a process of its own, so that it can be ended whole.
if [ "${1:-}" = --part ]; then
  run "$2"
  exit
fi

mkdir -p "$results"
commit=$(git rev-parse HEAD)
git diff --quiet HEAD || commit+=-dirty
chosen=("$@")
if [ $# -eq 0 ]; then chosen=("${parts[@]}"); fi
status=0
for part in "${chosen[@]}"; do
  if [ $# -eq 0 ] && grep -qs "^ok .* $commit\$" "$results/$part.result"; then
    echo "$part: passed on this commit already"
    continue
  fi
  start=$SECONDS outcome=ok
  timeout --kill-after=30s $limit "$BASH" "$0" --part "$part" >"$results/$part.log" 2>&1 || outcome=failed status=1
  echo "$outcome $((SECONDS - start)) $(date -u +%FT%TZ) $commit" >"$results/$part.result"
  echo "$part: $(cat "$results/$part.result")"
  if [ "$outcome" = failed ]; then tail -n 20 "$results/$part.log"; fi
done
exit "$status"

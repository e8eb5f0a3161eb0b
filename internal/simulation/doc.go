// Package simulation runs the whole node under one clock: the plugin's own packages, wired by pkg/node, against an API server, mounts,
// opens of files, a kubelet and authors that do what a seed says. All of it is in one testing/synctest bubble, so an hour takes a second.
// What happens becomes a history, which internal/history judges.
//
// A seed fixes what the world does, not the order in which goroutines run. So a seed that fails once may not fail each time; run it some
// times, with its log:
//
//	REFVOL_SEED=7 tools/sandbox.sh go test -race -cpu 1 -count=5 -v -run TestSimulation ./internal/simulation
//	REFVOL_SEED=7 REFVOL_SIM_STEPS=20 ...    with fewer steps
//	REFVOL_SIM_SEEDS=1-1000 ...              many seeds
//
// The package has only tests. It must not know how a volume decides anything: it knows what users see.
package simulation

package main

import (
	"context"
	"slices"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/suites/bench/native"
	"github.com/refvol/refvol/e2e/suites/bench/writers"
)

// scenarios are all that there are, in the order in which they run.
func scenarios() []scenario {
	return []scenario{
		{id: "B1", name: "update", run: runUpdate},
		{id: "B2", name: "native", run: runNative, bare: true, outside: true},
		{id: "B3", name: "fanout", run: runFanout},
		{id: "B5", name: "publish", run: runPublish},
		{id: "B6", name: "memory", run: runMemory},
		{id: "B8", name: "restart", run: runRestart},
		{id: "B9", name: "writer", run: runWriter, bare: true},
		{id: "B12", name: "recovery", run: runRecovery, bare: true},
		{id: "B15", name: "rehearsal", run: runRehearsal, bare: true},
		{id: "B16", name: "open", run: runOpen},
	}
}

// goals are those of docs/benchmarks.md.
func goals() []measure.Goal {
	return slices.Concat(native.Goals(), writers.Goals(), recoveryGoals(), []measure.Goal{
		{Scenario: "B1", Result: "update.added_ms", Figure: "p50", Most: 0.5},
		{Scenario: "B1", Result: "update.added_ms", Figure: "p99", Most: 3},
		{Scenario: "B1", Result: "update.lost", Figure: "value", Most: 0},
		{Scenario: "B1", Result: "update.node_ratio", Figure: "value", Most: 1.1},
		{Scenario: "B1", Result: "update.node_lost", Figure: "value", Most: 0},
		{Scenario: "B3", Result: "fanout.last_ms", Figure: "p99", Most: 15},
		{Scenario: "B3", Result: "fanout.lost", Figure: "value", Most: 0},
		{Scenario: "B5", Result: "publish.warm_ms", Figure: "p50", Most: 1},
		{Scenario: "B5", Result: "publish.warm_ms", Figure: "p99", Most: 5},
		{Scenario: "B5", Result: "publish.cold_ms", Figure: "p50", Most: 8},
		{Scenario: "B5", Result: "publish.burst_s", Figure: "value", Most: 1},
		{Scenario: "B5", Result: "publish.node_warm_ratio", Figure: "value", Most: 1.25},
		{Scenario: "B5", Result: "publish.node_cold_ratio", Figure: "value", Most: 1.25},
		{Scenario: "B5", Result: "publish.node_burst_s", Figure: "value", Most: 1},
		{Scenario: "B6", Result: "memory.resident_ratio", Figure: "value", Most: 1.2},
		{Scenario: "B6", Result: "memory.watches_per_object", Figure: "value", Most: 1},
		{Scenario: "B6", Result: "memory.idle_cpu_percent", Figure: "value", Most: 1},
		{Scenario: "B6", Result: "memory.idle_requests_per_minute", Figure: "value", Most: 0},
		{Scenario: "B8", Result: "restart.current_s", Figure: "max", Most: 3},
		{Scenario: "B16", Result: "open.added_us", Figure: "value", Most: 1.5},
	})
}

// runNative is B2.
func runNative(ctx context.Context, l *lab) error { return native.Run(ctx, l.report) }

// runWriter is B9.
func runWriter(ctx context.Context, l *lab) error {
	return writers.Run(ctx, l.dir, l.bench.short, l.report)
}

package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// rehearsalLoad is B15: as many plugins as fit on a machine, with an object that all of their
// volumes show, beside one of each volume's own.
func rehearsalLoad(short bool) recoveryLoad {
	load := recoveryLoad{
		nodesLoad: nodesLoad{nodes: 300, objects: 1, beside: 20}, scenario: "B15", figure: "rehearsal",
		reference: "reflector", observed: true,
		all: []disruption{{"updated", 5, awaitWatches, updateAll}, {killedName, 3, awaitWatches, killAndChange}},
	}
	if short {
		load.nodes, load.beside = 3, 4
		for i := range load.all {
			load.all[i].rounds = 1
		}
	}
	return load
}

// runRehearsal is B15: how long many nodes take until all that they show is current, after an object
// that all volumes show was updated, and after it was changed while the API server was away.
func runRehearsal(ctx context.Context, l *lab) error {
	return l.recoverUnder(ctx, rehearsalLoad(l.bench.short))
}

// awaitWatches waits until all clients watch, as they don't at once after a start.
func awaitWatches(ctx context.Context, r *recovery) error {
	return harness.Poll(ctx, patience, time.Second, r.allWatched(ctx))
}

// updateAll has all objects change.
func updateAll(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	began = time.Now()
	return began, 0, r.writeAll(ctx)
}

// killAndChange kills the API server, has the first object change, and starts the API server.
func killAndChange(ctx context.Context, r *recovery) (began time.Time, ready time.Duration, err error) {
	object, err := r.client.CoreV1().ConfigMaps(namespace).Get(ctx, objectName(0), metav1.GetOptions{})
	if err != nil {
		return began, 0, err
	}
	if err := r.StopAPIServer(); err != nil {
		return began, 0, err
	}
	r.state++
	object.Data[valueKey] = state(r.state)
	if err := r.PutConfigMap(ctx, object); err != nil {
		return began, 0, err
	}
	return startServer(ctx, r)
}

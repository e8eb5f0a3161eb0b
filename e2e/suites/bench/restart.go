package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// restart is B8: the plugin is killed, some of the objects of its volumes change, and it
// starts again. That is timed from the exec until every changed file is read as it should
// be, and every object is watched again.
type restart struct {
	*lab
	node    *node
	volumes []*harness.Volume
	// states are what the objects are in.
	states []int
	// figures of each start, and of the reference's
	current, serving, cpu, reference []float64
}

func runRestart(ctx context.Context, l *lab) error {
	count, changed := scaled(l, 50, 1000), scaled(l, 5, 100)
	r := &restart{lab: l, volumes: volumes(count, count), states: make([]int, count)}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for round := range scaled(l, 1, 3) {
		if err := r.killAndStart(ctx, round, changed); err != nil {
			return err
		}
	}
	return errors.Join(
		l.report.Samples("restart.current_s", "s", r.current),
		l.report.Samples("restart.serving_s", "s", r.serving),
		l.report.Samples("restart.cpu_s", "s", r.cpu),
		l.report.Samples("restart.reference_s", "s", r.reference))
}

// prepare creates the objects and publishes the volumes.
func (r *restart) prepare(ctx context.Context) (err error) {
	if err := r.create(ctx, len(r.volumes), always(state(0))); err != nil {
		return err
	}
	if r.node, err = r.newNode(ctx, "node"); err != nil {
		return err
	}
	return r.node.publishAll(ctx, r.volumes, 16)
}

// killAndStart is one round.
func (r *restart) killAndStart(ctx context.Context, round, changed int) error {
	if err := r.node.Kill(); err != nil {
		return err
	}
	if err := r.startReference(ctx, round); err != nil {
		return err
	}
	a, err := r.changeMeanwhile(ctx, round, changed)
	if err != nil {
		return err
	}
	if err := errors.Join(r.start(ctx, a), a.Close()); err != nil {
		return err
	}
	return r.node.show(r.volumes, func(i int) string { return state(r.states[i]) })
}

// changeMeanwhile changes so many of the objects, which are others in each round, and
// returns a reader of their volumes.
func (r *restart) changeMeanwhile(ctx context.Context, round, changed int) (*volumesReader, error) {
	err := eventually(ctx, func() error { return r.watched(ctx, 0) })
	if err != nil {
		return nil, err
	}
	every := len(r.volumes) / changed
	var those []*harness.Volume
	for i := round % every; i < len(r.volumes); i += every {
		r.states[i] = round + 1
		those = append(those, r.volumes[i])
	}
	err = inParallel(len(those), 8, func(k int) error {
		return r.update(ctx, objectName(round%every+k*every), state(round+1))
	})
	if err != nil {
		return nil, err
	}
	return r.node.newVolumesReader(those, round+2)
}

// startReference takes the time in which as many bare reflectors learn the states of the
// objects, in a process of their own that is gone afterwards. No start can be faster that
// asks for each object by itself.
func (r *restart) startReference(ctx context.Context, round int) error {
	began := time.Now()
	reference, err := r.newReference("reference-"+strconv.Itoa(round), "reflector", len(r.volumes))
	if err != nil {
		return err
	}
	told, err := reference.await(ctx, len(r.volumes), func(i int) string { return state(r.states[i]) })
	if err != nil {
		return err
	}
	r.reference = append(r.reference, slices.MaxFunc(told, time.Time.Compare).Sub(began).Seconds())
	return reference.close()
}

// start starts the plugin and takes the times.
func (r *restart) start(ctx context.Context, a *volumesReader) error {
	began := time.Now()
	if err := r.node.Start(ctx); err != nil {
		return err
	}
	serving := time.Since(began)
	if err := eventually(ctx, a.complete); err != nil {
		return err
	}
	// The API server takes its time over an answer to this, and cores: last.
	if err := eventually(ctx, func() error { return r.watched(ctx, len(r.volumes)) }); err != nil {
		return err
	}
	current := time.Since(began)
	cpu, err := processorTime(r.node.PID())
	if err != nil {
		return err
	}
	r.current = append(r.current, current.Seconds())
	r.serving = append(r.serving, serving.Seconds())
	r.cpu = append(r.cpu, cpu.Seconds())
	return nil
}

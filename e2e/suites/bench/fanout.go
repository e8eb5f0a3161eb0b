package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

const (
	// fanoutVolumes is how many pods a node has at most, each with a volume of the object.
	fanoutVolumes = 110
	// fanoutInterval is the time between two updates: each is over before the next.
	fanoutInterval = 200 * time.Millisecond
)

// runFanout is B3: one object in a volume of each of a node's pods. An update is timed
// from the event of a bare watch until a reader has read it through the first of the
// volumes, and through the last one.
func runFanout(ctx context.Context, l *lab) error {
	updates := scaled(l, 5, 200)
	if err := l.create(ctx, 1, always("before")); err != nil {
		return err
	}
	n, err := l.newNode(ctx, "node")
	if err != nil {
		return err
	}
	all := volumes(fanoutVolumes, 1)
	if err := n.publishAll(ctx, all, 16); err != nil {
		return err
	}
	// One watch serves all of them, and goes on to.
	counts := func() error { return errors.Join(l.watched(ctx, 1), n.mounted(len(all))) }
	if err := eventually(ctx, counts); err != nil {
		return err
	}
	a, err := n.newVolumesReader(all, updates)
	if err != nil {
		return err
	}
	told, err := l.fanOut(ctx, updates, a)
	if err := errors.Join(err, a.Close()); err != nil {
		return err
	}
	last := func(int) string { return state(updates - 1) }
	return errors.Join(n.show(all, last), eventually(ctx, counts), l.reportFanout(updates, told, a))
}

// fanOut updates the object and returns what a bare watch told of it, once all is seen.
func (l *lab) fanOut(ctx context.Context, updates int, a *volumesReader) (told *timeline, err error) {
	told = newTimeline(updates)
	f, err := l.newFloor(ctx, objectName(0), told.see)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if _, err := l.updateSteadily(ctx, updates, fanoutInterval, func(i int) (object, value string) { return objectName(0), state(i) }); err != nil {
		return nil, err
	}
	return told, eventually(ctx, func() error { return errors.Join(told.complete(), a.complete()) })
}

// reportFanout reports when the first and the last volume showed each update, and fails
// if one was lost.
func (l *lab) reportFanout(updates int, told *timeline, a *volumesReader) error {
	lost, merged := a.lost()
	l.report.Value("fanout.lost", "updates", float64(lost))
	l.report.Value("fanout.merged", "updates", float64(merged))
	first, last := spread(updates, told.moments(), a)
	err := errors.Join(
		l.report.Samples("fanout.first_ms", "ms", measure.Milliseconds(first)),
		l.report.Samples("fanout.last_ms", "ms", measure.Milliseconds(last)))
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d updates of volumes were lost", lost, updates*len(a.shown)))
	}
	return err
}

// spread returns how long after its moment in told the first and the last of the volumes
// showed each state.
func spread(updates int, told []time.Time, a *volumesReader) (first, last []time.Duration) {
	after := make([][]time.Duration, updates)
	for _, t := range a.shown {
		for i, d := range t.after(told) {
			after[i] = append(after[i], d)
		}
	}
	for _, of := range after {
		first, last = append(first, slices.Min(of)), append(last, slices.Max(of))
	}
	return first, last
}

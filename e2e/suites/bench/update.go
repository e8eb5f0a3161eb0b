package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

const (
	// updateSize is about what the object of an update takes, in bytes.
	updateSize = 1 << 10
	// updateInterval is the time between two updates.
	updateInterval = 50 * time.Millisecond
)

// runUpdate is B1: one object in one volume, updated at a steady rate. Each update is
// timed from the request to the API server until a bare watch tells of it, and until a
// reader has read it through the volume.
func runUpdate(ctx context.Context, l *lab) error {
	updates := scaled(l, 20, 1000)
	if err := l.create(ctx, 1, "before", updateSize); err != nil {
		return err
	}
	n, err := l.newNode(ctx, "node", profiling)
	if err != nil {
		return err
	}
	v := volume(objectName(0))
	if err := n.Publish(ctx, v); err != nil {
		return err
	}
	told, shown := newTimeline(updates), newTimeline(updates)
	f, err := l.newFloor(ctx, objectName(0), told.see)
	if err != nil {
		return err
	}
	defer f.close()
	r, err := newReader(func(_, content string, at time.Time) { shown.see(content, at) })
	if err != nil {
		return err
	}
	if err := r.add(n.Target(v), n.valueFile(v)); err != nil {
		return errors.Join(err, r.close())
	}
	profiled := l.keepCPU(ctx, n, "update-cpu", time.Duration(updates)*updateInterval)
	sent, err := l.updateSteadily(ctx, objectName(0), updates, updateInterval)
	if err := errors.Join(err, profiled()); err != nil {
		return errors.Join(err, r.close())
	}
	if err == nil {
		err = eventually(ctx, func() error { return errors.Join(told.complete(), shown.complete()) })
	}
	if err := errors.Join(err, r.close()); err != nil {
		return err
	}
	return l.reportUpdates(sent, told, shown)
}

// updateSteadily updates an object so often, with a steady interval between two, and returns
// when each update was sent.
func (l *lab) updateSteadily(ctx context.Context, object string, updates int, interval time.Duration) (sent []time.Time, err error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for i := range updates {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C:
		}
		sent = append(sent, time.Now())
		if err := l.update(ctx, object, state(i), updateSize); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// reportUpdates reports what took how long, and fails if an update was lost.
func (l *lab) reportUpdates(sent []time.Time, told, shown *timeline) error {
	lost, merged := shown.lost()
	l.report.Value("update.lost", "updates", float64(lost))
	l.report.Value("update.merged", "updates", float64(merged))
	for name, all := range map[string][]time.Duration{
		"update.write_to_watch_ms": told.after(sent),
		"update.write_to_file_ms":  shown.after(sent),
		"update.added_ms":          shown.after(told.moments()),
	} {
		if err := l.report.Samples(name, "ms", measure.Milliseconds(all)); err != nil {
			return err
		}
	}
	if lost > 0 || len(sent) != len(shown.moments()) {
		return fmt.Errorf("%d of %d updates were lost", lost, len(sent))
	}
	return nil
}

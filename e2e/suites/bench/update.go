package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// updateInterval is the time between two updates.
	updateInterval = 50 * time.Millisecond
	// updateTurns is how often the identities take turns.
	updateTurns = 10
)

// runUpdate is B1: one object in one volume, updated at a steady rate. Each update is
// timed from the request to the API server until a bare watch tells of it, and until a
// reader has read it through the volume. The plugins of the identities take turns, so that the
// machine is the same for both.
func runUpdate(ctx context.Context, l *lab) (err error) {
	updates := scaled(l, 20, 1000)
	if err := l.create(ctx, len(identities()), always("before")); err != nil {
		return err
	}
	var all []*updating
	defer func() {
		for _, u := range all {
			err = errors.Join(err, u.close())
		}
	}()
	for i, identity := range identities() {
		u, err := l.newUpdating(ctx, identity, objectName(i), updates)
		if err != nil {
			return err
		}
		all = append(all, u)
	}
	if err := l.updateInTurns(ctx, all, updates); err != nil {
		return err
	}
	for _, u := range all {
		if err := errors.Join(u.await(ctx), u.reportAll()); err != nil {
			return err
		}
	}
	l.report.Value("update.node_ratio", "ratio", l.report.P50("update.node_added_ms")/l.report.P50("update.added_ms"))
	return nil
}

// updateInTurns sends so many updates of each object.
func (l *lab) updateInTurns(ctx context.Context, all []*updating, updates int) error {
	for range updateTurns {
		for _, u := range all {
			if err := u.send(ctx, updates/updateTurns); err != nil {
				return err
			}
		}
	}
	return nil
}

// updating is one object under updates, in a volume of a plugin of its own. It is for one
// goroutine.
type updating struct {
	*lab
	identity identity
	node     *node
	object   string
	// told and shown are when a bare watch told of each update, and when it was read in the
	// volume; sent is when each was sent.
	told, shown *timeline
	sent        []time.Time
	floor       *floor
	reader      *harness.SwitchWatch
}

// newUpdating publishes the volume and begins to watch and to read. The caller closes it.
func (l *lab) newUpdating(ctx context.Context, i identity, object string, updates int) (*updating, error) {
	u := &updating{lab: l, identity: i, object: object, told: newTimeline(updates), shown: newTimeline(updates)}
	var err error
	if u.node, err = l.newNodeAs(ctx, i); err != nil {
		return nil, err
	}
	v := i.volume(object)
	if err := u.node.storePods(ctx, []*harness.Volume{v}); err != nil {
		return nil, err
	}
	if err := u.node.Publish(ctx, v); err != nil {
		return nil, err
	}
	if u.floor, err = l.newFloor(ctx, object, u.told.see); err != nil {
		return nil, err
	}
	u.reader, err = newReader(func(_, content string, at time.Time) { u.shown.see(content, at) })
	if err != nil {
		u.floor.close()
		return nil, err
	}
	if err := u.reader.Add(u.node.Target(v)); err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}

func (u *updating) close() error {
	u.floor.close()
	return u.reader.Close()
}

// send sends so many updates more.
func (u *updating) send(ctx context.Context, updates int) error {
	first := len(u.sent)
	sent, err := u.updateSteadily(ctx, updates, updateInterval, func(i int) (object, value string) { return u.object, state(first + i) })
	u.sent = append(u.sent, sent...)
	return err
}

// await waits until the last update was seen.
func (u *updating) await(ctx context.Context) error {
	return eventually(ctx, func() error { return errors.Join(u.told.complete(), u.shown.complete()) })
}

// reportAll reports what took how long, and fails if an update was lost.
func (u *updating) reportAll() error {
	lost, merged := u.shown.lost()
	u.report.Value(u.identity.figure("update", "lost"), "updates", float64(lost))
	u.report.Value(u.identity.figure("update", "merged"), "updates", float64(merged))
	for name, all := range map[string][]time.Duration{
		"write_to_watch_ms": u.told.after(u.sent),
		"write_to_file_ms":  u.shown.after(u.sent),
		"added_ms":          u.shown.after(u.told.moments()),
	} {
		if err := u.report.Samples(u.identity.figure("update", name), "ms", measure.Milliseconds(all)); err != nil {
			return err
		}
	}
	if lost > 0 || len(u.sent) != len(u.shown.moments()) {
		return fmt.Errorf("--identity=%s: %d of %d updates were lost", u.identity, lost, len(u.sent))
	}
	return nil
}

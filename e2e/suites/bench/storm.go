package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// stormWriters is how many updates are under way at once.
const stormWriters = 32

// storm is B4: many objects, each in a volume, all updated once as fast as the API server
// takes them. A round is timed from the first update sent until the last object's new
// state is known: read through its volume, or told of by a bare watch in the reference
// program. The rounds of the two take turns, and while one is measured the other's process
// isn't there.
//
// The writing and the API server are most of a round of either, and share the cores with
// what is measured. So the ratio of the two tells what the plugin costs a busy node's
// updates, not how much more it does than a watch.
type storm struct {
	*lab
	node    *node
	volumes []*harness.Volume
	// round is the number of the present round, and the state that it writes.
	round int
	// refvol and reference are the times of rounds in seconds; toFile and toWatch those of
	// single updates.
	refvol, reference []float64
	toFile, toWatch   []time.Duration
	lost              int
}

func runStorm(ctx context.Context, l *lab) error {
	s := &storm{lab: l, volumes: volumes(scaled(l, 50, 1000), scaled(l, 50, 1000))}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	for range scaled(l, 1, 9) {
		if err := s.node.Terminate(ctx); err != nil {
			return err
		}
		if err := s.referenceRound(ctx); err != nil {
			return err
		}
		if err := s.node.Start(ctx); err != nil {
			return err
		}
		if err := s.refvolRound(ctx); err != nil {
			return err
		}
	}
	return s.reportStorm()
}

// prepare creates the objects and publishes the volumes.
func (s *storm) prepare(ctx context.Context) (err error) {
	if err := s.create(ctx, len(s.volumes), s.present); err != nil {
		return err
	}
	if s.node, err = s.newNode(ctx, "node", profiling); err != nil {
		return err
	}
	if err := s.node.publishAll(ctx, s.volumes, 16); err != nil {
		return err
	}
	return errors.Join(s.watched(ctx, len(s.volumes)), s.node.mounted(len(s.volumes)))
}

// referenceRound is a round of the reference program alone.
func (s *storm) referenceRound(ctx context.Context) error {
	r, err := s.newReference("reference-"+strconv.Itoa(s.round), "watch", len(s.volumes))
	if err != nil {
		return err
	}
	if _, err := r.await(ctx, len(s.volumes), s.present); err != nil {
		return err
	}
	if err := s.watched(ctx, len(s.volumes)); err != nil {
		return err
	}
	s.round++
	sent, err := s.writeAll(ctx)
	if err != nil {
		return err
	}
	told, err := r.await(ctx, len(s.volumes), s.present)
	if err != nil {
		return err
	}
	took, each := elapsed(sent, told)
	s.reference, s.toWatch = append(s.reference, took.Seconds()), append(s.toWatch, each...)
	return r.close()
}

// refvolRound is a round of the plugin alone.
func (s *storm) refvolRound(ctx context.Context) error {
	settled := func() error {
		return errors.Join(s.show(), s.node.pruned(s.volumes), s.watched(ctx, len(s.volumes)))
	}
	if err := harness.Poll(ctx, soon, 200*time.Millisecond, settled); err != nil {
		return err
	}
	before, err := s.traffic(ctx)
	if err != nil {
		return err
	}
	s.round++
	shown, sent, err := s.writeAndRead(ctx)
	if err != nil {
		return err
	}
	took, each := elapsed(sent, shown)
	s.refvol, s.toFile = append(s.refvol, took.Seconds()), append(s.toFile, each...)
	return errors.Join(s.show(), s.watched(ctx, len(s.volumes)),
		s.node.mounted(len(s.volumes)), s.unread(ctx, before))
}

// writeAndRead updates all objects and returns when each was read, and sent.
func (s *storm) writeAndRead(ctx context.Context) (shown, sent []time.Time, err error) {
	a, err := s.node.newVolumesReader(s.volumes, s.round+1)
	if err != nil {
		return nil, nil, err
	}
	profiled := s.keepCPU(ctx, s.node, "storm-cpu-"+state(s.round), time.Second)
	sent, err = s.writeAll(ctx)
	if err == nil {
		err = eventually(ctx, a.complete)
	}
	err = errors.Join(err, profiled())
	for _, t := range a.shown {
		moments := t.moments()
		if len(moments) <= s.round {
			s.lost++
			continue
		}
		shown = append(shown, moments[s.round])
	}
	if err := errors.Join(err, a.Close()); err != nil {
		return nil, nil, fmt.Errorf("%d of %d updates are lost: %w", s.lost, len(sent), err)
	}
	return shown, sent, nil
}

// writeAll updates all objects once, and returns when each update was sent.
func (s *storm) writeAll(ctx context.Context) (sent []time.Time, err error) {
	sent = make([]time.Time, len(s.volumes))
	err = inParallel(len(sent), stormWriters, func(i int) error {
		sent[i] = time.Now()
		return s.update(ctx, objectName(i), state(s.round))
	})
	return sent, err
}

// present is the state of every object in the present round.
func (s *storm) present(int) string { return state(s.round) }

// show returns an error unless all volumes show the present round's state.
func (s *storm) show() error {
	return s.node.show(s.volumes, s.present)
}

// elapsed returns the time from the first moment in from to the last in to, and that from
// each to each.
func elapsed(from, to []time.Time) (all time.Duration, each []time.Duration) {
	for i := range from {
		each = append(each, to[i].Sub(from[i]))
	}
	return slices.MaxFunc(to, time.Time.Compare).Sub(slices.MinFunc(from, time.Time.Compare)), each
}

func (s *storm) reportStorm() error {
	s.report.Value("storm.lost", "updates", float64(s.lost))
	s.report.Value("storm.ratio", "", measure.Median(s.refvol)/measure.Median(s.reference))
	return errors.Join(
		s.report.Samples("storm.refvol_s", "s", s.refvol),
		s.report.Samples("storm.reference_s", "s", s.reference),
		s.report.Samples("storm.write_to_file_ms", "ms", measure.Milliseconds(s.toFile)),
		s.report.Samples("storm.write_to_watch_ms", "ms", measure.Milliseconds(s.toWatch)))
}

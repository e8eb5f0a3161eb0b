// Package writers compares the writer of volumes with the kubelet's AtomicWriter.
//
// It owns what the two are asked to write, the tmpfs that they write to, and the proof
// that either has written it. It must not know what is done with the figures.
package writers

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

const (
	// scenario is the id of what Run measures.
	scenario = "B9"
	// keyBytes is how long each content is.
	keyBytes = 100
)

// sizes returns the numbers of keys that volumes have.
func sizes(short bool) []int {
	if short {
		return []int{1, 10, 100}
	}
	return []int{1, 10, 100, 1000, 5000}
}

// repetitions returns how often each step is taken of a volume of n keys: the small are
// quick, and of the large there are some milliseconds in each sample.
func repetitions(n int, short bool) int {
	if short {
		return 3
	}
	return min(max(25_000/n, 12), 250)
}

// Goals returns what the results of Run are held against.
func Goals() []measure.Goal {
	var goals []measure.Goal
	for _, n := range sizes(false) {
		goals = append(goals, measure.Goal{Scenario: scenario, Result: name("first", n, "ratio"), Figure: "value", Most: 1.1})
		if n >= 100 {
			goals = append(goals, measure.Goal{Scenario: scenario, Result: name("same", n, "ratio"), Figure: "value", Most: 2, Least: true})
		}
	}
	return append(goals, measure.Goal{Scenario: scenario, Result: name("change", 1000, "ratio"), Figure: "value", Most: 3, Least: true})
}

// Run has both writers write volumes of each size on a tmpfs that it mounts below dir,
// in turn, and reports how long they took:
//
//   - first: all keys into an empty directory;
//   - change: one key changed, the others equal, all in new memory, as they are when an
//     object arrives from the API server; with it the removal of what was there before,
//     which the publisher does later;
//   - same: nothing changed, and the contents are in the same memory.
//
// Durations are in milliseconds, of p50 comes the ratio: of first ours by upstream's, of
// all others upstream's by ours. After each step the volume is read, and what it does
// not show, or should not, is an error. The caller is in a mount namespace of its own.
// With short, sizes and repetitions are small, and the figures mean little.
func Run(ctx context.Context, dir string, short bool, report *measure.Report) (err error) {
	tmpfs, unmount, err := mountTmpfs(dir)
	if err != nil {
		return err
	}
	defer func() {
		if e := unmount(); err == nil {
			err = e
		}
	}()
	for _, n := range sizes(short) {
		d := duel{dir: tmpfs, keys: n, rounds: repetitions(n, short), report: report}
		if err := d.run(ctx); err != nil {
			return fmt.Errorf("writers, %d keys: %w", n, err)
		}
	}
	return nil
}

// duel is both writers at one size.
type duel struct {
	dir    string
	keys   int
	rounds int
	report *measure.Report
}

func (d *duel) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.first, d.change, d.same} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *duel) first(ctx context.Context) error {
	var times pair
	for range d.rounds {
		err := d.withVolumes(func(ours, upstream *volume) error {
			return times.take(ctx, ours, upstream, newContents(d.keys), newGeneration)
		})
		if err != nil {
			return fmt.Errorf("first write: %w", err)
		}
	}
	return d.reportPair("first", &times, measure.Median(times.ours)/measure.Median(times.upstream))
}

func (d *duel) change(ctx context.Context) error {
	return d.later(ctx, "change", newGeneration, func(round int, before contents) contents {
		next := before.copy()
		next.change(round)
		return next
	})
}

func (d *duel) same(ctx context.Context) error {
	return d.later(ctx, "same", sameGeneration, func(_ int, before contents) contents { return before })
}

// later takes a step of volumes that are written already.
func (d *duel) later(ctx context.Context, step string, then expectation, next func(round int, before contents) contents) error {
	var times pair
	err := d.withVolumes(func(ours, upstream *volume) error {
		keys := newContents(d.keys)
		if err := new(pair).take(ctx, ours, upstream, keys, newGeneration); err != nil {
			return err
		}
		for round := range d.rounds {
			keys = next(round, keys)
			if err := times.take(ctx, ours, upstream, keys, then); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return d.reportPair(step, &times, measure.Median(times.upstream)/measure.Median(times.ours))
}

func (d *duel) reportPair(step string, times *pair, ratio float64) error {
	if err := d.report.Samples(name(step, d.keys, "ms"), "ms", times.ours); err != nil {
		return err
	}
	if err := d.report.Samples(name(step, d.keys, "upstream_ms"), "ms", times.upstream); err != nil {
		return err
	}
	d.report.Value(name(step, d.keys, "ratio"), "ratio", ratio)
	return nil
}

func name(step string, keys int, figure string) string {
	return fmt.Sprintf("writer.%s_%d_%s", step, keys, figure)
}

// samples is how long a step took each time, in milliseconds.
type samples []float64

// pair is the samples of both writers.
type pair struct{ ours, upstream samples }

// take has either writer write keys, one right after the other.
func (p *pair) take(ctx context.Context, ours, upstream *volume, keys contents, then expectation) error {
	if err := p.ours.take(ctx, ours, keys, then); err != nil {
		return err
	}
	return p.upstream.take(ctx, upstream, keys, then)
}

// take adds how long the volume's writer takes to write keys, and proves that it has.
func (s *samples) take(ctx context.Context, v *volume, keys contents, then expectation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	before, err := v.generation()
	if err != nil {
		return err
	}
	write := v.writer.prepare(ctx, keys)
	runtime.GC() // so that nobody clears up after somebody else while the clock runs
	start := time.Now()
	err = write()
	took := time.Since(start)
	if err == nil {
		err = v.check(keys, before, then)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", v.path, err)
	}
	*s = append(*s, float64(took)/float64(time.Millisecond))
	return nil
}

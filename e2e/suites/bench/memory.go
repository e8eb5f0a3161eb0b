package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// runMemory is B6: what a process takes that shows so many volumes of one object each,
// against one of as many bare reflectors. Both are looked at in the same way, in a process
// of its own for each number. It also tells how many watches each object has, and what the plugin does while
// nothing changes.
func runMemory(ctx context.Context, l *lab) error {
	counts := scaled(l, []int{0, 20}, []int{0, 100, 1000, 5000})
	most := slices.Max(counts)
	if err := l.create(ctx, most, always("value")); err != nil {
		return err
	}
	ours, theirs := map[int]footprint{}, map[int]footprint{}
	for _, count := range counts {
		var err error
		if theirs[count], err = l.referenceFootprint(ctx, count); err != nil {
			return err
		}
		if ours[count], err = l.pluginFootprint(ctx, count); err != nil {
			return err
		}
	}
	l.reportFootprints("refvol", ours)
	l.reportFootprints("reference", theirs)
	perVolume := func(of func(footprint) float64) float64 {
		return (of(ours[most]) - of(ours[0])) / (of(theirs[most]) - of(theirs[0]))
	}
	l.report.Value("memory.resident_ratio", "ratio", perVolume(func(f footprint) float64 { return f.resident }))
	l.report.Value("memory.in_use_ratio", "ratio", perVolume(func(f footprint) float64 { return f.heap + f.stacks }))
	return nil
}

func (l *lab) reportFootprints(of string, all map[int]footprint) {
	for _, count := range slices.Sorted(maps.Keys(all)) {
		f := all[count]
		name := func(what string) string { return fmt.Sprintf("memory.%s_%s_%d", of, what, count) }
		l.report.Value(name("rss"), "bytes", f.resident)
		l.report.Value(name("heap"), "bytes", f.heap)
		l.report.Value(name("stacks"), "bytes", f.stacks)
		l.report.Value(name("goroutines"), "goroutines", float64(f.goroutines))
		l.report.Value(name("connections"), "connections", float64(f.connections))
	}
	counts := slices.Sorted(maps.Keys(all))
	first, last := counts[0], counts[len(counts)-1]
	l.report.Value(fmt.Sprintf("memory.%s_rss_per_volume", of), "bytes", (all[last].resident-all[first].resident)/float64(last-first))
}

// referenceFootprint is that of a process with count reflectors.
func (l *lab) referenceFootprint(ctx context.Context, count int) (footprint, error) {
	r, err := l.newReference(fmt.Sprint("reflectors-", count), "reflector", count)
	if err != nil {
		return footprint{}, err
	}
	if _, err := r.await(ctx, count, always("value")); err != nil {
		return footprint{}, err
	}
	f, err := r.footprint(ctx)
	if err != nil {
		return f, err
	}
	if err := r.close(); err != nil {
		return f, err
	}
	return f, eventually(ctx, func() error { return l.watched(ctx, 0) })
}

// pluginFootprint is that of a plugin with count volumes of an object each.
func (l *lab) pluginFootprint(ctx context.Context, count int) (footprint, error) {
	n, err := l.newNode(ctx, fmt.Sprint("node-", count), profiling, resyncInterval(l))
	if err != nil {
		return footprint{}, err
	}
	if err := n.publishAll(ctx, volumes(count, count), 16); err != nil {
		return footprint{}, err
	}
	if err := n.mounted(count); err != nil {
		return footprint{}, err
	}
	if err := eventually(ctx, func() error { return l.watched(ctx, count) }); err != nil {
		return footprint{}, err
	}
	s, err := n.subject()
	if err != nil {
		return footprint{}, err
	}
	f, err := s.footprint(ctx)
	if err != nil {
		return f, err
	}
	if count == idleCount(l) {
		if err := errors.Join(l.reportWatches(ctx, count), n.reportIdle(ctx)); err != nil {
			return f, err
		}
	}
	if err := n.Close(); err != nil {
		return f, err
	}
	return f, eventually(ctx, func() error { return l.watched(ctx, 0) })
}

// reportWatches reports how many watches there are for each of so many objects.
func (l *lab) reportWatches(ctx context.Context, objects int) error {
	open, err := l.OpenWatches(ctx, "configmaps")
	l.report.Value("memory.watches_per_object", "watches", float64(open-l.ownWatches)/float64(objects))
	return err
}

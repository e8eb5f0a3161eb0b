package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	pace = 2 * time.Millisecond
	// moreHeap is how many MiB more than at the start the plugin may have in use, of
	// numbers that are rounded down: less than 2 MiB.
	moreHeap = 1
)

// stock is what the plugin has while it has no volume.
type stock struct {
	descriptors, goroutines map[string]int
	watches                 [2]int // of ConfigMaps and Secrets, the API server's own included
	heap                    int    // MiB
}

// String names the figures; the goroutines' is of the last look at them.
func (s stock) String() string {
	count := func(m map[string]int) (n int) {
		for _, more := range m {
			n += more
		}
		return n
	}
	return fmt.Sprintf("%d MiB, %d descriptors, %d goroutines, %d+%d watches",
		s.heap, count(s.descriptors), count(s.goroutines), s.watches[0], s.watches[1])
}

// checkLive has every volume show its objects, and the plugin have one mount and one
// record for each.
func (s *soak) checkLive(ctx context.Context) error {
	volumes := 0
	for _, w := range s.workers {
		for _, v := range w.volumes {
			if v == nil {
				continue
			}
			volumes++
			if err := w.check(ctx, v); err != nil {
				return err
			}
		}
	}
	// A record that is being replaced is two files for a moment.
	return harness.Poll(ctx, within, pace, func() error { return s.checkOwned(volumes) })
}

func (s *soak) checkOwned(volumes int) error {
	mounts, err := s.plugin.VolumeMounts()
	if err != nil {
		return err
	}
	records, err := s.plugin.Records()
	if err != nil {
		return err
	}
	if len(mounts) != volumes || len(records) != volumes {
		return fmt.Errorf("%d mounts and %d records for %d volumes: %v", len(mounts), len(records), volumes, records)
	}
	return nil
}

// checkIdle has the plugin, after the last unpublish, have what it had at the start.
func (s *soak) checkIdle(ctx context.Context) error {
	if err := s.checkLive(ctx); err != nil {
		return err
	}
	pods, err := os.ReadDir(filepath.Join(s.plugin.KubeletDir(), "pods"))
	if err != nil || len(pods) > 0 {
		return fmt.Errorf("left of pods: %v, %v", pods, err)
	}
	var now stock
	err = harness.Poll(ctx, within, pace, func() error {
		if now, err = s.takeStock(ctx); err != nil {
			return err
		}
		if !maps.Equal(now.descriptors, s.idle.descriptors) || now.watches != s.idle.watches {
			return fmt.Errorf("has %s (%v), had at the start %s (%v)", now, now.descriptors, s.idle, s.idle.descriptors)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.left = now
	if now.heap > s.idle.heap+moreHeap {
		return fmt.Errorf("has %d MiB of live heap, had %d at the start", now.heap, s.idle.heap)
	}
	return nil
}

// checkGoroutines ends the plugin for a look at its goroutines, and starts it.
func (s *soak) checkGoroutines(ctx context.Context) error {
	goroutines, err := s.plugin.Quit(ctx)
	if err != nil {
		return err
	}
	s.left.goroutines = goroutines
	var errs []error
	for _, f := range slices.Sorted(maps.Keys(goroutines)) {
		if n := goroutines[f]; n > s.idle.goroutines[f] {
			errs = append(errs, fmt.Errorf("%d goroutines of %s, at the start %d", n, f, s.idle.goroutines[f]))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := s.searchLog(ctx); err != nil {
		return err
	}
	return s.plugin.Start(ctx)
}

// searchLog looks for values and tokens in all that the plugin, which has ended, has shown
// and written, and empties its log: hours of logging would fill the disk, and what led here
// was well.
func (s *soak) searchLog(ctx context.Context) error {
	_, told := harness.EventLeaks(ctx, s.controlPlane.Client(), namespace)
	if err := errors.Join(told, s.plugin.ShownLeaks(ctx), s.plugin.DiskLeaks()); err != nil {
		return err
	}
	log, err := os.Stat(s.plugin.LogPath())
	if err != nil {
		return err
	}
	s.searched += log.Size()
	return os.Truncate(s.plugin.LogPath(), 0)
}

func (s *soak) takeStock(ctx context.Context) (stock, error) {
	now := stock{descriptors: make(map[string]int), goroutines: s.left.goroutines}
	for i, resource := range []string{"configmaps", "secrets"} {
		var err error
		if now.watches[i], err = s.controlPlane.OpenWatches(ctx, resource); err != nil {
			return stock{}, err
		}
	}
	open, err := s.plugin.Descriptors()
	if err != nil {
		return stock{}, err
	}
	for _, d := range open {
		now.descriptors[d]++
	}
	now.heap, err = s.idleHeap(ctx)
	return now, err
}

// idleHeap returns what the plugin has in use without volumes. It publishes a volume
// now and then until two collections have begun since it was called.
func (s *soak) idleHeap(ctx context.Context) (int, error) {
	first, _, err := s.plugin.LiveHeap()
	if err != nil {
		return 0, err
	}
	w := s.workers[0]
	for {
		now, mib, err := s.plugin.LiveHeap()
		if err != nil || now >= first+3 {
			return mib, err
		}
		if err := w.publish(ctx, 0); err != nil {
			return 0, err
		}
		if err := w.drain(ctx); err != nil {
			return 0, err
		}
	}
}

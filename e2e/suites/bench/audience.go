package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// audience is a reader of many volumes of a node, with a timeline for each. The caller
// closes it.
type audience struct {
	*reader
	// shown has the timelines, in the order of the volumes.
	shown []*timeline
}

// newAudience returns a reader of the volumes, whose objects will go through so many
// numbered states.
func (n *node) newAudience(volumes []*harness.Volume, states int) (*audience, error) {
	a := &audience{shown: make([]*timeline, len(volumes))}
	byPath := make(map[string]*timeline, len(volumes))
	for i, v := range volumes {
		a.shown[i] = newTimeline(states)
		byPath[n.valueFile(v)] = a.shown[i]
	}
	var err error
	a.reader, err = newReader(func(path, content string, at time.Time) { byPath[path].see(content, at) })
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if err := a.add(n.Target(v), n.valueFile(v)); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a, nil
}

// complete returns nil once the last state of each volume was seen.
func (a *audience) complete() error {
	for i, t := range a.shown {
		if err := t.complete(); err != nil {
			return fmt.Errorf("volume %d: %w", i, err)
		}
	}
	return nil
}

// lost is the sum of what the volumes lost, and of what was merged, as of timeline.lost.
func (a *audience) lost() (lost, merged int) {
	for _, t := range a.shown {
		l, m := t.lost()
		lost, merged = lost+l, merged+m
	}
	return lost, merged
}

// show returns an error unless volume i shows value(i), for all i.
func (n *node) show(volumes []*harness.Volume, value func(i int) string) error {
	for i, v := range volumes {
		content, err := os.ReadFile(n.valueFile(v))
		if err != nil {
			return fmt.Errorf("volume %d: %w", i, err)
		}
		if string(content) != value(i) {
			return fmt.Errorf("volume %d shows %q, want %q", i, content, value(i))
		}
	}
	return nil
}

// pruned returns an error unless each of the volumes holds one generation: the plugin has
// nothing left to do for it.
func (n *node) pruned(volumes []*harness.Volume) error {
	for i, v := range volumes {
		entries, err := os.ReadDir(n.Target(v))
		if err != nil {
			return fmt.Errorf("volume %d: %w", i, err)
		}
		generations := 0
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), "..") {
				generations++
			}
		}
		if generations != 1 {
			return fmt.Errorf("volume %d holds %d generations, want 1", i, generations)
		}
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// volumesReader is a reader of many volumes, with a timeline for each. The caller
// closes it.
type volumesReader struct {
	*harness.SwitchWatch
	// shown has the timelines, in the order of the volumes.
	shown []*timeline
}

// newVolumesReader returns a reader of the node's volumes, whose objects will go through so many
// numbered states.
func (n *node) newVolumesReader(volumes []*harness.Volume, states int) (*volumesReader, error) {
	files := make([]string, len(volumes))
	for i, v := range volumes {
		files[i] = n.valueFile(v)
	}
	return readVolumes(files, states)
}

// readVolumes is newVolumesReader of the files at the roots of volumes.
func readVolumes(files []string, states int) (*volumesReader, error) {
	a := &volumesReader{shown: make([]*timeline, len(files))}
	byPath := make(map[string]*timeline, len(files))
	for i, file := range files {
		a.shown[i] = newTimeline(states)
		byPath[file] = a.shown[i]
	}
	var err error
	a.SwitchWatch, err = newReader(func(path, content string, at time.Time) { byPath[path].see(content, at) })
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := a.Add(filepath.Dir(file)); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// complete returns nil once the last state of each volume was seen.
func (a *volumesReader) complete() error {
	for i, t := range a.shown {
		if err := t.complete(); err != nil {
			return fmt.Errorf("volume %d: %w", i, err)
		}
	}
	return nil
}

// lost is the sum of what the volumes lost, and of what was merged, as of timeline.lost.
func (a *volumesReader) lost() (lost, merged int) {
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

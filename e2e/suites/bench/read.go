package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// timeline is when each of a row of numbered states of an object was seen, or a later one in its place. It is safe for concurrent use; mu
// guards it.
type timeline struct {
	mu sync.Mutex
	at []time.Time
}

func state(number int) string { return strconv.Itoa(number) }

// see notes that a state is seen. What is no number of a state, such as the one from before the first, is ignored.
func (t *timeline) see(value string, at time.Time) {
	number, err := strconv.Atoi(value)
	t.mu.Lock()
	defer t.mu.Unlock()
	for err == nil && len(t.at) <= number {
		t.at = append(t.at, at)
	}
}

func (t *timeline) moments() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]time.Time(nil), t.at...)
}

// after returns, for each state, how long after the moment in from it was seen here.
func (t *timeline) after(from []time.Time) []time.Duration {
	var out []time.Duration
	for number, at := range t.moments() {
		out = append(out, at.Sub(from[number]))
	}
	return out
}

// volumesReader is a reader of many volumes. Whenever one is switched, it reads the value's file by its path, as a
// container does. The caller closes it, and so learns what a reader should not have seen.
type volumesReader struct {
	*harness.SwitchWatch
	files []string
	// shown has the timelines, in the order of the files.
	shown []*timeline
}

func readVolumes(files []string) (*volumesReader, error) {
	r := &volumesReader{files: files, shown: make([]*timeline, len(files))}
	byPath := make(map[string]*timeline, len(files))
	for i, file := range files {
		r.shown[i] = &timeline{}
		byPath[file] = r.shown[i]
	}
	read := func(dir string) error {
		path := dir + "/" + valueKey
		content, err := readSmall(path)
		if err == nil {
			byPath[path].see(content, time.Now())
		}
		return err
	}
	watch, err := harness.WatchSwitches(read)
	if err != nil {
		return nil, err
	}
	r.SwitchWatch = watch
	for _, file := range files {
		dir := filepath.Dir(file)
		if err := errors.Join(r.Add(dir), read(dir)); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// readSmall returns the content of a file of a few bytes with as few calls as can be: what a reader of many volumes
// takes, it takes from what it times.
func readSmall(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("a reader opened %s: %w", path, err)
	}
	defer unix.Close(fd)
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err == nil && (n == 0 || n == len(buf)) {
		err = fmt.Errorf("%d bytes", n)
	}
	if err != nil {
		return "", fmt.Errorf("a reader read %s: %w", path, err)
	}
	return string(buf[:n]), nil
}

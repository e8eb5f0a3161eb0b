package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// bare writes a volume with the system calls of an update, and does nothing else: no writer that gives the same files can be faster. It lists
// no directory and verifies nothing.
type bare struct {
	root  int
	names int // of generations
	shown contents
	now   string
}

// newBare returns an empty volume.
func newBare(path string) (*written, error) {
	if err := os.Mkdir(path, dirMode); err != nil {
		return nil, err
	}
	root, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open "+path, err)
	}
	b := &bare{root: root}
	prepare := func(_ context.Context, keys contents) func() error {
		same := b.now != ""
		links, names := map[string]bool{}, slices.Sorted(maps.Keys(keys))
		for _, key := range names {
			had, ok := b.shown[key]
			links[key] = ok && bytes.Equal(had, keys[key])
			same = same && links[key]
		}
		b.shown = keys
		if same {
			return func() error { return nil }
		}
		b.names++
		return func() error { return b.write(fmt.Sprintf("..%d", b.names), names, keys, links) }
	}
	return &written{path, func() error { return errors.Join(unix.Close(root), os.RemoveAll(path)) }, prepare}, nil
}

// write makes a generation with keys, shows it, and removes the one before. links are the keys whose files stay.
func (b *bare) write(name string, keys []string, values contents, links map[string]bool) error {
	old := b.now
	calls := []error{unix.Mkdirat(b.root, name+".new", 0o700)}
	dir, err := unix.Openat(b.root, name+".new", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	calls = append(calls, err)
	for _, key := range keys {
		if links[key] {
			calls = append(calls, unix.Linkat(b.root, old+"/"+key, dir, key, 0))
			continue
		}
		file, err := unix.Openat(dir, key, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		_, writeErr := unix.Write(file, values[key])
		calls = append(calls, err, writeErr, unix.Fchown(file, 0, 0), unix.Fchmod(file, fileMode), unix.Close(file))
	}
	calls = append(calls, unix.Fchown(dir, 0, 0), unix.Fchmod(dir, dirMode), unix.Close(dir),
		unix.Renameat(b.root, name+".new", b.root, name), unix.Symlinkat(name, b.root, "..data_tmp"), unix.Renameat(b.root, "..data_tmp", b.root, "..data"))
	for _, key := range keys {
		if old == "" {
			calls = append(calls, unix.Symlinkat("..data/"+key, b.root, key))
		} else {
			calls = append(calls, unix.Unlinkat(b.root, old+"/"+key, 0))
		}
	}
	if old != "" {
		calls = append(calls, unix.Unlinkat(b.root, old, unix.AT_REMOVEDIR))
	}
	b.now = name
	return errors.Join(calls...)
}

// floorOfOneFile returns the median of so many changes of a volume of one file by the bare system calls, in milliseconds.
func (l *lab) floorOfOneFile(ctx context.Context, changes int) (float64, error) {
	tmpfs, err := l.mountTmpfs()
	if err != nil {
		return 0, err
	}
	v, err := newBare(filepath.Join(tmpfs, "volume"))
	if err != nil {
		return 0, err
	}
	var times []float64
	keys := newContents(1)
	for i := range changes + 1 {
		took, stepErr := v.take(ctx, keys, true)
		if stepErr != nil {
			return 0, errors.Join(fmt.Errorf("change %d: %w", i, stepErr), v.remove())
		}
		if i > 0 {
			times = append(times, float64(took)/float64(time.Millisecond))
		}
		keys = keys.changed(i)
	}
	return measure.Median(times), errors.Join(l.report.Samples("update.floor_ms", "ms", times), v.remove())
}

// floorOfMany returns the median time in which the bare system calls change so many volumes of one file, on all processors, in milliseconds.
func (l *lab) floorOfMany(ctx context.Context, volumes, changes int) (floor float64, err error) {
	tmpfs, err := l.mountTmpfs()
	if err != nil {
		return 0, err
	}
	var all []*written
	defer func() {
		for _, v := range all {
			err = errors.Join(err, v.remove())
		}
	}()
	for i := range volumes {
		v, err := newBare(filepath.Join(tmpfs, fmt.Sprint("volume-", i)))
		if err != nil {
			return 0, err
		}
		all = append(all, v)
	}
	var times []float64
	keys := newContents(1)
	for i := range changes + 1 {
		writes := make([]func() error, len(all))
		for k, v := range all {
			writes[k] = v.prepare(ctx, keys)
		}
		began := time.Now()
		if err := inParallel(len(writes), runtime.GOMAXPROCS(0), func(k int) error { return writes[k]() }); err != nil {
			return 0, fmt.Errorf("change %d: %w", i, err)
		}
		if i > 0 {
			times = append(times, float64(time.Since(began))/float64(time.Millisecond))
		}
		keys = keys.changed(i)
	}
	return measure.Median(times), l.report.Samples("fanout.floor_ms", "ms", times)
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	upstream "k8s.io/kubernetes/pkg/volume/util"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	refvol "github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

const fileMode, dirMode = 0o644, 0o755

// runWriter is B9: the writer of volumes and the kubelet's AtomicWriter write volumes of each size on a tmpfs, in
// turn: first all keys into an empty directory; then a change of one key, all in new memory, as they are when an
// object arrives, with the removal of what was there before; then the same. The ratio is of p50: of first ours by
// upstream's, of the others upstream's by ours. The floor is the bare
// system calls of a change, and its ratio is ours by these. After each step the volume is read, and what it does not show, or
// should not, is an error.
func runWriter(ctx context.Context, l *lab) error {
	tmpfs, err := l.mountTmpfs()
	if err != nil {
		return err
	}
	for _, n := range scaled(l, []int{1, 10, 100}, []int{1, 10, 100, 1000, 5000}) {
		times := map[string]*[3][]float64{"first": {}, "change": {}, "same": {}} // ours, upstream's, and the bare calls'
		// The small are quick, and of the large there are some milliseconds in each sample.
		for round := range scaled(l, 3, min(max(25_000/n, 12), 250)) {
			if err := duel(ctx, tmpfs, n, round, times); err != nil {
				return fmt.Errorf("%d keys, round %d: %w", n, round, err)
			}
		}
		for step, of := range times {
			ratio := measure.Median(of[1]) / measure.Median(of[0])
			if step == "first" {
				ratio = 1 / ratio
			}
			figure := fmt.Sprintf("writer.%s_%d_", step, n)
			l.report.Value(figure+"ratio", "ratio", ratio)
			err := errors.Join(l.report.Samples(figure+"ms", "ms", of[0]), l.report.Samples(figure+"upstream_ms", "ms", of[1]))
			if err != nil {
				return err
			}
		}
		floor := fmt.Sprintf("writer.floor_%d_", n)
		l.report.Value(floor+"ratio", "ratio", measure.Median(times["change"][0])/measure.Median(times["change"][2]))
		if err := l.report.Samples(floor+"ms", "ms", times["change"][2]); err != nil {
			return err
		}
	}
	return nil
}

// mountTmpfs mounts a tmpfs until the scenario ends, and returns its path.
func (l *lab) mountTmpfs() (string, error) {
	tmpfs := filepath.Join(l.dir, "tmpfs")
	if err := os.Mkdir(tmpfs, dirMode); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", tmpfs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=512m,nr_inodes=100000,mode=0755"); err != nil {
		return "", os.NewSyscallError("mount "+tmpfs, err)
	}
	l.onEnd(func() error { return os.NewSyscallError("umount "+tmpfs, unix.Unmount(tmpfs, 0)) })
	return tmpfs, nil
}

// duel has all writers take each step on a volume of n keys, one right after the other, and adds the milliseconds.
func duel(ctx context.Context, dir string, n, round int, times map[string]*[3][]float64) (err error) {
	var all [3]*written
	for i, newVolume := range []func(string) (*written, error){newRefvol, newUpstream, newBare} {
		if all[i], err = newVolume(filepath.Join(dir, fmt.Sprint("volume-", i))); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, all[0].remove(), all[1].remove(), all[2].remove()) }()
	keys := newContents(n)
	for _, step := range []string{"first", "change", "same"} {
		if step == "change" {
			keys = keys.changed(round)
		}
		for i, v := range all {
			took, err := v.take(ctx, keys, step != "same")
			if err != nil {
				return fmt.Errorf("%s: %s: %w", step, v.path, err)
			}
			times[step][i] = append(times[step][i], float64(took)/float64(time.Millisecond))
		}
	}
	return nil
}

// contents is what a volume is to show, by key.
type contents map[string][]byte

// newContents returns n keys, each with a content of its own of 100 bytes.
func newContents(n int) contents {
	c := make(contents, n)
	for i := range n {
		c[fmt.Sprint("key-", i)] = bytes.Repeat(fmt.Appendf(nil, "%09d\n", i), 10)
	}
	return c
}

// changed returns the contents in new memory, with another text for one key, which is a different one each round.
func (c contents) changed(round int) contents {
	next := make(contents, len(c))
	for key, data := range c {
		next[key] = bytes.Clone(data)
	}
	copy(next[fmt.Sprint("key-", round*7919%len(c))], fmt.Sprintf("round %d", round))
	return next
}

// written is a volume with its writer.
type written struct {
	path   string
	remove func() error
	// prepare returns the write of keys, whose duration counts.
	prepare func(ctx context.Context, keys contents) func() error
}

// newRefvol returns an empty volume of this project's writer.
func newRefvol(path string) (*written, error) {
	if err := os.Mkdir(path, dirMode); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	w, shown := writer.New(writer.Options{}), false
	prepare := func(ctx context.Context, keys contents) func() error {
		tree := &refvol.Payload{DirMode: dirMode, UID: os.Geteuid(), GID: os.Getegid()}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			tree.Files = append(tree.Files, refvol.File{Path: key, Data: keys[key], Mode: fileMode})
		}
		return func() error {
			result, err := w.Write(ctx, root, tree)
			// The publisher prunes a volume that it has changed.
			if err == nil && result.Changed && shown {
				_, err = writer.Prune(root, nil, nil)
			}
			shown = true
			return err
		}
	}
	return &written{path, func() error { return errors.Join(root.Close(), os.RemoveAll(path)) }, prepare}, nil
}

// newUpstream returns an empty volume of the kubelet's writer.
func newUpstream(path string) (*written, error) {
	if err := os.Mkdir(path, dirMode); err != nil {
		return nil, err
	}
	w, err := upstream.NewAtomicWriter(path, "bench")
	if err != nil {
		return nil, fmt.Errorf("upstream's writer: %w", err)
	}
	prepare := func(_ context.Context, keys contents) func() error {
		payload := make(map[string]upstream.FileProjection, len(keys))
		for key, data := range keys {
			payload[key] = upstream.FileProjection{Data: data, Mode: fileMode}
		}
		return func() error { return w.Write(payload, nil) }
	}
	return &written{path, func() error { return os.RemoveAll(path) }, prepare}, nil
}

// take returns how long the volume's writer takes to write keys, and proves that it has.
func (v *written) take(ctx context.Context, keys contents, changed bool) (time.Duration, error) {
	before, err := v.generation()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return 0, err
	}
	write := v.prepare(ctx, keys)
	runtime.GC() // so that nobody clears up after somebody else while the clock runs
	start := time.Now()
	err = write()
	took := time.Since(start)
	return took, errors.Join(err, v.check(keys, before, changed))
}

// generation returns where ..data points, "" if it is not there yet.
func (v *written) generation() (string, error) {
	name, err := os.Readlink(filepath.Join(v.path, "..data"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return name, err
}

// check proves that the volume shows keys, each through its link, and has nothing else in it, and that it has another
// generation than before if that is to be.
func (v *written) check(keys contents, before string, changed bool) error {
	now, err := v.generation()
	if err != nil {
		return err
	}
	if (now != before) != changed {
		return fmt.Errorf("a new generation: %v, want %v", now != before, changed)
	}
	// Beside the keys' links: ..data and what it points at.
	for dir, want := range map[string]int{v.path: len(keys) + 2, filepath.Join(v.path, now): len(keys)} {
		names, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(names) != want {
			return fmt.Errorf("%d names in %s, want %d", len(names), dir, want)
		}
	}
	for key, want := range keys {
		path := filepath.Join(v.path, key)
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) || info.Mode() != fileMode {
			return fmt.Errorf("%s shows another content, or has mode %v", key, info.Mode())
		}
	}
	return nil
}

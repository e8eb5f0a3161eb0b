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

// runWriter is B9. The writers take turns. The ratio is of p50: of first ours by upstream's, of the others upstream's by ours. After each step the
// volume is read, and what it does not show, or should not, is an error.
func runWriter(ctx context.Context, l *lab) error {
	tmpfs := l.mountTmpfs()
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
			fatal(errors.Join(l.report.Samples(figure+"ms", "ms", of[0]), l.report.Samples(figure+"upstream_ms", "ms", of[1])))
		}
		floor := fmt.Sprintf("writer.floor_%d_", n)
		l.report.Value(floor+"ratio", "ratio", measure.Median(times["change"][0])/measure.Median(times["change"][2]))
		fatal(l.report.Samples(floor+"ms", "ms", times["change"][2]))
	}
	return nil
}

func (l *lab) mountTmpfs() string {
	tmpfs := filepath.Join(l.dir, "tmpfs")
	fatal(os.Mkdir(tmpfs, dirMode))
	err := unix.Mount("tmpfs", tmpfs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=512m,nr_inodes=100000,mode=0755")
	fatal(os.NewSyscallError("mount "+tmpfs, err))
	l.onEnd(func() error { return os.NewSyscallError("umount "+tmpfs, unix.Unmount(tmpfs, 0)) })
	return tmpfs
}

// duel has all writers take each step on a volume of n keys, one right after the other, and adds the milliseconds.
func duel(ctx context.Context, dir string, n, round int, times map[string]*[3][]float64) (err error) {
	defer catch(&err)
	var all [3]*written
	for i, newVolume := range []func(string) *written{newRefvol, newUpstream, newBare} {
		all[i] = newVolume(filepath.Join(dir, fmt.Sprint("volume-", i)))
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

type contents map[string][]byte

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

type written struct {
	path   string
	remove func() error
	// prepare returns the write of keys, whose duration counts.
	prepare func(ctx context.Context, keys contents) func() error
}

func newRefvol(path string) *written {
	fatal(os.Mkdir(path, dirMode))
	root := must(os.OpenRoot(path))
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
	return &written{path, func() error { return errors.Join(root.Close(), os.RemoveAll(path)) }, prepare}
}

func newUpstream(path string) *written {
	fatal(os.Mkdir(path, dirMode))
	w := must(upstream.NewAtomicWriter(path, "bench"))
	prepare := func(_ context.Context, keys contents) func() error {
		payload := make(map[string]upstream.FileProjection, len(keys))
		for key, data := range keys {
			payload[key] = upstream.FileProjection{Data: data, Mode: fileMode}
		}
		return func() error { return w.Write(payload, nil) }
	}
	return &written{path, func() error { return os.RemoveAll(path) }, prepare}
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
func (v *written) check(keys contents, before string, changed bool) (err error) {
	defer catch(&err)
	now := must(v.generation())
	if (now != before) != changed {
		return fmt.Errorf("a new generation: %v, want %v", now != before, changed)
	}
	// Beside the keys' links: ..data and what it points at.
	for dir, want := range map[string]int{v.path: len(keys) + 2, filepath.Join(v.path, now): len(keys)} {
		if names := must(os.ReadDir(dir)); len(names) != want {
			return fmt.Errorf("%d names in %s, want %d", len(names), dir, want)
		}
	}
	for key, want := range keys {
		path := filepath.Join(v.path, key)
		info := must(os.Stat(path))
		if !bytes.Equal(must(os.ReadFile(path)), want) || info.Mode() != fileMode {
			return fmt.Errorf("%s shows another content, or has mode %v", key, info.Mode())
		}
	}
	return nil
}

// bare writes a volume with the system calls of an update, and does nothing else: no writer that gives the same files can be faster. It lists
// no directory and verifies nothing.
type bare struct {
	root  int
	names int // of generations
	shown contents
	now   string
}

func newBare(path string) *written {
	fatal(os.Mkdir(path, dirMode))
	root, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	fatal(os.NewSyscallError("open "+path, err))
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
	return &written{path, func() error { return errors.Join(unix.Close(root), os.RemoveAll(path)) }, prepare}
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

// floor reports how long the bare system calls take for each change of so many volumes of one file, on all processors, and returns the median
// in milliseconds.
func (l *lab) floor(ctx context.Context, figure string, volumes, changes int) (floor float64, err error) {
	tmpfs := l.mountTmpfs()
	var all []*written
	defer func() {
		for _, v := range all {
			err = errors.Join(err, v.remove())
		}
	}()
	for i := range volumes {
		all = append(all, newBare(filepath.Join(tmpfs, fmt.Sprint("volume-", i))))
	}
	var times []float64
	keys := newContents(1)
	for i := range changes + 1 {
		writes := make([]func() error, len(all))
		for k, v := range all {
			writes[k] = v.prepare(ctx, keys)
		}
		runtime.GC()
		began := time.Now()
		if len(writes) == 1 {
			err = writes[0]()
		} else {
			err = inParallel(len(writes), runtime.GOMAXPROCS(0), func(k int) error { return writes[k]() })
		}
		took := time.Since(began)
		if err != nil {
			return 0, fmt.Errorf("change %d: %w", i, err)
		}
		if i > 0 {
			times = append(times, float64(took)/float64(time.Millisecond))
		}
		keys = keys.changed(i)
	}
	return measure.Median(times), l.report.Samples(figure, "ms", times)
}

package writer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// inPlaceTransitions are transitions, and some that rewrite more at once.
func inPlaceTransitions() map[string]struct{ from, to *volume.Tree } {
	all := map[string]struct{ from, to *volume.Tree }{
		"much": {
			tree(file("a", "1"), file("d/b", "2"), file("gone", "3"), file("mode", "4"), file("x", "5"), file("y/z", "6")),
			withDirMode(0o750, tree(file("a", strings.Repeat("a", 5000)), file("d/b", strings.Repeat("b", 9000)), file("d/n", "7"),
				withMode(0o600, file("mode", "8")), file("n/m", "9"), file("x/z", "5"), file("y", "6"))),
		},
	}
	for name, tt := range transitions {
		all[name] = tt
	}
	return all
}

// TestInPlaceCrash kills an InPlace before each of its operations in turn. Every file
// but the one it was at has the old content or the new one then, every key that stays
// has a file, and a new InPlace has to get it to either tree, in the same inodes.
func TestInPlaceCrash(t *testing.T) {
	for name, tt := range inPlaceTransitions() {
		t.Run(name, func(t *testing.T) {
			for n, crashed := 0, true; crashed; n++ {
				for _, next := range []*volume.Tree{tt.from, tt.to} {
					crashed = inPlaceCrashAt(t, n, tt.from, tt.to, next)
				}
			}
		})
	}
}

func inPlaceCrashAt(t *testing.T, n int, from, to, next *volume.Tree) bool {
	t.Helper()
	o := withAttributes(t)
	from, to, next = recorded(from), recorded(to), recorded(next)
	v, w, calls, point := newVolume(t), NewInPlace(o), 0, ""
	v.rewrite(w, from)
	w.fs = stepped{w.fs, func(op, name string) error {
		if calls++; calls <= n {
			return nil
		}
		if point == "" {
			point = fmt.Sprintf("killed before %s %s", op, name)
		}
		return errCrash
	}}
	fds := openDescriptors(t)
	_, err := w.Write(t.Context(), v.root, to)
	if crashed := point != ""; crashed != errors.Is(err, errCrash) {
		t.Fatalf("%s: Write = %v", point, err)
	}
	if got := openDescriptors(t); got != fds {
		t.Errorf("%s: %d descriptors are open, %d before", point, got, fds)
	}
	checkTorn(v, from, to, point)
	checkNamed(v, o, from, to, point)
	fresh := NewInPlace(o)
	v.rewrite(fresh, next)
	if t.Failed() {
		t.Fatal(point)
	}
	if result := v.rewrite(NewInPlace(o), next); result.Changed {
		t.Fatalf("%s: written again: %+v", point, result)
	}
	return point != ""
}

// checkTorn fails unless every file of from has its old content or the new one, but
// for one whose new length was to be set, and no link leads nowhere.
func checkTorn(v *testVolume, from, to *volume.Tree, point string) {
	v.Helper()
	after, torn := map[string]string{}, 0
	for _, f := range to.Files {
		after[f.Path] = string(f.Data)
	}
	for _, f := range from.Files {
		content, err := os.ReadFile(filepath.Join(v.path, f.Path))
		if err != nil && !blocked(to, f.Path) {
			v.Errorf("%s: %v", point, err)
		}
		if got := string(content); err == nil && got != string(f.Data) && got != after[f.Path] {
			torn++
		}
	}
	if torn > 1 || torn == 1 && !strings.Contains(point, "before truncate") {
		v.Errorf("%s: %d torn files", point, torn)
	}
	for _, name := range v.names() {
		if _, err := os.Stat(filepath.Join(v.path, name)); err != nil && !strings.HasPrefix(name, "..") {
			v.Errorf("%s: %v", point, err)
		}
	}
}

// checkNamed fails if something of to is shown and the record does not name to yet.
func checkNamed(v *testVolume, o Options, from, to *volume.Tree, point string) {
	v.Helper()
	record, err := ReadRecord(v.root, o.AttributePrefix)
	if err != nil || record != from.Record && record != to.Record {
		v.Errorf("%s: the record is %q, %v", point, record, err)
	}
	if shown := v.shown(); shown != from.Record && record != to.Record {
		v.Errorf("%s: the volume shows\n%sand its record is still\n%s", point, shown, record)
	}
}

// TestInPlaceFault fails one operation after the other, each once, as a full file
// system does. Until the first change that users see, all stays as it was.
func TestInPlaceFault(t *testing.T) {
	for name, tt := range inPlaceTransitions() {
		t.Run(name, func(t *testing.T) {
			for n := 1; inPlaceFaultAt(t, n, tt.from, tt.to, tt.from) && inPlaceFaultAt(t, n, tt.from, tt.to, tt.to); n++ {
			}
		})
	}
}

func inPlaceFaultAt(t *testing.T, n int, from, to, next *volume.Tree) bool {
	t.Helper()
	v, w, calls, point := newVolume(t), NewInPlace(Options{}), 0, ""
	v.rewrite(w, from)
	kernel, inodes, fds := w.fs, v.inodes(), openDescriptors(t)
	w.fs = stepped{kernel, func(op, name string) error {
		if calls++; calls != n {
			return nil
		}
		point = op + " " + name
		return unix.ENOSPC
	}}
	result, err := w.Write(t.Context(), v.root, to)
	if point == "" {
		return false
	}
	// One that has read the files takes it that they hold more than one generation.
	madeRoom := err == nil && from.DirMode != to.DirMode
	if !madeRoom && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%s: Write = %v, want ENOSPC", point, err)
	}
	if got := openDescriptors(t); got != fds {
		t.Errorf("%s: %d descriptors are open, %d before", point, got, fds)
	}
	switch op, _, _ := strings.Cut(point, " "); {
	case madeRoom:
		v.checkInPlace(inodes, to)
	case !result.Changed:
		v.checkInPlace(inodes, from)
	case op == "mkdir" || op == "create" || op == "allocate" || op == "statfs":
		t.Errorf("%s: Result = %+v", point, result)
	}
	w.fs = kernel
	v.rewrite(w, next)
	if t.Failed() {
		t.Fatal(point)
	}
	return true
}

// TestInPlaceShortWrites has the kernel take a few bytes at a time.
func TestInPlaceShortWrites(t *testing.T) {
	v, w := newVolume(t), NewInPlace(Options{})
	w.fs = shortWrites{w.fs}
	v.rewrite(w, tree(file("a", "0123456789"), file("b", "")))
	v.rewrite(w, tree(file("a", "abcdefg"), file("b", "0123456789")))
}

// TestInPlaceRepair damages a volume and writes to it with a new InPlace. What was
// damaged beyond the one generation costs the inodes, all else does not.
func TestInPlaceRepair(t *testing.T) {
	before := tree(file("a", "1"), file("d/b", "2"), file("secret", "3"), file("z", "6"))
	after := tree(file("a", "1"), file("d/b", "4"), file("new", "5"), file("z", "6"))
	check := func(name string, damage func(string) error) {
		for _, next := range []*volume.Tree{before, after} {
			t.Run(name, func(t *testing.T) {
				v := newVolume(t)
				v.rewrite(NewInPlace(Options{}), before)
				b := v.inode("..data/d/b").Ino
				v.must(damage(v.path))
				lost := v.generation() == ""
				w := NewInPlace(Options{})
				v.rewrite(w, next)
				if got := v.inode("..data/d/b").Ino; !lost && got != b {
					t.Error("another inode")
				}
				if result := v.rewrite(NewInPlace(Options{}), next); result.Changed {
					t.Errorf("written again: %+v", result)
				}
			})
		}
	}
	for name, damage := range damages {
		check(name, damage)
	}
	for name, damage := range damagesOfData {
		check(name, damage)
	}
	check("strange things in the way", func(path string) error {
		return errors.Join(
			os.RemoveAll(filepath.Join(path, "..data/z")), os.MkdirAll(filepath.Join(path, "..data/z/empty"), 0o755),
			replaceLink(path, "..data/secret", outside(path, "etc/passwd")), os.Mkdir(filepath.Join(path, "..data/new"), 0o700))
	})
	check("room reserved by one that was killed", func(path string) error {
		fd, err := unix.Open(filepath.Join(path, "a"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<16)
	})
}

// TestInPlaceLinkAlone counts the repair of a link as a change.
func TestInPlaceLinkAlone(t *testing.T) {
	v, tr := newVolume(t), tree(file("a", "1"))
	want := Result{Changed: true, Generation: v.rewrite(NewInPlace(Options{}), tr).Generation}
	v.must(os.Remove(filepath.Join(v.path, "a")))
	if got := v.rewrite(NewInPlace(Options{}), tr); got != want {
		t.Errorf("Result = %+v, want %+v", got, want)
	}
}

// TestInPlaceAfterWriter takes over what a Writer left, two generations that share
// inodes, and keeps the one that shows.
func TestInPlaceAfterWriter(t *testing.T) {
	v, atomic := newVolume(t), New(Options{})
	v.write(atomic, tree(file("a", "1"), file("same", "s")))
	result, err := atomic.Write(t.Context(), v.root, tree(file("a", "2"), file("same", "s")))
	v.must(err)
	got := v.rewrite(NewInPlace(Options{}), tree(file("a", "3"), file("same", "t")))
	if got.Generation != result.Generation {
		t.Errorf("generation %s, want %s", got.Generation, result.Generation)
	}
}

// FuzzInPlaceSequences is FuzzSequences for InPlace.
func FuzzInPlaceSequences(f *testing.F) {
	f.Add(rand.Uint64())
	for seed := range uint64(10) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		s := sequence{Rand: rand.New(rand.NewPCG(seed, 0)), testVolume: newVolume(t), tree: tree()}
		w := NewInPlace(Options{})
		for range 30 {
			if s.IntN(4) > 0 {
				s.tree = s.change()
			}
			switch s.IntN(5) {
			case 0:
				w = NewInPlace(Options{})
			case 1:
				if s.interrupt(w, &w.memory) {
					w = NewInPlace(Options{})
				}
			}
			s.rewrite(w, s.tree)
			if result := s.rewrite(w, s.tree); result.Changed {
				s.Errorf("written again: %+v", result)
			}
		}
	})
}

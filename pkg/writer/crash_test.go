package writer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

var errCrash = errors.New("killed")

// TestCrash kills a Writer before each of its operations in turn. At every such
// point the volume has to show the one tree or the other, whole, and a new Writer
// has to get it to either.
func TestCrash(t *testing.T) {
	cases := map[string]struct{ from, to *volume.Tree }{
		"first write": {nil, tree(file("a", "1"), file("b/c", "2"))},
	}
	for name, tt := range transitions {
		cases[name] = struct{ from, to *volume.Tree }{tt.from, tt.to}
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			points := 0
			for crashed := true; crashed; points++ {
				for _, back := range []bool{false, true} {
					if back && tt.from == nil {
						continue
					}
					crashed = crashAt(t, points, tt.from, tt.to, back)
				}
			}
			if points < 7 {
				t.Errorf("only %d points", points)
			}
		})
	}
}

// crashAt kills the write of to before operation n, and has another Writer write
// to, or from if back is set. It returns whether there was such an operation.
func crashAt(t *testing.T, n int, from, to *volume.Tree, back bool) bool {
	t.Helper()
	v, o := newVolume(t), withAttributes(t)
	from, to = recorded(from), recorded(to)
	w, calls, point := New(o), 0, ""
	if from != nil {
		v.write(w, from)
	}
	fds := openDescriptors(t)
	w.fs = stepped{w.fs, func(op, name string) error {
		if calls++; calls <= n {
			return nil
		}
		if point == "" {
			point = fmt.Sprintf("killed before %s %s", op, name)
		}
		return errCrash
	}}
	_, err := w.Write(t.Context(), v.root, to)
	if crashed := point != ""; crashed != errors.Is(err, errCrash) && !strings.Contains(point, "before link") {
		t.Fatalf("%s: Write = %v", point, err)
	}
	if got := openDescriptors(t); got != fds {
		t.Errorf("%s: %d descriptors are open, %d before", point, got, fds)
	}
	checkEither(v, from, to)
	checkRecord(v, o, from, to)
	want := to
	if back {
		want = from
	}
	next := New(o)
	result, err := next.Write(t.Context(), v.root, want)
	if err != nil {
		t.Fatalf("%s: next Write: %v", point, err)
	}
	if !result.Changed && !next.Stale() && len(v.generations()) > 1 {
		t.Errorf("%s: generations are left, and the next Writer does not say so", point)
	}
	v.prune(next)
	v.check(want)
	return point != ""
}

// checkEither fails unless the volume shows from or to, and every link that users
// see leads to a file, but for those of keys that to no longer has.
func checkEither(v *testVolume, from, to *volume.Tree) {
	v.Helper()
	before := "nothing\n"
	kept := map[string]bool{}
	if from != nil {
		before = dump(from)
		for _, name := range topNames(from) {
			kept[name] = true
		}
	}
	shown := v.shown()
	if shown != before && shown != dump(to) {
		v.Fatalf("the volume shows\n%swant\n%sor\n%s", shown, before, dump(to))
	}
	needed := map[string]bool{}
	for _, name := range topNames(to) {
		needed[name] = true
	}
	for _, name := range v.names() {
		if strings.HasPrefix(name, "..") {
			continue
		}
		if _, err := os.Stat(filepath.Join(v.path, name)); err != nil && (needed[name] || shown == before) {
			v.Fatalf("link %s leads nowhere: %v", name, err)
		}
		delete(kept, name)
	}
	for name := range kept {
		if needed[name] || shown == before {
			v.Fatalf("link %s is gone", name)
		}
	}
}

// recorded is a tree with a Record that tells it from others; nil for nil.
func recorded(tree *volume.Tree) *volume.Tree {
	if tree == nil {
		return nil
	}
	with := *tree
	with.Record = dump(tree)
	return &with
}

// checkRecord fails unless the generation that the volume shows carries its own record.
func checkRecord(v *testVolume, o Options, from, to *volume.Tree) {
	v.Helper()
	want := to.Record
	switch shown := v.shown(); {
	case from != nil && shown == from.Record:
		want = shown
	case from == nil && shown != to.Record:
		want = ""
	}
	if got, err := ReadRecord(v.root, o.AttributePrefix); err != nil || got != want {
		v.Fatalf("the volume shows\n%sand its record is\n%s(%v), want\n%s", v.shown(), got, err, want)
	}
}

// TestFault fails one operation after the other, each once, as a full file system
// does. The volume keeps what it showed unless it has switched already, nothing
// half-made stays, and the same Writer gets it right the next time, with either
// tree.
func TestFault(t *testing.T) {
	for name, tt := range transitions {
		t.Run(name, func(t *testing.T) {
			for n := 1; faultAt(t, n, tt.from, tt.to, tt.from) && faultAt(t, n, tt.from, tt.to, tt.to); n++ {
			}
		})
	}
}

func faultAt(t *testing.T, n int, from, to, next *volume.Tree) bool {
	t.Helper()
	o := withAttributes(t)
	from, to, next = recorded(from), recorded(to), recorded(next)
	v, w, calls, point := newVolume(t), New(o), 0, ""
	v.write(w, from)
	fds := openDescriptors(t)
	w.fs = stepped{w.fs, func(op, name string) error {
		if calls++; calls != n {
			return nil
		}
		point = op + " " + name
		return unix.ENOSPC
	}}
	result, err := w.Write(t.Context(), v.root, to)
	if got := openDescriptors(t); got != fds {
		t.Errorf("%s: %d descriptors are open, %d before", point, got, fds)
	}
	switch op, _, _ := strings.Cut(point, " "); {
	case op == "":
		return false
	case op == "link": // written instead
		if err != nil || !result.Changed {
			t.Errorf("%s: Write = %+v, %v", point, result, err)
		}
		v.prune(w)
		v.check(to)
	case !errors.Is(err, unix.ENOSPC):
		t.Errorf("%s: Write = %v, want ENOSPC", point, err)
	case result.Changed:
		if got := v.shown(); got != dump(to) {
			t.Errorf("%s: after the switch the volume shows\n%s", point, got)
		}
		if !w.Stale() {
			t.Errorf("%s: the old generation is still there, and the Writer does not say so", point)
		}
	default:
		if result != (Result{}) {
			t.Errorf("%s: Result = %+v", point, result)
		}
		v.must(os.Chmod(v.path, from.DirMode)) // the root's mode may have come first
		v.check(from)
	}
	calls = n
	v.write(w, next)
	return true
}

// TestNoRoomForLinks has room for the new generation but not for the links that
// come after the switch: there must be no switch.
func TestNoRoomForLinks(t *testing.T) {
	long := strings.Repeat("n", 200) // its link takes a page
	before := tree(file("a", "1"))
	plain := tree(file("a", "1"), file("b", "2"), file("c", "3"))
	cases := []struct {
		name string
		tree *volume.Tree
		room unix.Statfs_t
		want error
	}{
		{"no inode", plain, unix.Statfs_t{Files: 9}, unix.ENOSPC},
		{"an inode too few", plain, unix.Statfs_t{Files: 9, Ffree: 1}, unix.ENOSPC},
		{"inodes enough", plain, unix.Statfs_t{Files: 9, Ffree: 2, Blocks: 9, Bsize: 4096}, nil},
		{"no page", tree(file(long, "1")), unix.Statfs_t{Blocks: 9, Bsize: 4096}, unix.ENOSPC},
		{"a page", tree(file(long, "1")), unix.Statfs_t{Blocks: 9, Bfree: 64, Bsize: 4096}, nil},
		{"no limits", tree(file(long, "1"), file("b", "2")), unix.Statfs_t{Bsize: 4096}, nil},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			w.fs = limited{w.fs, tt.room}
			if _, err := w.Write(t.Context(), v.root, tt.tree); !errors.Is(err, tt.want) {
				t.Errorf("Write = %v, want %v", err, tt.want)
			}
			if tt.want != nil {
				v.check(before)
			} else {
				v.prune(w)
				v.check(tt.tree)
			}
		})
	}
}

// TestNoRoomForFirstLinks is TestNoRoomForLinks of a first write, after whose room for
// files ..data still has to be made.
func TestNoRoomForFirstLinks(t *testing.T) {
	one := tree(file("a", "1"))
	for free, want := range map[uint64]error{1: unix.ENOSPC, 2: nil} {
		v, w := newVolume(t), New(Options{})
		w.fs = limited{w.fs, unix.Statfs_t{Files: 9, Ffree: free}}
		if _, err := w.Write(t.Context(), v.root, one); !errors.Is(err, want) {
			t.Errorf("%d inodes: Write = %v, want %v", free, err, want)
		}
		if want == nil {
			v.check(one)
		} else if names := v.names(); len(names) != 0 {
			t.Errorf("%d inodes: the volume holds %q", free, names)
		}
	}
}

type limited struct {
	fileSystem
	room unix.Statfs_t
}

func (l limited) statfs(int) (unix.Statfs_t, error) { return l.room, nil }

// TestShortWrites has the kernel take a few bytes at a time.
func TestShortWrites(t *testing.T) {
	w := New(Options{})
	w.fs = shortWrites{w.fs}
	newVolume(t).write(w, tree(file("a", "0123456789"), file("b", "")))
}

type shortWrites struct{ fileSystem }

func (s shortWrites) write(fd int, p []byte) (int, error) {
	return s.fileSystem.write(fd, p[:min(len(p), 3)])
}

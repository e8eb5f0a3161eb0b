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

const leftover = "..2001_02_03_04_05_06.789"

// damages are what an interrupted write, or a stranger, may have left in a volume
// that showed transitions' "key removed" from. Each is a function of the volume's
// path.
var damages = map[string]func(path string) error{
	"link of the switch": func(path string) error {
		return os.Symlink(leftover, filepath.Join(path, dataTmpName))
	},
	"directory with the name of the switch": func(path string) error {
		return os.MkdirAll(filepath.Join(path, dataTmpName, "x/y"), 0o755)
	},
	"old generation": func(path string) error {
		return errors.Join(
			os.MkdirAll(filepath.Join(path, leftover, "x/y"), 0o755),
			os.WriteFile(filepath.Join(path, leftover, "x/secret"), []byte("old"), 0o600),
			os.WriteFile(filepath.Join(path, leftover, "secret"), []byte("old"), 0o600),
			os.Symlink("/etc", filepath.Join(path, leftover, "x/etc")))
	},
	"file named like a generation": func(path string) error {
		return os.WriteFile(filepath.Join(path, leftover), nil, 0o600)
	},
	"link of a removed key": func(path string) error {
		return os.Symlink("..data/gone", filepath.Join(path, "gone"))
	},
	"link into a removed directory": func(path string) error {
		return os.Symlink("..data/gone/b", filepath.Join(path, "gone"))
	},
	"missing link": func(path string) error {
		return os.Remove(filepath.Join(path, "a"))
	},
	"link to another key": func(path string) error {
		return replaceLink(path, "a", "..data/secret")
	},
	"newest link to another key": func(path string) error {
		return replaceLink(path, "z", "..data/a") // stays where it is in the listing
	},
	"link out of the volume": func(path string) error {
		return replaceLink(path, "a", "/etc/passwd")
	},
	"very long link": func(path string) error {
		return replaceLink(path, "a", "..data/a"+strings.Repeat("/.", 500))
	},
	"file in a link's place": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, "a")), os.WriteFile(filepath.Join(path, "a"), nil, 0o644))
	},
	"directory in a link's place": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, "a")), os.MkdirAll(filepath.Join(path, "a/b/c"), 0o755))
	},
}

// damagesOfData are damages that cost the present generation.
var damagesOfData = map[string]func(path string) error{
	"no ..data": func(path string) error {
		return os.Remove(filepath.Join(path, dataName))
	},
	"..data to nowhere": func(path string) error {
		return replaceLink(path, dataName, leftover)
	},
	"..data to a file": func(path string) error {
		return errors.Join(replaceLink(path, dataName, leftover), os.WriteFile(filepath.Join(path, leftover), nil, 0o644))
	},
	"..data to a link": func(path string) error {
		return errors.Join(replaceLink(path, dataName, leftover), os.Symlink("/etc", filepath.Join(path, leftover)))
	},
	"..data out of the volume": func(path string) error {
		return replaceLink(path, dataName, "../../../etc")
	},
	"..data is a file": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, dataName)), os.WriteFile(filepath.Join(path, dataName), nil, 0o644))
	},
	"content": func(path string) error {
		return os.WriteFile(filepath.Join(path, "a"), []byte("?"), 0o644)
	},
	"mode":           func(path string) error { return os.Chmod(filepath.Join(path, "a"), 0o600) },
	"mode of a dir":  func(path string) error { return os.Chmod(filepath.Join(path, "d"), 0o700) },
	"mode of data":   func(path string) error { return os.Chmod(filepath.Join(path, dataName), 0o700) },
	"file removed":   func(path string) error { return os.Remove(filepath.Join(path, "..data/a")) },
	"file added":     func(path string) error { return os.WriteFile(filepath.Join(path, "..data/zz"), nil, 0o644) },
	"dir added":      func(path string) error { return os.Mkdir(filepath.Join(path, "..data/zz"), 0o755) },
	"link added":     func(path string) error { return os.Symlink("a", filepath.Join(path, "..data/zz")) },
	"fifo added":     func(path string) error { return unix.Mkfifo(filepath.Join(path, "..data/zz"), 0o644) },
	"file to a link": func(path string) error { return replaceLink(path, "..data/a", "secret") },
}

func replaceLink(path, name, target string) error {
	return errors.Join(os.Remove(filepath.Join(path, name)), os.Symlink(target, filepath.Join(path, name)))
}

// TestRepair damages a volume and writes to it: the same tree or another one,
// with a new Writer or, for another tree, with the one that wrote before.
func TestRepair(t *testing.T) {
	before := tree(file("a", "1"), file("d/b", "2"), file("secret", "3"), file("z", "6"))
	after := tree(file("a", "1"), file("d/b", "4"), file("new", "5"), file("z", "6"))
	run := func(name string, damage func(string) error, same *bool) {
		t.Run(name+"/same tree", func(t *testing.T) {
			v := newVolume(t)
			v.write(New(Options{}), before)
			v.must(damage(v.path))
			fds := openDescriptors(t)
			w := New(Options{})
			result := v.write(w, before)
			if got := openDescriptors(t); got != fds {
				t.Errorf("%d descriptors are open, %d before", got, fds)
			}
			if same != nil && result.Changed == *same {
				t.Errorf("Changed = %v", result.Changed)
			}
			if result := v.write(w, before); result.Changed {
				t.Error("written again")
			}
		})
		t.Run(name+"/other tree", func(t *testing.T) {
			v := newVolume(t)
			v.write(New(Options{}), before)
			v.must(damage(v.path))
			v.write(New(Options{}), after)
		})
	}
	yes, no := true, false
	for name, damage := range damages {
		run(name, damage, &yes)
		t.Run(name+"/same writer", func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			v.write(w, tree(file("a", "0"), file("d/b", "2"), file("secret", "3"), file("z", "6"))) // the links have been seen by now
			v.must(damage(v.path))
			v.write(w, after)
		})
	}
	for name, damage := range damagesOfData {
		run(name, damage, &no)
	}
}

// TestStrays checks what Write leaves alone: what is not of its making and not in
// its way.
func TestStrays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	strays := []string{"..other", "dir", "file", "link"}
	v.must(os.Mkdir(filepath.Join(v.path, "..other"), 0o755))
	v.must(os.Mkdir(filepath.Join(v.path, "dir"), 0o755))
	v.must(os.WriteFile(filepath.Join(v.path, "file"), nil, 0o644))
	v.must(os.Symlink("/etc/passwd", filepath.Join(v.path, "link")))
	for _, tr := range []*volume.Tree{tree(file("a", "1")), tree(file("b", "2")), tree()} {
		_, err := w.Write(t.Context(), v.root, tr)
		v.must(err)
		v.check(tr, strays...)
	}
	tr := tree(file("dir/a", "1"), file("file", "2"), file("link/b", "3"))
	_, err := w.Write(t.Context(), v.root, tr)
	v.must(err)
	v.check(tr, "..other")
}

// TestForgottenGeneration has another Writer change the volume in between: what
// the first one knows is of no use then, and may do no harm.
func TestForgottenGeneration(t *testing.T) {
	v, first := newVolume(t), New(Options{})
	other := tree(file("a", "other"), file("b", "2"))
	v.write(first, tree(file("a", "1"), file("b", "2")))
	v.write(New(Options{}), other)
	kernel := first.fs
	first.fs = stepped{kernel, func(op, _ string) error {
		if op == "create" {
			return unix.EIO
		}
		return nil
	}}
	if _, err := first.Write(t.Context(), v.root, tree(file("a", "1"), file("b", "3"))); !errors.Is(err, unix.EIO) {
		t.Errorf("Write = %v, want EIO", err)
	}
	v.check(other)
	first.fs = kernel
	v.write(first, tree(file("a", "1"), file("b", "3")))
}

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
			if points < 8 {
				t.Errorf("only %d points", points)
			}
		})
	}
}

// crashAt kills the write of to before operation n, and has another Writer write
// to, or from if back is set. It returns whether there was such an operation.
func crashAt(t *testing.T, n int, from, to *volume.Tree, back bool) bool {
	t.Helper()
	v := newVolume(t)
	w, calls, point := New(Options{}), 0, ""
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
	want := to
	if back {
		want = from
	}
	if _, err := New(Options{}).Write(t.Context(), v.root, want); err != nil {
		t.Fatalf("%s: next Write: %v", point, err)
	}
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
	v, w, calls, point := newVolume(t), New(Options{}), 0, ""
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
		v.check(to)
	case !errors.Is(err, unix.ENOSPC):
		t.Errorf("%s: Write = %v, want ENOSPC", point, err)
	case result.Changed:
		if got := v.shown(); got != dump(to) {
			t.Errorf("%s: after the switch the volume shows\n%s", point, got)
		}
		if names := strings.Join(v.names(), " "); op == "symlink" && strings.Count(names, "..20") != 1 {
			t.Errorf("%s: the old generation is still there: %s", point, names)
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
				v.check(tt.tree)
			}
		})
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

// TestUnreadableGeneration is for whoever runs the tests without root's rights:
// what cannot be read is replaced.
func TestUnreadableGeneration(t *testing.T) {
	v := newVolume(t)
	tr := tree(withMode(0o200, file("a", "1")))
	_, err := New(Options{}).Write(t.Context(), v.root, tr)
	v.must(err)
	result, err := New(Options{}).Write(t.Context(), v.root, tr)
	v.must(err)
	if unreadable := os.Getuid() != 0; result.Changed != unreadable {
		t.Errorf("Changed = %v", result.Changed)
	}
}

package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

func withMode(mode fs.FileMode, f volume.File) volume.File {
	f.Mode = mode
	return f
}

func TestWriteOnce(t *testing.T) {
	binary := string([]byte{0, 1, 0xff, 0xfe, '\n', 0})
	deep := strings.Repeat("d/", 300) + "f"
	cases := map[string]*volume.Tree{
		"empty":             tree(),
		"one file":          tree(file("a", "1")),
		"empty content":     tree(file("a", "")),
		"binary content":    tree(file("a", binary)),
		"large content":     tree(file("a", strings.Repeat("0123456789", 1<<17))),
		"dotfiles":          tree(file(".a", "1"), file(".b/.c", "2"), file(".b/..c", "3")),
		"modes":             tree(withMode(0o400, file("a", "1")), withMode(0o440, file("b", "2")), withMode(0o777, file("c", "3"))),
		"directories":       tree(file("a/b", "1"), file("a/c/d", "2"), file("a/c/e", "3"), file("f", "4"), file("a-b", "5")),
		"neighbours":        tree(file("a/x", "1"), file("a-/x", "2"), file("a0", "3"), file("a.b/x/y", "4")),
		"dots inside":       tree(file("a..b", "1"), file("a/..b", "2"), file("a/...", "3")),
		"deep":              tree(file(deep, "1")),
		"longest name":      tree(file(strings.Repeat("n", 255), "1")),
		"spaces and quotes": tree(file("a b", "1"), file(`"`, "2"), file("\n", "3"), file("ü", "4")),
	}
	for name, tree := range cases {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			before := openDescriptors(t)
			result := v.write(New(Options{}), tree)
			if got := openDescriptors(t); got != before {
				t.Errorf("%d descriptors are open, %d before", got, before)
			}
			want := Result{Changed: true, Generation: result.Generation, Files: len(tree.Files), Bytes: tree.Size()}
			if result != want {
				t.Errorf("Result = %+v, want %+v", result, want)
			}
		})
	}
}

// transitions are pairs of trees that a volume goes from and to, used by several
// tests.
var transitions = map[string]struct{ from, to *volume.Tree }{
	"value changed":           {tree(file("a", "1"), file("b", "2")), tree(file("a", "1"), file("b", "3"))},
	"value shorter":           {tree(file("a", "long value")), tree(file("a", "s"))},
	"key added":               {tree(file("a", "1")), tree(file("a", "1"), file("b", "2"))},
	"key removed":             {tree(file("a", "1"), file("secret", "2")), tree(file("a", "1"))},
	"all removed":             {tree(file("a", "1"), file("b/c", "2")), tree()},
	"from empty":              {tree(), tree(file("a", "1"), file("b/c", "2"))},
	"all other":               {tree(file("a", "1"), file("b/c", "2")), tree(file("x", "1"), file("y/c", "2"))},
	"directory added":         {tree(file("a/b", "1")), tree(file("a/b", "1"), file("a/c/d", "2"), file("e/f", "3"))},
	"directory removed":       {tree(file("a/b", "1"), file("a/c/d", "2"), file("e/f", "3")), tree(file("a/b", "1"))},
	"file becomes directory":  {tree(file("a", "1"), file("k", "same")), tree(file("a/b", "1"), file("k", "same"))},
	"directory becomes file":  {tree(file("a/b", "1"), file("k", "same")), tree(file("a", "1"), file("k", "same"))},
	"mode alone":              {tree(file("a", "1"), file("b", "2")), tree(withMode(0o400, file("a", "1")), file("b", "2"))},
	"mode of the directories": {tree(file("a/b", "1")), withDirMode(0o750, tree(file("a/b", "1")))},
	"setgid":                  {tree(file("a/b", "1")), withDirMode(0o750|fs.ModeSetgid, tree(file("a/b", "1")))},
	"contents swapped":        {tree(file("a", "1"), file("b", "2")), tree(file("a", "2"), file("b", "1"))},
}

func withDirMode(mode fs.FileMode, tree *volume.Tree) *volume.Tree {
	tree.DirMode = mode
	return tree
}

// TestUpdate takes each transition there and back, with the Writer that wrote
// the first tree and with one that has to read it.
func TestUpdate(t *testing.T) {
	for name, tt := range transitions {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				v := newVolume(t)
				w := New(Options{})
				for i, tree := range []*volume.Tree{tt.from, tt.to, tt.from, tt.to} {
					if restart {
						w = New(Options{})
					}
					if result := v.write(w, tree); !result.Changed {
						t.Errorf("write %d: Changed is false", i)
					}
				}
			})
		}
	}
}

func TestUnchanged(t *testing.T) {
	fresh := func() *volume.Tree {
		return tree(file("a", "1"), file("empty", ""), withMode(0o400, file("c/d", strings.Repeat("x", 5000))))
	}
	closed, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close() // any I/O on it fails

	t.Run("same memory", func(t *testing.T) {
		v, w, tree := newVolume(t), New(Options{}), fresh()
		first := v.write(w, tree)
		result, err := w.Write(t.Context(), closed, tree)
		if want := (Result{Generation: first.Generation}); err != nil || result != want {
			t.Errorf("Write = %+v, %v, want %+v", result, err, want)
		}
	})
	t.Run("other memory", func(t *testing.T) {
		v, w := newVolume(t), New(Options{})
		first := v.write(w, fresh())
		for range 2 {
			result, err := w.Write(t.Context(), closed, fresh())
			if want := (Result{Generation: first.Generation}); err != nil || result != want {
				t.Errorf("Write = %+v, %v, want %+v", result, err, want)
			}
		}
	})
	t.Run("no owner wanted", func(t *testing.T) {
		v, w, tree := newVolume(t), New(Options{}), fresh()
		first := v.write(w, tree)
		tree.UID, tree.GID = volume.NoOwner, volume.NoOwner
		result, err := w.Write(t.Context(), closed, tree)
		if want := (Result{Generation: first.Generation}); err != nil || result != want {
			t.Errorf("Write = %+v, %v, want %+v", result, err, want)
		}
	})
	t.Run("restart", func(t *testing.T) {
		v := newVolume(t)
		first := v.write(New(Options{}), fresh())
		w := newStepped(func(op, name string) error {
			return fmt.Errorf("unexpected %s %s", op, name)
		})
		if result, want := v.write(w, fresh()), (Result{Generation: first.Generation}); result != want {
			t.Errorf("Result = %+v, want %+v", result, want)
		}
		if _, err := w.Write(t.Context(), closed, fresh()); err != nil {
			t.Errorf("the Writer did not learn what it read: %v", err)
		}
	})
	t.Run("no allocation", func(t *testing.T) {
		v, w, tree := newVolume(t), New(Options{}), fresh()
		v.write(w, tree)
		if n := testing.AllocsPerRun(100, func() { w.Write(t.Context(), closed, tree) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// TestReusedMemory lets the garbage collector reuse the memory of earlier
// contents: new content at an old address must not be taken for the old one.
func TestReusedMemory(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	for i := range 50 {
		var files []volume.File
		for k := range 20 {
			files = append(files, file(fmt.Sprintf("%02d", k), strings.Repeat(fmt.Sprintf("%04d", i), 256)))
		}
		v.write(w, tree(files...))
		runtime.GC()
	}
}

func TestSameMemoryOtherLength(t *testing.T) {
	v, w, data := newVolume(t), New(Options{}), []byte("0123456789")
	for _, n := range []int{10, 5, 0, 10} {
		v.write(w, tree(volume.File{Path: "a", Data: data[:n], Mode: 0o644}))
	}
}

// TestOpenFileKeepsContent holds a file open over an update.
func TestOpenFileKeepsContent(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "old")))
	f, err := os.Open(filepath.Join(v.path, "a"))
	v.must(err)
	defer f.Close()
	v.write(w, tree(file("a", "new")))
	var buf [8]byte
	if n, _ := f.Read(buf[:]); string(buf[:n]) != "old" {
		t.Errorf("read %q, want old", buf[:n])
	}
}

// TestHardLinks checks by inode which files are taken over from the generation
// before, and that what was published is never touched.
func TestHardLinks(t *testing.T) {
	before := func() *volume.Tree {
		return tree(file("a", "1"), file("b", "2"), file("d/e", "3"), file("d/f", "4"))
	}
	cases := map[string]struct {
		change func(*volume.Tree)
		linked []string
	}{
		"content":           {func(tr *volume.Tree) { tr.Files[0].Data = []byte("x") }, []string{"b", "d/e", "d/f"}},
		"content in a dir":  {func(tr *volume.Tree) { tr.Files[2].Data = []byte("x") }, []string{"a", "b", "d/f"}},
		"mode":              {func(tr *volume.Tree) { tr.Files[1].Mode = 0o400 }, []string{"a", "d/e", "d/f"}},
		"mode of dirs":      {func(tr *volume.Tree) { tr.DirMode = 0o750 }, []string{"a", "b", "d/e", "d/f"}},
		"key removed":       {func(tr *volume.Tree) { tr.Files = tr.Files[1:] }, []string{"b", "d/e", "d/f"}},
		"key added":         {func(tr *volume.Tree) { tr.Files = append(tr.Files, file("z", "5")) }, []string{"a", "b", "d/e", "d/f"}},
		"file in dir's way": {func(tr *volume.Tree) { tr.Files = append(tr.Files[:2], file("d", "3")) }, []string{"a", "b"}},
	}
	for name, tt := range cases {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				v, w, old := newVolume(t), New(Options{}), before()
				v.write(w, old)
				stats, open := map[string]syscall.Stat_t{}, map[string]*os.File{}
				for _, f := range old.Files {
					stats[f.Path] = v.inode(f.Path)
					file, err := os.Open(filepath.Join(v.path, f.Path))
					v.must(err)
					defer file.Close()
					open[f.Path] = file
				}
				if restart {
					w = New(Options{})
				}
				next := before()
				tt.change(next)
				result := v.write(w, next)
				if result.Linked != len(tt.linked) || result.Files != len(next.Files)-len(tt.linked) {
					t.Errorf("Result = %+v, want %d linked of %d", result, len(tt.linked), len(next.Files))
				}
				for _, f := range next.Files {
					st := v.inode(f.Path)
					if same := st.Ino == stats[f.Path].Ino; same != slices.Contains(tt.linked, f.Path) {
						t.Errorf("%s: same inode: %v", f.Path, same)
					}
					if st.Nlink != 1 {
						t.Errorf("%s: %d links, the old generation is still there", f.Path, st.Nlink)
					}
				}
				for path, file := range open {
					checkUntouched(t, path, file, stats[path])
				}
			})
		}
	}
}

// checkUntouched compares a file with what it was when it was published. Its
// status changes as links come and go, its content, mode and owner must not.
func checkUntouched(t *testing.T, path string, f *os.File, before syscall.Stat_t) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode != before.Mode || st.Uid != before.Uid || st.Gid != before.Gid || st.Size != before.Size || st.Mtim != before.Mtim {
		t.Errorf("%s: a published file was touched: %+v, was %+v", path, st, before)
	}
}

// TestCallOrder watches every call: what is written gets its owner and then its
// mode before ..data switches, links come after that, and nothing is done to what
// was published but to link and to unlink it.
func TestCallOrder(t *testing.T) {
	var calls []string
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "1"), file("d/b", "2"), file("x", "3")))
	w.fs = stepped{w.fs, func(op, name string) error {
		if isGeneration(name) {
			name = "GEN"
		}
		calls = append(calls, op+" "+name)
		return nil
	}}
	v.write(w, tree(file("a", "1"), file("d/b", "4"), file("y", "5")))
	owner := fmt.Sprintf("chown %d:%d", os.Getuid(), os.Getgid())
	want := []string{
		"mkdir GEN", "link a",
		"mkdir d", "create b", "write ", owner, "chmod 0644", owner, "chmod 0755",
		"create y", "write ", owner, "chmod 0644",
		owner, "chmod 0755",
		"symlink ..data_tmp", "statfs ", "rename ..data",
		"symlink y", "unlink x",
		"unlink GEN",
	}
	if got := calls[:min(len(calls), len(want))]; !slices.Equal(got, want) {
		t.Errorf("calls:\n%s\nwant first:\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
}

// TestClosedUntilComplete looks at the new generation before each call: until its
// directory gets its mode, as the last of it, nobody else can enter.
func TestClosedUntilComplete(t *testing.T) {
	v, checks := newVolume(t), 0
	w := newStepped(func(op, name string) error {
		if op == "rename" {
			return nil
		}
		for _, name := range v.names() {
			mode := v.lstat(name).Mode()
			if isGeneration(name) && mode != fs.ModeDir|0o700 && op != "symlink" && op != "statfs" {
				t.Errorf("at %s the new generation has mode %v", op, mode)
			}
			checks++
		}
		return nil
	})
	tr := tree(file("a", "1"), file("d/b", "2"))
	if _, err := w.Write(t.Context(), v.root, tr); err != nil {
		t.Fatal(err)
	}
	if checks == 0 {
		t.Error("nothing was checked")
	}
	v.check(tr)
}

// TestOwner records the owners that are asked for, as changing them takes root.
func TestOwner(t *testing.T) {
	recorder := func(owners *[]string) fileSystem {
		return ownerRecorder{linux{}, owners}
	}
	owned := func(uid, gid int) *volume.Tree {
		tr := tree(file("a", "1"), file("d/b", "2"))
		tr.UID, tr.GID = uid, gid
		return tr
	}
	var owners []string
	v, w := newVolume(t), New(Options{})
	w.fs = recorder(&owners)
	for _, tt := range []struct {
		uid, gid int
		want     string
		changed  bool
	}{
		{1001, 2001, "1001:2001", true},
		{1001, 2001, "", false},
		{1002, 2001, "1002:2001", true},
		{1002, 2002, "1002:2002", true},
		{volume.NoOwner, 2003, "-1:2003", true},
		{volume.NoOwner, volume.NoOwner, "", false},
		{0, 0, "0:0", true},
	} {
		owners = nil
		result, err := w.Write(t.Context(), v.root, owned(tt.uid, tt.gid))
		if err != nil {
			t.Fatal(err)
		}
		if result.Changed != tt.changed || result.Linked != 0 {
			t.Errorf("owner %d:%d: Result = %+v, want Changed %v and nothing linked", tt.uid, tt.gid, result, tt.changed)
		}
		// Two files, two directories and the root, which this recorder never
		// really gives away; as root's own, it has nothing to change.
		slices.Sort(owners)
		owners = slices.Compact(owners)
		if got := strings.Join(owners, " "); got != tt.want {
			t.Errorf("owner %d:%d: asked for %q", tt.uid, tt.gid, got)
		}
	}
}

type ownerRecorder struct {
	fileSystem
	owners *[]string
}

func (r ownerRecorder) chown(_, uid, gid int) error {
	*r.owners = append(*r.owners, fmt.Sprintf("%d:%d", uid, gid))
	return nil
}

// TestOwnerFound has a new Writer find another owner than it is to show.
func TestOwnerFound(t *testing.T) {
	v := newVolume(t)
	v.write(New(Options{}), tree(file("a", "1")))
	var owners []string
	w := New(Options{})
	w.fs = ownerRecorder{w.fs, &owners}
	other := tree(file("a", "1"))
	other.GID++
	result, err := w.Write(t.Context(), v.root, other)
	if err != nil || !result.Changed || result.Linked != 0 {
		t.Errorf("Write = %+v, %v, want a new generation and nothing linked", result, err)
	}
	if len(owners) != 3 { // file, generation, root
		t.Errorf("owners set: %q", owners)
	}
}

// TestModesIgnoreUmask runs under a umask that would take nearly all away.
func TestModesIgnoreUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o777))
	v := &testVolume{}
	func() {
		defer unix.Umask(unix.Umask(0o022))
		v = newVolume(t)
	}()
	if os.Getuid() != 0 {
		unix.Umask(0o077) // others than root could not enter their own new directories
	}
	v.write(New(Options{}), tree(withMode(0o666, file("a", "1")), file("d/b", "2")))
}

func TestRootMode(t *testing.T) {
	v := newVolume(t)
	v.must(os.Chmod(v.path, 0o700))
	first := v.write(New(Options{}), tree(file("a", "1"))) // write checks the mode
	v.must(os.Chmod(v.path, 0o700))
	result := v.write(New(Options{}), tree(file("a", "1")))
	if want := (Result{Generation: first.Generation}); result != want {
		t.Errorf("Result = %+v, want %+v: only the root differed", result, want)
	}
}

func TestGenerationName(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 789, time.FixedZone("", 3600))
	v := newVolume(t)
	result := v.write(New(Options{Now: func() time.Time { return now }}), tree())
	if !strings.HasPrefix(result.Generation, "..2026_02_03_03_05_06.") || len(result.Generation) != 31 {
		t.Errorf("generation %q", result.Generation)
	}
	for name, want := range map[string]bool{
		result.Generation:                 true,
		"..2016_02_01_15_04_05.12345678":  true,
		"..2016_02_01_15_04_05.1":         true,
		"..2016_02_01_15_04_05.":          false,
		"..2016_02_01_15_04_05":           false,
		"..2016_02_01_15_04_05.1x":        false,
		"..2016_02_01_15_04_05.1/a":       false,
		"..2016_13_01_15_04_05.1":         false,
		"..2016-02-01-15-04-05.1":         false,
		"2016_02_01_15_04_05.12345678":    false,
		"..data":                          false,
		"..data_tmp":                      false,
		"..":                              false,
		"../2016_02_01_15_04_05.12345678": false,
	} {
		if got := isGeneration(name); got != want {
			t.Errorf("isGeneration(%q) = %v", name, got)
		}
	}
}

func TestGenerationNameTaken(t *testing.T) {
	taken := 2
	w := newStepped(func(op, _ string) error {
		if op == "mkdir" && taken > 0 {
			taken--
			return unix.EEXIST
		}
		return nil
	})
	newVolume(t).write(w, tree(file("a", "1")))

	w = newStepped(func(op, _ string) error { return unix.EEXIST })
	if _, err := w.Write(t.Context(), newVolume(t).root, tree()); !errors.Is(err, unix.EEXIST) {
		t.Errorf("Write = %v, want EEXIST", err)
	}
}

func TestDirectoryMustExist(t *testing.T) {
	v := newVolume(t)
	v.must(os.Remove(v.path))
	_, err := New(Options{}).Write(t.Context(), v.root, tree(file("a", "1")))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write = %v, want ErrNotExist", err)
	}
	v.root.Close()
	_, err = New(Options{}).Write(t.Context(), v.root, tree(file("a", "1")))
	if !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Write = %v, want ErrClosed", err)
	}
}

func TestCancelled(t *testing.T) {
	before, after := tree(file("a", "1"), file("b", "2")), tree(file("a", "1"), file("b", "3"), file("c", "4"))
	for _, op := range []string{"mkdir", "create", "chmod", "symlink", "statfs"} {
		t.Run(op, func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			kernel := w.fs
			w.fs = stepped{kernel, func(current, name string) error {
				if ctx.Err() != nil && (current == "create" || current == "link" || current == "rename") {
					t.Errorf("%s %s after the end", current, name)
				}
				if current == op {
					cancel()
				}
				return nil
			}}
			result, err := w.Write(ctx, v.root, after)
			if !errors.Is(err, context.Canceled) || result != (Result{}) {
				t.Errorf("Write = %+v, %v, want context.Canceled", result, err)
			}
			v.check(before)
			w.fs = kernel
			v.write(w, after)
		})
	}
	t.Run("reading", func(t *testing.T) {
		v := newVolume(t)
		v.write(New(Options{}), before)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := New(Options{}).Write(ctx, v.root, before); !errors.Is(err, context.Canceled) {
			t.Errorf("Write = %v, want context.Canceled", err)
		}
	})
}

// TestErrorsHideContent lets each call fail in turn and looks for the content in
// the errors.
func TestErrorsHideContent(t *testing.T) {
	const canary = "s3cr3t-canary"
	for n := 1; ; n++ {
		v, calls := newVolume(t), 0
		w := newStepped(func(op, name string) error {
			if calls++; calls == n {
				return unix.EIO
			}
			return nil
		})
		_, err := w.Write(t.Context(), v.root, tree(file("d/key", canary)))
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EIO) || strings.Contains(err.Error(), canary) || bytes.Contains([]byte(fmt.Sprintf("%+v", err)), []byte(canary)) {
			t.Errorf("call %d: %+v", n, err)
		}
	}
}

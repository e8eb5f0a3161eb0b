package writer

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

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

// TestCallOrder watches every call: what is written, whose owner is right by itself, gets
// its mode before ..data switches, links come after that, and nothing is done to what
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
	want := []string{
		"mkdir GEN", "link a",
		"mkdir d", "create b", "write ", "chmod 0644", "chmod 0755",
		"create y", "write ", "chmod 0644",
		"chmod 0755",
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

// A file's own user beats the tree's, and a change of it alone is a change.
func TestOwnerOfAFile(t *testing.T) {
	owned := func(user *int64) *volume.Tree {
		a, b := file("a", "1"), file("b", "2")
		a.User = user
		return tree(a, b)
	}
	var owners []string
	v, w := newVolume(t), New(Options{})
	w.fs = ownerRecorder{w.fs, &owners}
	for _, tt := range []struct {
		user    *int64
		want    []string
		changed bool
	}{
		{new(int64(1001)), []string{"1001:" + strconv.Itoa(os.Getgid())}, true},
		{new(int64(1002)), []string{"1002:" + strconv.Itoa(os.Getgid())}, true},
		{new(int64(os.Getuid())), nil, true},
		{nil, nil, false},
	} {
		owners = nil
		result, err := w.Write(t.Context(), v.root, owned(tt.user))
		if err != nil {
			t.Fatal(err)
		}
		if result.Changed != tt.changed || !slices.Equal(owners, tt.want) {
			t.Errorf("user %v: Result = %+v, owners set are %q; want Changed %v and %q", tt.user, result, owners, tt.changed, tt.want)
		}
	}
}

// TestOwner records the owners that are asked for, as changing them takes root.
func TestOwner(t *testing.T) {
	owned := func(uid, gid int) *volume.Tree {
		tr := tree(file("a", "1"), file("d/b", "2"))
		tr.UID, tr.GID = uid, gid
		return tr
	}
	var owners []string
	v, w := newVolume(t), New(Options{})
	w.fs = ownerRecorder{w.fs, &owners}
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
		{os.Getuid(), os.Getgid(), "", true}, // as all that is made has it
	} {
		owners = nil
		result, err := w.Write(t.Context(), v.root, owned(tt.uid, tt.gid))
		if err != nil {
			t.Fatal(err)
		}
		if result.Changed != tt.changed || result.Linked != 0 {
			t.Errorf("owner %d:%d: Result = %+v, want Changed %v and nothing linked", tt.uid, tt.gid, result, tt.changed)
		}
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

// TestOwnerOfSetgidRoot has the root pass its group on to what is made in it, which may
// be the group that is asked for or not.
func TestOwnerOfSetgidRoot(t *testing.T) {
	group := os.Getgid()
	if os.Getuid() == 0 {
		group = 2003
	}
	for _, want := range []int{group, os.Getgid()} {
		v := newVolume(t)
		if err := os.Chown(v.path, -1, group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(v.path, 0o755|fs.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		tr := tree(file("a", "1"), file("d/b", "2"))
		tr.GID = want
		v.write(New(Options{}), tr)
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

package writer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestHardLinks checks by inode which files are linked from the last generation, and that published files and the objects that they name
// are never changed.
func TestHardLinks(t *testing.T) {
	o := withAttributes(t)
	before := func() *volume.Payload {
		return tree(naming(file("a", "1"), "db"), naming(file("b", "2"), "db"), file("d/e", "3"), file("d/f", "4"))
	}
	cases := map[string]struct {
		change func(*volume.Payload)
		linked []string
	}{
		"content":           {func(tr *volume.Payload) { tr.Files[0].Data = []byte("x") }, []string{"b", "d/e", "d/f"}},
		"content in a dir":  {func(tr *volume.Payload) { tr.Files[2].Data = []byte("x") }, []string{"a", "b", "d/f"}},
		"mode":              {func(tr *volume.Payload) { tr.Files[1].Mode = 0o400 }, []string{"a", "d/e", "d/f"}},
		"mode of dirs":      {func(tr *volume.Payload) { tr.DirMode = 0o750 }, []string{"a", "b", "d/e", "d/f"}},
		"key removed":       {func(tr *volume.Payload) { tr.Files = tr.Files[1:] }, []string{"b", "d/e", "d/f"}},
		"key added":         {func(tr *volume.Payload) { tr.Files = append(tr.Files, file("z", "5")) }, []string{"a", "b", "d/e", "d/f"}},
		"objects":           {func(tr *volume.Payload) { tr.Files[1].Refs, tr.Files[2].Refs = refs("ca"), refs("db") }, []string{"a", "d/f"}},
		"file in dir's way": {func(tr *volume.Payload) { tr.Files = append(tr.Files[:2], file("d", "3")) }, []string{"a", "b"}},
	}
	for name, tt := range cases {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				v, w, old := newVolume(t), New(o), before()
				v.write(w, old)
				stats, open, names := map[string]syscall.Stat_t{}, map[string]*os.File{}, map[string]string{}
				for _, f := range old.Files {
					stats[f.Path] = v.inode(f.Path)
					file, err := os.Open(filepath.Join(v.path, f.Path))
					v.must(err)
					defer file.Close()
					open[f.Path] = file
					names[f.Path], err = o.readRefs(int(file.Fd()))
					v.must(err)
				}
				if restart {
					w = New(o)
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
					// The number of links may change.
					var st syscall.Stat_t
					v.must(syscall.Fstat(int(file.Fd()), &st))
					if was := stats[path]; st.Mode != was.Mode || st.Uid != was.Uid || st.Gid != was.Gid || st.Size != was.Size || st.Mtim != was.Mtim {
						t.Errorf("%s: a published file was touched: %+v, was %+v", path, st, was)
					}
					if got, err := o.readRefs(int(file.Fd())); err != nil || got != names[path] {
						t.Errorf("%s: a published file names %q, %v, and named %q", path, got, err, names[path])
					}
				}
				if again := v.write(w, next); again.Changed {
					t.Errorf("again: %+v", again)
				}
			})
		}
	}
}

// TestOwner changes owners: each change is a separate write, and nothing is linked then.
func TestOwner(t *testing.T) {
	if !mayChown(t) {
		t.Skip("needs other owners")
	}
	owned := func(uid, gid int, user *int64) *volume.Payload {
		a := file("a", "1")
		a.User = user
		tr := tree(a, file("d/b", "2"))
		tr.UID, tr.GID = uid, gid
		return tr
	}
	for _, restart := range []bool{false, true} {
		v, w := newVolume(t), New(Options{})
		for _, tt := range []struct {
			uid, gid int
			user     *int64
			changed  bool
		}{
			{1001, 2001, nil, true},
			{1001, 2001, nil, false},
			{1002, 2001, nil, true},
			{1002, 2002, nil, true},
			{volume.NoOwner, 2002, nil, false},
			{volume.NoOwner, volume.NoOwner, nil, false},
			{0, 0, nil, true},
			{0, 0, new(int64(1003)), true},
			{0, 0, new(int64(1003)), false},
			{0, 0, new(int64(0)), true},
			{0, 0, nil, false},
		} {
			if restart {
				w = New(Options{})
			}
			before := v.inode(".").Uid
			result, err := w.Write(t.Context(), v.root, owned(tt.uid, tt.gid, tt.user))
			v.must(err)
			if result.Changed != tt.changed {
				t.Errorf("owner %d:%d, restart %v: Result = %+v, want Changed %v", tt.uid, tt.gid, restart, result, tt.changed)
			}
			want := uint32(tt.uid)
			if tt.uid == volume.NoOwner {
				want = before
			}
			for _, path := range []string{".", "..data/.", "..data/d", "d/b"} {
				if st := v.inode(path); st.Uid != want {
					t.Errorf("%s belongs to %d, want %d", path, st.Uid, want)
				}
			}
			if st := v.inode("a"); tt.user != nil && st.Uid != uint32(*tt.user) {
				t.Errorf("a belongs to %d", st.Uid)
			}
		}
	}
}

// TestOwnerOrGroup changes one of both, to root too, and leaves the other.
func TestOwnerOrGroup(t *testing.T) {
	if !mayChown(t) {
		t.Skip("needs other owners")
	}
	v, w := newVolume(t), newInPlace(Options{})
	for i, tt := range []struct{ uid, gid, wantUID, wantGID int }{
		{1001, 2001, 1001, 2001},
		{0, volume.NoOwner, 0, 2001},
		{1002, volume.NoOwner, 1002, 2001},
		{volume.NoOwner, 0, 1002, 0},
		{volume.NoOwner, 2002, 1002, 2002},
	} {
		owned := tree(file("d/a", strconv.Itoa(i)))
		owned.UID, owned.GID = tt.uid, tt.gid
		v.must(second(w.Write(t.Context(), v.root, owned)))
		for _, path := range []string{".", "d", "d/a"} {
			if st := v.inode(path); int(st.Uid) != tt.wantUID || int(st.Gid) != tt.wantGID {
				t.Errorf("%d:%d: %s belongs to %d:%d", tt.uid, tt.gid, path, st.Uid, st.Gid)
			}
		}
	}
}

// mayChown reports whether this process may change the owner of files.
func mayChown(t *testing.T) bool {
	t.Helper()
	path := filepath.Join(tempDir(t), "x")
	return os.WriteFile(path, nil, 0o600) == nil && os.Chown(path, 1001, 2001) == nil
}

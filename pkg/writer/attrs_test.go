package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
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
		t.Run(name, func(t *testing.T) {
			eachWay(t, []Options{o}, func(t *testing.T, o Options, writer func() *Writer) {
				v, old := newVolume(t), before()
				v.write(writer(), old)
				stats, open, names := map[string]syscall.Stat_t{}, map[string]*os.File{}, map[string]string{}
				for _, f := range old.Files {
					stats[f.Path] = v.inode(f.Path)
					file := must.Get(os.Open(filepath.Join(v.path, f.Path)))(v)
					defer file.Close()
					open[f.Path] = file
					names[f.Path] = must.Get(o.readRefs(int(file.Fd())))(v)
				}
				next := before()
				tt.change(next)
				result := v.write(writer(), next)
				if result.Linked != len(tt.linked) || result.Files != len(next.Files)-len(tt.linked) {
					t.Errorf("Result = %+v, want %d linked of %d", result, len(tt.linked), len(next.Files))
				}
				for _, f := range next.Files {
					st := v.inode(f.Path)
					expect.Equal(t, "same inode of "+f.Path, st.Ino == stats[f.Path].Ino, slices.Contains(tt.linked, f.Path))
					expect.Equal(t, "links of "+f.Path, st.Nlink, 1) // the old generation is gone
				}
				for path, file := range open {
					// The number of links may change.
					var st syscall.Stat_t
					v.must(syscall.Fstat(int(file.Fd()), &st))
					if was := stats[path]; st.Mode != was.Mode || st.Uid != was.Uid || st.Gid != was.Gid || st.Size != was.Size || st.Mtim != was.Mtim {
						t.Errorf("%s: a published file was touched: %+v, was %+v", path, st, was)
					}
					expect.Equal(t, "what a published file names: "+path, must.Get(o.readRefs(int(file.Fd())))(t), names[path])
				}
				if again := v.write(writer(), next); again.Changed {
					t.Errorf("again: %+v", again)
				}
			})
		})
	}
}

// TestOwner changes owner and group: each change is a separate write. In place, what is not named stays. The files of a new generation have the
// owner of the process then.
func TestOwner(t *testing.T) {
	if !mayChown(t) {
		t.Skip("needs other owners")
	}
	const none = volume.NoOwner
	eachWay(t, bothOf(Options{}), func(t *testing.T, o Options, next func() *Writer) {
		v := newVolume(t)
		for i, tt := range []struct {
			uid, gid         int
			user             *int64
			wantUID, wantGID uint32
			changed, inPlace bool
		}{
			{1001, 2001, nil, 1001, 2001, true, false},
			{1001, 2001, nil, 1001, 2001, false, false},
			{1002, 2001, nil, 1002, 2001, true, false},
			{1002, 2002, nil, 1002, 2002, true, false},
			{none, 2002, nil, 1002, 2002, false, false},
			{none, none, nil, 1002, 2002, false, false},
			{0, none, nil, 0, 2002, true, true},
			{none, 0, nil, 0, 0, true, true},
			{0, 0, new(int64(1003)), 0, 0, true, false},
			{0, 0, new(int64(1003)), 0, 0, false, false},
			{0, 0, new(int64(0)), 0, 0, true, false},
			{0, 0, nil, 0, 0, false, false},
			{1002, none, nil, 1002, 0, true, true},
		} {
			if tt.inPlace && !o.InPlace {
				continue
			}
			a := file("a", "1")
			a.User = tt.user
			owned := tree(a, file("d/b", "2"))
			owned.UID, owned.GID = tt.uid, tt.gid
			result := must.Get(next().Write(t.Context(), v.root, owned))(v)
			expect.Equal(t, fmt.Sprintf("write %d changed something", i), result.Changed, tt.changed)
			for _, path := range []string{".", "..data/.", "..data/d", "d/b"} {
				if st := v.inode(path); st.Uid != tt.wantUID || st.Gid != tt.wantGID {
					t.Errorf("write %d: %s belongs to %d:%d", i, path, st.Uid, st.Gid)
				}
			}
			if st := v.inode("a"); tt.user != nil && st.Uid != uint32(*tt.user) {
				t.Errorf("write %d: a belongs to %d", i, st.Uid)
			}
		}
	})
}

func mayChown(t *testing.T) bool {
	t.Helper()
	path := filepath.Join(sandbox.TempDir(t), "x")
	return os.WriteFile(path, nil, 0o600) == nil && os.Chown(path, 1001, 2001) == nil
}

func withDirectories(tree *volume.Payload, paths ...string) *volume.Payload {
	tree.Directories = paths
	return tree
}

// isDirectory fails unless a path is a real directory with the tree's mode and owner. It returns its inode.
func (v *testVolume) isDirectory(tree *volume.Payload, name string) uint64 {
	v.Helper()
	info := v.lstat(name)
	st := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode()&(fs.ModePerm|fs.ModeSetgid) != tree.DirMode || int(st.Uid) != tree.UID || int(st.Gid) != tree.GID {
		v.Errorf("%s is %v of %d:%d, want a directory of mode %v of %d:%d", name, info.Mode(), st.Uid, st.Gid, tree.DirMode, tree.UID, tree.GID)
	}
	return st.Ino
}

// A container's mount is on such a directory, so it stays the same one. With InPlace, it may be among the files of the one generation.
func TestDirectoriesStay(t *testing.T) {
	for name, c := range map[string]struct {
		inPlace               bool
		dirs, inner, contains []string
	}{
		"Atomic":          {false, []string{"a/b/c", "tls"}, nil, []string{"a", "a/b", "a/b/c", "tls"}},
		"InPlace":         {true, []string{"a/b/c", "tls"}, nil, []string{"a", "a/b", "a/b/c", "tls"}},
		"among the files": {true, nil, []string{"conf/a/b", "later/x", "tls/x"}, []string{"conf/a/b", "later/x", "tls/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, w := newVolume(t), New(Options{InPlace: c.inPlace})
			next := func(files ...volume.File) *volume.Payload {
				next := tree(files...)
				next.Directories, next.Inner = c.dirs, c.inner
				return next
			}
			first, last := next(file("conf/x", "1"), file("k", "1")), next(file("conf/x", "2"), file("later/k", "1"))
			if c.inPlace {
				last = next(file("conf/x", "2"), file("k", ""), file("later/k", "1"))
			}
			first.DirMode = 0o750
			if r := v.write(w, first); !r.Changed {
				t.Error("the first write changed nothing")
			}
			inodes := map[string]uint64{}
			for _, name := range c.contains {
				inodes[name] = v.isDirectory(first, name)
			}
			if r := v.write(w, first); r.Changed {
				t.Error("a write of the same changed something")
			}
			if r := v.write(w, last); !r.Changed {
				t.Error("an update changed nothing")
			}
			v.must(second(w.Withdraw(t.Context(), v.root, map[volume.Ref]bool{{Kind: volume.Secret}: true}, "")))
			v.write(New(w.opts), last)
			for name, want := range inodes {
				expect.Equal(t, "inode of "+name, v.isDirectory(last, name), want)
			}
			v.must(os.Remove(filepath.Join(v.path, c.contains[len(c.contains)-1])))
			expect.Equal(t, "whole without a directory", must.Get(w.Compare(t.Context(), v.root, last))(t).Whole, false)
			v.write(w, last)
		})
	}
}

// A file or link in the place of a directory is removed. An existing directory is not.
func TestDirectoriesAreRepaired(t *testing.T) {
	for strategy, w := range bothWriters() {
		t.Run(strategy, func(t *testing.T) {
			v := newVolume(t)
			outside := filepath.Join(v.path, "..", "outside")
			want := withDirectories(tree(file("k", "1")), "d/e", "f", "g", "h")
			v.write(w, want)
			for _, name := range []string{"d/e", "d", "f", "g", "h"} {
				v.must(os.Remove(filepath.Join(v.path, name)))
			}
			v.must(os.Symlink(outside, filepath.Join(v.path, "d")))
			v.must(os.WriteFile(filepath.Join(v.path, "f"), nil, 0o644))
			v.must(os.Symlink("..data/g", filepath.Join(v.path, "g")))
			expect.Equal(t, "whole without its directories", must.Get(w.Compare(t.Context(), v.root, want))(t).Whole, false)
			if r := v.write(w, want); !r.Changed {
				t.Error("nothing was changed")
			}
			for _, name := range []string{"d", "d/e", "f", "g", "h"} {
				v.isDirectory(want, name)
			}
			expect.Equal(t, "what is found", must.Get(w.Compare(t.Context(), v.root, want))(t), Comparison{Whole: true, Same: true})
		})
	}
}

// A tree whose files need the place of a directory changes nothing.
func TestDirectoriesAndFilesConflict(t *testing.T) {
	for strategy, w := range bothWriters() {
		v := newVolume(t)
		good := withDirectories(tree(file("k", "1")), "tls")
		v.write(w, good)
		inode := v.isDirectory(good, "tls")
		for _, bad := range []*volume.Payload{
			withDirectories(tree(file("k", "2"), file("tls", "")), "tls"),
			withDirectories(tree(file("k", "2"), file("tls/x", "")), "tls"),
			withDirectories(tree(file("k", "2"), file("tls/x", "")), "tls/y"),
			withDirectories(tree(file("k", "2")), "tls", "../x"),
			withDirectories(tree(file("k", "2")), "..data"),
			withDirectories(tree(file("k", "2")), "/tls"),
			{Files: []volume.File{file("k", "2")}, DirMode: 0o755, Inner: []string{"../x"}},
			{Files: []volume.File{file("k", "2")}, DirMode: 0o755, Inner: []string{"k"}},
		} {
			if r, err := w.Write(t.Context(), v.root, bad); err == nil || r.Changed {
				t.Errorf("%s: Write of directories %q and %q = %+v, %v", strategy, bad.Directories, bad.Inner, r, err)
			}
			v.check(good)
		}
		expect.Equal(t, strategy+": inode of the directory", v.isDirectory(good, "tls"), inode)
	}
	w := New(Options{})
	err := second(w.Write(t.Context(), newVolume(t).root, &volume.Payload{DirMode: 0o755, Inner: []string{"d"}}))
	expect.Has(t, "Atomic with a directory among the files", fmt.Sprint(err), "written in place")
}

// Without room for a directory, nothing changes.
func TestDirectoriesNeedRoom(t *testing.T) {
	small, large := tree(file("k", "1")), withDirectories(tree(file("k", "1")), "a/b/c", "a/b/d", "tls")
	large.Inner = []string{"x/y"}
	if got, want := Measure(large).Inodes-Measure(small).Inodes, int64(8); got != want { // with the link of x
		t.Errorf("the directories take %d inodes, want %d", got, want)
	}
	large.Inner = append(large.Inner, strings.Repeat("n", 200)+"/y")
	if got, want := Measure(large).Bytes-Measure(small).Bytes, int64(os.Getpagesize()); got != want { // for the longer link
		t.Errorf("the directories take %d bytes, want %d", got, want)
	}
	v := newSmallVolume(t, 10, 9)
	w := New(Options{})
	v.write(w, small)
	large.Inner = nil
	if r, err := w.Write(t.Context(), v.root, large); !errors.Is(err, unix.ENOSPC) || r.Changed {
		t.Errorf("Write = %+v, %v", r, err)
	}
	v.check(small)
}

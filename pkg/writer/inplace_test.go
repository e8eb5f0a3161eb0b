package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func (v *testVolume) inodes() map[string]uint64 {
	v.Helper()
	files := map[string]uint64{}
	v.must(fs.WalkDir(os.DirFS(filepath.Join(v.path, dataName)), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && d.Type().IsRegular():
			files[path] = v.inode(filepath.Join(dataName, path)).Ino
		}
		return err
	}))
	return files
}

// rewrite writes tree in place, expects success, and compares what is on disk with tree and with the state before.
func (v *testVolume) rewrite(w *Writer, tree *volume.Payload) Result {
	v.Helper()
	before := v.inodes()
	result := v.writes(w, tree)
	v.checkInPlace(before, tree)
	return result
}

// checkInPlace fails unless the volume shows tree and apart from that only empty files: those of before that are not in the way. Every file
// that existed before and still exists must have its inode.
func (v *testVolume) checkInPlace(before map[string]uint64, tree *volume.Payload) {
	v.Helper()
	with := *tree
	with.Files = slices.Clone(tree.Files)
	for path, inode := range before {
		if _, found := slices.BinarySearchFunc(tree.Files, path, comparePath); !found {
			if blocked(tree, path) {
				continue
			}
			info := v.lstat(filepath.Join(dataName, path))
			uid, gid := v.inode(filepath.Join(dataName, path)).Uid, v.inode(filepath.Join(dataName, path)).Gid
			if info.Size() != 0 || int(uid) != os.Getuid() || int(gid) != os.Getgid() {
				v.Errorf("emptied %s: %v, owner %d:%d", path, info.Size(), uid, gid)
			}
			with.Files = append(with.Files, withMode(info.Mode(), file(path, "")))
		}
		expect.Equal(v, "inode of "+path, v.inode(filepath.Join(dataName, path)).Ino, inode)
	}
	slices.SortFunc(with.Files, func(a, b volume.File) int { return strings.Compare(a.Path, b.Path) })
	v.check(&with)
	for path := range v.inodes() {
		st := v.inode(filepath.Join(dataName, path))
		expect.Between(v, "bytes in blocks of "+path, st.Blocks*512, 0, wholePages(st.Size))
	}
}

func comparePath(f volume.File, path string) int { return strings.Compare(f.Path, path) }

func blocked(tree *volume.Payload, path string) bool {
	return slices.ContainsFunc(tree.Files, func(f volume.File) bool {
		return f.Path != path && (below(f.Path, path) || below(path, f.Path))
	})
}

// TestInPlaceResult: what a rewrite tells of the files that it has written or emptied, in its result and to Rewritten.
func TestInPlaceResult(t *testing.T) {
	o := withAttributes(t)
	var told []string
	o.Rewritten = func(path string, _ int) { told = append(told, path) }
	v, w := newVolume(t), newInPlace(o)
	v.write(w, tree(naming(file("a", "1"), "db"), naming(file("b", "1"), "db"), file("c", "1")))
	told = nil
	last := tree(withMode(0o600, naming(file("a", "long"), "db", "other")), naming(file("b", "1"), "db"))
	expect.Equal(t, "what is found", must.Get(w.Compare(t.Context(), v.root, last))(t), Comparison{Whole: true, Differ: []string{"a"}})
	result := v.rewrite(w, last)
	expect.Equal(t, "Result", result, Result{Changed: true, Generation: result.Generation, Files: 2, Bytes: 4})
	expect.Equal(t, "what Rewritten was called for", told, []string{"a"})
}

// TestInPlaceSeen holds one file in all the ways in which a container may hold it.
func TestInPlaceSeen(t *testing.T) {
	long := strings.Repeat("0123456789", 2000)
	eachWay(t, []Options{{InPlace: true}}, func(t *testing.T, _ Options, next func() *Writer) {
		v := newVolume(t)
		v.rewrite(next(), tree(file("conf/a", "first"), file("b", "1")))
		path := filepath.Join(v.path, "conf/a")
		held := must.Get(os.Open(path))(v)
		defer held.Close()
		mount, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil { // without the right to mount, the next best
			mount, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			v.must(err)
		}
		defer unix.Close(mount)
		for _, tt := range []struct {
			tree *volume.Payload
			want string
		}{
			{tree(file("conf/a", "other"), file("b", "1")), "other"},
			{tree(file("conf/a", long), file("b", "1")), long},
			{tree(file("conf/a", "short"), file("b", "1")), "short"},
			{tree(file("b", "2")), ""},
			{tree(file("b", "2"), file("conf/c", "1")), ""},
			{tree(file("conf/a", "back"), file("b", "1")), "back"},
			{tree(), ""},
			{tree(file("conf/a", "again")), "again"},
			{tree(file("conf", "a file now")), ""},
		} {
			v.rewrite(next(), tt.tree)
			buf := make([]byte, len(long)+1)
			n, _ := held.ReadAt(buf, 0)
			bound, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", mount))
			if got := string(buf[:n]); got != tt.want || string(bound) != tt.want || err != nil {
				t.Errorf("an open file shows %.20q, a bind mount %.20q, %v; want %.20q", got, bound, err, tt.want)
			}
		}
	})
}

// TestInPlaceAttrs makes the write of new content fail and checks the modes of the file and the directories then. Nobody can read the new
// content who may not in the end. Who may read before and after is not locked out.
func TestInPlaceAttrs(t *testing.T) {
	for _, tt := range []struct {
		from, to       fs.FileMode
		dirFrom, dirTo fs.FileMode
		user           int64
		between        uint32
		dirBetween     uint32
	}{
		{0o644, 0o600, 0o755, 0o755, 0, 0o600, 0o755},
		{0o600, 0o644, 0o755, 0o700, 0, 0o600, 0o700},
		{0o640, 0o604, 0o750, 0o705, 0, 0o600, 0o700},
		{0o444, 0o444, 0o700, 0o755, 0, 0o444, 0o700},
		{0o644, 0o644, 0o755, 0o755, 1001, 0, 0o755},
	} {
		t.Run(fmt.Sprintf("%v to %v, user %d", tt.from, tt.to, tt.user), func(t *testing.T) {
			if os.Getuid() != 0 || tt.user != 0 && !mayChown(t) {
				t.Skip("needs root")
			}
			before := withDirMode(tt.dirFrom, tree(withMode(tt.from, file("d/a", "1"))))
			after := withDirMode(tt.dirTo, tree(withMode(tt.to, file("d/a", "2"))))
			if tt.user != 0 {
				after.Files[0].User = &tt.user
			}
			v, w := newVolume(t), newInPlace(Options{})
			v.rewrite(w, before)
			inodes := v.inodes()
			if out, hit := (fault{what: "error=EIO", call: "write", when: 1}).run(t, job{Volume: v.path, Options: w.opts, Tree: *after}); !hit {
				t.Fatal(out)
			}
			expect.Equal(t, "mode at the write", v.inode("d/a").Mode&0o777, tt.between)
			for _, dir := range []string{".", "..data/.", "d"} {
				expect.Equal(t, "mode of "+dir+" at the write", v.inode(dir).Mode&0o777, tt.dirBetween)
			}
			v.must(second(newInPlace(Options{}).Write(t.Context(), v.root, after)))
			if st := v.inode("d/a"); st.Ino != inodes["d/a"] || st.Mode&0o777 != uint32(tt.to) || int64(st.Uid) != tt.user {
				t.Errorf("in the end: %+v", st)
			}
		})
	}
}

// A reader with a lease on a file delays nobody: the write fails at once and changes nothing, and the next one after the lease succeeds.
func TestInPlaceLease(t *testing.T) {
	v := newVolume(t)
	w := newInPlace(Options{})
	before, after := tree(file("a", "1"), file("b", "2")), tree(file("a", "one"), file("b", "two"))
	v.write(w, before)
	reader := must.Get(v.root.Open("b"))(v)
	defer reader.Close()
	if _, err := unix.FcntlInt(reader.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Fatal("a lease: ", err)
	}
	expect.Is(t, "with a lease", second(w.Write(t.Context(), v.root, after)), unix.EWOULDBLOCK)
	v.check(before)
	v.must(reader.Close())
	v.write(w, after)
	v.check(after)
}

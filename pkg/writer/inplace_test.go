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

	"github.com/refvol/refvol/pkg/volume"
)

// inodes returns the inode of each regular file below ..data, by path.
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
	before, fds := v.inodes(), openDescriptors(v)
	result, err := w.Write(v.Context(), v.root, tree)
	if err != nil {
		v.Fatalf("Write: %v", err)
	}
	if got := openDescriptors(v); got != fds {
		v.Errorf("%d descriptors are open, %d before", got, fds)
	}
	if got := v.readlink(dataName); result.Generation != got {
		v.Errorf("Result.Generation = %q, ..data points at %q", result.Generation, got)
	}
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
		if got := v.inode(filepath.Join(dataName, path)).Ino; got != inode {
			v.Errorf("%s has another inode", path)
		}
	}
	slices.SortFunc(with.Files, func(a, b volume.File) int { return strings.Compare(a.Path, b.Path) })
	v.check(&with)
	for path := range v.inodes() {
		st := v.inode(filepath.Join(dataName, path))
		if st.Blocks*512 > wholePages(st.Size) {
			v.Errorf("%s holds %d blocks for %d bytes", path, st.Blocks, st.Size)
		}
	}
}

func comparePath(f volume.File, path string) int { return strings.Compare(f.Path, path) }

// blocked reports whether a file of tree conflicts with one at path.
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
	if found, err := w.Compare(t.Context(), v.root, last); found.Same || !slices.Equal(found.Differ, []string{"a"}) || err != nil {
		t.Errorf("Compare = %+v, %v", found, err)
	}
	result := v.rewrite(w, last)
	if want := (Result{Changed: true, Generation: result.Generation, Files: 2, Bytes: 4}); result != want {
		t.Errorf("Result = %+v, want %+v", result, want)
	}
	if !slices.Equal(told, []string{"a"}) {
		t.Errorf("Rewritten was called for %q", told)
	}
}

// TestInPlaceSeen holds one file in all the ways in which a container may hold it.
func TestInPlaceSeen(t *testing.T) {
	long := strings.Repeat("0123456789", 2000)
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			v, w := newVolume(t), newInPlace(Options{})
			v.rewrite(w, tree(file("conf/a", "first"), file("b", "1")))
			path := filepath.Join(v.path, "conf/a")
			held, err := os.Open(path)
			v.must(err)
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
				if restart {
					w = newInPlace(Options{})
				}
				v.rewrite(w, tt.tree)
				buf := make([]byte, len(long)+1)
				n, _ := held.ReadAt(buf, 0)
				bound, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", mount))
				if got := string(buf[:n]); got != tt.want || string(bound) != tt.want || err != nil {
					t.Errorf("an open file shows %.20q, a bind mount %.20q, %v; want %.20q", got, bound, err, tt.want)
				}
			}
		})
	}
}

package writer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// newSmallVolume returns a volume on its own tmpfs.
func newSmallVolume(t *testing.T, pages, inodes int) *testVolume {
	t.Helper()
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip("needs the right to mount")
	}
	v := &testVolume{TB: t}
	v.must(err)
	defer unix.Close(fsfd)
	v.must(unix.FsconfigSetString(fsfd, "size", strconv.Itoa(pages*os.Getpagesize())))
	v.must(unix.FsconfigSetString(fsfd, "nr_inodes", strconv.Itoa(inodes)))
	v.must(unix.FsconfigCreate(fsfd))
	mnt, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	v.must(err)
	t.Cleanup(func() { unix.Close(mnt) })
	v.path = fmt.Sprintf("/proc/%d/fd/%d/volume", os.Getpid(), mnt) // also for other processes
	v.must(os.Mkdir(v.path, 0o755))
	v.root, err = os.OpenRoot(v.path)
	v.must(err)
	t.Cleanup(func() { v.root.Close() })
	return v
}

// free returns how many pages and inodes are free.
func (v *testVolume) free() (pages, inodes uint64) {
	v.Helper()
	var st unix.Statfs_t
	v.must(unix.Statfs(v.path, &st))
	return st.Bfree, st.Ffree
}

func pages(n int, content string) string { return strings.Repeat(content, n*os.Getpagesize()) }

// TestInPlaceFull has a real file system with too little room for a tree: every file keeps its content, and all reserved room is freed.
func TestInPlaceFull(t *testing.T) {
	before := tree(file("a", pages(1, "1")), file("b", "2"), file("d/c", pages(2, "3")))
	cases := map[string]*volume.Payload{ // 5 pages are free
		"one file grows":       tree(file("a", pages(10, "x")), file("b", "2"), file("d/c", pages(2, "3"))),
		"the last of several":  tree(file("a", pages(2, "x")), file("b", pages(3, "y")), file("d/c", pages(5, "z"))),
		"another one shrinks":  tree(file("a", pages(9, "x")), file("b", "y"), file("d/c", "z")),
		"new file":             tree(file("a", "changed"), file("b", "2"), file("d/c", "3"), file("new", pages(6, "x"))),
		"new and grown":        tree(file("a", pages(4, "x")), file("b", "2"), file("d/c", "3"), file("new/x", pages(3, "x"))),
		"too many directories": tree(file("a", "x"), file("1/2/3/4/5/6/7/8/9/10/11/12", "")),
		"too many links":       tree(file("a", "x"), file("1", ""), file("2", ""), file("3", ""), file("4", ""), file("5", ""), file("6", ""), file("7", ""), file("8", "")),
	}
	for name, after := range cases {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				v, w := newSmallVolume(t, 9, 24), newInPlace(Options{})
				v.rewrite(w, before)
				freePages, freeInodes := v.free()
				inodes := v.inodes()
				for range 2 {
					if restart {
						w = newInPlace(Options{})
					}
					result, err := w.Write(t.Context(), v.root, after)
					if !errors.Is(err, unix.ENOSPC) || result != (Result{}) {
						t.Errorf("Write = %+v, %v, want ENOSPC", result, err)
					}
					v.checkInPlace(inodes, before)
					if pages, inodes := v.free(); pages != freePages || inodes != freeInodes {
						t.Errorf("%d pages and %d inodes are free, %d and %d before", pages, inodes, freePages, freeInodes)
					}
				}
				v.rewrite(w, tree(file("a", pages(2, "x")), file("new", pages(2, "x"))))
			})
		}
	}
}

// TestInPlaceFillsUp changes keys for longer than there is room for all of them. Emptied files are removed when necessary, and only then.
func TestInPlaceFillsUp(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			v, w := newSmallVolume(t, 16, 40), newInPlace(Options{})
			v.rewrite(w, tree(file("stays", "0")))
			stays := v.inode("stays").Ino
			most := 0
			for i := range 100 {
				if restart {
					w = newInPlace(Options{})
				}
				tr := tree(file("stays", strconv.Itoa(i)), file(fmt.Sprintf("key%d", i), "1"), file(fmt.Sprintf("d/%d/key", i), "1"))
				if _, err := w.Write(t.Context(), v.root, tr); err != nil {
					t.Fatalf("write %d: %v", i, err)
				}
				files := v.inodes()
				most = max(most, len(files))
				for path := range files {
					size := v.inode(filepath.Join(dataName, path)).Size
					if _, shown := slices.BinarySearchFunc(tr.Files, path, comparePath); shown != (size > 0) {
						t.Fatalf("write %d: %s has %d bytes", i, path, size)
					}
				}
				for _, name := range v.names() {
					if _, err := os.Stat(filepath.Join(v.path, name)); err != nil {
						t.Fatalf("write %d: %v", i, err)
					}
				}
				if result, err := w.Write(t.Context(), v.root, tr); err != nil || result.Changed {
					t.Fatalf("write %d again: %+v, %v", i, result, err)
				}
			}
			if got := v.inode("stays").Ino; got != stays {
				t.Error("a file that was never gone has another inode")
			}
			if most < 9 {
				t.Errorf("no more than %d files were kept", most)
			}
		})
	}
}

// TestInPlaceIsInterrupted sends the signal by which Go stops its goroutines while a tmpfs reserves pages: fallocate fails with EINTR then,
// where other calls go on.
func TestInPlaceIsInterrupted(t *testing.T) {
	const size = 1024
	v, w := newSmallVolume(t, 3*size, 24), newInPlace(Options{})
	v.rewrite(w, tree(file("a", "0")))
	threads, done := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for i := range 8 {
			threads <- unix.Gettid()
			_, err := w.Write(t.Context(), v.root, tree(file("a", pages(1+i%2*(size-1), "x"))))
			done <- err
		}
		close(threads)
	}()
	for thread := range threads {
		if err := v.interrupt(thread, done); err != nil {
			t.Error(err)
		}
	}
}

// interrupt sends signals to a thread until it is done. The pauses between them grow, so at last one is long enough for any call.
func (v *testVolume) interrupt(thread int, done <-chan error) error {
	for pause := time.Microsecond; ; pause += pause/20 + 1 {
		select {
		case err := <-done:
			return err
		case <-time.After(pause):
			v.must(unix.Tgkill(os.Getpid(), thread, unix.SIGURG))
		}
	}
}

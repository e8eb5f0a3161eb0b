package writer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// TestSwitchNeedsTheRoomThatItUses: a first write with too little room shows nothing, and one with as much as it takes succeeds. The link of
// a long name takes a page.
func TestSwitchNeedsTheRoomThatItUses(t *testing.T) {
	const plenty = 100
	longest := inlineTarget - len(linkPrefix) - 1 // whose link takes none
	for _, length := range []int{longest, longest + 1} {
		var files []volume.File
		for _, name := range []string{"a", "b", "c"} {
			files = append(files, file(strings.Repeat(name, length), "1"))
		}
		shown := tree(files...)
		for name, volumeOf := range map[string]func(n int) *testVolume{
			"pages":  func(n int) *testVolume { return newSmallVolume(t, n, plenty) },
			"inodes": func(n int) *testVolume { return newSmallVolume(t, plenty, n) },
		} {
			n, linksLack := 2, 0
			for ; n < plenty; n++ {
				v := volumeOf(n)
				result, err := New(Options{}).Write(t.Context(), v.root, shown)
				if err == nil {
					pages, inodes := v.free()
					if free := min(pages, inodes); free > 0 {
						t.Errorf("names of %d bytes: of %d %s %d are free", length, n, name, free)
					}
					v.check(shown)
					expect.Equal(t, "changed by the same again, without any room", must.Get(New(Options{}).Write(t.Context(), v.root, shown))(t).Changed, false)
					break
				}
				if !errors.Is(err, unix.ENOSPC) || result != (Result{}) || Present(v.root) != "" {
					t.Fatalf("names of %d bytes, with %d %s: Write = %+v, %v, want ENOSPC", length, n, name, result, err)
				}
				if strings.Contains(err.Error(), "make room for 3 links") {
					linksLack++
				}
			}
			if takes := name == "inodes" || length > longest; n == plenty || (linksLack > 0) != takes {
				t.Errorf("names of %d bytes: with %d %s it succeeds, %d numbers below are too small for the links alone", length, n, name, linksLack)
			}
		}
	}
}

// TestSpaceBeyondTheEnd that a killed rewrite has left in a file is freed by the next write.
func TestSpaceBeyondTheEnd(t *testing.T) {
	v := newSmallVolume(t, 100, 100)
	shown := tree(file("a", "1"))
	v.rewrite(newInPlace(Options{}), shown)
	before, _ := v.free()
	held := must.Get(os.OpenFile(filepath.Join(v.path, "a"), os.O_WRONLY, 0))(v)
	defer held.Close()
	v.must(unix.Fallocate(int(held.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(3*os.Getpagesize())))
	v.rewrite(newInPlace(Options{}), shown)
	if after, _ := v.free(); after != before {
		t.Errorf("%d pages are free, want %d", after, before)
	}
}

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
	mnt := must.Get(unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(mnt) })
	v.path = fmt.Sprintf("/proc/%d/fd/%d/volume", os.Getpid(), mnt) // also for other processes
	v.must(os.Mkdir(v.path, 0o755))
	v.root = must.Get(os.OpenRoot(v.path))(t)
	t.Cleanup(func() { v.root.Close() })
	return v
}

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
		t.Run(name, func(t *testing.T) {
			eachWay(t, []Options{{InPlace: true}}, func(t *testing.T, _ Options, next func() *Writer) {
				v := newSmallVolume(t, 9, 24)
				v.rewrite(next(), before)
				free, inodes := fmt.Sprint(v.free()), v.inodes()
				for range 2 {
					result, err := next().Write(t.Context(), v.root, after)
					if !errors.Is(err, unix.ENOSPC) || result != (Result{}) {
						t.Errorf("Write = %+v, %v, want ENOSPC", result, err)
					}
					v.checkInPlace(inodes, before)
					expect.Equal(t, "free pages and inodes", fmt.Sprint(v.free()), free)
				}
				v.rewrite(next(), tree(file("a", pages(2, "x")), file("new", pages(2, "x"))))
			})
		})
	}
}

// TestInPlaceFillsUp changes keys for longer than there is room for all of them. Emptied files are removed when necessary, and only then.
func TestInPlaceFillsUp(t *testing.T) {
	eachWay(t, []Options{{InPlace: true}}, func(t *testing.T, _ Options, next func() *Writer) {
		v := newSmallVolume(t, 16, 40)
		v.rewrite(next(), tree(file("stays", "0")))
		most := 0
		for i := range 100 {
			before := v.inodes()
			tr := tree(file("stays", strconv.Itoa(i)), file(fmt.Sprintf("key%d", i), "1"), file(fmt.Sprintf("d/%d/key", i), "1"))
			w := next()
			v.writes(w, tr)
			v.checkFilled(before, tr)
			expect.Equal(t, fmt.Sprintf("write %d again changed something", i), v.writes(w, tr).Changed, false)
			most = max(most, len(v.inodes()))
		}
		expect.Between(t, "files that were kept", most, 9, 100)
	})
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
		expect.Is(t, "a write that is interrupted", v.interrupt(thread, done), nil)
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

// TestInPlaceThirdVersion kills one write in a volume with just the room of Measure, and then writes another tree. What the kill left needs
// more than a generation, and the next write must still find its room.
func TestInPlaceThirdVersion(t *testing.T) {
	cases := map[string][]*volume.Payload{ // the second write is killed
		"bytes": {
			tree(file("x", "1"), file("y", pages(9, "1"))),
			tree(file("x", pages(9, "2")), file("y", "2")),
			tree(file("x", "3"), file("y", "3"), file("z", pages(8, "3"))),
		},
		"inodes": {
			tree(file("a/b/c", "1"), file("d", "1")),
			tree(file("e/f/g", "2"), file("h", "2")),
			tree(file("i/k/l", "3"), file("m", "3")),
		},
	}
	for name, trees := range cases {
		t.Run(name, func(t *testing.T) {
			var most Footprint
			for _, tr := range trees {
				fp := Measure(tr)
				most.Bytes, most.Inodes = max(most.Bytes, fp.Bytes), max(most.Inodes, fp.Inodes)
			}
			forEachFault(t, []string{"signal=KILL"}, func(t *testing.T, f fault) bool {
				const roots = 2 // the volume's root, and the file system's above it
				v := newSmallVolume(t, 2*int(most.Bytes)/os.Getpagesize(), 2*int(most.Inodes)+roots)
				v.must(second(newInPlace(Options{}).Write(t.Context(), v.root, trees[0])))
				_, hit := f.run(t, job{Volume: v.path, Options: Options{InPlace: true}, Tree: *trees[1]})
				inodes := v.inodes()
				if _, err := newInPlace(Options{}).Write(t.Context(), v.root, trees[2]); err != nil {
					t.Fatalf("%v: %v", f, err)
				}
				v.checkFilled(inodes, trees[2])
				return hit
			})
		})
	}
}

// checkFilled fails unless the volume shows tree, with the earlier inodes for files with content, and apart from that only empty files, and a
// new Writer has nothing to write.
func (v *testVolume) checkFilled(before map[string]uint64, tree *volume.Payload) {
	v.Helper()
	shown := map[string]bool{}
	for _, f := range tree.Files {
		shown[f.Path] = true
		expect.Equal(v, "content of "+f.Path, v.content(f.Path), string(f.Data))
	}
	for path, inode := range v.inodes() {
		st := v.inode(filepath.Join(dataName, path))
		if !shown[path] && st.Size > 0 || st.Blocks*512 > wholePages(st.Size) {
			v.Errorf("%s has %d bytes in %d blocks", path, st.Size, st.Blocks)
		}
		if old := before[path]; shown[path] && old != 0 && old != inode {
			v.Errorf("%s has another inode", path)
		}
	}
	for _, name := range v.names() {
		if _, err := os.Stat(filepath.Join(v.path, name)); err != nil {
			v.Errorf("link %s: %v", name, err)
		}
	}
	expect.Equal(v, "files that are written again", must.Get(newInPlace(Options{}).Write(v.Context(), v.root, tree))(v).Files, 0)
}

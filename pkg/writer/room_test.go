package writer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
					if again, err := New(Options{}).Write(t.Context(), v.root, shown); err != nil || again.Changed {
						t.Errorf("names of %d bytes: the same again, without any room: %+v, %v", length, again, err)
					}
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
	held, err := os.OpenFile(filepath.Join(v.path, "a"), os.O_WRONLY, 0)
	v.must(err)
	defer held.Close()
	v.must(unix.Fallocate(int(held.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(3*os.Getpagesize())))
	v.rewrite(newInPlace(Options{}), shown)
	if after, _ := v.free(); after != before {
		t.Errorf("%d pages are free, want %d", after, before)
	}
}

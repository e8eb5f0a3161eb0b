package writer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSwitchNeedsTheRoomThatItUses: a first write with too little room shows nothing, and one with as much as it takes succeeds. The names
// are so long that each link takes a page.
func TestSwitchNeedsTheRoomThatItUses(t *testing.T) {
	const plenty = 100
	long := func(name string) string { return strings.Repeat(name, inlineTarget) }
	shown := tree(file(long("a"), "1"), file(long("b"), "2"), file(long("c"), "3"))
	for name, volumeOf := range map[string]func(n int) *testVolume{
		"pages":  func(n int) *testVolume { return newSmallVolume(t, n, plenty) },
		"inodes": func(n int) *testVolume { return newSmallVolume(t, plenty, n) },
	} {
		linksLack := 0
		for n := 2; ; n++ {
			if n == plenty {
				t.Fatalf("%d %s are too few", n, name)
			}
			v := volumeOf(n)
			result, err := New(Options{}).Write(t.Context(), v.root, shown)
			if err == nil {
				pages, inodes := v.free()
				if free := min(pages, inodes); free > 0 {
					t.Errorf("of %d %s %d are free", n, name, free)
				}
				v.check(shown)
				break
			}
			if !errors.Is(err, unix.ENOSPC) || result != (Result{}) || Present(v.root) != "" {
				t.Fatalf("with %d %s: Write = %+v, %v, want ENOSPC", n, name, result, err)
			}
			if strings.Contains(err.Error(), "make room for 3 links") {
				linksLack++
			}
		}
		if linksLack == 0 {
			t.Errorf("no number of %s is too small for the links alone", name)
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

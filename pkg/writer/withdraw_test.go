package writer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func mixed() *volume.Payload {
	return tree(naming(file("ca", "1"), "ca"), naming(file("conf/own", "2"), "own"), naming(file("conf/db", "3"), "db"),
		naming(file("db", "4"), "db"), naming(file("dir/deep/db", "5"), "db"), naming(file("mixed.env", "6"), "ca", "db"), naming(file("own", "7"), "own"))
}

func mixedWithout() *volume.Payload {
	return tree(naming(file("ca", "1"), "ca"), naming(file("conf/own", "2"), "own"), naming(file("own", "7"), "own"))
}

// TestWithdraw removes the files that name an object, and nothing else, whether the Writer wrote the files or not. In place, it keeps each
// file for processes that hold it, and brings its content back there. Its record protects the remaining files from going back.
func TestWithdraw(t *testing.T) {
	eachWay(t, bothOf(withAttributes(t)), func(t *testing.T, o Options, next func() *Writer) {
		v := newVolume(t)
		v.write(next(), mixed())
		own, inodes := v.inode("own").Ino, v.inodes()
		w := next()
		result, err := w.Withdraw(t.Context(), v.root, refSet("db", "other"), "2")
		if err != nil || !result.Changed || result.Generation != v.readlink(dataName) {
			t.Errorf("Withdraw = %+v, %v", result, err)
		}
		if !o.InPlace && (result.Linked != 3 || result.Files != 0) {
			t.Errorf("%d files are linked and %d are written", result.Linked, result.Files)
		}
		v.wantWithdrawn("Withdraw")
		v.wantRecord(o, "2")
		v.prune()
		if !o.InPlace {
			v.check(mixedWithout())
		} else if got := v.inodes(); !maps.Equal(got, inodes) {
			t.Errorf("inodes %v, %v before", got, inodes)
		}
		expect.Equal(t, "inode of a file that stays", v.inode("own").Ino, own)
		expect.Equal(t, "what ca names", v.attribute(o, "ca"), "Secret/platform/ca\n")

		// Nothing is left to remove, and nothing is written.
		expect.Equal(t, "withdrawn again", must.Get(w.Withdraw(t.Context(), v.root, refSet("db"), "2"))(t).Changed, false)
		expect.Equal(t, "written again", must.Get(w.Write(t.Context(), v.root, mixedWithout()))(t).Changed, false)
		v.write(w, mixed())
		if got := v.inodes(); o.InPlace && !maps.Equal(got, inodes) {
			t.Errorf("inodes %v, %v before", got, inodes)
		}
	})
}

// An attribute that cannot be decoded may hide a revoked object.
func TestWithdrawOfSpoiltAttributes(t *testing.T) {
	o := withAttributes(t)
	for name, attribute := range map[string]string{"garbage": "x", "too long": strings.Repeat("Secret/platform/db\n", 300), "others": anyRefs} {
		t.Run(name, func(t *testing.T) {
			for _, w := range []*Writer{New(o), newInPlace(o)} {
				v := newVolume(t)
				v.write(New(o), mixedWithout())
				if err := unix.Setxattr(filepath.Join(v.path, "own"), o.AttributePrefix+refsName, []byte(attribute), 0); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) {
					t.Skip("the file system does not take it")
				}
				v.must(second(w.Withdraw(t.Context(), v.root, refSet("db"), "")))
				v.wantEmpty("Withdraw", "own")
				expect.Equal(t, "content of ca", v.content("ca"), "1")
				v.must(second(w.Write(t.Context(), v.root, mixedWithout())))
				expect.Equal(t, "after a Write", v.content("own")+", of "+v.attribute(o, "own"), "7, of Secret/platform/own\n")
			}
		})
	}
}

func (v *testVolume) wantOwn(n string) {
	v.Helper()
	for _, f := range mixedWithout().Files {
		expect.Equal(v, n+": content of "+f.Path, v.content(f.Path), string(f.Data))
	}
}

func (v *testVolume) wantWithdrawn(n string) {
	v.Helper()
	v.wantEmpty(n, "db", "conf/db", "dir/deep/db", "mixed.env")
	v.wantOwn(n)
}

// wantEmpty fails if a file is there and has content.
func (v *testVolume) wantEmpty(n string, paths ...string) {
	v.Helper()
	for _, path := range paths {
		if text, err := os.ReadFile(filepath.Join(v.path, path)); len(text) > 0 || err != nil && !os.IsNotExist(err) {
			v.Errorf("%s: %s shows %q, %v", n, path, text, err)
		}
	}
}

// TestWithdrawFromAFullVolume has no free page or inode, and a volume from which the last generation cannot be removed: the files are
// removed from the present generation.
func TestWithdrawFromAFullVolume(t *testing.T) {
	eachWay(t, bothOf(withAttributes(t)), func(t *testing.T, o Options, next func() *Writer) {
		v := newSmallVolume(t, 64, 64)
		v.writes(next(), mixed())
		v.fillUp()
		v.must(second(next().Withdraw(t.Context(), v.root, refSet("db"), "")))
		v.wantWithdrawn("Withdraw")
		if pages, _ := v.free(); o.InPlace && pages < 4 {
			t.Errorf("%d pages are free", pages)
		}
		for _, name := range []string{"db", "mixed.env", "dir"} {
			if _, err := os.Lstat(filepath.Join(v.path, name)); !o.InPlace && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("link %s: %v", name, err)
			}
		}
		v.must(second(New(o).Withdraw(t.Context(), v.root, refSet("ca"), "")))
	})
}

func (v *testVolume) fillUp() {
	v.Helper()
	f, err := os.Create(filepath.Join(v.path, "ballast"))
	v.must(err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, os.Getpagesize()))
	}
	for i := 0; ; i++ {
		if err := os.Symlink("x", filepath.Join(v.path, fmt.Sprintf("ballast%d", i))); err != nil {
			break
		}
	}
	if pages, inodes := v.free(); pages+inodes > 0 {
		v.Fatalf("%d pages and %d inodes are free", pages, inodes)
	}
}

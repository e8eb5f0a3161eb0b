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
	o := withAttributes(t)
	for _, restart := range []bool{false, true} {
		for _, o.InPlace = range []bool{false, true} {
			t.Run(fmt.Sprintf("restart=%v/InPlace=%v", restart, o.InPlace), func(t *testing.T) {
				v, w := newVolume(t), New(o)
				v.write(w, mixed())
				own, inodes := v.inode("own").Ino, v.inodes()
				if restart {
					w = New(o)
				}
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
				if got := v.inode("own").Ino; got != own {
					t.Error("a file that stays is another one")
				}
				if got := v.attribute(o, "ca"); got != "Secret/platform/ca\n" {
					t.Errorf("ca names %q", got)
				}

				// Nothing is left to remove, and nothing is written.
				if result, err := w.Withdraw(t.Context(), v.root, refSet("db"), "2"); err != nil || result.Changed {
					t.Errorf("again: %+v, %v", result, err)
				}
				if result, err := w.Write(t.Context(), v.root, mixedWithout()); err != nil || result.Changed {
					t.Errorf("Write = %+v, %v", result, err)
				}
				v.write(w, mixed())
				if got := v.inodes(); o.InPlace && !maps.Equal(got, inodes) {
					t.Errorf("inodes %v, %v before", got, inodes)
				}
			})
		}
	}
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
				if _, err := w.Withdraw(t.Context(), v.root, refSet("db"), ""); err != nil {
					t.Error(err)
				}
				if text, err := os.ReadFile(filepath.Join(v.path, "own")); len(text) > 0 || err != nil && !os.IsNotExist(err) {
					t.Errorf("it shows %q, %v", text, err)
				}
				if text, err := os.ReadFile(filepath.Join(v.path, "ca")); err != nil || string(text) != "1" {
					t.Errorf("ca shows %q, %v", text, err)
				}
				v.must(second(w.Write(t.Context(), v.root, mixedWithout())))
				if text, err := os.ReadFile(filepath.Join(v.path, "own")); err != nil || string(text) != "7" || v.attribute(o, "own") != "Secret/platform/own\n" {
					t.Errorf("after a Write: %q, %v", text, err)
				}
			}
		})
	}
}

func (v *testVolume) wantOwn(n string) {
	v.Helper()
	for _, f := range mixedWithout().Files {
		if text, err := os.ReadFile(filepath.Join(v.path, f.Path)); err != nil || string(text) != string(f.Data) {
			v.Errorf("%s: %s shows %q, %v", n, f.Path, text, err)
		}
	}
}

func (v *testVolume) wantWithdrawn(n string) {
	v.Helper()
	for _, path := range []string{"db", "conf/db", "dir/deep/db", "mixed.env"} {
		if text, err := os.ReadFile(filepath.Join(v.path, path)); len(text) > 0 || err != nil && !os.IsNotExist(err) {
			v.Errorf("%s: %s shows %q, %v", n, path, text, err)
		}
	}
	v.wantOwn(n)
}

// TestWithdrawFromAFullVolume has no free page or inode, and a volume from which the last generation cannot be removed: the files are
// removed from the present generation.
func TestWithdrawFromAFullVolume(t *testing.T) {
	o := withAttributes(t)
	for _, restart := range []bool{false, true} {
		for _, inPlace := range []bool{false, true} {
			t.Run(fmt.Sprintf("restart=%v/InPlace=%v", restart, inPlace), func(t *testing.T) {
				o := o
				o.InPlace = inPlace
				v, w := newSmallVolume(t, 64, 64), New(o)
				v.must(second(w.Write(t.Context(), v.root, mixed())))
				v.fillUp()
				if restart {
					w = New(o)
				}
				if _, err := w.Withdraw(t.Context(), v.root, refSet("db"), ""); err != nil {
					t.Fatal(err)
				}
				v.wantWithdrawn("Withdraw")
				if pages, _ := v.free(); inPlace && pages < 4 {
					t.Errorf("%d pages are free", pages)
				}
				for _, name := range []string{"db", "mixed.env", "dir"} {
					if _, err := os.Lstat(filepath.Join(v.path, name)); !inPlace && !errors.Is(err, os.ErrNotExist) {
						t.Errorf("link %s: %v", name, err)
					}
				}
				if _, err := New(o).Withdraw(t.Context(), v.root, refSet("ca"), ""); err != nil {
					t.Error(err)
				}
			})
		}
	}
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

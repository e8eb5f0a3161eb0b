package writer

import (
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestInPlaceAttrs looks before each write at the mode: it must not let anybody read
// the new content who may not in the end, nor shut out who may before and after.
func TestInPlaceAttrs(t *testing.T) {
	for _, tt := range []struct{ from, to, between fs.FileMode }{
		{0o644, 0o600, 0o600},
		{0o600, 0o644, 0o600},
		{0o640, 0o604, 0o600},
		{0o444, 0o444, 0o444},
	} {
		for _, content := range []string{"1", "2"} {
			t.Run(fmt.Sprintf("%v to %v, content %s", tt.from, tt.to, content), func(t *testing.T) {
				if tt.from&0o200 == 0 && os.Getuid() != 0 {
					t.Skip("needs root")
				}
				v, w, writes := newVolume(t), NewInPlace(Options{}), 0
				v.rewrite(w, tree(withMode(tt.from, file("a", "1"))))
				w.fs = stepped{w.fs, func(op, _ string) error {
					if op == "write" || op == "truncate" {
						writes++
						if got := v.inode("a").Mode & 0o777; got != uint32(tt.between) {
							t.Errorf("mode at %s: %04o, want %04o", op, got, tt.between)
						}
					}
					return nil
				}}
				v.rewrite(w, tree(withMode(tt.to, file("a", content))))
				if want := 2 * (int(content[0]) - '1'); writes != want {
					t.Errorf("%d writes, want %d", writes, want)
				}
			})
		}
	}
}

// TestInPlaceDirs looks at the directories before each call: closed to those who lose
// access before anything else, and open to those who get it after all else.
func TestInPlaceDirs(t *testing.T) {
	v, w := newVolume(t), NewInPlace(Options{})
	v.rewrite(w, tree(file("d/a", "1")))
	dirs := []string{".", dataName + "/.", dataName + "/d"}
	writes := 0
	w.fs = stepped{w.fs, func(op, name string) error {
		for _, dir := range dirs {
			if got := v.inode(dir).Mode & 0o777; op == "write" && got != 0o700 {
				t.Errorf("at %s %s: %s has mode %04o", op, name, dir, got)
			}
		}
		if op == "write" {
			writes++
		}
		return nil
	}}
	v.rewrite(w, withDirMode(0o700, tree(file("d/a", "2"))))
	v.rewrite(w, withDirMode(0o755, tree(file("d/a", "3"))))
	if writes != 2 {
		t.Errorf("%d writes", writes)
	}
}

// TestInPlaceOwner changes owners for real, and records that nobody can read a file
// while it changes hands.
func TestInPlaceOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, restart := range []bool{false, true} {
		v, w := newVolume(t), NewInPlace(Options{})
		owned := func(uid, gid int, mode fs.FileMode, content string) *volume.Tree {
			tr := withDirMode(0o550|fs.ModeSetgid, tree(withMode(mode, file("d/a", content)), file("b", "same")))
			tr.UID, tr.GID = uid, gid
			return tr
		}
		ino := uint64(0)
		for _, tr := range []*volume.Tree{
			owned(1001, 2001, 0o440, "1"), owned(1001, 2001, 0o440, "2"), owned(1002, 2001, 0o440, "3"),
			owned(1002, 2002, 0o400, "3"), owned(0, 0, 0o440, "4"),
		} {
			if restart {
				w = NewInPlace(Options{})
			}
			kernel := w.fs
			w.fs = stepped{kernel, func(op, _ string) error {
				st := v.inode("d/a")
				foreign := st.Uid != uint32(tr.UID) || st.Gid != uint32(tr.GID)
				if op == "write" && foreign && st.Mode&0o777 != 0 {
					t.Errorf("written with mode %04o before it has its owner", st.Mode&0o777)
				}
				return nil
			}}
			if ino == 0 {
				w.fs = kernel
			}
			result, err := w.Write(t.Context(), v.root, tr)
			v.must(err)
			w.fs = kernel
			if !result.Changed {
				t.Error("not changed")
			}
			v.check(tr)
			st := v.inode("d/a")
			if ino != 0 && st.Ino != ino {
				t.Error("another inode")
			}
			ino = st.Ino
			if root := v.inode("."); root.Uid != uint32(tr.UID) || root.Gid != uint32(tr.GID) {
				t.Errorf("the root belongs to %d:%d", root.Uid, root.Gid)
			}
		}
	}
}

package writer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestALeftoverThatStays has a generation that can't be removed, as something is mounted on a file of it. Updates go on
// beside it, all else of it goes, and Prune says why it stays until it has gone.
func TestALeftoverThatStays(t *testing.T) {
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			v.write(New(w.opts), tree(file("a", "1")))
			held := filepath.Join(v.path, leftover, "x", "held")
			v.must(os.MkdirAll(filepath.Join(v.path, leftover, "x/y"), 0o755))
			for _, path := range []string{held, filepath.Join(v.path, leftover, "a"), filepath.Join(v.path, leftover, "x/y/secret")} {
				v.must(os.WriteFile(path, []byte("old"), 0o600))
			}
			if err := unix.Mount(filepath.Join(v.path, "a"), held, "", unix.MS_BIND, ""); err != nil {
				t.Skip("needs the right to mount: ", err)
			}
			mounted := true
			t.Cleanup(func() {
				if mounted {
					_ = unix.Unmount(held, unix.MNT_DETACH)
				}
			})
			for _, content := range []string{"1", "2", "3", "3"} { // the first shows already, the last again
				want := tree(file("a", content))
				if _, err := w.Write(t.Context(), v.root, want); err != nil {
					t.Fatalf("Write beside a leftover: %v", err)
				}
				if _, err := Prune(v.root, time.Now()); !errors.Is(err, unix.EBUSY) {
					t.Errorf("Prune = %v", err)
				}
				if got := v.shown(); got != dump(want) {
					t.Errorf("it shows\n%s", got)
				}
				found := 0
				v.must(fs.WalkDir(os.DirFS(v.path), ".", func(path string, d fs.DirEntry, err error) error {
					if d.Name() == "held" {
						held, mounted = filepath.Join(v.path, path), true
						found++
					}
					if d.Name() == "secret" || d.Name() == "y" {
						t.Errorf("%s is left", path)
					}
					return err
				}))
				if found != 1 {
					t.Errorf("%d files are held", found)
				}
			}
			v.must(unix.Unmount(held, 0))
			mounted = false
			v.write(w, tree(file("a", "4")))
		})
	}
}

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

const leftover = "..2001_02_03_04_05_06.7890000001234"

// damages are states that an interrupted write or another process may have left in a volume that showed the tree from of the transition
// "key removed". Each is a function of the volume's path.
var damages = map[string]func(path string) error{
	"link of the switch": func(path string) error { return os.Symlink(leftover, filepath.Join(path, dataTmpName)) },
	"directory with the name of the switch": func(path string) error {
		return os.MkdirAll(filepath.Join(path, dataTmpName, "x/y"), 0o755)
	},
	"old generation": func(path string) error {
		return errors.Join(
			os.MkdirAll(filepath.Join(path, leftover, "x/y"), 0o755),
			os.WriteFile(filepath.Join(path, leftover, "x/secret"), []byte("old"), 0o600),
			os.WriteFile(filepath.Join(path, leftover, "secret"), []byte("old"), 0o600),
			os.Symlink(outside(path, "etc"), filepath.Join(path, leftover, "x/etc")))
	},
	"old generation that is nested deeper than the longest path": func(path string) error {
		root, err := os.OpenRoot(path)
		if err != nil {
			return err
		}
		defer root.Close()
		return root.MkdirAll(leftover+strings.Repeat("/"+strings.Repeat("d", 200), 50), 0o755)
	},
	"file named like a generation":  func(path string) error { return os.WriteFile(filepath.Join(path, leftover), nil, 0o600) },
	"link of a removed key":         func(path string) error { return os.Symlink("..data/gone", filepath.Join(path, "gone")) },
	"link into a removed directory": func(path string) error { return os.Symlink("..data/gone/b", filepath.Join(path, "gone")) },
	"missing link":                  func(path string) error { return os.Remove(filepath.Join(path, "a")) },
	"link to another key":           func(path string) error { return replaceLink(path, "a", "..data/secret") },
	"newest link to another key": func(path string) error {
		return replaceLink(path, "z", "..data/a") // it keeps its place in the listing
	},
	"link out of the volume": func(path string) error { return replaceLink(path, "a", outside(path, "etc/passwd")) },
	"very long link":         func(path string) error { return replaceLink(path, "a", "..data/a"+strings.Repeat("/.", 500)) },
	"file in a link's place": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, "a")), os.WriteFile(filepath.Join(path, "a"), nil, 0o644))
	},
	"directory in a link's place": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, "a")), os.MkdirAll(filepath.Join(path, "a/b/c"), 0o755))
	},
}

// damagesOfData are damages that destroy the present generation.
var damagesOfData = map[string]func(path string) error{
	"no ..data":         func(path string) error { return os.Remove(filepath.Join(path, dataName)) },
	"..data to nowhere": func(path string) error { return replaceLink(path, dataName, leftover) },
	"..data to a file": func(path string) error {
		return errors.Join(replaceLink(path, dataName, leftover), os.WriteFile(filepath.Join(path, leftover), nil, 0o644))
	},
	"..data to a link": func(path string) error {
		return errors.Join(replaceLink(path, dataName, leftover), os.Symlink(outside(path, "etc"), filepath.Join(path, leftover)))
	},
	"..data out of the volume": func(path string) error { return replaceLink(path, dataName, "../outside/etc") },
	"..data is a file": func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, dataName)), os.WriteFile(filepath.Join(path, dataName), nil, 0o644))
	},
	"content":        func(path string) error { return os.WriteFile(filepath.Join(path, "a"), []byte("?"), 0o644) },
	"mode":           func(path string) error { return os.Chmod(filepath.Join(path, "a"), 0o600) },
	"mode of a dir":  func(path string) error { return os.Chmod(filepath.Join(path, "d"), 0o700) },
	"mode of data":   func(path string) error { return os.Chmod(filepath.Join(path, dataName), 0o700) },
	"file removed":   func(path string) error { return os.Remove(filepath.Join(path, "..data/a")) },
	"file added":     func(path string) error { return os.WriteFile(filepath.Join(path, "..data/zz"), nil, 0o644) },
	"dir added":      func(path string) error { return os.Mkdir(filepath.Join(path, "..data/zz"), 0o755) },
	"link added":     func(path string) error { return os.Symlink("a", filepath.Join(path, "..data/zz")) },
	"fifo added":     func(path string) error { return unix.Mkfifo(filepath.Join(path, "..data/zz"), 0o644) },
	"file to a link": func(path string) error { return replaceLink(path, "..data/a", "secret") },
}

func replaceLink(path, name, target string) error {
	return errors.Join(os.Remove(filepath.Join(path, name)), os.Symlink(target, filepath.Join(path, name)))
}

// TestRepair damages a volume and writes to it: the same tree or another one, with a new Writer or, for another tree, with the earlier one.
func TestRepair(t *testing.T) {
	before := tree(file("a", "1"), file("d/b", "2"), file("secret", "3"), file("z", "6"))
	after := tree(file("a", "1"), file("d/b", "4"), file("new", "5"), file("z", "6"))
	run := func(name string, damage func(string) error, same *bool) {
		t.Run(name+"/same tree", func(t *testing.T) {
			v := newVolume(t)
			v.write(New(Options{}), before)
			v.must(damage(v.path))
			fds := openDescriptors(t)
			w := New(Options{})
			result := v.write(w, before)
			if got := openDescriptors(t); got != fds {
				t.Errorf("%d descriptors are open, %d before", got, fds)
			}
			if same != nil && result.Changed == *same {
				t.Errorf("Changed = %v", result.Changed)
			}
			if result := v.write(w, before); result.Changed {
				t.Error("written again")
			}
		})
		t.Run(name+"/other tree", func(t *testing.T) {
			v := newVolume(t)
			v.write(New(Options{}), before)
			v.must(damage(v.path))
			v.write(New(Options{}), after)
		})
	}
	no := false
	for name, damage := range damages {
		run(name, damage, nil)
		t.Run(name+"/same writer", func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			v.write(w, tree(file("a", "0"), file("d/b", "2"), file("secret", "3"), file("z", "6"))) // the links have been seen by now
			v.must(damage(v.path))
			v.write(w, after)
		})
	}
	for name, damage := range damagesOfData {
		run(name, damage, &no)
	}
}

// TestStrays checks that Write leaves alone what it did not create and what is not in its way.
func TestStrays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	strays := []string{"..other", "dir", "file", "link"}
	v.must(os.Mkdir(filepath.Join(v.path, "..other"), 0o755))
	v.must(os.Mkdir(filepath.Join(v.path, "dir"), 0o755))
	v.must(os.WriteFile(filepath.Join(v.path, "file"), nil, 0o644))
	v.must(os.Symlink(outside(v.path, "etc/passwd"), filepath.Join(v.path, "link")))
	for _, tr := range []*volume.Payload{tree(file("a", "1")), tree(file("b", "2")), tree()} {
		_, err := w.Write(t.Context(), v.root, tr)
		v.must(err)
		v.prune()
		v.check(tr, strays...)
	}
	tr := tree(file("dir/a", "1"), file("file", "2"), file("link/b", "3"))
	_, err := w.Write(t.Context(), v.root, tr)
	v.must(err)
	v.prune()
	v.check(tr, "..other")
}

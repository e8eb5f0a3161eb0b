package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/volume"
)

const leftover = "..2001_02_03_04_05_06.7890000001234"

// A damage is what an interrupted write or another process may have done to the volume at a path.
type damage func(path string) error

func both(damages ...damage) damage {
	return func(path string) error {
		var errs []error
		for _, damage := range damages {
			errs = append(errs, damage(path))
		}
		return errors.Join(errs...)
	}
}

func remove(name string) damage {
	return func(path string) error { return os.Remove(filepath.Join(path, name)) }
}

func write(name, content string) damage {
	return func(path string) error { return os.WriteFile(filepath.Join(path, name), []byte(content), 0o644) }
}

func mkdir(name string) damage {
	return func(path string) error { return os.MkdirAll(filepath.Join(path, name), 0o755) }
}

func chmod(name string, mode fs.FileMode) damage {
	return func(path string) error { return os.Chmod(filepath.Join(path, name), mode) }
}

// link makes a link. A target out of the volume is a path below outside.
func link(name, target string) damage {
	return func(path string) error {
		to := target
		if strings.HasPrefix(to, "etc") {
			to = outside(path, to)
		}
		return os.Symlink(to, filepath.Join(path, name))
	}
}

// relink replaces a link, which keeps its place in the listing.
func relink(name, target string) damage { return both(remove(name), link(name, target)) }

// damages are done to a volume that showed the tree from of the transition "key removed".
var damages = map[string]damage{
	"link of the switch":                    link(dataTmpName, leftover),
	"directory with the name of the switch": mkdir(dataTmpName + "/x/y"),
	"old generation": both(
		mkdir(leftover+"/x/y"), write(leftover+"/x/secret", "old"), write(leftover+"/secret", "old"), link(leftover+"/x/etc", "etc"),
	),
	"old generation that is nested deeper than the longest path": func(path string) error {
		root, err := os.OpenRoot(path)
		if err != nil {
			return err
		}
		defer root.Close()
		return root.MkdirAll(leftover+strings.Repeat("/"+strings.Repeat("d", 200), 50), 0o755)
	},
	"file named like a generation":  write(leftover, ""),
	"link of a removed key":         link("gone", "..data/gone"),
	"link into a removed directory": link("gone", "..data/gone/b"),
	"missing link":                  remove("a"),
	"link to another key":           relink("a", "..data/secret"),
	"newest link to another key":    relink("z", "..data/a"),
	"link out of the volume":        relink("a", "etc/passwd"),
	"very long link":                relink("a", "..data/a"+strings.Repeat("/.", 500)),
	"file in a link's place":        both(remove("a"), write("a", "")),
	"directory in a link's place":   both(remove("a"), mkdir("a/b/c")),
}

// damagesOfData destroy the present generation.
var damagesOfData = map[string]damage{
	"no ..data":                remove(dataName),
	"..data to nowhere":        relink(dataName, leftover),
	"..data to a file":         both(relink(dataName, leftover), write(leftover, "")),
	"..data to a link":         both(relink(dataName, leftover), link(leftover, "etc")),
	"..data out of the volume": relink(dataName, "../outside/etc"),
	"..data is a file":         both(remove(dataName), write(dataName, "")),
	"content":                  write("a", "?"),
	"mode":                     chmod("a", 0o600),
	"mode of a dir":            chmod("d", 0o700),
	"mode of data":             chmod(dataName, 0o700),
	"file removed":             remove("..data/a"),
	"file added":               write("..data/zz", ""),
	"dir added":                mkdir("..data/zz"),
	"link added":               link("..data/zz", "a"),
	"fifo added":               func(path string) error { return unix.Mkfifo(filepath.Join(path, "..data/zz"), 0o644) },
	"file to a link":           relink("..data/a", "secret"),
}

// TestRepair damages a volume and writes to it: the same tree or another one, with a new Writer or, for another tree, with the earlier one.
func TestRepair(t *testing.T) {
	before := tree(file("a", "1"), file("d/b", "2"), file("secret", "3"), file("z", "6"))
	after := tree(file("a", "1"), file("d/b", "4"), file("new", "5"), file("z", "6"))
	run := func(name string, damage damage, ofData bool) {
		t.Run(name, func(t *testing.T) {
			for _, next := range []*volume.Payload{before, after} {
				v := newVolume(t)
				v.write(New(Options{}), before)
				v.must(damage(v.path))
				w := New(Options{})
				if result := v.write(w, next); ofData && !result.Changed {
					t.Error("it says that nothing has changed")
				}
				if result := v.write(w, next); result.Changed {
					t.Error("written again")
				}
			}
		})
	}
	for name, damage := range damages {
		run(name, damage, false)
		t.Run(name+"/same writer", func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			v.write(w, tree(file("a", "0"), file("d/b", "2"), file("secret", "3"), file("z", "6"))) // the links have been seen by now
			v.must(damage(v.path))
			v.write(w, after)
		})
	}
	for name, damage := range damagesOfData {
		run(name, damage, true)
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
		v.writes(w, tr)
		v.prune()
		v.check(tr, strays...)
	}
	tr := tree(file("dir/a", "1"), file("file", "2"), file("link/b", "3"))
	v.writes(w, tr)
	v.prune()
	v.check(tr, "..other")
}

// FuzzSequences writes random trees one after the other, some of them interrupted by a fault or a restart, and compares the directory with
// each.
func FuzzSequences(f *testing.F) {
	for _, seed := range dice.Seeds(f, 4) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		r, v, w, shown := rand.New(rand.NewPCG(seed, 0)), newVolume(t), New(Options{}), tree()
		for range 30 {
			if r.IntN(4) > 0 {
				shown = change(r, shown)
			}
			if r.IntN(5) == 0 {
				w = New(w.opts)
			}
			v.write(w, shown)
			if result := v.write(w, shown); result.Changed {
				t.Errorf("written again: %+v", result)
			}
		}
	})
}

// change returns a tree that differs slightly from the one before.
func change(r *rand.Rand, before *volume.Payload) *volume.Payload {
	files := slices.DeleteFunc(slices.Clone(before.Files), func(volume.File) bool { return r.IntN(5) == 0 })
	for range r.IntN(5) {
		f := file(somePath(r), strings.Repeat(fmt.Sprint(r.IntN(10)), r.IntN(3)*r.IntN(3000)))
		f.Mode = []fs.FileMode{0o644, 0o640, 0o600}[r.IntN(3)]
		files = slices.DeleteFunc(files, func(other volume.File) bool { return below(other.Path, f.Path) || below(f.Path, other.Path) })
		files = append(files, f)
	}
	next := withDirMode(before.DirMode, tree(files...))
	if r.IntN(8) == 0 {
		next.DirMode = []fs.FileMode{0o755, 0o750, 0o700 | fs.ModeSetgid}[r.IntN(3)]
	}
	return next
}

// somePath uses few elements, so that files and directories often conflict.
func somePath(r *rand.Rand) string {
	elements := make([]string, 1+r.IntN(4))
	for i := range elements {
		elements[i] = []string{"a", "b", "a-", "a.b", ".c", "Z"}[r.IntN(6)]
	}
	return strings.Join(elements, "/")
}

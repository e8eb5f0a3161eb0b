package leak

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// around is how many bytes on each side of a leak are shown.
const around = 100

// Leak is a value or a token in a place where it must not be.
type Leak struct {
	// What was found, and in which form.
	What string
	// Text is the text around it.
	Text string
}

// String says what leaked and shows where.
func (l Leak) String() string { return fmt.Sprintf("%s, in %q", l.What, l.Text) }

// shared is created at the first search and is constant.
var shared = sync.OnceValue(newSearcher) //nolint:gochecknoglobals // A constant that Go has no syntax for.

// FindIn returns one leak of each form that a text has. It is safe for concurrent use.
func FindIn[T string | []byte](text T) []Leak {
	all, s := []byte(text), shared()
	var leaks []Leak
	add := func(what string, from, to int) {
		leaks = append(leaks, Leak{What: what, Text: string(all[max(0, from-around):min(len(all), to+around)])})
	}
	for _, n := range s.needles {
		if i := bytes.Index(all, n.text); i >= 0 {
			add(n.what, i, i+len(n.text))
		}
	}
	if found := s.token.FindIndex(all); found != nil {
		add("web token", found[0], found[1])
	}
	return leaks
}

// Check returns an error that names every leak in a text. name is the name of the text.
func Check[T string | []byte](name string, text T) error { return leaked(name, FindIn(text)) }

// CheckObject is like Check, for an object's JSON.
func CheckObject(name string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("search %s: %w", name, err)
	}
	return Check(name, text)
}

// checkFile is like Check, for a file.
func checkFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return Check(path, text)
}

// CheckFiles is like Check, for every regular file below a directory, and for the names and links there. It leaves out mounts, and files
// that disappear meanwhile.
func CheckFiles(root string) error {
	device, err := deviceOf(root)
	if err != nil {
		return err
	}
	var errs []error
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var at uint64
			if at, err = deviceOf(path); err == nil && at != device {
				return fs.SkipDir
			}
		}
		if err == nil {
			err = checkEntry(path, entry)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func checkEntry(path string, entry fs.DirEntry) error {
	named := Check("the name of a file", filepath.Base(path))
	switch entry.Type() {
	case 0:
		return errors.Join(named, checkFile(path))
	case fs.ModeSymlink:
		link, err := os.Readlink(path)
		return errors.Join(named, err, Check("the link "+path, link))
	}
	return named
}

// deviceOf returns a number that identifies a path's file system.
func deviceOf(path string) (uint64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("stat %s: of what file system is not told", path)
	}
	return stat.Dev, nil
}

func leaked(name string, leaks []Leak) error {
	var errs []error
	for _, l := range leaks {
		errs = append(errs, fmt.Errorf("%s leaks a %s", name, l))
	}
	return errors.Join(errs...)
}

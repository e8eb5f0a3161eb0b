package leak

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

const (
	// pieceSize is how much is searched at once.
	pieceSize = 1 << 20
	// around is how many bytes on either side of a leak are shown.
	around = 100
)

// Leak is a value or token where it must not be.
type Leak struct {
	// What was found, in which form.
	What string
	// Text is what stands around it.
	Text string
}

// String says what leaked, and shows where.
func (l Leak) String() string { return fmt.Sprintf("%s, in %q", l.What, l.Text) }

// shared is made at the first search, and constant.
var shared = sync.OnceValue(newSearcher) //nolint:gochecknoglobals // A constant that Go has no syntax for.

// Find searches all that r has, piece by piece, and returns one leak of each form that it
// finds.
func Find(r io.Reader) ([]Leak, error) {
	s := shared()
	piece := make([]byte, 0, pieceSize+s.longest)
	var leaks []Leak
	for {
		n, err := io.ReadFull(r, piece[len(piece):cap(piece)])
		piece = piece[:len(piece)+n]
		leaks = s.find(piece, leaks)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return leaks, nil
		case err != nil:
			return leaks, err
		}
		// What begins at the end of this piece ends in the next one.
		kept := copy(piece, piece[len(piece)-s.longest:])
		piece = piece[:kept]
	}
}

// FindIn is Find of a text.
func FindIn[T string | []byte](text T) []Leak { return shared().find([]byte(text), nil) }

// find adds what it finds in a piece, but nothing of a form that is there already.
func (s *searcher) find(piece []byte, leaks []Leak) []Leak {
	add := func(what string, from, to int) {
		if from < 0 || slices.ContainsFunc(leaks, func(l Leak) bool { return l.What == what }) {
			return
		}
		leaks = append(leaks, Leak{What: what, Text: string(piece[max(0, from-around):min(len(piece), to+around)])})
	}
	for _, n := range s.needles {
		i := bytes.Index(piece, n.text)
		add(n.what, i, i+len(n.text))
	}
	if found := s.token.FindIndex(piece); found != nil {
		add("web token", found[0], found[1])
	}
	return leaks
}

// Check returns an error that names every leak in a text, which it calls name.
func Check[T string | []byte](name string, text T) error { return leaked(name, FindIn(text)) }

// CheckFile is Check of a file.
func CheckFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	leaks, err := Find(f)
	if err != nil {
		return fmt.Errorf("search %s: %w", path, err)
	}
	return leaked(path, leaks)
}

// CheckFiles is CheckFile of every regular file below a directory, and Check of the names
// and links. What is mounted there is left out; files that go meanwhile are none.
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
		return errors.Join(named, CheckFile(path))
	case fs.ModeSymlink:
		link, err := os.Readlink(path)
		return errors.Join(named, err, Check("the link "+path, link))
	}
	return named
}

// deviceOf tells one file system from another.
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

package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Entry is one name in a volume.
type Entry struct {
	// Path is relative to the volume.
	Path string
	// Mode has the type and permission bits.
	Mode     fs.FileMode
	UID, GID int
	// Link is where a symbolic link points.
	Link string
	// Content is a regular file's.
	Content string
}

// List returns every name in dir as it is, links not followed, in lexical order.
func List(dir string) ([]Entry, error) {
	var entries []Entry
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		e, err := entryOf(dir, path, os.Lstat)
		entries = append(entries, e)
		return err
	})
	return entries, err
}

// Files returns the regular files of a volume by path as a container finds them: links are followed, and the names
// that belong to the volume's own workings, which start with two dots, are left out.
func Files(dir string) (map[string]Entry, error) {
	files := make(map[string]Entry)
	return files, collectFiles(dir, dir, files)
}

func collectFiles(root, dir string, into map[string]Entry) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if dir == root && strings.HasPrefix(name.Name(), "..") {
			continue
		}
		e, err := entryOf(root, filepath.Join(dir, name.Name()), os.Stat)
		if err == nil && e.Mode.IsDir() {
			err = collectFiles(root, filepath.Join(root, e.Path), into)
		}
		if err != nil {
			return err
		}
		if e.Mode.IsRegular() {
			into[e.Path] = e
		}
	}
	return nil
}

func entryOf(root, path string, stat func(string) (fs.FileInfo, error)) (Entry, error) {
	info, err := stat(path)
	if err != nil {
		return Entry{}, err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Entry{}, fmt.Errorf("no owner known of %s", path)
	}
	e := Entry{Mode: info.Mode(), UID: int(sys.Uid), GID: int(sys.Gid)}
	if e.Path, err = filepath.Rel(root, path); err != nil {
		return Entry{}, err
	}
	switch {
	case e.Mode.IsRegular():
		var data []byte
		data, err = os.ReadFile(path)
		e.Content = string(data)
	case e.Mode&fs.ModeSymlink != 0:
		e.Link, err = os.Readlink(path)
	}
	return e, err
}

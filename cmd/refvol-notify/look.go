package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// files identifies each file by path: inode, size, time and attributes. An update hard-links unchanged files into the next generation, so
// their identity stays. No file needs to be opened for it.
type files map[string]string

// look returns the relevant files of all volumes, and watches all of their directories.
func look(o *options, watch func(dir string)) (files, error) {
	all := files{}
	for _, dir := range o.watched() {
		watch(dir) // watch before reading, so that a later change wakes
		found, err := lookAt(o, dir, watch)
		for tries := 0; errors.Is(err, fs.ErrNotExist) && tries < 5; tries++ { // a generation was removed meanwhile
			found, err = lookAt(o, dir, watch)
		}
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", dir, err)
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// lookAt reads one generation, even if ..data switches meanwhile.
func lookAt(o *options, dir string, watch func(dir string)) (files, error) {
	root, err := generationOf(dir)
	if err != nil {
		return nil, err
	}
	found := files{}
	return found, filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, at)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(name, ".."):
			return fs.SkipDir // a generation to which nothing points
		case entry.IsDir():
			watch(at)
			return nil
		case !o.isRelevant(dir, name):
			return nil
		}
		info, err := entry.Info()
		if err == nil {
			found[filepath.Join(dir, name)] = identity(info)
		}
		return err
	})
}

// generationOf returns the directory to which a volume's ..data points, or the directory itself if it has no ..data.
func generationOf(dir string) (string, error) {
	target, err := os.Readlink(filepath.Join(dir, "..data"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir, nil
	case err != nil:
		return "", err
	}
	return filepath.Join(dir, filepath.Base(target)), nil
}

func identity(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Mode, st.Uid, st.Gid)
}

// differences returns the names of the files that differ, sorted.
func differences(a, b files) []string {
	var names []string
	for name, is := range b {
		if a[name] != is {
			names = append(names, name)
		}
	}
	for name := range a {
		if _, ok := b[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// firstNames returns the first few names, for a log line.
func firstNames(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}

package writers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountTmpfs mounts a tmpfs on a new directory in dir. The returned function takes both
// away.
func mountTmpfs(dir string) (string, func() error, error) {
	path, err := os.MkdirTemp(dir, "writers-")
	if err != nil {
		return "", nil, err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", path, "tmpfs", flags, "size=512m,nr_inodes=100000,mode=0755"); err != nil {
		return "", nil, errors.Join(fmt.Errorf("mount a tmpfs on %s: %w", path, err), os.Remove(path))
	}
	return path, func() error {
		if err := unix.Unmount(path, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		return os.Remove(path)
	}, nil
}

// volume is a directory and the writer that it is written by.
type volume struct {
	path   string
	root   *os.Root
	writer subject
}

// withVolumes calls do with an empty volume of either writer, and removes both.
func (d *duel) withVolumes(do func(ours, upstream *volume) error) (err error) {
	ours, err := newVolume(filepath.Join(d.dir, "refvol"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.remove()) }()
	theirs, err := newVolume(filepath.Join(d.dir, "upstream"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.remove()) }()
	ours.writer = newRefvol(ours.root)
	if theirs.writer, err = newUpstream(theirs.path); err != nil {
		return err
	}
	return do(ours, theirs)
}

func newVolume(path string) (*volume, error) {
	if err := os.Mkdir(path, dirMode); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &volume{path: path, root: root}, nil
}

func (v *volume) remove() error { return errors.Join(v.root.Close(), os.RemoveAll(v.path)) }

// generation returns where ..data points, "" if it is not there yet.
func (v *volume) generation() (string, error) {
	name, err := os.Readlink(filepath.Join(v.path, "..data"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return name, err
}

// expectation says whether a write is to have switched to another generation.
type expectation bool

const (
	newGeneration  expectation = true
	sameGeneration expectation = false
)

// check proves that the volume shows keys, each through its link, and has nothing else
// in it.
func (v *volume) check(keys contents, before string, then expectation) error {
	now, err := v.generation()
	if err != nil {
		return err
	}
	if switched := expectation(now != before); switched != then {
		return fmt.Errorf("a new generation: %v, want %v", switched, then)
	}
	// Beside the keys' links: ..data and what it points at.
	for dir, want := range map[string]int{v.path: len(keys) + 2, filepath.Join(v.path, now): len(keys)} {
		names, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(names) != want {
			return fmt.Errorf("%d names in %s, want %d", len(names), dir, want)
		}
	}
	for key, data := range keys {
		if err := v.checkFile(key, data); err != nil {
			return err
		}
	}
	return nil
}

func (v *volume) checkFile(key string, want []byte) error {
	path := filepath.Join(v.path, key)
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s shows another content", key)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode() != fileMode {
		return fmt.Errorf("%s has mode %v", key, info.Mode())
	}
	return nil
}

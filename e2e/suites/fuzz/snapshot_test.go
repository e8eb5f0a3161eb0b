package fuzz

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// entry is what is known of one name. The time of a directory's last change tells of what
// was made in it and is gone again.
type entry struct {
	mode    fs.FileMode
	ino     uint64
	changed syscall.Timespec
	// content is a regular file's, or where a link points.
	content string
}

func (e entry) String() string {
	return fmt.Sprintf("%v, inode %d, changed at %d.%09d, %q", e.mode, e.ino, e.changed.Sec, e.changed.Nsec, e.content)
}

// snapshot is all that a world has: every name below its top, also in mounts, and every
// mount of the namespace by its id.
type snapshot struct {
	entries map[string]entry
	mounts  map[string]harness.Mount
}

// topPrefix is how the names of worlds' top directories begin.
const topPrefix = "refvol-fuzz-"

// take takes a snapshot. The mounts of other worlds are left out: other workers of the same
// fuzzing run make and remove them.
func take(top string) (snapshot, error) {
	s := snapshot{entries: map[string]entry{}, mounts: map[string]harness.Mount{}}
	if err := s.addEntries(top); err != nil {
		return s, err
	}
	mounts, err := harness.Mounts()
	if err != nil {
		return s, err
	}
	others := filepath.Join(filepath.Dir(top), topPrefix)
	for _, m := range mounts {
		if !strings.HasPrefix(m.Target, others) || strings.HasPrefix(m.Target, top+"/") {
			s.mounts[m.ID] = m
		}
	}
	return s, nil
}

func (s *snapshot) addEntries(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name.Name())
		e, err := look(path)
		if err != nil {
			return err
		}
		s.entries[path] = e
		if e.mode.IsDir() {
			if err := s.addEntries(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func look(path string) (entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return entry{}, fmt.Errorf("nothing is known of %s", path)
	}
	e := entry{mode: info.Mode(), ino: sys.Ino, changed: sys.Mtim}
	switch {
	case e.mode.IsRegular():
		text, err := os.ReadFile(path)
		e.content = string(text)
		return e, err
	case e.mode&fs.ModeSymlink != 0:
		e.content, err = os.Readlink(path)
	}
	return e, err
}

// place is where a call may change something: the target of a volume, if it is one, and what
// is in the state directory.
type place struct {
	// target is "" where nothing may change.
	target, source, stateDir string
}

// lostItsDirectory says whether a mount has gone because somebody outside of the sandbox has
// removed the directory that it was mounted on, as a container engine does with a container's.
func lostItsDirectory(m harness.Mount) bool {
	_, err := os.Lstat(m.Target)
	return errors.Is(err, fs.ErrNotExist) && !strings.Contains(m.Target, "/"+topPrefix)
}

// allows says whether a name may be another one than before, or none.
func (p place) allows(path string, before, now entry) bool {
	switch {
	case isAt(path, p.stateDir):
		return true
	case p.target == "":
		return false
	case path == filepath.Dir(p.target): // has got or lost an entry
		before.changed = now.changed
		return before == now
	}
	return isAt(path, p.target)
}

// isAt says whether path is place or below it.
func isAt(path, place string) bool {
	return path == place || strings.HasPrefix(path, place+"/")
}

// compare returns what has become different that was not to.
func compare(before, now snapshot, at place) []string {
	var wrong []string
	for path, e := range now.entries {
		if was, ok := before.entries[path]; was != e && !at.allows(path, was, e) {
			wrong = append(wrong, fmt.Sprintf("%s was (%v) %v, is %v", path, ok, was, e))
		}
	}
	for path, was := range before.entries {
		if _, ok := now.entries[path]; !ok && !at.allows(path, was, entry{}) {
			wrong = append(wrong, fmt.Sprintf("%s was %v, is gone", path, was))
		}
	}
	// What is mounted in the state directory may get another path with what it is in.
	moved := func(was, m harness.Mount) bool {
		inside := isAt(was.Target, at.stateDir) && isAt(m.Target, at.stateDir)
		was.Target = m.Target
		return inside && was == m
	}
	ours := func(m harness.Mount) bool { return at.target != "" && m.Target == at.target && m.Source == at.source }
	for id, m := range now.mounts {
		if was := before.mounts[id]; was != m && !moved(was, m) && !(was == (harness.Mount{}) && ours(m)) {
			wrong = append(wrong, fmt.Sprintf("mount %s was %+v, is %+v", id, was, m))
		}
	}
	for id, was := range before.mounts {
		if _, ok := now.mounts[id]; !ok && !ours(was) && !lostItsDirectory(was) {
			wrong = append(wrong, fmt.Sprintf("mount %s was %+v, is gone", id, was))
		}
	}
	slices.Sort(wrong)
	return wrong
}

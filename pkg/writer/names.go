package writer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The writer's own names in the root of a volume.
const (
	dataName    = "..data"
	dataTmpName = "..data_tmp"
	linkPrefix  = dataName + "/"
	// birthLayout is the kubelet's layout with nanoseconds. Random digits follow.
	birthLayout = "..2006_01_02_15_04_05.000000000"
)

// visibleSince returns, from a generation's name, the time on the wall clock at which it became visible. It gives the order of generations,
// but never an age, because the clock may be set.
func visibleSince(name string) (time.Time, bool) {
	if len(name) < len(birthLayout) || strings.Trim(name[len(birthLayout):], "0123456789") != "" {
		return time.Time{}, false
	}
	t, err := time.Parse(birthLayout, name[:len(birthLayout)])
	return t, err == nil
}

// nameAfter returns a name for a generation that becomes visible now. It is later than the one before, even if the clock was set back, so
// that names sort like generations. Random digits make each name unique.
func nameAfter(before string) string {
	now := time.Now().UTC()
	if b, ok := visibleSince(before); ok && !now.After(b) {
		now = b.Add(1)
	}
	return now.Format(birthLayout) + fmt.Sprintf("%04d", rand.IntN(10_000))
}

// listing is what the root of a volume contains.
type listing struct {
	current     string          // the generation that ..data points to, or ""
	generations []string        // in the order of their births, current last
	others      map[string]bool // entries that are not the writer's own; true means a link
	unfinished  []string        // left by an interrupted write
}

func list(root int) (*listing, error) {
	entries, err := readDir(root, ".")
	if err != nil {
		return nil, fmt.Errorf("list the volume's root: %w", err)
	}
	l := &listing{others: make(map[string]bool, len(entries))}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == dataTmpName || name == dataName && e.Type() != fs.ModeSymlink:
			l.unfinished = append(l.unfinished, name)
		case name == dataName:
			if l.current, err = readLink(root, name); err != nil {
				return nil, fmt.Errorf("read link %s: %w", dataName, err)
			}
		case !strings.HasPrefix(name, ".."):
			l.others[name] = e.Type() == fs.ModeSymlink
		default:
			if _, ok := visibleSince(name); ok && e.IsDir() {
				l.generations = append(l.generations, name)
			} else if ok {
				l.unfinished = append(l.unfinished, name)
			}
		}
	}
	slices.Sort(l.generations)
	i, ok := slices.BinarySearch(l.generations, l.current)
	if !ok {
		l.current, i = "", -1 // ..data points to nothing: all generations go
	}
	l.unfinished = append(l.unfinished, l.generations[i+1:]...)
	l.generations = l.generations[:i+1]
	return l, nil
}

// Prune removes the leftovers of interrupted writes from dir, and the superseded generations for which stays returns false. With a nil
// stays, all of them go. It returns how many stay. If something cannot be removed, the rest is removed anyway, and the first error is
// returned. removing is as Options.Removing. Prune needs no Writer. No Write of the same volume may run at the same time.
func Prune(dir *os.Root, stays func(generation string) bool, removing func(file int)) (left int, err error) {
	root, err := openRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	l, err := list(int(root.Fd()))
	if err != nil {
		return 0, err
	}
	return l.prune(int(root.Fd()), stays, removing)
}

// Present returns the name of the generation that dir shows, or "".
func Present(dir *os.Root) string {
	name, err := dir.Readlink(dataName)
	if _, ok := visibleSince(name); err != nil || !ok {
		return ""
	}
	return name
}

func (l *listing) prune(root int, stays func(generation string) bool, removing func(file int)) (left int, err error) {
	err = removeAll(root, l.unfinished...)
	for _, name := range l.generations[:max(0, len(l.generations)-1)] {
		if stays != nil && stays(name) {
			left++
			continue
		}
		if removing != nil {
			eachLast(root, name, removing)
		}
		err = cmp.Or(err, removeAll(root, name))
	}
	return left, err
}

// eachLast calls do for each file of a generation that has no link in another one. It skips files that cannot be opened.
func eachLast(root int, generation string, do func(file int)) {
	top, err := openAt(root, generation, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer unix.Close(top)
	at := newDirs(top)
	defer at.close()
	_ = walk(top, ".", func(p string, e fs.DirEntry) error {
		if !e.Type().IsRegular() {
			return nil
		}
		dir, last, err := at.at(p)
		fd := noDescriptor
		if err == nil {
			fd, err = openAt(dir, last, unix.O_RDONLY)
		}
		if err == nil { // the other files matter as much
			defer unix.Close(fd)
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Nlink == 1 {
				do(fd)
			}
		}
		return nil
	})
}

// removeAll removes the named entries of the root, as far as it can, and returns the first error. It holds one descriptor, whatever the
// depth.
func removeAll(root int, names ...string) (first error) {
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		err := unix.Unlinkat(root, name, 0)
		if errors.Is(err, unix.EISDIR) {
			var deep []string
			deep, err = emptyDir(root, name)
			names = append(names, deep...)
			err = cmp.Or(err, unix.Unlinkat(root, name, unix.AT_REMOVEDIR))
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			first = cmp.Or(first, fmt.Errorf("remove %s: %w", name, err))
		}
	}
	return first
}

// emptyDir removes the contents of a directory, as far as it can. Directories that are nested very deep are moved to the root, as leftovers
// that the caller removes.
func emptyDir(root int, p string) (deep []string, first error) {
	entries, err := readDir(root, p)
	if err != nil {
		return nil, err
	}
	mayDescend := len(p) < 1024
	for _, e := range entries {
		if e.IsDir() && mayDescend {
			more, err := emptyDir(root, path.Join(p, e.Name()))
			deep, first = append(deep, more...), cmp.Or(first, err)
		}
	}
	at, err := openAt(root, p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return deep, cmp.Or(first, err)
	}
	defer unix.Close(at)
	for _, e := range entries {
		switch {
		case !e.IsDir():
			err = unix.Unlinkat(at, e.Name(), 0)
		case mayDescend:
			err = unix.Unlinkat(at, e.Name(), unix.AT_REMOVEDIR)
		default:
			moved := nameAfter("")
			if err = unix.Renameat(at, e.Name(), root, moved); err == nil {
				deep = append(deep, moved)
			}
		}
		first = cmp.Or(first, err)
	}
	return deep, first
}

// makeLinks makes the tree's links in the root where they are missing or wrong.
func (u *update) makeLinks() error {
	for name := range u.tops {
		isLink, there := u.others[name]
		if isLink {
			if target, err := readLink(u.root, name); err == nil && target == linkPrefix+name {
				continue
			}
		}
		u.result.Changed = true
		u.opts.step("make a link")
		if there {
			if err := removeAll(u.root, name); err != nil {
				return err
			}
		}
		if err := unix.Symlinkat(linkPrefix+name, u.root, name); err != nil {
			return fmt.Errorf("create link %s: %w", name, err)
		}
	}
	return nil
}

// dropLinks removes the links that are not of the tree. A link that does not point into ..data stays.
func (u *update) dropLinks() error {
	for name, isLink := range u.others {
		if !isLink || u.tops[name] {
			continue
		}
		target, err := readLink(u.root, name)
		if err != nil {
			return fmt.Errorf("read link %s: %w", name, err)
		}
		if !strings.HasPrefix(target, linkPrefix) || u.opts.InPlace && isDir(u.old, name) {
			continue // with InPlace, an existing directory may be one for mounts
		}
		u.result.Changed = true
		u.opts.step("remove a link")
		if err := unix.Unlinkat(u.root, name, 0); err != nil {
			return fmt.Errorf("remove link %s: %w", name, err)
		}
		delete(u.others, name)
	}
	return nil
}

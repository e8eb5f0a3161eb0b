package writer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataName    = "..data"
	dataTmpName = "..data_tmp"
	linkPrefix  = dataName + "/"
)

// links is what has to be done to the links that users see.
type links struct {
	missing []string // to be created
	wrong   []string // to be created too, once what has the name is removed
	stale   []string // to be removed
}

// planLinks compares the entries of the root with the links that are needed, those
// of tops. An entry that is in nobody's way and does not look like a link of ours stays.
func (u *update) planLinks(entries []dirent, known *snapshot, tops []string) error {
	entries = slices.DeleteFunc(entries, func(e dirent) bool { return strings.HasPrefix(e.name, "..") })
	seen := known != nil && known.links != nil && slices.Equal(entries, known.links)
	wanted := make(map[string]bool, len(tops))
	for _, name := range tops {
		wanted[name] = true
	}
	clean := true
	for _, e := range entries {
		kind := rightLink
		if !seen {
			var err error
			if kind, err = readLinkKind(u.root, e.name); err != nil {
				return fmt.Errorf("read link %s: %w", e.name, err)
			}
		}
		need := wanted[e.name]
		delete(wanted, e.name)
		switch {
		case need && kind == rightLink:
			continue
		case need:
			u.links.wrong = append(u.links.wrong, e.name)
		case kind != noLink:
			u.links.stale = append(u.links.stale, e.name)
		}
		clean = false
	}
	for _, name := range tops {
		if wanted[name] {
			u.links.missing = append(u.links.missing, name)
		}
	}
	if clean && len(u.links.missing) == 0 {
		u.next.links = entries
	}
	return nil
}

// linkKind is what an entry of the root is, as far as its own name tells.
type linkKind int

const (
	noLink    linkKind = iota // nothing of ours
	otherLink                 // a link into ..data, but to another name
	rightLink                 // the link to the same name in ..data
)

func readLinkKind(root int, name string) (linkKind, error) {
	target, err := readlink(root, name)
	if errors.Is(err, unix.EINVAL) {
		return noLink, nil
	}
	if err != nil {
		return noLink, err
	}
	inData, ok := strings.CutPrefix(target, linkPrefix)
	switch {
	case !ok:
		return noLink, nil
	case inData != name:
		return otherLink, nil
	}
	return rightLink, nil
}

// reserveLinks makes sure, before the switch, that there is room for the links
// that come with it and after it. Without them new names could not be seen though ..data has
// switched.
func (u *update) reserveLinks() error {
	if len(u.links.missing) == 0 {
		return nil
	}
	var need Footprint
	if !u.hasData {
		need.Inodes++ // for ..data itself
	}
	for _, name := range u.links.missing {
		need.addLink(name)
	}
	st, err := u.fs.statfs(u.root)
	if err != nil {
		return fmt.Errorf("look for room: %w", err)
	}
	// A total of zero stands for no limit.
	full := st.Files != 0 && st.Ffree < uint64(need.Inodes) ||
		st.Blocks != 0 && st.Bfree*uint64(st.Bsize) < uint64(need.Bytes)
	if full {
		return fmt.Errorf("make room for %d links: %w", len(u.links.missing), unix.ENOSPC)
	}
	return nil
}

// createLinks makes the links that are needed. It runs after the files are in
// place, so no link shows before its file.
func (u *update) createLinks() error {
	for _, name := range u.links.wrong {
		if err := u.remove(name); err != nil {
			return err
		}
		if err := u.createLink(name); err != nil {
			return err
		}
	}
	for _, name := range u.links.missing {
		if err := u.createLink(name); err != nil {
			return err
		}
	}
	return nil
}

func (u *update) createLink(name string) error {
	if err := u.fs.symlink(linkPrefix+name, u.root, name); err != nil {
		return fmt.Errorf("create link %s: %w", name, err)
	}
	return nil
}

func (u *update) dropLinks() error {
	for _, name := range u.links.stale {
		if err := u.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// maxKept is how many earlier generations stay for readers.
const maxKept = 8

// supersede has the generation that ..data pointed at stay for those who have begun to read it.
func (u *update) supersede() {
	if u.base != nil {
		u.kept = append(slices.Clip(u.kept), superseded{u.base.generation, time.Now()})
	}
}

// keepFound has the generations stay that another process left, as if they were superseded now. What
// an interrupted write left looks the same, and goes with them.
func (u *update) keepFound(entries []dirent, current string) {
	if u.found.IsZero() {
		return
	}
	for _, e := range entries {
		if e.name != current && isGeneration(e.name) {
			u.kept = append(u.kept, superseded{e.name, u.found})
		}
	}
	slices.SortFunc(u.kept, func(a, b superseded) int { return strings.Compare(a.name, b.name) })
	u.kept = u.kept[max(0, len(u.kept)-maxKept):]
	u.found = time.Time{}
}

// dropOldest removes the oldest of the generations that are kept.
func (u *update) dropOldest() {
	oldest := u.kept[0]
	u.kept = u.kept[1:]
	if err := u.remove(oldest.name); err != nil && u.leftover == nil {
		u.leftover = err
	}
}

// withRoom calls do, which gives back what it took if it fails. Where there is no room, it drops
// earlier generations and calls it again: no reader of one keeps a file from being updated.
func (u *update) withRoom(do func() error) error {
	err := do()
	for errors.Is(err, unix.ENOSPC) && len(u.kept) > 0 {
		u.dropOldest()
		err = do()
	}
	return err
}

// prune removes the generations that were superseded at before or earlier.
func (u *update) prune(before time.Time) error {
	entries, err := readDir(u.root)
	if err != nil {
		return fmt.Errorf("list the volume's root: %w", err)
	}
	current, err := readlink(u.root, dataName)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("read link %s: %w", dataName, err)
	}
	u.keepFound(entries, current)
	u.kept = slices.DeleteFunc(slices.Clone(u.kept), func(s superseded) bool { return !s.until.After(before) })
	return u.removeLeftovers(entries, current)
}

// removeLeftovers removes what an interrupted write left, and what is kept no longer: every
// generation but the current one and the kept ones, and ..data_tmp. The next write needs the
// room and the name. What can't be removed keeps nothing else from going; the error is
// that of the first.
func (u *update) removeLeftovers(entries []dirent, current string) error {
	var first error
	for _, e := range entries {
		if e.name != dataTmpName && (e.name == current || !isGeneration(e.name) || u.keeps(e.name)) {
			continue
		}
		if err := u.remove(e.name); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (u *update) keeps(name string) bool {
	return slices.ContainsFunc(u.kept, func(s superseded) bool { return s.name == name })
}

// setRoot gives the root of the volume the mode and owner of every directory in
// it, before ..data shows files that only they make readable.
func (u *update) setRoot() error {
	var st unix.Stat_t
	if err := unix.Fstat(u.root, &st); err != nil {
		return fmt.Errorf("stat the volume's root: %w", err)
	}
	if u.next.dir.satisfiedBy(statAttrs(&st)) {
		return nil
	}
	if err := setAttrs(u.fs, u.root, u.next.dir); err != nil {
		return fmt.Errorf("the volume's root: %w", err)
	}
	return nil
}

// remove removes an entry of the root, with all that is in it, if it is there.
func (u *update) remove(name string) error {
	if err := removeAll(u.fs, u.root, name); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// removeAll never follows a link. It takes an entry for a file first, as nearly
// all are. Of a directory it removes all that it can; the error is the first.
func removeAll(fs fileSystem, at int, name string) error {
	err := fs.unlink(at, name)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	if err := empty(fs, at, name); err != nil {
		return err
	}
	return fs.rmdir(at, name)
}

func empty(fs fileSystem, at int, name string) error {
	fd, err := openDir(at, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := readDir(fd)
	if err != nil {
		return err
	}
	var first error
	for _, e := range entries {
		if err := removeAll(fs, fd, e.name); err != nil && first == nil {
			first = fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return first
}

// readlink returns the target of a link, cut off after the length of any link of
// ours.
func readlink(at int, name string) (string, error) {
	var buf [len(linkPrefix) + maxElementBytes + 1]byte
	n, err := unix.Readlinkat(at, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

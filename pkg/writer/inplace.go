package writer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// rewrite makes the present generation show the tree, file by file. Nothing that is visible changes before all space is reserved.
func (u *update) rewrite(ctx context.Context, room room) (err error) {
	u.result.Generation = u.current
	full, spent, err := u.extra()
	if err != nil {
		return fmt.Errorf("look for files that the tree lacks: %w", err)
	}
	staysTorn := u.markTorn(full)
	if room > present {
		if full, err = u.makeRoom(room, full, spent); err != nil {
			return fmt.Errorf("make room: %w", err)
		}
		spent = nil
	}
	u.keepLinks(slices.Concat(full, spent))
	defer func() { err = errors.Join(err, removeAll(u.root, u.next)) }()
	before := u.result
	if err := u.prepare(ctx); err != nil {
		u.result = before
		return errors.Join(err, u.eachDiffering(deallocate))
	}
	// Write the record first. If the process is killed, the record is never older than the files.
	if err := inOrder(u.renewRecord, u.narrowDirs, func() error { return u.emptyAll(full) }); err != nil {
		return err
	}
	return inOrder(func() error { return u.eachDiffering(u.overwrite) }, u.place, u.widenDirs, func() error {
		u.torn = staysTorn
		return u.renewRecord()
	})
}

// markTorn writes into the record that files are about to change, if any file does. It returns whether the record must still say so
// afterwards: a torn file that is kept may stay torn.
func (u *update) markTorn(full []string) (stays bool) {
	if u.opts.AttributePrefix == "" {
		return false
	}
	wasTorn := u.isTorn()
	u.torn = wasTorn || len(full) > 0 || slices.ContainsFunc(u.files, func(f fileState) bool { return f.have != equal })
	return wasTorn && slices.ContainsFunc(u.tree.Files, func(f volume.File) bool { return f.Keep })
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// extra returns the files of the generation that are not in the tree: full files, and files that are empty already.
func (u *update) extra() (full, spent []string, err error) {
	at := newDirs(u.old)
	defer at.close()
	err = walk(u.old, ".", func(p string, e fs.DirEntry) error {
		_, wanted := slices.BinarySearchFunc(u.tree.Files, p, func(f volume.File, p string) int { return strings.Compare(f.Path, p) })
		if wanted || !e.Type().IsRegular() {
			return nil
		}
		dir, last, err := at.at(p)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstatat(dir, last, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Size > 0 || st.Blocks > 0 {
			full = append(full, p)
		} else {
			spent = append(spent, p)
		}
		return nil
	})
	return full, spent, err
}

// keepLinks keeps the links of files that are not in the tree, and gives their directories the usual mode.
func (u *update) keepLinks(files []string) {
	for _, p := range files {
		u.tops[topOf(p)] = true
		for _, dir := range parents(p) {
			if _, ok := u.entries[dir]; !ok {
				u.emptied = append(u.emptied, dir)
				u.entries[dir] = 0
			}
		}
	}
}

// makeRoom removes the empty files and their links, because keys that exist have priority over keys that may come back. A killed write may
// have left more than one generation's worth of data. So if there is still too little room although the volume is large enough for the
// tree, files that shrink or disappear are handled before the others. It returns the files that stay.
func (u *update) makeRoom(room room, full, spent []string) (left []string, err error) {
	shrink := room == all && u.hasRoomForTwo()
	if shrink {
		if err := inOrder(u.renewRecord, u.narrowDirs, func() error { return u.emptyAll(full) }); err != nil {
			return full, err
		}
		full, spent = nil, slices.Concat(full, spent)
	}
	for _, p := range spent {
		if dropErr := dropFile(u.old, p); err == nil { // a failure to remove one file does not stop the removal of the others
			err = dropErr
		}
	}
	u.keepLinks(full)
	if err == nil {
		err = u.dropLinks()
	}
	if err != nil || !shrink {
		return full, err
	}
	return full, u.eachDiffering(func(fd int, f *volume.File, want *fileState) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Blocks*512 <= wholePages(int64(len(f.Data))) {
			return err
		}
		return u.overwrite(fd, f, want)
	})
}

// hasRoomForTwo reports whether the file system has room for two generations of the tree and for its root. A total of zero stands for no
// limit.
func (u *update) hasRoomForTwo() bool {
	var st unix.Statfs_t
	takes := Measure(u.tree)
	return unix.Fstatfs(u.root, &st) == nil &&
		(st.Blocks == 0 || st.Blocks*uint64(st.Bsize) >= uint64(2*takes.Bytes)) && (st.Files == 0 || st.Files > uint64(2*takes.Inodes))
}

func (u *update) emptyAll(files []string) error {
	at := newDirs(u.old)
	defer at.close()
	for _, p := range files {
		u.result.Changed = true
		u.result.Files++
		u.opts.step("empty a file")
		if err := u.withFile(at, p, func(fd int) error {
			return inOrder(
				func() error { return u.opts.drop(fd, openedName) },
				func() error { return unix.Ftruncate(fd, 0) },
				func() error { return u.opts.drop(fd, refsName) }, // it belongs to no object any more
			)
		}); err != nil {
			return fmt.Errorf("empty %s: %w", p, err)
		}
	}
	return nil
}

// prepare does everything that can fail for lack of room: new files beside the generation, pages for what changes.
func (u *update) prepare(ctx context.Context) error {
	if err := u.stage(ctx); err != nil {
		return err
	}
	if err := u.reserve(u.old, len(u.dirs)); err != nil {
		return err
	}
	if err := u.eachDiffering(allocate); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rewrite generation %s: %w", u.current, err)
	}
	return nil
}

// stage makes the new files beside the generation. Each file's name is its index in the tree.
func (u *update) stage(ctx context.Context) (err error) {
	if !slices.ContainsFunc(u.files, func(f fileState) bool { return f.have == absent }) {
		return nil
	}
	next, err := makeDir(u.root, u.next)
	if err != nil {
		return err
	}
	defer unix.Close(next)
	for i := range u.files {
		if u.files[i].have != absent {
			continue
		}
		if err = ctx.Err(); err == nil {
			err = u.create(next, strconv.Itoa(i), &u.tree.Files[i], &u.files[i])
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", u.tree.Files[i].Path, err)
		}
	}
	return nil
}

// eachDiffering calls do for each file that changes.
func (u *update) eachDiffering(do func(fd int, f *volume.File, want *fileState) error) error {
	at := newDirs(u.old)
	defer at.close()
	for i := range u.files {
		if u.files[i].have != differs {
			continue
		}
		f := &u.tree.Files[i]
		if err := u.withFile(at, f.Path, func(fd int) error { return do(fd, f, &u.files[i]) }); err != nil {
			return fmt.Errorf("rewrite %s: %w", f.Path, err)
		}
	}
	return nil
}

// withFile calls do with a descriptor of a file of the generation.
func (u *update) withFile(at *dirs, p string, do func(fd int) error) error {
	dir, last, err := at.at(p)
	if err != nil {
		return err
	}
	fd, err := openAt(dir, last, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

// allocate reserves the pages for a file's new content, without making the file longer.
func allocate(fd int, f *volume.File, _ *fileState) error {
	if len(f.Data) == 0 {
		return nil
	}
	for {
		// Up to kernels like 6.1, a tmpfs ends this call at any signal, and Go sends signals to its own threads.
		if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(f.Data))); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// deallocate undoes allocate: truncating a file at its end frees the pages beyond the end.
func deallocate(fd int, _ *volume.File, _ *fileState) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	return unix.Ftruncate(fd, st.Size)
}

// overwrite rewrites a file. Meanwhile nobody can read the new content who may not read it in the end, and the file is withdrawn with the
// objects of either content.
func (u *update) overwrite(fd int, f *volume.File, want *fileState) error {
	u.result.Changed = true
	have, err := statAttrs(fd)
	if err != nil {
		return err
	}
	if err := u.opts.drop(fd, openedName); err != nil {
		return err
	}
	keeps := want.attrs.isSatisfiedBy(have)
	if between := have.between(want.attrs); between != have.mode {
		if err := unix.Fchmod(fd, between); err != nil {
			return err
		}
	}
	refs, err := u.opts.readRefs(fd)
	if err != nil {
		return err
	}
	renames := refs != want.refs
	if renames {
		if err := u.opts.setAttribute(fd, refsName, anyRefs); err != nil {
			return err
		}
	}
	u.opts.step("rewrite a file")
	if err := writeAll(fd, f.Data); err != nil {
		return err
	}
	u.opts.step("truncate a file")
	if err := unix.Ftruncate(fd, int64(len(f.Data))); err != nil {
		return err
	}
	u.result.Files++
	u.result.Bytes += int64(len(f.Data))
	if renames {
		if err := u.opts.setAttribute(fd, refsName, want.refs); err != nil {
			return err
		}
	}
	if !keeps {
		if err := setAttrs(fd, want.attrs); err != nil {
			return err
		}
	}
	if u.opts.Rewritten != nil {
		u.opts.Rewritten(f.Path, fd)
	}
	return nil
}

// place moves the new files into the generation, and moves anything in their way out of it.
func (u *update) place() error {
	at := newDirs(u.old)
	defer at.close()
	for _, p := range u.dirs {
		err := makeDirs(at, p)
		u.result.Changed = u.result.Changed || err == nil
		if errors.Is(err, unix.EEXIST) {
			fd, openErr := openAt(u.old, p, unix.O_PATH|unix.O_DIRECTORY)
			if openErr == nil {
				unix.Close(fd)
				continue
			}
			if !isAbsent(openErr) { // the error does not prove that there is no directory
				return fmt.Errorf("open directory %s: %w", p, openErr)
			}
			if err = u.moveAway(at, p); err == nil {
				err = makeDirs(at, p)
			}
		}
		if err != nil {
			return err
		}
	}
	for i := range u.files {
		if u.files[i].have != absent {
			continue
		}
		u.result.Changed = true
		p := u.tree.Files[i].Path
		u.opts.step("place a file")
		move := func() error {
			dir, last, err := at.at(p)
			if err == nil {
				err = unix.Renameat(u.root, u.next+"/"+strconv.Itoa(i), dir, last)
			}
			return err
		}
		err := move()
		if errors.Is(err, unix.EISDIR) {
			if err = u.moveAway(at, p); err == nil {
				err = move()
			}
		}
		if err != nil {
			return fmt.Errorf("place %s: %w", p, err)
		}
	}
	return nil
}

// moveAway turns what is at a path into a leftover, and removes it. A leftover that cannot be removed does no harm.
func (u *update) moveAway(at *dirs, p string) error {
	u.result.Changed = true
	away := nameAfter("")
	dir, last, err := at.at(p)
	if err == nil {
		err = unix.Renameat(dir, last, u.root, away)
	}
	if err != nil {
		return fmt.Errorf("move %s away: %w", p, err)
	}
	_ = removeAll(u.root, away)
	return nil
}

func (u *update) narrowDirs() error { return u.eachDir(narrow) }
func (u *update) widenDirs() error  { return u.eachDir(widen) }

// eachDir calls set for each directory whose mode or owner is not the wanted one. A directory that does not exist is still to be made, or a
// file is in its place.
func (u *update) eachDir(set func(fd int, have, want attrs) error) error {
	change := func(fd int, have, want attrs) error {
		u.result.Changed = true
		return set(fd, have, want)
	}
	for _, name := range slices.Concat(u.dirs, u.emptied, []string{"."}) {
		if err := setDir(u.old, name, dirAttrs(u.tree), change); err != nil && !isAbsent(err) {
			return err
		}
	}
	return setDir(u.root, ".", dirAttrs(u.tree), change)
}

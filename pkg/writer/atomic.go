package writer

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// replace builds the next generation and switches to it. Until the switch users see no change, and after an error nothing of the new
// generation remains.
func (u *update) replace(ctx context.Context) (err error) {
	name := u.next // until it gets its final name
	defer func() {
		if err != nil {
			err = errors.Join(err, removeAll(u.root, u.next, name, dataTmpName))
			u.result = Result{}
		}
	}()
	next, err := u.build(ctx)
	if err != nil {
		return fmt.Errorf("build generation %s: %w", u.next, err)
	}
	defer unix.Close(next)
	if err := setDir(u.root, ".", dirAttrs(u.tree), widen); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("switch %s: %w", dataName, err)
	}
	// The new generation replaces the last one only now, so it gets its final name now.
	if u.current != "" {
		name = nameAfter(u.current)
		u.opts.step("name the generation")
		if err := unix.Renameat(u.root, u.next, u.root, name); err != nil {
			return fmt.Errorf("rename generation %s: %w", u.next, err)
		}
	}
	if err := unix.Symlinkat(name, u.root, dataTmpName); err != nil {
		return fmt.Errorf("create link %s: %w", dataTmpName, err)
	}
	u.opts.step("switch ..data")
	if err := unix.Renameat(u.root, dataTmpName, u.root, dataName); err != nil {
		return fmt.Errorf("rename %s to %s: %w", dataTmpName, dataName, err)
	}
	u.result.Changed, u.result.Generation = true, name
	return nil
}

// build makes the next generation beside the present one, and returns its descriptor. Other processes cannot enter it until it is complete.
func (u *update) build(ctx context.Context) (next int, err error) {
	if next, err = makeDir(u.root, u.next); err != nil {
		return noDescriptor, err
	}
	if err := u.fill(ctx, next); err != nil {
		unix.Close(next)
		return noDescriptor, err
	}
	return next, nil
}

// fill makes the contents of the next generation.
func (u *update) fill(ctx context.Context, next int) error {
	from, to := newDirs(u.old), newDirs(next)
	defer from.close()
	defer to.close()
	for _, dir := range u.dirs {
		if err := makeDirs(to, dir); err != nil {
			return err
		}
	}
	for i := range u.files {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("write %s: %w", u.tree.Files[i].Path, err)
		}
		if err := u.put(i, from, to); err != nil {
			return fmt.Errorf("write %s: %w", u.tree.Files[i].Path, err)
		}
	}
	for _, dir := range u.dirs {
		if err := setDir(next, dir, dirAttrs(u.tree), widen); err != nil {
			return err
		}
	}
	if u.opts.AttributePrefix != "" && u.tree.Record != "" {
		if err := u.opts.setAttribute(next, recordName, u.tree.Record); err != nil {
			return err
		}
	}
	if err := u.reserve(next, 0); err != nil {
		return err
	}
	return setAttrs(next, dirAttrs(u.tree))
}

func makeDir(at int, name string) (int, error) {
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return noDescriptor, fmt.Errorf("create directory: %w", err)
	}
	return openAt(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// makeDirs makes a directory inside an existing one.
func makeDirs(d *dirs, dir string) error {
	at, last, err := d.at(dir)
	if err == nil {
		err = unix.Mkdirat(at, last, 0o700)
	}
	if err != nil {
		return fmt.Errorf("create directory %s: %w", dir, err)
	}
	return nil
}

// put adds a file to the next generation: as a link to the present generation's file if that is equal, or as a new file.
func (u *update) put(i int, from, to *dirs) error {
	f := &u.tree.Files[i]
	at, last, err := to.at(f.Path)
	if err != nil {
		return err
	}
	if u.files[i].have == equal {
		old, _, err := from.at(f.Path)
		if err == nil {
			err = unix.Linkat(old, last, at, last, 0)
		}
		if err == nil {
			u.result.Linked++
			return nil
		}
		// A link only saves work. If it fails for a reason that matters, writing fails too.
		if f.Keep {
			return fmt.Errorf("link: %w", err)
		}
		u.files[i].have = differs
	}
	return u.create(at, last, f, &u.files[i])
}

// create makes a file that nobody else can open before it is complete.
func (u *update) create(at int, name string, f *volume.File, want *fileState) error {
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if want.refs != "" {
		if err := u.opts.setAttribute(fd, refsName, want.refs); err != nil {
			return err
		}
	}
	if err := writeAll(fd, f.Data); err != nil {
		return err
	}
	u.result.Files++
	u.result.Bytes += int64(len(f.Data))
	return setAttrs(fd, want.attrs)
}

// reserve checks that there is room for what is made with the switch or after it: links, directories for mounts, and dirs more directories.
// A total of zero stands for no limit.
func (u *update) reserve(at, dirs int) error {
	inodes, pages := uint64(dirs+u.countMissing())+1, uint64(0)
	for name := range u.tops {
		if !u.others[name] {
			inodes++
			pages += uint64(linkPages(name))
		}
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(at, &st); err != nil {
		return fmt.Errorf("look for room: %w", err)
	}
	if st.Files != 0 && st.Ffree < inodes || st.Blocks != 0 && st.Bfree < pages {
		return fmt.Errorf("make room for %d links: %w", inodes-1, unix.ENOSPC)
	}
	return nil
}

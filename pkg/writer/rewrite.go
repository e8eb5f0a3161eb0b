package writer

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// commit makes users see the change. What they may no longer read is closed first,
// and what they may read from now on opened last.
func (r *rewrite) commit() error {
	return inOrder(r.renewRecord, r.narrowDirs, r.removeStrange, r.doJobs, r.place, r.widenDirs, r.relink, r.dropExcess)
}

// inOrder takes one step after the other until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *rewrite) relink() error {
	if l := &r.links; len(l.missing)+len(l.wrong)+len(l.stale) > 0 {
		r.result.Changed = true
	}
	return r.finish()
}

// dropExcess removes the emptied files that are too many. Their links are gone by now.
func (r *rewrite) dropExcess() error {
	for _, path := range r.excess {
		r.result.Changed = true
		// It is gone already if its room was needed.
		if err := dropFile(r.fs, r.generation, path); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove emptied %s: %w", path, err)
		}
	}
	return nil
}

func (r *rewrite) doJobs() error {
	for i := range r.jobs {
		if err := r.do(&r.jobs[i]); err != nil {
			return fmt.Errorf("rewrite %s: %w", r.jobs[i].path, err)
		}
	}
	return nil
}

func (r *rewrite) do(j *job) error {
	flags := unix.O_RDONLY
	if j.cuts() {
		flags = unix.O_WRONLY
	}
	fd, st, err := r.openFile(j.path, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	have := statAttrs(st)
	want := have
	if j.want != nil {
		want = *j.want
	}
	if err := r.narrow(fd, have, want); err != nil {
		return err
	}
	// While the file may hold parts of both contents, it names the objects of both.
	named := j.had
	if j.content && j.refs != j.had {
		if named, err = r.nameBoth(fd, j); err != nil {
			return err
		}
	}
	if j.content {
		r.result.Changed = true
		if err := writeAll(r.fs, fd, j.data); err != nil {
			return err
		}
		r.result.Files++
		r.result.Bytes += int64(len(j.data))
	}
	if j.cuts() {
		if err := r.fs.truncate(fd, int64(len(j.data))); err != nil {
			return fmt.Errorf("set length %d: %w", len(j.data), err)
		}
	}
	if j.refs != named {
		if err := setRefs(r.fs, fd, r.names.refs, j.refs); err != nil {
			return err
		}
	}
	return r.widen(fd, have, want)
}

// nameBoth has an open file name the objects of what it holds and of what it is to hold, and
// returns its attribute then.
func (r *rewrite) nameBoth(fd int, j *job) (string, error) {
	both := union(j.had, j.refs)
	if both == j.had {
		return both, nil
	}
	return both, setRefs(r.fs, fd, r.names.refs, both)
}

// narrow takes from an open file or directory what it must not keep.
func (r *rewrite) narrow(fd int, have, want attrs) error {
	mode := have.between(want)
	if mode == have.mode {
		return nil
	}
	r.result.Changed = true
	if err := r.fs.chmod(fd, mode); err != nil {
		return fmt.Errorf("set mode %04o: %w", mode, err)
	}
	return nil
}

// widen gives an open file or directory, after narrow, what it is to have.
func (r *rewrite) widen(fd int, have, want attrs) error {
	have.mode = have.between(want)
	if want.satisfiedBy(have) {
		return nil
	}
	r.result.Changed = true
	return setAttrs(r.fs, fd, want)
}

func (r *rewrite) narrowDirs() error { return r.eachDir(r.narrow) }

func (r *rewrite) widenDirs() error { return r.eachDir(r.widen) }

// eachDir calls change for each of r.dirs that is still there.
func (r *rewrite) eachDir(change func(fd int, have, want attrs) error) error {
	for _, d := range r.dirs {
		fd, err := openIn(r.generation, d.path, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err == nil {
			err = change(fd, d.attrs, r.next.dir)
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("directory %q: %w", d.path, err)
		}
	}
	return nil
}

func (r *rewrite) removeStrange() error {
	for _, path := range r.base.strange {
		dir, name := split(path)
		at, err := openParent(r.generation, dir)
		if err == nil {
			err = removeAll(r.fs, at, name)
			unix.Close(at)
		}
		if err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		r.result.Changed = true
	}
	return nil
}

// place moves the fresh files, and directories that are fresh as a whole, into the
// generation.
func (r *rewrite) place() error {
	if len(r.fresh) == 0 {
		return nil
	}
	staging, err := openPath(r.root, r.staging)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", r.staging, err)
	}
	defer unix.Close(staging)
	moved := ""
	for _, i := range r.fresh {
		path := r.tree.Files[i].Path
		if moved != "" && below(path, moved) {
			continue
		}
		depth, err := r.move(staging, r.generation, path)
		if err != nil {
			return fmt.Errorf("put %s in place: %w", path, err)
		}
		moved = path[:len(path)-depth]
		r.result.Changed = true
	}
	return nil
}

// move moves path from one directory to another, or the topmost directory on the
// way to it that is not in both. It returns the length of what is below that. What
// has its name at the other place comes back in exchange, so that there is no moment
// without either.
func (r *rewrite) move(from, at int, path string) (int, error) {
	name, rest, nested := strings.Cut(path, "/")
	if nested {
		sub, err := openPath(at, name)
		if err == nil {
			defer unix.Close(sub)
			subFrom, err := openPath(from, name)
			if err != nil {
				return 0, err
			}
			defer unix.Close(subFrom)
			return r.move(subFrom, sub, rest)
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			return 0, err
		}
	}
	err := r.fs.move(from, at, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = r.fs.move(from, at, name, unix.RENAME_EXCHANGE)
	}
	return len(path) - len(name), err
}

// openFile opens a file of the generation, and nothing but a regular file.
func (r *rewrite) openFile(path string, flags int) (int, *unix.Stat_t, error) {
	fd, err := openIn(r.generation, path, flags)
	if err != nil {
		return -1, nil, fmt.Errorf("open: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("stat: %w", err)
	}
	return fd, &st, nil
}

package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// prepareOrMakeRoom prepares, if need be without the files that earlier writes
// emptied: a key that is there goes before one that might come back. If even that is
// not enough, but should be, what is there is cut down to what the tree has of it.
func (r *rewrite) prepareOrMakeRoom(ctx context.Context) error {
	for {
		err := r.prepare(ctx)
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		makeRoom := r.dropSpent
		if len(r.spent) == 0 {
			if !r.tooMuchLeft() {
				return err
			}
			makeRoom = r.shrink
		}
		if err := makeRoom(); err != nil {
			return err
		}
	}
}

// tooMuchLeft reports whether there is something to cut down, in a volume that is
// large enough for the tree. An interrupted write leaves files of two trees, or with
// room for either content, and that can be nearly all there is. How much of the volume a
// generation takes that can't be removed is not known, so that with one it is not large enough.
func (r *rewrite) tooMuchLeft() bool {
	if r.leftover != nil || len(r.base.strange) == 0 && !slices.ContainsFunc(r.jobs, func(j job) bool { return j.shrinks() }) {
		return false
	}
	st, err := r.fs.statfs(r.root)
	return err == nil && Measure(r.tree).fitsTwice(&st)
}

// shrink does ahead of the rest what gives room back. No file takes more of it then
// than the tree needs for it.
func (r *rewrite) shrink() error {
	var now, later []job
	for _, j := range r.jobs {
		if !j.shrinks() {
			later = append(later, j)
			continue
		}
		now = append(now, j)
		if j.want == nil {
			r.spent = append(r.spent, j.path)
		}
	}
	r.jobs = now
	if err := inOrder(r.renewRecord, r.narrowDirs, r.removeStrange, r.doJobs); err != nil {
		return err
	}
	r.jobs, r.base.strange = later, nil
	return nil
}

// prepare does all that can fail for want of room, and nothing that users see. If it
// fails, the room is given back.
func (r *rewrite) prepare(ctx context.Context) (err error) {
	before := r.result
	defer func() {
		if err != nil {
			r.result = before
			err = errors.Join(err, r.giveBack(), r.unstage())
		}
	}()
	if err := r.stage(ctx); err != nil {
		return err
	}
	for i := range r.jobs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("reserve room for %s: %w", r.jobs[i].path, err)
		}
		if err := r.reserve(&r.jobs[i]); err != nil {
			return fmt.Errorf("reserve room for %s: %w", r.jobs[i].path, err)
		}
	}
	if err := r.reserveLinks(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rewrite generation %s: %w", r.base.generation, err)
	}
	return nil
}

// stage makes the fresh files beside the generation.
func (r *rewrite) stage(ctx context.Context) (err error) {
	if len(r.fresh) == 0 {
		return nil
	}
	if r.staging, err = r.newGeneration(); err != nil {
		return err
	}
	b := &builder{fs: r.fs, refs: r.names.refs, dirAttrs: r.next.dir}
	defer b.close()
	if err := b.start(r.root, r.staging, ""); err != nil {
		return fmt.Errorf("open directory %s: %w", r.staging, err)
	}
	for _, i := range r.fresh {
		if err := r.put(ctx, b, i, nil); err != nil {
			return err
		}
	}
	return b.enter("") // the directory itself stays closed
}

// unstage removes the directory for fresh files, and what was replaced by one.
func (r *rewrite) unstage() error {
	name := r.staging
	if name == "" {
		return nil
	}
	r.staging = ""
	return r.remove(name)
}

// reserve gives a file that gets longer the pages for it, beyond its end.
func (r *rewrite) reserve(j *job) error {
	if !j.content || len(j.data) == 0 {
		return nil
	}
	fd, st, err := r.openFile(j.path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	size := int64(len(j.data))
	if st.Blocks*blockSize >= wholePages(size) {
		return nil
	}
	r.grown = append(r.grown, grown{j.path, st.Size})
	return r.fs.allocate(fd, size)
}

// giveBack undoes every reserve. To cut a file off at its end frees what is beyond.
func (r *rewrite) giveBack() error {
	var errs []error
	for _, g := range r.grown {
		fd, _, err := r.openFile(g.path, unix.O_WRONLY)
		if err == nil {
			err = r.fs.truncate(fd, g.size)
			unix.Close(fd)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("give back the room for %s: %w", g.path, err))
		}
	}
	r.grown = nil
	return errors.Join(errs...)
}

// dropSpent removes the files that earlier writes emptied, their links first, and the
// directories in which nothing else is.
func (r *rewrite) dropSpent() error {
	dropped := map[string]bool{}
	for _, path := range r.spent {
		dropped[path] = true
	}
	kept := r.next.emptied[:0]
	for _, e := range r.next.emptied {
		if !dropped[e.path] {
			kept = append(kept, e)
		}
	}
	r.next.emptied = kept
	if err := r.planTops(); err != nil {
		return err
	}
	if err := r.dropLinks(); err != nil {
		return err
	}
	r.entries = slices.DeleteFunc(r.entries, func(e dirent) bool { return slices.Contains(r.links.stale, e.name) })
	r.links.stale = nil
	for _, path := range r.spent {
		if err := dropFile(r.fs, r.generation, path); err != nil {
			return fmt.Errorf("remove emptied %s: %w", path, err)
		}
	}
	r.spent = nil
	return nil
}

// dropFile removes a file of a generation, and the directories in which nothing else is.
func dropFile(fs fileSystem, generation int, path string) error {
	remove := fs.unlink
	for path != "" {
		dir, name := split(path)
		at, err := openParent(generation, dir)
		if err != nil {
			return err
		}
		err = remove(at, name)
		unix.Close(at)
		if errors.Is(err, unix.ENOTEMPTY) {
			return nil
		}
		if err != nil {
			return err
		}
		path, remove = dir, fs.rmdir
	}
	return nil
}

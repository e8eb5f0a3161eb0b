package writer

import (
	"context"
	"errors"
)

// timely is a fileSystem whose calls fail once the deadline of a context has passed. Each change of a
// directory may wait for a container's delegation on it, and a write makes many. So a bound is
// needed on all of them together, also on those that undo others. write, truncate and allocate never
// wait for one, and don't fail: else a file could stay half rewritten. Before rename the context is looked at
// anyway. A context that was cancelled fails no call.
type timely struct {
	fileSystem
	// err is that of the context.
	err func() error
}

// inTime returns fs, as timely if ctx has a deadline.
func inTime(ctx context.Context, fs fileSystem) fileSystem {
	if _, bounded := ctx.Deadline(); bounded {
		return timely{fs, ctx.Err}
	}
	return fs
}

// do makes a call that may wait.
func (t timely) do(call func() error) error {
	if err := t.err(); errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return call()
}

func (t timely) mkdir(at int, name string) error {
	return t.do(func() error { return t.fileSystem.mkdir(at, name) })
}

func (t timely) create(at int, name string) (fd int, err error) {
	fd = -1
	err = t.do(func() (err error) { fd, err = t.fileSystem.create(at, name); return err })
	return fd, err
}

func (t timely) chown(fd, uid, gid int) error {
	return t.do(func() error { return t.fileSystem.chown(fd, uid, gid) })
}

func (t timely) chmod(fd int, mode uint32) error {
	return t.do(func() error { return t.fileSystem.chmod(fd, mode) })
}

func (t timely) setAttribute(fd int, name, value string) error {
	return t.do(func() error { return t.fileSystem.setAttribute(fd, name, value) })
}

func (t timely) link(from, at int, name string) error {
	return t.do(func() error { return t.fileSystem.link(from, at, name) })
}

func (t timely) symlink(target string, at int, name string) error {
	return t.do(func() error { return t.fileSystem.symlink(target, at, name) })
}

func (t timely) move(from, at int, name string, flags uint) error {
	return t.do(func() error { return t.fileSystem.move(from, at, name, flags) })
}

func (t timely) unlink(at int, name string) error {
	return t.do(func() error { return t.fileSystem.unlink(at, name) })
}

func (t timely) rmdir(at int, name string) error {
	return t.do(func() error { return t.fileSystem.rmdir(at, name) })
}

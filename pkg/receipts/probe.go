package receipts

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// probeName is the file that Probe makes for a moment.
const probeName = "receipts-probe"

// Probe returns nil if opens of files on the directory's file system can be watched, or why not: it makes a file, and opens
// it as others would. dir is a descriptor of a writable directory, not of O_PATH.
func Probe(dir int) (err error) {
	overflown := false
	g, err := New(func() { overflown = true })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	g.pid = 0 // so that our own opens count

	file, err := unix.Openat(dir, probeName, unix.O_RDONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create the file %s: %w", probeName, err)
	}
	defer unix.Close(file)
	defer func() { err = errors.Join(err, unix.Unlinkat(dir, probeName, 0)) }()

	seen := 0
	w := g.Watch(func([]string) { seen++ })
	if err := w.Add(dir, ""); err != nil {
		return err
	}
	if err := g.open(dir); err != nil {
		return err
	}
	if err := g.Ignore(file); err != nil {
		return err
	}
	if seen != 1 || overflown {
		return errors.New("the kernel does not report an open of a watched file")
	}
	if err := g.open(dir); err != nil {
		return err
	}
	if seen != 1 || overflown {
		return errors.New("the kernel reports an open of an ignored file")
	}
	return nil
}

// open opens and closes Probe's file, and takes in its event.
func (g *Group) open(dir int) error {
	fd, err := unix.Openat(dir, probeName, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open the file %s: %w", probeName, err)
	}
	unix.Close(fd)
	return g.Drain()
}

// explain adds to a refusal what it stands for.
func explain(what string, err error) error {
	reason := ""
	switch {
	case errors.Is(err, unix.ENOSYS):
		reason = " (a kernel with CONFIG_FANOTIFY is needed)"
	case errors.Is(err, unix.EPERM):
		reason = " (CAP_SYS_ADMIN is needed, and not in a user namespace)"
	case errors.Is(err, unix.EACCES):
		reason = " (SELinux, or another security module, must permit to watch files)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		reason = " (Linux 6.0 or newer is needed)"
	}
	return fmt.Errorf("%s: %w%s", what, err, reason)
}

package receipts

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probeName is the name of the temporary file of Probe.
	probeName = "receipts-probe"
	// probeTime is how long Probe waits for its own opens.
	probeTime = 10 * time.Second
)

// Probe returns nil if opens of files on a directory's file system can be watched, or else why not. It creates, watches and opens a file
// there, and removes it. dir is the descriptor of a writable directory, opened without O_PATH.
func Probe(dir int) error {
	_, err := probe(dir)
	return err
}

// probe is Probe. It also returns how often it has read the queue, which is twice if all is well.
func probe(dir int) (reads uint64, err error) {
	seen, lost := 0, false
	g := New(func() { lost = true })
	defer func() {
		reads = g.reads.Load()
		err = errors.Join(err, g.Close())
	}()
	g.pid = -1 // no process has this ID: our own opens have to count

	file, err := openProbe(dir, unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return 0, err
	}
	defer unix.Close(file)
	defer func() { err = errors.Join(err, unix.Unlinkat(dir, probeName, 0)) }()
	if _, err := g.Watch(dir, "", func([]string) { seen++ }, func(error) {}); err != nil {
		return 0, err
	}
	for _, what := range []string{"a watched", "an ignored"} { // the first open must be reported, the second must not
		fd, err := openProbe(dir, 0)
		if err != nil {
			return 0, err
		}
		unix.Close(fd)
		if err := g.Drain(probeTime); err != nil {
			return 0, err
		}
		if lost || seen != 1 {
			return 0, fmt.Errorf("the kernel does not report opens of %s file as it should", what)
		}
		if _, err := g.Ignore(file); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func openProbe(dir, flags int) (int, error) {
	fd, err := unix.Openat(dir, probeName, flags|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return noDescriptor, fmt.Errorf("open the file %s: %w", probeName, err)
	}
	return fd, nil
}

// explain adds the likely cause to an error of the kernel.
func explain(what string, err error) error {
	why := ""
	switch {
	case errors.Is(err, unix.ENOSYS):
		why = " (a kernel with CONFIG_FANOTIFY is needed)"
	case errors.Is(err, unix.EPERM):
		why = " (CAP_SYS_ADMIN is needed, and not in a user namespace)"
	case errors.Is(err, unix.EMFILE):
		why = " (all groups of this user ID on the node are taken: fs.fanotify.max_user_groups; the plugin tries again)"
	case errors.Is(err, unix.EACCES):
		why = " (SELinux, or another security module, has to permit the watch of files)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		why = " (Linux 6.0 or newer is needed)"
	}
	return fmt.Errorf("%s: %w%s", what, err, why)
}

package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// lockInterval is how often a process looks whether the one before has ended.
const lockInterval = 50 * time.Millisecond

// AcquireLock waits until no other process serves the endpoint, which is that of Options, as
// one that is just stopping; release, or the end of this process, lets the next one serve.
// Two processes that write to one volume would remove each other's files, so the lock is to be
// taken before the first write and kept until the last; one that hangs at the end of the process ends
// with that. It waits at most until ctx ends. Where
// the file system has no locks, that is logged, and nothing is kept from anybody.
//
// The lock is that of a file beside the socket, which is made if there is none and never
// removed: who opened it before and who makes it anew would lock two files.
func AcquireLock(ctx context.Context, endpoint string) (release func() error, err error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, fmt.Errorf("lock endpoint: %w", err)
	}
	return acquireLock(ctx, path, tryLock)
}

func acquireLock(ctx context.Context, socket string, try func(*os.File) error) (release func() error, err error) {
	file, err := openLock(socket + ".lock")
	if err != nil {
		return nil, err
	}
	if err := waitForLock(ctx, socket, file, try); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}

func openLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of a socket: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "lock", Path: path, Err: errors.New("there is something that is not a file")}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the lock of a socket: %w", err), file.Close())
	}
	return file, nil
}

// waitForLock returns nil when this process has the lock, or when there can be none.
func waitForLock(ctx context.Context, socket string, file *os.File, try func(*os.File) error) error {
	for attempt := 1; ; attempt++ {
		err := try(file)
		switch {
		case err == nil:
			return nil
		case isUnsupported(err):
			klog.FromContext(ctx).Error(err, "Nothing keeps a second process of this plugin from the same volumes", "socket", socket)
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		if attempt == 1 {
			klog.FromContext(ctx).Info("Another process serves this socket: waiting for its end", "socket", socket)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the process that has locked %s: %w", file.Name(), ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

// tryLock locks a file, or fails with EWOULDBLOCK if another process has.
func tryLock(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
		}
	})
	return errors.Join(err, controlErr)
}

// isUnsupported says whether an error of tryLock is one of a file system that has no locks.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP)
}

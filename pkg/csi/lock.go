package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// lockInterval is how often a process checks whether the last one has ended.
const lockInterval = 50 * time.Millisecond

// AcquireLock waits until no other process serves the endpoint (see Options), for example because the last one is still stopping. It fails
// when ctx ends. release, or the end of this process, lets the next process serve. Two processes that write to one volume would remove each
// other's files. So the lock must be taken before the first write and kept until the last one; a write that hangs ends with the process. If
// the file system has no locks, that is logged, and there is no protection.
//
// The lock is on a file beside the socket, which is created if necessary and never removed. If it were removed, one process could lock the
// old file and another one a new file.
func AcquireLock(ctx context.Context, endpoint string) (release func() error, err error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, fmt.Errorf("lock endpoint: %w", err)
	}
	return acquireLock(ctx, path, unix.Flock)
}

func acquireLock(ctx context.Context, socket string, flock func(fd, how int) error) (release func() error, err error) {
	path := socket + ".lock"
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of a socket: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "lock", Path: path, Err: errors.New("there is something that is not a file")}
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of a socket: %w", err)
	}
	logger, waits := klog.FromContext(ctx).WithValues("socket", socket), false
	err = wait.PollUntilContextCancel(ctx, lockInterval, true, func(context.Context) (bool, error) {
		switch err := flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EBADF), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP):
			logger.Error(err, "Nothing keeps a second process of this plugin from the same volumes")
			return true, nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return false, err
		case !waits:
			waits = true
			logger.Info("Another process serves this socket: waiting for its end")
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return file.Close, nil
}

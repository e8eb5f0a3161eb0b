package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
)

// lockTest is a directory for a socket, and a context whose log is kept.
type lockTest struct {
	*testing.T
	ctx    context.Context
	logs   *leak.Log
	socket string
}

func newLockTest(t *testing.T) *lockTest {
	t.Helper()
	logs := &leak.Log{}
	return &lockTest{
		T:      t,
		ctx:    klog.NewContext(t.Context(), leaklog.New(t, logs)),
		logs:   logs,
		socket: filepath.Join(t.TempDir(), "csi.sock"),
	}
}

func (l *lockTest) wantLocked() {
	l.Helper()
	file, err := os.Open(l.socket + ".lock")
	must(l, err)
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		l.Errorf("got %v, want that it is locked", err)
	}
}

func TestLockRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(path string) error
		want    string
	}{
		"link to a file": {func(path string) error {
			target := filepath.Join(filepath.Dir(path), "precious")
			return errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path))
		}, "too many levels of symbolic links"},
		"dangling link": {func(path string) error { return os.Symlink("nowhere", path) }, "too many levels of symbolic links"},
		"directory":     {func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		"pipe":          {func(path string) error { return unix.Mkfifo(path, 0o600) }, "there is something that is not a file"},
		"no directory":  {func(path string) error { return os.Remove(filepath.Dir(path)) }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLockTest(t)
			must(t, tc.prepare(l.socket+".lock"))
			_, err := AcquireLock(l.ctx, "unix://"+l.socket)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), l.socket+".lock") {
				t.Errorf("got %v, want %q and the path", err, tc.want)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(l.socket), "nowhere")); err == nil {
				t.Error("a file was made through the link")
			}
		})
	}
	if _, err := AcquireLock(t.Context(), "/no/endpoint"); err == nil || !strings.Contains(err.Error(), "must be unix://") {
		t.Errorf("got %v, want a complaint about the endpoint", err)
	}
}

// Without locks the plugin serves anyway, and logs what that means.
func TestFileSystemWithoutLocks(t *testing.T) {
	for _, errno := range []error{unix.EBADF, unix.ENOLCK, unix.EOPNOTSUPP} {
		t.Run(errno.Error(), func(t *testing.T) {
			l := newLockTest(t)
			release, err := acquireLock(l.ctx, l.socket, func(int, int) error { return errno })
			must(t, err)
			if err := release(); err != nil {
				t.Error(err)
			}
			if lines := l.logs.With("Nothing keeps a second process", errno.Error()); len(lines) != 1 {
				t.Errorf("logged %q", l.logs)
			}
		})
	}
	l := newLockTest(t)
	if _, err := acquireLock(l.ctx, l.socket, func(int, int) error { return unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
}

// The next one waits until the lock is released. The end of a process closes the file, and that releases it, too.
func TestLockIsAwaited(t *testing.T) {
	l := newLockTest(t)
	release, err := AcquireLock(l.ctx, "unix://"+l.socket)
	must(t, err)
	l.wantLocked()
	got := make(chan error, 1)
	go func() {
		release, err := AcquireLock(l.ctx, "unix://"+l.socket)
		if err == nil {
			err = release()
		}
		got <- err
	}()
	await(l.logs, "Another process serves this socket")
	if err := errors.Join(release(), <-got); err != nil {
		t.Error(err)
	}
}

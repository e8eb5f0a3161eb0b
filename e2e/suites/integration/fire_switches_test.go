package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// switchCounter counts how often ..data is replaced in volumes, with inotify. One
// goroutine reads the events, until the end of the test.
type switchCounter struct {
	t     *testing.T
	fd    int // file's own: asking the file for it would make reads block for ever
	file  *os.File
	count atomic.Int64
}

func newSwitchCounter(t *testing.T) *switchCounter {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(os.NewSyscallError("inotify_init1", err))
	}
	c := &switchCounter{t: t, fd: fd, file: os.NewFile(uintptr(fd), "inotify")}
	done := make(chan error, 1)
	go func() { done <- c.run() }()
	t.Cleanup(func() {
		if err := errors.Join(c.file.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	return c
}

// watch adds a volume.
func (c *switchCounter) watch(dir string) {
	c.t.Helper()
	if _, err := unix.InotifyAddWatch(c.fd, dir, unix.IN_MOVED_TO); err != nil {
		c.t.Fatal(os.NewSyscallError("inotify_add_watch", err))
	}
}

func (c *switchCounter) run() error {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.file.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.add(buffer[:n]); err != nil {
			return err
		}
	}
}

// add counts the events that name ..data.
func (c *switchCounter) add(events []byte) error {
	for len(events) > 0 {
		mask := binary.NativeEndian.Uint32(events[4:])
		length := binary.NativeEndian.Uint32(events[12:])
		if mask&unix.IN_Q_OVERFLOW != 0 {
			return errors.New("inotify lost events")
		}
		name := events[unix.SizeofInotifyEvent:][:length]
		if string(bytes.TrimRight(name, "\x00")) == "..data" {
			c.count.Add(1)
		}
		events = events[unix.SizeofInotifyEvent+length:]
	}
	return nil
}

func (c *switchCounter) total() int64 { return c.count.Load() }

// await returns after as many more switches, or when over is closed.
func (c *switchCounter) await(t *testing.T, more int64, within time.Duration, over <-chan struct{}) {
	t.Helper()
	want := c.total() + more
	err := harness.Poll(t.Context(), within, 5*time.Millisecond, func() error {
		select {
		case <-over:
			return nil
		default:
		}
		if missing := want - c.total(); missing > 0 {
			return fmt.Errorf("%d of %d switches are missing", missing, more)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

package receipts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper waits for the first event of a group. It is an epoll instance between the group and the runtime's poller: it reports one event
// and no more until it is armed again, so that a storm wakes nobody. It does not keep a group that was closed.
type sleeper struct {
	file *os.File
	raw  syscall.RawConn
}

func newSleeper() (*sleeper, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	s := &sleeper{file: os.NewFile(uintptr(fd), "epoll")}
	if s.raw, err = s.file.SyscallConn(); err == nil {
		err = s.file.SetDeadline(time.Time{}) // it fails if the runtime can't poll it
	}
	if err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return s, nil
}

// arm makes the next event, or one that is queued already, end a sleep. After an error, no sleep lasts.
func (s *sleeper) arm(group int) error {
	var err error
	control := s.raw.Control(func(fd uintptr) {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
		if err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, group, &e); errors.Is(err, unix.EEXIST) {
			err = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, group, &e)
		}
	})
	if err = errors.Join(control, err); err != nil {
		_ = s.file.SetReadDeadline(time.Unix(1, 0))
	}
	return err
}

// sleep returns after an event, or when ctx ends.
func (s *sleeper) sleep(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	events := make([]unix.EpollEvent, 1)
	return s.raw.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), events, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// setSleeper lets Run sleep. Without a sleeper, the group is read at each pause.
func (g *Group) setSleeper() (closeIt func()) {
	s, err := newSleeper()
	if err != nil {
		return func() {}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sleeper = s
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sleeper = nil
		_ = s.file.Close()
	}
}

// sleep waits for an event, or until ctx ends. If there is no group, the next one is armed when it is made.
func (g *Group) sleep(ctx context.Context) {
	g.mu.Lock()
	s, err := g.sleeper, error(nil)
	if s != nil && g.fd != noDescriptor {
		err = s.arm(g.fd)
	}
	g.mu.Unlock()
	if s != nil && err == nil {
		_ = s.sleep(ctx)
	}
}

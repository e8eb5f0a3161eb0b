package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Decide is asked about each call that is counted, before it is done, while the thread
// that makes it waits; n counts from 1. True means that the process is to be killed
// there. It runs on the Supervisor's goroutine, so it holds up all supervised calls of
// the process, and must not call methods of the Supervisor.
type Decide func(n int, c Call) (kill bool)

// KillAt kills the process at its nth call.
func KillAt(nth int) Decide { return func(n int, _ Call) bool { return n == nth } }

// CountOnly lets every call go on.
func CountOnly(int, Call) bool { return false }

// Supervisor watches over one process, and after its end over the next. All methods
// are safe for concurrent use, but for BeforeFork and Close, which are for whoever
// starts the process.
//
// For each process there is a goroutine, started by BeforeFork; it ends with the
// process, and at the latest with Close or the next BeforeFork.
type Supervisor struct {
	root    string
	calls   map[uint32]systemCall
	serving *service

	mu     sync.Mutex
	decide Decide // nil when not armed
	made   []Call
	killed bool
	err    error
}

// New returns a Supervisor that also counts opens for reading below the directory root.
// It is not armed. With names it knows of the system calls of these names only, and all
// others go on as fast as they would without it. It knows of execve and execveat with their
// names only. The runtime must not collect garbage then while it starts the process: it would
// wait for the thread that forks, which waits for the process, which waits for the Supervisor.
func New(root string, names ...string) *Supervisor {
	calls := systemCalls()
	maps.DeleteFunc(calls, func(_ uint32, c systemCall) bool {
		return !slices.Contains(names, c.name) && (len(names) > 0 || c.form == executing)
	})
	return &Supervisor{root: root, calls: calls}
}

// Arm starts the count anew; decide is asked about every call from now on. It may be
// called before the process starts.
func (s *Supervisor) Arm(decide Decide) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide, s.made, s.killed = decide, nil, false
}

// Disarm ends the count. It returns the calls that were counted since Arm, and whether
// the process was killed at the last of them; then it is about to end, if it has not.
func (s *Supervisor) Disarm() (made []Call, killed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, killed = s.made, s.killed
	s.decide, s.made, s.killed = nil, nil, false
	return made, killed
}

// BeforeFork puts the calling thread, and with it each process that it forks from then
// on, under supervision: it is meant for process.Options. The thread must be locked to
// its goroutine, and must not be used for anything else after the fork. The process of
// an earlier call must have ended.
func (s *Supervisor) BeforeFork() error {
	if err := s.Close(); err != nil {
		return err
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	listener, err := install(s.calls)
	if err != nil {
		unix.Close(stop)
		return err
	}
	s.serving = &service{listener: listener, stop: stop, parent: uint32(unix.Gettid()), done: make(chan struct{})}
	go s.serve(s.serving)
	return nil
}

// Close ends the supervision of a process that has ended. It returns what kept the
// Supervisor from its work, and is idempotent.
func (s *Supervisor) Close() error {
	if s.serving == nil {
		return nil
	}
	_, err := unix.Write(s.serving.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-s.serving.done
	unix.Close(s.serving.stop)
	s.serving = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(s.err, err)
	s.err = nil
	return err
}

// service is the supervision of one process.
type service struct {
	listener, stop int
	// parent is the thread that forked the process, which is under the filter too.
	parent uint32
	// killed says that no call may go on any more.
	killed bool
	done   chan struct{}
}

// serve handles calls until nobody is left to make one, or until it is stopped. Once the
// listener is closed all supervised calls fail, so an error does not go unnoticed.
func (s *Supervisor) serve(v *service) {
	defer close(v.done)
	defer unix.Close(v.listener)
	for {
		more, err := v.wait()
		if err == nil && more {
			err = s.handleNext(v)
		}
		if err != nil {
			s.mu.Lock()
			s.err = fmt.Errorf("supervise: %w", err)
			s.mu.Unlock()
		}
		if err != nil || !more {
			return
		}
	}
}

// wait returns when a call is there, or with false when none will be.
func (v *service) wait() (more bool, err error) {
	for {
		fds := []unix.PollFd{{Fd: int32(v.listener), Events: unix.POLLIN}, {Fd: int32(v.stop), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false, os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return false, nil
		case fds[0].Revents&unix.POLLIN != 0:
			return true, nil
		default:
			return false, nil // the last thread under the filter has ended
		}
	}
}

func (s *Supervisor) handleNext(v *service) error {
	var n notification
	switch err := receive(v.listener, &n); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
		return nil // the thread has ended, or a signal had it give up the call for now
	case err != nil:
		return os.NewSyscallError("receive a call", err)
	}
	if n.pid != v.parent {
		if v.killed {
			return nil // it dies waiting
		}
		kill := s.count(v, &n)
		if kill {
			v.killed = true
			return killProcess(n.pid)
		}
	}
	return os.NewSyscallError("let a call go on", goOn(v.listener, n.id))
}

// count records a call if it counts, and asks about it.
func (s *Supervisor) count(v *service, n *notification) (kill bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decide == nil {
		return false
	}
	c, counts := describe(n, s.calls[uint32(n.number)], s.root)
	if !counts || !waiting(v.listener, n.id) {
		return false
	}
	s.made = append(s.made, c)
	s.killed = s.decide(len(s.made), c)
	return s.killed
}

// killProcess kills the process of a thread that waits, and so has not ended unless
// somebody else killed it.
func killProcess(thread uint32) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the process of thread %d: %w", thread, err)
	}
	for line := range strings.Lines(string(status)) {
		var pid int
		if _, err := fmt.Sscanf(line, "Tgid: %d", &pid); err == nil {
			return os.NewSyscallError("kill", unix.Kill(pid, unix.SIGKILL))
		}
	}
	return fmt.Errorf("the status of thread %d names no process", thread)
}

// Package supervise stops a process at any one of its file, mount and rename calls, whichever of its threads makes
// it, and kills it there.
//
// It uses seccomp's user notification: a filter that the process inherits hands each such system call to a
// Supervisor, which lets it go on or kills the process before the call is done. The kernel holds the calling thread
// meanwhile, so no call slips by. What is counted is in systemCalls; of what is done through a descriptor, only what
// is done to files and directories, but not to the log on stdout and stderr.
//
// It needs Linux 5.19 and CAP_SYS_ADMIN in its user namespace. It knows nothing of what the process is for.
package supervise

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Decide is asked about each call that is counted, by its name, before it is done, while the thread that makes it waits; n counts
// from 1. True means that the process is to be killed there. It holds up all supervised calls of the process, and
// must not call methods of the Supervisor.
type Decide func(n int, call string) (kill bool)

// CountOnly lets every call go on.
func CountOnly(int, string) bool { return false }

// Supervisor watches over one process, and after its end over the next. All methods are safe for concurrent use, but
// for BeforeFork and Close, which are for whoever starts the process.
type Supervisor struct {
	calls   map[uint32]systemCall
	serving *service

	// mu guards what is below it.
	mu     sync.Mutex
	decide Decide // nil when not armed
	made   []string
	killed bool
	err    error
}

// New returns a Supervisor that is not armed.
func New() *Supervisor { return &Supervisor{calls: systemCalls()} }

// Arm starts the count anew; decide is asked about every call from now on. It may be called before the process
// starts.
func (s *Supervisor) Arm(decide Decide) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide, s.made, s.killed = decide, nil, false
}

// Disarm ends the count. It returns the names of the calls that were counted since Arm, and whether the process was killed at the
// last of them; then it is about to end, if it has not.
func (s *Supervisor) Disarm() (made []string, killed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, killed = s.made, s.killed
	s.decide, s.made, s.killed = nil, nil, false
	return made, killed
}

// BeforeFork puts the calling thread, and with it each process that it forks from then on, under supervision: it is
// meant for process.Options. The process of an earlier call must have ended.
func (s *Supervisor) BeforeFork() error {
	if err := s.Close(); err != nil {
		return err
	}
	listener, err := install(s.calls)
	if err != nil {
		return err
	}
	s.serving = &service{listener: listener, parent: uint32(unix.Gettid()), done: make(chan struct{})}
	go s.serve(s.serving)
	return nil
}

// Close ends the supervision of a process that has ended. It returns what kept the Supervisor from its work.
func (s *Supervisor) Close() error {
	if s.serving == nil {
		return nil
	}
	s.serving.stopped.Store(true)
	<-s.serving.done
	s.serving = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// service is the supervision of one process.
type service struct {
	listener int
	// parent is the thread that forked the process, which is under the filter too, and may outlive the process.
	parent  uint32
	stopped atomic.Bool
	// killed says that no call may go on any more.
	killed bool
	done   chan struct{}
}

// serve handles calls until nobody is left to make one, or until it is stopped. Once the listener is closed all
// supervised calls fail, so an error does not go unnoticed.
func (s *Supervisor) serve(v *service) {
	defer close(v.done)
	defer unix.Close(v.listener)
	for !v.stopped.Load() {
		const lookAtStopped = 50 // ms
		fds := []unix.PollFd{{Fd: int32(v.listener), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, lookAtStopped)
		switch {
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0:
			err = s.handleNext(v)
		case err == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0:
			return // the last thread under the filter has ended
		case err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0:
			// A signal came while the kernel waited for the lock of the calls.
		case err == nil && n > 0:
			err = fmt.Errorf("poll answers %#x", fds[0].Revents)
		}
		if err != nil {
			s.mu.Lock()
			s.err = fmt.Errorf("supervise: %w", err)
			s.mu.Unlock()
			return
		}
	}
}

func (s *Supervisor) handleNext(v *service) error {
	var n notification
	switch err := ioctl(v.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
		return nil // the thread has ended, or a signal had it give up the call for now
	case err != nil:
		return os.NewSyscallError("receive a call", err)
	}
	if n.pid != v.parent {
		if v.killed {
			return nil // it dies waiting
		}
		if v.killed = s.count(v, &n); v.killed {
			// A signal that kills a thread kills its process. Somebody else may have been faster.
			if err := unix.Kill(int(n.pid), unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
				return os.NewSyscallError("kill", err)
			}
			return nil
		}
	}
	r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if err := ioctl(v.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("let a call go on", err)
	}
	return nil // the thread has ended meanwhile
}

// count records a call if it counts, and asks about it.
func (s *Supervisor) count(v *service, n *notification) (kill bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decide == nil {
		return false
	}
	c := s.calls[uint32(n.number)]
	// What was read is of the thread, and not of another of its number, if it still waits.
	if !c.isCounted(n) || ioctl(v.listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) != nil {
		return false
	}
	s.made = append(s.made, c.name)
	s.killed = s.decide(len(s.made), c.name)
	return s.killed
}

// install gives the calling thread, and what it forks from then on, a filter that hands over each of the calls and
// allows all others. It returns the descriptor on which the calls arrive.
func install(calls map[uint32]systemCall) (int, error) {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for number := range calls {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// A thread whose call has been received is left waiting by all signals but a fatal one: a runtime that interrupts
	// its threads would have the call come again.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, fmt.Errorf("install a seccomp filter (Linux 5.19 and CAP_SYS_ADMIN are needed): %w", errno)
	}
	return int(fd), nil
}

// notification is the kernel's struct seccomp_notif: a thread waits with a call.
type notification struct {
	id     uint64
	pid    uint32
	_      uint32 // flags, always 0
	number int32
	_      uint32 // architecture
	_      uint64 // instruction pointer
	args   [6]uint64
}

// response is the kernel's struct seccomp_notif_resp.
type response struct {
	id    uint64
	_     int64 // the call's result, for a call that does not go on
	_     int32 // its error
	flags uint32
}

// ioctl tries again where a signal of the runtime interrupts it, but for a receipt: what was to be received may be gone.
func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		switch {
		case errno == 0:
			return nil
		case errno != unix.EINTR || request == unix.SECCOMP_IOCTL_NOTIF_RECV:
			return errno
		}
	}
}

// systemCall is a call that the filter hands over. descriptor is the index of the argument that is a descriptor through which something is
// written; none where there is none.
type systemCall struct {
	name       string
	descriptor int
}

const none = -1

// systemCalls are the calls by number. Go's own packages make none of those from before the ...at calls.
func systemCalls() map[uint32]systemCall {
	return map[uint32]systemCall{
		unix.SYS_OPENAT:          {"openat", none},
		unix.SYS_OPENAT2:         {"openat2", none},
		unix.SYS_MKDIRAT:         {"mkdirat", none},
		unix.SYS_SYMLINKAT:       {"symlinkat", none},
		unix.SYS_LINKAT:          {"linkat", none},
		unix.SYS_UNLINKAT:        {"unlinkat", none},
		unix.SYS_RENAMEAT:        {"renameat", none},
		unix.SYS_RENAMEAT2:       {"renameat2", none},
		unix.SYS_FCHMODAT:        {"fchmodat", none},
		unix.SYS_FCHMODAT2:       {"fchmodat2", none},
		unix.SYS_FCHOWNAT:        {"fchownat", none},
		unix.SYS_UTIMENSAT:       {"utimensat", none},
		unix.SYS_WRITE:           {"write", 0},
		unix.SYS_PWRITE64:        {"pwrite64", 0},
		unix.SYS_WRITEV:          {"writev", 0},
		unix.SYS_SENDFILE:        {"sendfile", 0},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", 2},
		unix.SYS_SPLICE:          {"splice", 2},
		unix.SYS_FTRUNCATE:       {"ftruncate", 0},
		unix.SYS_FALLOCATE:       {"fallocate", 0},
		unix.SYS_FCHMOD:          {"fchmod", 0},
		unix.SYS_FCHOWN:          {"fchown", 0},
		unix.SYS_FSETXATTR:       {"fsetxattr", 0},
		unix.SYS_FREMOVEXATTR:    {"fremovexattr", 0},
		unix.SYS_FSOPEN:          {"fsopen", none},
		unix.SYS_FSCONFIG:        {"fsconfig", none},
		unix.SYS_FSMOUNT:         {"fsmount", none},
		unix.SYS_OPEN_TREE:       {"open_tree", none},
		unix.SYS_MOUNT_SETATTR:   {"mount_setattr", none},
		unix.SYS_MOVE_MOUNT:      {"move_mount", none},
		unix.SYS_MOUNT:           {"mount", none},
		unix.SYS_UMOUNT2:         {"umount2", none},
	}
}

// isCounted says whether a call counts.
func (c systemCall) isCounted(n *notification) bool {
	if c.descriptor == none {
		return true
	}
	fd := int32(n.args[c.descriptor])
	link := fmt.Sprintf("/proc/%d/fd/%d", n.pid, fd)
	path, _ := os.Readlink(link)
	info, err := os.Stat(link)
	// Not a socket, a pipe or an eventfd, of which the link is no path, nor the log.
	return err == nil && (info.IsDir() || info.Mode().IsRegular()) && strings.HasPrefix(path, "/") && fd != 1 && fd != 2
}

// Package process runs a child process that cannot outlive its parent: the kernel kills it when this process ends for
// any reason.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Options says what to run.
type Options struct {
	// Path is the program, absolute. Required.
	Path string
	// Args are its arguments, without the program's own name.
	Args []string
	// Env is its environment, as in exec.Cmd; nil means this process's own.
	Env []string
	// Log is the file that stdout and stderr are appended to. Required.
	Log string
	// BeforeFork, if not nil, is called on the thread that forks the child, right before it does so. The child
	// inherits what this changes of the thread, such as a filter of system calls; nothing else does.
	BeforeFork func() error
}

// Process is a running or ended child, which one goroutine waits for. All methods are safe for concurrent use.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// Start runs the program and returns at once; see Await for readiness.
func Start(o Options) (*Process, error) {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", o.Path, err)
	}
	defer log.Close()
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env = o.Env
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own it gets no Ctrl-C of the terminal: its parent decides when it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &Process{name: filepath.Base(o.Path), log: o.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(o.BeforeFork, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	return p, nil
}

// run keeps one thread for as long as the child lives: the parent-death signal comes when the thread that forked
// ends. A thread that beforeFork has changed stays locked, so that it ends with this goroutine.
func (p *Process) run(beforeFork func() error, started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	var err error
	if beforeFork == nil {
		defer runtime.UnlockOSThread()
	} else {
		err = beforeFork()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // ProcessState tells
	}
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended tells whether the child has ended and been reaped.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ExitCode returns the exit status, or -1 while the child runs and when a signal ended it.
func (p *Process) ExitCode() int {
	if !p.Ended() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// State says how the child ended, as in "signal: killed", or that it is "running".
func (p *Process) State() string {
	if !p.Ended() {
		return "running"
	}
	return p.cmd.ProcessState.String()
}

// Signal sends sig; a child that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s (pid %d): %w", sig, p.name, p.PID(), err)
	}
	return nil
}

// Kill ends the child with SIGKILL and waits for it.
func (p *Process) Kill() error { return p.Stop(context.Background(), syscall.SIGKILL) }

// Stop sends sig and waits for the end of the child. A child that is still there when ctx ends is killed, and that is
// an error.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not end on %s: %w%s", p.name, sig, ctx.Err(), p.tail()), p.Kill())
	}
}

// Await calls probe every few milliseconds until it returns nil. It gives up when the child ends or ctx does, with
// the last answer of probe and the tail of the log in the error.
func (p *Process) Await(ctx context.Context, probe func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while it was waited for: %s (last answer: %w)%s", p.name, p.cmd.ProcessState, err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w)%s", p.name, ctx.Err(), err, p.tail())
		case <-tick.C:
		}
	}
}

func (p *Process) tail() string {
	return fmt.Sprintf("\n--- last lines of %s ---\n%s", p.log, Tail(p.log, 25))
}

// Tail returns the last n lines of a file, or the reason why it cannot.
func Tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

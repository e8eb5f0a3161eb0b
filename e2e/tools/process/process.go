// Package process runs a child process that cannot outlive its parent.
//
// It owns the child from start to reaping: every Process that Start returns is
// waited for, and the kernel kills it when this process ends for any reason. It
// knows nothing of what the child does.
package process

import (
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

// tailLines is how much of a log an error shows.
const tailLines = 25

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
	// BeforeFork, if not nil, is called on the thread that forks the child, right before
	// it does so. The child inherits what this changes of the thread, such as a filter of
	// system calls; nothing else does, as the thread ends after the child.
	BeforeFork func() error
}

func (o *Options) validate() error {
	if !filepath.IsAbs(o.Path) {
		return fmt.Errorf("process: path %q is not absolute", o.Path)
	}
	if o.Log == "" {
		return fmt.Errorf("process: no log file for %s", o.Path)
	}
	return nil
}

// Process is a running or ended child. One goroutine, started by Start and ended
// by the child's end, waits for it; err may be read once done is closed. All
// methods are safe for concurrent use.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs the program and returns at once; see Await for readiness.
func Start(o Options) (*Process, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", o.Path, err)
	}
	defer log.Close()

	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env = o.Env
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own keeps a Ctrl-C at the terminal away from the child: its
	// parent decides when it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}

	p := &Process{
		name: filepath.Base(o.Path),
		log:  o.Log,
		cmd:  cmd,
		done: make(chan struct{}),
	}
	started := make(chan error)
	go p.run(o.BeforeFork, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Path, err)
	}
	return p, nil
}

// run keeps one thread for as long as the child lives: the parent-death signal
// comes when the thread that forked ends, not when the process does, and Go gives
// no promise on how long an unlocked thread lasts. A thread that beforeFork has
// changed stays locked, so that it ends with this goroutine.
func (p *Process) run(beforeFork func() error, started chan<- error) {
	runtime.LockOSThread()
	if beforeFork == nil {
		defer runtime.UnlockOSThread()
	}
	defer close(p.done)

	err := p.fork(beforeFork)
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
}

func (p *Process) fork(beforeFork func() error) error {
	if beforeFork != nil {
		if err := beforeFork(); err != nil {
			return fmt.Errorf("before the fork: %w", err)
		}
	}
	return p.cmd.Start()
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

// ExitCode returns the exit status, or -1 while the child runs and when a signal
// ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Signal sends sig; a child that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s (pid %d): %w", sig, p.name, p.PID(), err)
	}
	return nil
}

// Kill ends the child with SIGKILL and waits for it.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop sends sig and waits for the end of the child. A child that is still there
// when ctx ends is killed, and that is an error.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		if err := p.Kill(); err != nil {
			return err
		}
		return fmt.Errorf("%s did not end on %s: %w%s", p.name, sig, ctx.Err(), p.tail())
	}
}

// Await calls probe every few milliseconds until it returns nil. It gives up when
// the child ends or ctx does, with the last answer of probe and the tail of the
// log in the error.
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
			return fmt.Errorf("%s ended while it was waited for: %w (last answer: %w)%s", p.name, p.exitError(), err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w)%s", p.name, ctx.Err(), err, p.tail())
		case <-tick.C:
		}
	}
}

func (p *Process) exitError() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

func (p *Process) tail() string {
	return fmt.Sprintf("\n--- last lines of %s ---\n%s", p.log, Tail(p.log, tailLines))
}

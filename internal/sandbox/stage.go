package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stage is a step on the way inside: a run of this program that changes its own namespaces.
type stage string

const (
	// stagePrivate goes on as the program inside.
	stagePrivate stage = "private"
	// stageOverlay is process 1 of its namespace: it starts the program inside and reaps orphans.
	stageOverlay stage = "overlay"
	// stageReadOnly makes the mounts read-only and starts stageLocked.
	stageReadOnly stage = "read-only"
	// stageLocked is in the inner user namespace and goes on as the program inside.
	stageLocked stage = "locked"
)

const (
	// stageVariable names the stage that a program is to be.
	stageVariable = "REFVOL_SANDBOX_STAGE"
	// keepVariable carries what of the machine may be changed to the stages.
	keepVariable = "REFVOL_SANDBOX_KEEP"
	// reportDescriptor is where a stage says why it failed. It is closed once the sandbox stands.
	reportDescriptor = 3
)

// first is the first stage of a kind of sandbox.
func (k kind) first() stage {
	return map[kind]stage{disposable: stagePrivate, overlaid: stageOverlay, nested: stageReadOnly}[k]
}

// start runs this program in a sandbox and returns its exit status. It fails if the sandbox could
// not be made.
func start(k kind, keep []string) (status int, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer read.Close()
	status, err = runProgram(k.first(), keep, write, func() error {
		reason, err := io.ReadAll(read)
		if err == nil && len(reason) > 0 {
			err = errors.New(string(reason))
		}
		return err
	})
	return status, err
}

// runProgram runs this program as a stage, which gets report as its reportDescriptor, and returns its
// exit status. Once it runs, report is closed here, and started is called; its error is returned.
func runProgram(s stage, keep []string, report *os.File, started func() error) (status int, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, errors.Join(err, report.Close())
	}
	cmd := exec.Command(program, os.Args[1:]...) //nolint:noctx,gosec // It is this program, and ends with its signals.
	cmd.Env = append(os.Environ(), stageVariable+"="+string(s), keepVariable+"="+strings.Join(keep, string(filepath.ListSeparator)))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{report}
	cmd.SysProcAttr = s.attributes()

	// The parent-death signal comes when the forking thread ends: keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := catch()
	defer signal.Stop(signals)
	err = cmd.Start()
	if err := errors.Join(err, report.Close()); err != nil {
		return 0, err
	}
	stop := relay(signals, cmd.Process)
	defer stop()
	startErr := started()
	status, err = exitStatus(cmd.Wait())
	return status, errors.Join(startErr, err)
}

// attributes are the namespaces of a stage. There is a user namespace only where it is needed: in
// one, only the caller's own ids are mapped, and tmpfs lacks some options.
func (s stage) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	switch s {
	case stageOverlay:
		attr.Cloneflags |= syscall.CLONE_NEWPID
	case stageReadOnly, stageLocked:
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	case stagePrivate:
	}
	return attr
}

// runStage does what a stage has to do; the results are those of Enter.
func runStage(s stage) (status int, inside bool, err error) {
	unix.CloseOnExec(reportDescriptor)
	report := os.NewFile(reportDescriptor, "report")
	keep := filepath.SplitList(os.Getenv(keepVariable))
	switch s {
	case stagePrivate:
		err = errors.Join(makePrivate(), arrive(fmt.Sprint(os.Getpid())))
		inside = true
	case stageOverlay:
		// Once the old root is detached, the kernel no longer tells the whole path.
		var program string
		if program, err = os.Executable(); err == nil {
			err = enterOverlay(keep)
		}
		if err == nil {
			err = report.Close()
		}
		if err == nil {
			status, err = runAsInit(program)
			return status, false, err
		}
	case stageReadOnly:
		if err = makeReadOnly(keep); err == nil {
			status, err = runProgram(stageLocked, nil, report, func() error { return nil })
			return status, false, err
		}
	case stageLocked:
		err = enterLocked()
		inside = true
	default:
		err = fmt.Errorf("%s=%q: there is no such stage", stageVariable, s)
	}
	if err != nil {
		_, writeErr := report.WriteString(err.Error())
		return 1, false, errors.Join(writeErr, report.Close())
	}
	return 0, inside, report.Close()
}

// runAsInit starts the program inside and waits for it, and meanwhile for all others that end: this
// process is their parent once their own has gone.
func runAsInit(program string) (status int, err error) {
	signals := catch()
	defer signal.Stop(signals)
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	p, err := os.StartProcess(program, os.Args, &os.ProcAttr{Files: files}) //nolint:gosec // It is this program.
	if err != nil {
		return 0, err
	}
	stop := relay(signals, p)
	defer stop()
	for {
		var ws unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &ws, 0, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program inside: %w", err)
		case pid == p.Pid && ws.Signaled():
			return signaled(ws.Signal()), nil
		case pid == p.Pid:
			return ws.ExitStatus(), nil
		}
	}
}

// catch asks for the signals that ask a program to end.
func catch() chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	return signals
}

// relay passes on what is sent to this process alone; what a terminal sends to the
// whole process group then arrives more than once, which does no harm. The returned function
// ends it.
func relay(signals <-chan os.Signal, to *os.Process) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case s := <-signals:
				_ = to.Signal(s) // it may just have ended
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-gone }
}

// exitStatus gives a program that died of a signal the status that a shell gives it.
func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	if err == nil || !errors.As(err, &exit) {
		return 0, err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return signaled(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

func signaled(s syscall.Signal) int { return 128 + int(s) }

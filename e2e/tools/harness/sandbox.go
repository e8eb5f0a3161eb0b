package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxVariable carries the mount namespace of the process outside, so that the
// process inside can prove that it is not in that one.
const sandboxVariable = "REFVOL_SANDBOX_OUTSIDE"

const mountNamespace = "/proc/self/ns/mnt"

// Sandbox makes sure that no mount of this program can reach the machine. The
// first call runs the same program once more, with the same arguments, in a mount
// namespace of its own (and, when not root, in a user namespace that makes it root
// there), waits for it, and returns its exit status with inside false: the caller
// then exits with that status. In the program that runs inside it returns inside
// true, and the caller goes on. Call it before anything else.
//
// It fails where neither root nor user namespaces are at hand. Both programs end
// together, whichever is killed.
func Sandbox() (status int, inside bool, err error) {
	here, err := os.Readlink(mountNamespace)
	if err != nil {
		return 0, false, fmt.Errorf("sandbox: %w", err)
	}
	if outside := os.Getenv(sandboxVariable); outside != "" && outside != here {
		if err := makeMountsPrivate(); err != nil {
			return 0, false, err
		}
		return 0, true, nil
	}
	status, err = runInside(here)
	return status, false, err
}

// makeMountsPrivate stops mounts from spreading between this namespace and the one
// that it was copied from.
func makeMountsPrivate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("sandbox: make all mounts private: %w", err)
	}
	return nil
}

func runInside(here string) (int, error) {
	program, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("sandbox: %w", err)
	}
	cmd := exec.Command(program, os.Args[1:]...)
	cmd.Env = append(os.Environ(), sandboxVariable+"="+here)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = sandboxAttributes()

	// The parent-death signal comes when the forking thread ends: keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("mounts need root, or a kernel that lets users make user namespaces "+
			"(see the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and "+
			"kernel.apparmor_restrict_unprivileged_userns): %w", err)
	}
	stop := relay(signals, cmd.Process)
	defer stop()
	return exitStatus(cmd.Wait())
}

// sandboxAttributes asks for a user namespace only where it is needed: in one, only
// the caller's own ids are mapped, and tmpfs lacks some options.
func sandboxAttributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// relay passes on what is sent to this process alone; what a terminal sends to the
// whole process group then arrives twice, which does no harm. The returned function
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
		return 128 + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// EnterCommand returns the start of a command line that runs a program in the
// sandbox of this process, for the person who started it.
func EnterCommand() (string, error) {
	mapped, err := idMap("/proc/self/uid_map")
	if err != nil {
		return "", err
	}
	command := fmt.Sprintf("nsenter --target %d --mount", os.Getpid())
	if !mapped.everything() {
		command += " --user --preserve-credentials"
	}
	return command, nil
}

// MappedGID returns a group that files can be given to: any number for real root,
// only the caller's own, which shows as 0, in a user namespace.
func MappedGID() (int, error) {
	const wanted = 2000
	mapped, err := idMap("/proc/self/gid_map")
	if err != nil {
		return 0, err
	}
	if wanted < mapped.size {
		return wanted, nil
	}
	return mapped.inside, nil
}

// IsRoot says whether this process is root of the machine, not only of a user namespace.
func IsRoot() bool {
	mapped, err := idMap("/proc/self/uid_map")
	return err == nil && os.Geteuid() == 0 && mapped.everything()
}

// mapping is the first line of a user namespace's map of ids.
type mapping struct{ inside, outside, size int }

// everything tells whether the namespace is the initial one, or one as good.
func (m mapping) everything() bool { return m.inside == 0 && m.outside == 0 && m.size > 1 }

func idMap(path string) (mapping, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return mapping{}, err
	}
	var m mapping
	if _, err := fmt.Sscan(string(data), &m.inside, &m.outside, &m.size); err != nil {
		return mapping{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return m, nil
}

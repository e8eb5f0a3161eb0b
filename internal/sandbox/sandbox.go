// Package sandbox keeps tests from harming the machine that they run on. It is for programs of
// the test tiers only.
//
// A test that removes, links or mounts may follow a link or a mount out of its directory when the
// code that it tests is broken, and such tests run as root. So the program runs itself once more,
// where nothing that it does to files lasts:
//
//   - As root: / and what is mounted below it are overlays whose changes go with the program. The
//     old root is detached, and there is a process namespace, so that no path leads to it.
//   - Otherwise, or where overlays fail: in two nested user namespaces. The outer one makes all
//     mounts read-only. In the inner one the kernel does not let anybody clear that flag, not on
//     a clone of a mount either.
//
// TMPDIR and /dev/shm are a new tmpfs. These still lead outside: the directories of Options.Keep, those
// that the flags of go test name for its files, the control groups, and /proc/sys. The network is the
// machine's.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DisposableVariable is set to 1 in the environment of a machine that is there for one test
// and is thrown away: there is nothing to protect. Programs get a mount namespace only.
const DisposableVariable = "REFVOL_DISPOSABLE"

// ErrUnavailable is in an error that says why no sandbox can be had on this machine.
var ErrUnavailable = errors.New("no sandbox (tests that remove, link or mount need root, or a kernel that lets users make " +
	"user namespaces: see the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and " +
	"kernel.apparmor_restrict_unprivileged_userns)")

// Options say what of the machine a program may change.
type Options struct {
	// Keep returns directories whose changes last: caches, and where results go. Those that don't exist
	// are made. Each is a hole in the sandbox. nil is for none. It is called outside only.
	Keep func() ([]string, error)
}

// kind is a way to make a sandbox.
type kind string

const (
	// disposable is no sandbox: a mount namespace for a machine without anything to protect.
	disposable kind = "disposable"
	overlaid   kind = "overlaid"
	nested     kind = "nested"
)

// Enter makes sure that this program can't harm the machine. The first call runs the same
// program once more, with the same arguments, in a sandbox, waits for it, and returns its exit
// status with inside false: the caller then exits with that status. In the program that runs
// inside it returns inside true, and the caller goes on. What that program starts is inside too.
// Call it before anything else. It is not safe for concurrent use.
//
// The error is ErrUnavailable where there can be no sandbox. All of the programs end together,
// whichever is killed.
func Enter(o Options) (status int, inside bool, err error) {
	return enter(o, kinds())
}

// kinds returns what to try on this machine, the best first.
func kinds() []kind {
	switch {
	case os.Getenv(DisposableVariable) == "1":
		return []kind{disposable}
	case os.Geteuid() == 0:
		return []kind{overlaid, nested}
	default:
		return []kind{nested}
	}
}

// enter is Enter with the kinds to try.
func enter(o Options, kinds []kind) (status int, inside bool, err error) {
	if name := os.Getenv(stageVariable); name != "" {
		return runStage(stage(name))
	}
	here, err := mountNamespace()
	if err != nil {
		return 0, false, fmt.Errorf("sandbox: %w", err)
	}
	if os.Getenv(insideVariable) == here {
		return 0, true, nil
	}
	keep, err := o.kept()
	if err != nil {
		return 0, false, fmt.Errorf("sandbox: %w", err)
	}
	var reasons []error
	for _, k := range kinds {
		status, err := start(k, keep)
		if err == nil {
			return status, false, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", k, err))
	}
	return 0, false, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(reasons...))
}

// PID returns the process that a user outside names to nsenter(1), to come into the sandbox that
// this process is in.
func PID() (string, error) {
	pid := os.Getenv(pidVariable)
	if pid == "" {
		return "", fmt.Errorf("sandbox: %s is not set: this process is in none", pidVariable)
	}
	return pid, nil
}

// insideVariable carries the mount namespace inside. A program that has inherited the variable
// but runs elsewhere is not inside.
const insideVariable = "REFVOL_SANDBOX"

// pidVariable carries the number that a process in the sandbox has outside.
const pidVariable = "REFVOL_SANDBOX_PID"

// arrive notes in the environment that the programs which inherit it are inside, and returns it.
func arrive(pid string) error {
	here, err := mountNamespace()
	if err != nil {
		return err
	}
	for _, name := range []string{stageVariable, keepVariable} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return errors.Join(os.Setenv(insideVariable, here), os.Setenv(pidVariable, pid))
}

func mountNamespace() (string, error) { return os.Readlink("/proc/self/ns/mnt") }

// makePrivate stops mounts from spreading between this namespace and the one that it was copied
// from.
func makePrivate() error {
	return wrap("make all mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// wrap says what was tried; of success it says nothing.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.TrimSpace(what), err)
}

// Package sandbox prevents tests that remove, link or mount from running where they could do harm: as root, broken code may follow a link
// or a mount out of its directory. tools/sandbox.sh creates the place where they may run.
package sandbox

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// variable names the mount namespace of the sandbox. If it has another value, such as the one that make sets, the tests must run in the
// sandbox and fail. If it is not set, they are skipped.
const variable = "REFVOL_SANDBOX"

// Check returns nil if changes of files by this process cannot outlast it, or else why they may.
func Check() error {
	here, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if os.Getenv(variable) != here {
		return errors.New("not in the sandbox: start it with tools/sandbox.sh")
	}
	for _, path := range []string{"/", "/etc", "/usr", "/var", "/home", "/root", "/tmp", os.TempDir()} {
		var fs unix.Statfs_t
		switch err := unix.Statfs(path, &fs); {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return fmt.Errorf("look at %s: %w", path, err)
		case fs.Flags&unix.ST_RDONLY != 0: // it is a user's sandbox, or cannot be written anyway
		case fs.Type != unix.OVERLAYFS_SUPER_MAGIC && fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC:
			return fmt.Errorf("%s=%s, but %s is the machine's own (type %#x)", variable, here, path, fs.Type)
		}
	}
	return nil
}

// Main is the body of a TestMain. In the sandbox it runs the tests, and fails if goroutines are left. Elsewhere it only prints the names of
// the tests. It returns the exit status.
func Main(m interface{ Run() int }) int {
	return Run(m, func() (int, error) { return m.Run(), goleak.Find() })
}

// Run is like Main, with another function to run the tests.
func Run(m interface{ Run() int }, tests func() (int, error)) int {
	flag.Parse()
	list := flag.Lookup("test.list").Value
	err := Check()
	switch {
	case list.String() != "":
		return m.Run()
	case err == nil:
		status, err := tests()
		if err == nil {
			return status
		}
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return max(status, 1)
	case os.Getenv(variable) != "":
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		return 1
	}
	_, _ = fmt.Fprintf(os.Stdout, "SKIP: %v:\n", err)
	pattern, _, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	if err := list.Set(cmp.Or(pattern, ".")); err != nil {
		return 1
	}
	return m.Run()
}

// Package sandbox prevents tests that remove, link or mount from running where they could do harm: as root, broken code may follow a link
// or a mount out of its directory. tools/sandbox.sh creates the place where they may run.
package sandbox

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

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

// TempDir creates a directory on tmpfs if there is one: volumes are on tmpfs, and a disk is slower and may limit attributes. The test's end
// removes it.
func TempDir(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "refvol-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

// Outside fills a directory with what a machine has, among others the files passwd and etc/passwd. At its end, the test fails if anything in
// it has changed: a name, a content, a mode, an owner, a link, or a file's number of links. It must be called from the test's own goroutine.
func Outside(t testing.TB, dir string) {
	t.Helper()
	differences := outside(t, dir)
	t.Cleanup(func() {
		t.Helper()
		for _, difference := range differences() {
			t.Error("outside: " + difference)
		}
	})
}

// outside is Outside, and returns a function that says what has changed.
func outside(t testing.TB, dir string) (differences func() []string) {
	t.Helper()
	err := fill(dir)
	before, describeErr := describe(dir)
	if err := errors.Join(err, describeErr); err != nil {
		t.Fatal(err)
	}
	return func() (out []string) {
		now, err := describe(dir)
		if err != nil {
			return []string{err.Error()}
		}
		all := maps.Clone(now)
		maps.Copy(all, before)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if before[name] != now[name] {
				out = append(out, fmt.Sprintf("%s was %s, is %s", name, cmp.Or(before[name], "absent"), cmp.Or(now[name], "gone")))
			}
		}
		return out
	}
}

// fill creates files with several modes, directories, and links of both kinds.
func fill(dir string) error {
	errs := []error{os.MkdirAll(filepath.Join(dir, "etc/empty"), 0o755), os.Mkdir(filepath.Join(dir, "etc/ssl"), 0o755)}
	for name, mode := range map[string]fs.FileMode{
		"passwd": 0o644, "etc/passwd": 0o644, "etc/shadow": 0o600, "etc/ssl/key": 0o400, "etc/tool": 0o755,
	} {
		path := filepath.Join(dir, name)
		errs = append(errs, os.WriteFile(path, []byte("the machine's "+name+"\n"), 0o600), os.Chmod(path, mode))
	}
	etc := filepath.Join(dir, "etc")
	errs = append(errs, os.Symlink("passwd", filepath.Join(etc, "link")), os.Link(filepath.Join(etc, "shadow"), filepath.Join(etc, "shadow-")))
	return errors.Join(errs...)
}

// describe returns, for a directory and each name in it, a description of everything that must not change.
func describe(dir string) (map[string]string, error) {
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		var content []byte
		switch entry.Type() {
		case 0:
			content, err = os.ReadFile(path) //nolint:gosec // Nobody else writes to it.
		case fs.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			content = []byte(target)
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all[name] = fmt.Sprintf("%o %d:%d inode %d, %d links, %q", st.Mode, st.Uid, st.Gid, st.Ino, st.Nlink, content)
		return err
	})
	return all, err
}

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// The contexts of a container's files and its process, for a pair of categories.
const (
	filesContext   = "system_u:object_r:container_file_t:s0"
	processContext = "system_u:system_r:container_t:s0"
	ours, others   = ":c1,c2", ":c3,c4"
)

// skipUnlessEnforcing ends the test, with a word, where SELinux enforces nothing.
func skipUnlessEnforcing(t *testing.T) {
	t.Helper()
	enforce, err := os.ReadFile("/sys/fs/selinux/enforce")
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(enforce) != "1" || !harness.IsRoot() {
		t.Skip("SKIP: needs root where SELinux enforces; make test-kernels has it")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// container is the root directory of a container, with busybox and a volume.
type container struct {
	t   *testing.T
	dir string
}

// newContainer shows the directory target in a new container as a runtime would.
func newContainer(t *testing.T, target string) *container {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	c := &container{t, t.TempDir()}
	if err := unix.Mount("none", c.dir, "tmpfs", 0, "context="+filesContext); err != nil {
		t.Fatal(err)
	}
	volume := filepath.Join(c.dir, "volume")
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(volume, 0), unix.Unmount(c.dir, 0)); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.WriteFile(filepath.Join(c.dir, "busybox"), program, 0o755), os.Mkdir(volume, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(target, volume, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	return c
}

// finds has a process of a context look for text in a file of the volume.
func (c *container) finds(context, file, text string) error {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "/busybox", "grep", "-q", text, "/volume/"+file)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.dir}
	// Of this process's files, it may write only to those with its label.
	out, err := os.Create(filepath.Join(c.dir, "output"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	done := make(chan error)
	go func() {
		// The context is of this thread, and inherited; the thread ends with this goroutine.
		runtime.LockOSThread()
		err := os.WriteFile("/proc/thread-self/attr/exec", []byte(context), 0)
		if err == nil {
			err = cmd.Run()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		said, readErr := os.ReadFile(out.Name())
		return errors.Join(fmt.Errorf("%w: %s", err, said), readErr)
	}
	return nil
}

// wantDenied checks that a process of these categories can't read the file.
func (c *container) wantDenied(categories, file, text string) {
	c.t.Helper()
	if err := c.finds(processContext+categories, file, text); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		c.t.Errorf("read by a process of %s: %v, want a denial", categories, err)
	}
}

// label returns the context that a file has.
func label(path string) (string, error) {
	value := make([]byte, 256)
	n, err := unix.Lgetxattr(path, "security.selinux", value)
	if err != nil {
		return "", fmt.Errorf("label of %s: %w", path, err)
	}
	return strings.TrimRight(string(value[:n]), "\x00"), nil
}

// wantLabels checks the context of the volume's directory and of all in it.
func (n *node) wantLabels(v *harness.Volume, want string) {
	n.t.Helper()
	count := 0
	err := filepath.WalkDir(n.Target(v), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		count++
		got, err := label(path)
		if err == nil && got != want {
			n.t.Errorf("%s has the context %s, want %s", path, got, want)
		}
		return err
	})
	if err != nil || count < 4 {
		n.t.Errorf("looked at %d files: %v", count, err)
	}
}

// With --selinux-context, the mount and all in it have that label, also what is written
// later and after a restart: a confined process of the right categories can read it, and one
// of others can't.
func TestSELinux(t *testing.T) {
	skipUnlessEnforcing(t)
	n := newNode(t, "--selinux-context="+filesContext+ours)
	value := n.value("app")
	v := n.published("app")
	mounts, err := n.VolumeMounts()
	if err != nil || len(mounts) != 1 || !strings.Contains(mounts[0].SuperOptions, filesContext+ours) {
		t.Errorf("the mounts are %+v, %v, want one of %s", mounts, err, filesContext+ours)
	}
	c := newContainer(t, n.Target(v))
	check := func() {
		t.Helper()
		n.wantLabels(v, filesContext+ours)
		if err := c.finds(processContext+ours, "key", value); err != nil {
			t.Errorf("read by a process of the right context: %v", err)
		}
		c.wantDenied(others, "key", value)
	}
	check()
	value = n.value("app")
	n.arrives(v, "key", value, soon)
	check()
	n.mustKill()
	n.mustStart()
	value = n.value("app")
	n.arrives(v, "key", value, soon)
	check()
}

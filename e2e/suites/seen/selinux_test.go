package seen

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
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
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
	must.Do(t, err)
}

// newContainer shows the directory target in the root directory of a new container with busybox, as a runtime would.
func newContainer(t *testing.T, target string) (dir string) {
	t.Helper()
	busybox := must.Get(exec.LookPath("busybox"))(t)
	program := must.Get(os.ReadFile(busybox))(t)
	dir = t.TempDir()
	must.Do(t, unix.Mount("none", dir, "tmpfs", 0, "context="+filesContext))
	volume := filepath.Join(dir, "volume")
	t.Cleanup(func() { must.Do(t, errors.Join(unix.Unmount(volume, 0), unix.Unmount(dir, 0))) })
	must.Do(t, errors.Join(os.WriteFile(filepath.Join(dir, "busybox"), program, 0o755), os.Mkdir(volume, 0o755)))
	must.Do(t, unix.Mount(target, volume, "", unix.MS_BIND, ""))
	return dir
}

// finds has a process of a context look for text in a file of the volume.
func finds(t *testing.T, dir, context, file, text string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/busybox", "grep", "-q", text, "/volume/"+file)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
	// Of this process's files, it may write only to those with its label.
	out, err := os.Create(filepath.Join(dir, "output"))
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

// wantLabels checks the context of the volume's directory and of all in it.
func wantLabels(n *world.Node, v *harness.Volume, want string) {
	n.T.Helper()
	count := 0
	err := filepath.WalkDir(n.Target(v), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		count++
		value := make([]byte, 256)
		size, err := unix.Lgetxattr(path, "security.selinux", value)
		if got := strings.TrimRight(string(value[:max(size, 0)]), "\x00"); err == nil && got != want {
			n.T.Errorf("%s has the context %s, want %s", path, got, want)
		}
		return err
	})
	if err != nil || count < 4 {
		n.T.Errorf("looked at %d files: %v", count, err)
	}
}

// With --selinux-context, the mount and all in it have that label, also what is written later and after a restart: a confined process of
// the right categories can read it, and one of others can't.
func TestSELinux(t *testing.T) {
	skipUnlessEnforcing(t)
	n := lab.NewNode(t, "--selinux-context="+filesContext+ours)
	value := n.Value("app")
	v := n.Published("app")
	mounts, err := n.VolumeMounts()
	if err != nil || len(mounts) != 1 || !strings.Contains(mounts[0].SuperOptions, filesContext+ours) {
		t.Errorf("the mounts are %+v, %v, want one of %s", mounts, err, filesContext+ours)
	}
	c := newContainer(t, n.Target(v))
	check := func() {
		t.Helper()
		wantLabels(n, v, filesContext+ours)
		if err := finds(t, c, processContext+ours, "key", value); err != nil {
			t.Errorf("read by a process of the right context: %v", err)
		}
		if err := finds(t, c, processContext+others, "key", value); err == nil || !strings.Contains(err.Error(), "Permission denied") {
			t.Errorf("read by a process of other categories: %v, want a denial", err)
		}
	}
	check()
	value = n.Value("app")
	n.Arrives(v, "key", value, world.Soon)
	check()
	n.Crash()
	value = n.Value("app")
	n.Arrives(v, "key", value, world.Soon)
	check()
}

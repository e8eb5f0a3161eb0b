package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// supervisedNode is a node whose plugin can be stopped at each call that changes
// something. The plugin is built without the race detector: it is started over and over,
// and its restarts are timed.
type supervisedNode struct {
	*node
	*supervise.Supervisor
	// disk shows the kubelet's directory without what is mounted below it.
	disk string
}

func newSupervisedNode(t *testing.T) *supervisedNode {
	t.Helper()
	binary, err := shared.plain()
	if err != nil {
		t.Fatal(err)
	}
	s := supervise.New()
	// The first to be registered is the last to run: once the plugin has ended.
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	n := newNodeWith(t, harness.PluginOptions{
		Binary:     binary,
		Kubeconfig: shared.Kubeconfig,
		Args:       []string{"-v=4"},
		BeforeFork: s.BeforeFork,
	})
	return &supervisedNode{node: n, Supervisor: s, disk: bareView(t, n.KubeletDir())}
}

// bareView returns a path to dir as it is without any mount below it.
func bareView(t *testing.T, dir string) string {
	t.Helper()
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(os.NewSyscallError("open_tree "+dir, err))
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

// wantBareDisk checks that below the kubelet's directory the disk holds nothing but
// directories and the kubelet's own files, and nothing at all where volumes are mounted.
func (n *supervisedNode) wantBareDisk() {
	n.t.Helper()
	if err := n.bareDisk(); err != nil {
		n.t.Errorf("on the disk, below the mounts: %v", err)
	}
}

func (n *supervisedNode) bareDisk() error {
	return filepath.WalkDir(n.disk+"/.", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err != nil:
			return err
		case filepath.Base(filepath.Dir(path)) == "mount", !entry.IsDir() && entry.Name() != "vol_data.json":
			return fmt.Errorf("found %s", path)
		}
		return nil
	})
}

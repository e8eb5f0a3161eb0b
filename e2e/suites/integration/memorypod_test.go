package integration

import (
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// podGroup makes a memory cgroup as a pod has one, until the test ends.
func (n *node) podGroup(name string) *harness.MemoryGroup {
	n.t.Helper()
	g, err := harness.NewMemoryGroup(name)
	n.skipUnlessAllowed(err)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := g.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return g
}

// mustContain moves the running plugin into a new container of the pod, which goes when the
// plugin has been killed and leave is called.
func (n *node) mustContain(pod *harness.MemoryGroup, name string) (leave func()) {
	n.t.Helper()
	container, err := pod.Child(name)
	if err != nil {
		n.t.Fatal(err)
	}
	leave = func() {
		n.t.Helper()
		n.mustKill()
		if err := container.Close(); err != nil {
			n.t.Error(err)
		}
	}
	if err := container.Add(n.PID()); err != nil {
		leave()
		n.t.Fatal(err)
	}
	return leave
}

// readIn has a process of a group read all files of volumes that are there.
func (n *node) readIn(g *harness.MemoryGroup, volumes []*harness.Volume) {
	n.t.Helper()
	reader := exec.CommandContext(n.t.Context(), "sh", "-c", `read -r line; exec cat "$@" >/dev/null`, "sh")
	for _, v := range volumes {
		reader.Args = append(reader.Args, filepath.Join(n.Target(v), "key"))
	}
	begin, err := reader.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		n.t.Fatal(err)
	}
	if err := g.Add(reader.Process.Pid); err != nil {
		n.t.Error(err)
	}
	if _, err := io.WriteString(begin, "\n"); err != nil {
		n.t.Error(err)
	}
	if err := reader.Wait(); err != nil {
		n.t.Errorf("read the volumes: %v", err)
	}
}

// The pages of volumes count for the plugin's pod: not for who reads them, and also once the
// container is gone that wrote them. A limit of the pod kills its next container, too.
func TestMemoryIsThePluginsPods(t *testing.T) {
	n := newNode(t)
	pod, readers, number := n.podGroup("refvol-it-pod"), n.podGroup("refvol-it-readers"), mustNumber(t)
	leave := n.mustContain(pod, "first")
	before := n.mebibyte()
	n.configMap("app", before)
	var volumes []*harness.Volume
	const count = 5
	for range count {
		volumes = append(volumes, n.published("app"))
	}
	n.readIn(readers, volumes)
	if used := number(readers.Usage()); used > count<<20/2 {
		t.Errorf("%d bytes count for who read %d MiB", used, count)
	}

	leave()
	left := number(pod.Usage())
	t.Logf("%d bytes count for the pod without a container", left)
	if left < count<<20 {
		t.Errorf("%d bytes count for the pod without a container, want those of %d MiB of files", left, count)
	}
	n.mustStart()
	leave = n.mustContain(pod, "second")
	defer func() { leave() }()
	if err := pod.Limit(left + 1<<20); err != nil {
		t.Fatal(err)
	}
	n.configMap("app", n.mebibyte())
	harness.Eventually(t, soon, func() error {
		if !n.ended() {
			return errors.New("the plugin lives on over the limit")
		}
		return nil
	})
	leave()
	if err := pod.Limit(-1); err != nil {
		t.Fatal(err)
	}
	n.mustStart()
	leave = n.mustContain(pod, "third")
	after := n.mebibyte()
	n.configMap("app", after)
	n.allShow(volumes, after)
	n.unpublishAll(volumes)
}

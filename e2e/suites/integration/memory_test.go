package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// skipUnlessAllowed ends the test, with a word, if only root could do what failed.
func (n *node) skipUnlessAllowed(err error) {
	n.t.Helper()
	if (errors.Is(err, harness.ErrNoMemoryGroups) || errors.Is(err, os.ErrPermission)) && !harness.IsRoot() {
		n.t.Skipf("SKIP: memory can't be limited by this user on this machine: %v", err)
	}
}

func mustNumber(t *testing.T) func(int64, error) int64 {
	return func(number int64, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
}

// mebibyte returns an object of nearly 1 MiB.
func (n *node) mebibyte() map[string]string {
	return map[string]string{"key": n.canary() + strings.Repeat("x", mostBytes-100)}
}

// With no memory left, a plugin that isn't killed for it keeps what shows, and goes on
// when there is some again. Where it ends, a kubelet starts it again.
func TestMemoryLimitWithoutAKill(t *testing.T) {
	n := newNode(t)
	g, number := n.podGroup("refvol-it"), mustNumber(t)
	t.Cleanup(n.mustKill) // before the group goes
	err := errors.Join(g.Add(n.PID()), g.Pause())
	n.skipUnlessAllowed(err)
	if err != nil {
		t.Fatal(err)
	}
	var volumes []*harness.Volume
	before := n.mebibyte()
	n.configMap("app", before)
	for range 20 {
		volumes = append(volumes, n.published("app"))
	}
	if err := g.Limit(number(g.Usage()) + 4<<20); err != nil {
		t.Fatal(err)
	}
	after := n.mebibyte()
	n.configMap("app", after)
	harness.Eventually(t, soon, func() error {
		if number(g.Refusals()) == 0 {
			return errors.New("the limit has not been met")
		}
		return nil
	})
	old := 0
	for _, v := range volumes {
		if n.showsJust(v, before) == nil {
			old++
		} else if err := n.showsJust(v, after); err != nil {
			t.Errorf("neither the old nor the new generation: %v", err)
		}
	}
	t.Logf("%d of %d volumes show the old generation", old, len(volumes))
	if old == 0 {
		t.Error("all volumes are current: the limit came too late")
	}
	if err := g.Limit(-1); err != nil {
		t.Fatal(err)
	}
	n.restartWithoutMemory(volumes, after)
	n.allShow(volumes, after)
	n.unpublishAll(volumes)
}

// restartWithoutMemory waits until all volumes show data, or the plugin ends because Go's runtime got no
// memory or no thread, without which it can't go on, and starts it again then. With cgroups of version
// 2 the kernel says no to a process that it may not kill; with version 1 it has it wait.
func (n *node) restartWithoutMemory(volumes []*harness.Volume, data map[string]string) {
	n.t.Helper()
	harness.Eventually(n.t, afterCause, func() error {
		for _, v := range volumes {
			if err := n.showsJust(v, data); err != nil && !n.ended() {
				return err
			}
		}
		return nil
	})
	if !n.ended() {
		return
	}
	reason := regexp.MustCompile(`(?m)^(fatal error|runtime): .*`).Find(n.log())
	n.t.Logf("the plugin has ended: %s", reason)
	if !regexp.MustCompile(`failed to create new OS thread|newosproc|out of memory|cannot allocate memory`).Match(reason) {
		n.t.Fatal("that is no lack of memory")
	}
	n.mustKill() // closes the connection
	n.mustStart()
}

// allShow waits until the volumes show data and are well.
func (n *node) allShow(volumes []*harness.Volume, data map[string]string) {
	n.t.Helper()
	n.each(volumes, func(i int) error {
		err := n.showsJust(volumes[i], data)
		if problem := n.problem(volumes[i]); err == nil && problem != "" {
			err = fmt.Errorf("the condition is %q", problem)
		}
		return err
	})
}

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

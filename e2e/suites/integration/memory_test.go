package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// memoryGroup is a memory cgroup (version 2) of a test's own, by its directory.
type memoryGroup struct {
	*node
	dir string
}

// newMemoryGroup makes a group without a limit, with the plugin in it. If that needs more than the limit, its system calls fail with
// ENOMEM, instead of its being killed.
func (n *node) newMemoryGroup() *memoryGroup {
	n.t.Helper()
	mounts, err := harness.Mounts()
	i := slices.IndexFunc(mounts, func(m harness.Mount) bool { return m.Type == "cgroup2" })
	if err != nil || i < 0 || !harness.IsRoot() {
		n.t.Skipf("SKIP: needs root and cgroup v2 (%v); make test-kernels has it", err)
	}
	controllers, err := os.ReadFile(filepath.Join(mounts[i].Target, "cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(controllers)), "memory") {
		n.t.Skipf("SKIP: needs a memory controller for new cgroups, there are %q, %v; make test-kernels has it", controllers, err)
	}
	dir, err := os.MkdirTemp(mounts[i].Target, "refvol-it-")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		n.mustKill()
		// A process that has been reaped may be in it for a moment longer.
		ctx := context.WithoutCancel(n.t.Context())
		if err := harness.Poll(ctx, soon, 10*time.Millisecond, func() error { return os.Remove(dir) }); err != nil {
			n.t.Error(err)
		}
	})
	g := &memoryGroup{n, dir}
	g.write(fmt.Sprintf("/proc/%d/oom_score_adj", n.PID()), "-1000") // never to be killed for memory
	g.write(filepath.Join(dir, "cgroup.procs"), fmt.Sprint(n.PID()))
	return g
}

func (g *memoryGroup) write(file, text string) {
	g.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		g.t.Fatal(err)
	}
}

// limit sets the most bytes that the group may take, as a number or "max".
func (g *memoryGroup) limit(bytes string) {
	g.t.Helper()
	g.write(filepath.Join(g.dir, "memory.max"), bytes)
}

// read returns the number after a name, with a space, or "" at the begin of a line of a file.
func (g *memoryGroup) read(file, name string) (number int64) {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		g.t.Fatal(err)
	}
	_, rest, _ := strings.Cut("\n"+string(text), "\n"+name)
	if _, err := fmt.Sscan(rest, &number); err != nil {
		g.t.Fatalf("%s has no %q: %q: %v", file, name, text, err)
	}
	return number
}

// mebibyte returns an object of nearly 1 MiB, which is what the API server allows.
func (n *node) mebibyte() map[string]string {
	return map[string]string{"key": n.canary() + strings.Repeat("x", 1<<20-100)}
}

// With no memory left, a plugin that isn't killed for it keeps what shows, and goes on
// when there is some again. Where it ends, a kubelet starts it again.
func TestMemoryLimitWithoutAKill(t *testing.T) {
	n := newNode(t)
	g := n.newMemoryGroup()
	var volumes []*harness.Volume
	before := n.mebibyte()
	n.configMap("app", before)
	for range 20 {
		volumes = append(volumes, n.published("app"))
	}
	g.limit(fmt.Sprint(g.read("memory.current", "") + 4<<20))
	after := n.mebibyte()
	n.configMap("app", after)
	harness.Eventually(t, soon, func() error {
		if g.read("memory.events", "max ") == 0 {
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
	g.limit("max")
	n.restartWithoutMemory(volumes, after)
	n.allShow(volumes, after)
	n.unpublishAll(volumes)
}

// restartWithoutMemory waits until all volumes show data, or the plugin ends because Go's runtime got no
// memory or no thread, without which it can't go on, and starts it again then.
func (n *node) restartWithoutMemory(volumes []*harness.Volume, data map[string]string) {
	n.t.Helper()
	harness.Eventually(n.t, afterCause, func() error {
		for _, v := range volumes {
			if err := n.showsJust(v, data); err != nil && !n.Process().Ended() {
				return err
			}
		}
		return nil
	})
	if !n.Process().Ended() {
		return
	}
	reason := regexp.MustCompile(`(?m)^(fatal error|runtime): .*`).Find(n.log())
	n.t.Logf("the plugin has ended: %s", reason)
	if !regexp.MustCompile(`failed to create new OS thread|newosproc|out of memory|cannot allocate memory`).Match(reason) {
		n.t.Fatal("that is no lack of memory")
	}
	n.crash()
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

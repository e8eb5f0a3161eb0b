package limits

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// needsMemoryGroups fails the test for an error, or skips it if only root could do what failed.
func needsMemoryGroups(n *world.Node, err error) {
	n.T.Helper()
	if (errors.Is(err, harness.ErrNoMemoryGroups) || errors.Is(err, os.ErrPermission)) && !harness.IsRoot() {
		n.T.Skipf("SKIP: memory can't be limited by this user on this machine: %v", err)
	}
	must.Do(n.T, err)
}

// mebibyte returns an object of nearly 1 MiB, which is what the API server allows.
func mebibyte(n *world.Node) map[string]string {
	return map[string]string{"key": n.Canary() + strings.Repeat("x", 1<<20-100)}
}

// With no memory left, a plugin that isn't killed for it keeps what shows, and goes on
// when there is some again. Where it ends, a kubelet starts it again.
func TestMemoryLimitWithoutAKill(t *testing.T) {
	n := lab.NewNode(t)
	g, err := harness.NewMemoryGroup("refvol-it")
	needsMemoryGroups(n, err)
	t.Cleanup(func() {
		n.MustKill() // before the group goes
		must.Do(t, g.Close())
	})
	needsMemoryGroups(n, errors.Join(g.Add(n.PID()), g.Pause()))
	var volumes []*harness.Volume
	before := mebibyte(n)
	n.ConfigMap("app", before)
	for range 20 {
		volumes = append(volumes, n.Published("app"))
	}
	used, err := g.Usage()
	must.Do(t, errors.Join(err, g.Limit(used+4<<20)))
	after := mebibyte(n)
	n.ConfigMap("app", after)
	harness.Eventually(t, world.Soon, func() error {
		refusals, err := g.Refusals()
		if err == nil && refusals == 0 {
			err = errors.New("the limit has not been met")
		}
		return err
	})
	old := 0
	for _, v := range volumes {
		if n.ShowsJust(v, before) == nil {
			old++
		} else if err := n.ShowsJust(v, after); err != nil {
			t.Errorf("neither the old nor the new generation: %v", err)
		}
	}
	t.Logf("%d of %d volumes show the old generation", old, len(volumes))
	if old == 0 {
		t.Error("all volumes are current: the limit came too late")
	}
	must.Do(t, g.Limit(-1))
	restartWithoutMemory(n, volumes, after)
	n.Each(volumes, func(i int) error { return n.ShowsJust(volumes[i], after) })
	for _, v := range volumes {
		n.HasCondition(v, "")
	}
	n.UnpublishAll(volumes)
}

// restartWithoutMemory waits until all volumes show data, or the plugin ends because Go's runtime got no
// memory or no thread, without which it can't go on, and starts it again then. With cgroups of version
// 2 the kernel says no to a process that it may not kill; with version 1 it has it wait.
func restartWithoutMemory(n *world.Node, volumes []*harness.Volume, data map[string]string) {
	n.T.Helper()
	harness.Eventually(n.T, world.Soon, func() error {
		for _, v := range volumes {
			if err := n.ShowsJust(v, data); err != nil && !n.Process().Ended() {
				return err
			}
		}
		return nil
	})
	if !n.Process().Ended() {
		return
	}
	reason := regexp.MustCompile(`(?m)^(fatal error|runtime): .*`).Find(n.Log())
	n.T.Logf("the plugin has ended: %s", reason)
	if !regexp.MustCompile(`failed to create new OS thread|newosproc|out of memory|cannot allocate memory`).Match(reason) {
		n.T.Fatal("that is no lack of memory")
	}
	n.Crash()
}

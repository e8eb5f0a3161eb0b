package integration

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// needsMemoryGroups fails the test for an error, or skips it if only root could do what failed.
func (n *node) needsMemoryGroups(err error) {
	n.t.Helper()
	if (errors.Is(err, harness.ErrNoMemoryGroups) || errors.Is(err, os.ErrPermission)) && !harness.IsRoot() {
		n.t.Skipf("SKIP: memory can't be limited by this user on this machine: %v", err)
	}
	must.Do(n.t, err)
}

// mebibyte returns an object of nearly 1 MiB, which is what the API server allows.
func (n *node) mebibyte() map[string]string {
	return map[string]string{"key": n.canary() + strings.Repeat("x", 1<<20-100)}
}

// With no memory left, a plugin that isn't killed for it keeps what shows, and goes on
// when there is some again. Where it ends, a kubelet starts it again.
func TestMemoryLimitWithoutAKill(t *testing.T) {
	n := newNode(t)
	g, err := harness.NewMemoryGroup("refvol-it")
	n.needsMemoryGroups(err)
	t.Cleanup(func() {
		n.mustKill() // before the group goes
		must.Do(t, g.Close())
	})
	n.needsMemoryGroups(errors.Join(g.Add(n.PID()), g.Pause()))
	var volumes []*harness.Volume
	before := n.mebibyte()
	n.configMap("app", before)
	for range 20 {
		volumes = append(volumes, n.published("app"))
	}
	used, err := g.Usage()
	must.Do(t, errors.Join(err, g.Limit(used+4<<20)))
	after := n.mebibyte()
	n.configMap("app", after)
	harness.Eventually(t, soon, func() error {
		refusals, err := g.Refusals()
		if err == nil && refusals == 0 {
			err = errors.New("the limit has not been met")
		}
		return err
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
	must.Do(t, g.Limit(-1))
	n.restartWithoutMemory(volumes, after)
	n.each(volumes, func(i int) error { return n.showsJust(volumes[i], after) })
	for _, v := range volumes {
		n.hasCondition(v, "")
	}
	n.unpublishAll(volumes)
}

// restartWithoutMemory waits until all volumes show data, or the plugin ends because Go's runtime got no
// memory or no thread, without which it can't go on, and starts it again then. With cgroups of version
// 2 the kernel says no to a process that it may not kill; with version 1 it has it wait.
func (n *node) restartWithoutMemory(volumes []*harness.Volume, data map[string]string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
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

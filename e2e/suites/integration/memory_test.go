package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// memoryGroup puts the running plugin into a memory cgroup of its own, until the test
// ends. Root can have one on any machine that is set up for it; another user's test is
// skipped where that user may not.
func (n *node) memoryGroup() *harness.MemoryGroup {
	n.t.Helper()
	g := n.podGroup("refvol-it")
	n.t.Cleanup(n.mustKill) // before the group goes
	err := g.Add(n.PID())
	n.skipUnlessAllowed(err)
	if err != nil {
		n.t.Fatal(err)
	}
	return g
}

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
	g, number := n.memoryGroup(), mustNumber(t)
	err := g.Pause()
	n.skipUnlessAllowed(err)
	if err != nil {
		t.Fatal(err)
	}
	var volumes []*harness.Volume
	before := n.mebibyte()
	n.configMap("app", before)
	for range 20 {
		v := n.published("app")
		volumes = append(volumes, v)
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
	n.allShow(volumes, after, afterCause)
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// restartWithoutMemory waits until all volumes show data, or the plugin ends because Go's runtime got no
// memory or no thread, without which it can't go on, and starts it again then. With cgroups of version
// 2 the kernel says no to a process that it may not kill; with version 1 it has it wait.
func (n *node) restartWithoutMemory(volumes []*harness.Volume, data map[string]string) {
	n.t.Helper()
	ended := false
	harness.Eventually(n.t, afterCause, func() error {
		select {
		case <-n.Process().Done():
			ended = true
			return nil
		default:
		}
		for _, v := range volumes {
			if err := n.showsJust(v, data); err != nil {
				return err
			}
		}
		return nil
	})
	if !ended {
		return
	}
	log := n.log()
	reason, lack := endOf(log)
	n.t.Logf("the plugin has ended: %s", reason)
	if !lack {
		n.t.Fatal("that is no lack of memory")
	}
	n.mustKill() // closes the connection
	n.mustStart()
}

// endOf returns why Go's runtime has ended a process with that log, and whether it lacked memory or a
// thread.
func endOf(log []byte) (reason []byte, lack bool) {
	reason = regexp.MustCompile(`(?m)^(fatal error|runtime): .*`).Find(log)
	for _, want := range []string{"failed to create new OS thread", "newosproc", "out of memory", "cannot allocate memory"} {
		if bytes.Contains(reason, []byte(want)) {
			return reason, true
		}
	}
	return reason, false
}

// allShow waits until the last of the volumes shows data and is well.
func (n *node) allShow(volumes []*harness.Volume, data map[string]string, within time.Duration) {
	n.t.Helper()
	begin := time.Now()
	left := slices.Clone(volumes)
	harness.Eventually(n.t, within, func() error {
		for ; len(left) > 0; left = left[1:] {
			if err := n.showsJust(left[0], data); err != nil {
				return fmt.Errorf("%d of %d volumes are left, the next: %w", len(left), len(volumes), err)
			}
			if problem := n.problem(left[0]); problem != "" {
				return fmt.Errorf("%d of %d volumes are left, the condition of the next is %q", len(left), len(volumes), problem)
			}
		}
		return nil
	})
	n.t.Logf("%d volumes were current within %s", len(volumes), time.Since(begin).Round(time.Millisecond))
}

func (n *node) diesOfMemory() {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		select {
		case <-n.Process().Done():
			return nil
		default:
			return errors.New("the plugin lives on over the limit")
		}
	})
	n.mustKill() // closes the connection
}

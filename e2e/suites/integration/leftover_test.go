package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// generationsOf returns the names of the directories of generations in a volume.
func (n *node) generationsOf(v *harness.Volume) []string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.Target(v), "..2*"))
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

// TestSomethingMountedOnAFile has an administrator mount something on a file of a volume, so that
// the kernel lets nobody remove it. The volume is updated all the same, also by a plugin that
// has just started, and it is told once what stays behind.
func TestSomethingMountedOnAFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	next := func() string {
		value := n.canary()
		n.configMap("app", map[string]string{"key": value, "other": "1"})
		return value
	}
	next()
	v := n.published("app")
	generation := n.generationsOf(v)[0]
	file := filepath.Join(generation, "key")
	if err := unix.Mount(os.DevNull, file, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	umount := func() {
		if !mounted {
			return
		}
		mounted = false
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(umount)

	const text = ": device or resource busy"
	n.arrives(v, "key", next(), soon)
	n.wantProblem(v, text)
	for range 3 {
		n.arrives(v, "key", next(), soon)
		if got := n.problem(v); !strings.Contains(got, text) {
			t.Errorf("after an update the condition is %q", got)
		}
	}
	if events := n.eventsOf(v, "VolumeUpdateFailed"); len(events) != 1 {
		t.Errorf("%d events: %+v", len(events), events)
	}
	log := n.log()
	if lines := bytes.Count(log, []byte("Volume does not show what it should")); lines != 1 {
		t.Errorf("logged %d times", lines)
	}
	if left, err := os.ReadDir(generation); err != nil || len(left) != 1 {
		t.Errorf("of the generation %v are left, %v, want the file alone", left, err)
	}

	n.mustKill()
	value := next()
	n.mustStart()
	n.arrives(v, "key", value, afterRestart)
	n.hasCondition(v, text)
	umount()
	n.hasCondition(v, "")
	harness.Eventually(t, afterCause, func() error {
		if all := n.generationsOf(v); len(all) != 1 {
			return fmt.Errorf("generations %q", all)
		}
		return nil
	})
	n.wantContent(v, "key", value)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// TestAVolumeFilledByItsContainer has a container with the node's CAP_SYS_ADMIN fill its volume with nested directories,
// names and holes, in the generation and beside it. That costs the plugin few descriptors and little memory, delays the
// updates of that pod, and no other pod's.
func TestAVolumeFilledByItsContainer(t *testing.T) {
	needsLong(t)
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNode(t, "--max-volume-size=256Mi", "--max-total-size=4Gi")
			n.configMap("app", map[string]string{"key": n.canary()})
			n.configMap("other", map[string]string{"key": n.canary()})
			v := n.volume(map[string]string{"configMap": "app", "writeStrategy": strategy})
			other := n.short("other")
			n.mustPublish(v)
			n.mustPublish(other)
			before, err := n.Descriptors()
			if err != nil {
				t.Fatal(err)
			}
			residentBefore, _ := n.resident()
			err = harness.ChangeVolume(n.Target(v), func(dir string) error {
				name, err := os.Readlink(filepath.Join(dir, "..data"))
				generation := filepath.Join(dir, name)
				hole := filepath.Join(generation, "hole")
				return errors.Join(err, nestDirs(generation, 20_000), nestDirs(dir, 20_000), manyNames(generation, 50_000), manyNames(dir, 50_000),
					os.WriteFile(hole, nil, 0o600), os.Truncate(hole, 1<<40))
			})
			if err != nil {
				t.Fatal(err)
			}
			limit := unix.Rlimit{Cur: 100, Max: 100} // those that it has stay
			if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &limit, nil); err != nil {
				t.Fatal(err)
			}
			value := n.value("app")
			start := time.Now()
			otherValue := n.value("other")
			n.arrives(other, "key", otherValue, soon)
			tookOther := time.Since(start)
			n.arrives(v, "key", value, soon)
			took := time.Since(start)
			if strategy == "Atomic" { // what was in the superseded generation goes
				harness.Eventually(t, soon, func() error { return n.pruned(v) })
			}
			_, peak := n.resident()
			open, err := n.Descriptors()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the update took %v, the other pod's %v; %d MiB resident before, %d at most; %d descriptors before, %d after",
				took, tookOther, residentBefore>>20, peak>>20, len(before), len(open))
			if peak > residentBefore+256<<20 {
				t.Errorf("%d bytes were resident, %d before", peak, residentBefore)
			}
			if len(open) > len(before)+8 {
				t.Errorf("%d descriptors are open, %d were", len(open), len(before))
			}
			n.mustUnpublish(v)
			n.mustUnpublish(other)
			n.wantNothingLeft()
		})
	}
}

// nestDirs makes directories in each other, deeper than a path can be.
func nestDirs(dir string, levels int) error {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	for range levels {
		if err := unix.Mkdirat(at, "nested", 0o755); err != nil {
			return err
		}
		next, err := unix.Openat(at, "nested", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Close(at)
		at = next
	}
	return nil
}

func manyNames(dir string, names int) error {
	for i := range names {
		if err := os.Symlink("x", filepath.Join(dir, fmt.Sprintf("name-%06d", i))); err != nil {
			return err
		}
	}
	return nil
}

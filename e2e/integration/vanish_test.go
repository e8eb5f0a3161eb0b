package integration

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/harness"
	"github.com/refvol/refvol/e2e/harness/supervise"
)

// TestMountRemovedAtAnyCall unmounts a volume behind the plugin's back right before each
// call, one by one, of an update of it. The plugin must go on, and never write to the
// disk under the mount.
func TestMountRemovedAtAnyCall(t *testing.T) {
	random := harness.Rand(t)
	removed := map[string]int{}
	for _, s := range []*shape{shapes()[0], shapes()[3]} {
		t.Run(s.name, func(t *testing.T) {
			k := newKilling(t, s, newTally())
			for nth := 1; ; nth += harness.Scaled(1+random.IntN(15), 1) {
				at, done := k.removeMountAt(nth)
				if done {
					break
				}
				t.Logf("mount of %s removed at call %d: %s", s.name, nth, at)
				removed[at.Name]++
			}
		})
	}
	t.Logf("removed at %v", removed)
	for _, name := range harness.Scaled([]string{"openat"}, []string{"openat", "openat2", "open_tree", "mount_setattr", "mkdirat", "write", "symlinkat", "renameat"}) {
		if removed[name] == 0 {
			t.Errorf("never removed at %s", name)
		}
	}
}

// removeMountAt publishes a volume and removes its mount at the nth call of an update.
// It says which call that was, or that the update was done before.
func (k *killing) removeMountAt(nth int) (at supervise.Call, done bool) {
	k.t.Helper()
	v, well := k.newVolume(), k.newVolume()
	k.mustPublish(v)
	k.mustPublish(well)
	var unmounted error
	removed := make(chan struct{})
	k.Arm(func(n int, c supervise.Call) bool {
		if n == nth {
			at = c
			unmounted = os.NewSyscallError("umount2", unix.Unmount(k.Target(v), unix.MNT_DETACH))
			close(removed)
		}
		return false
	})
	k.change()
	harness.Eventually(k.t, afterRestart+pruning, func() error {
		select {
		case <-removed:
			return k.current(well)
		default:
			return errors.Join(k.settled(well), k.settled(v))
		}
	})
	k.Disarm()
	if unmounted != nil {
		k.t.Fatal(unmounted)
	}
	k.change()
	k.becomesCurrent(well)
	select {
	case <-removed:
		harness.Eventually(k.t, afterRestart, func() error { return k.dropped(v) })
	default:
		done = true
	}
	k.wantBareDisk()
	k.mustPublish(v) // as the kubelet does after its own restart
	k.wantMounts(2)
	k.becomesCurrent(v)
	k.change()
	k.becomesCurrent(v)
	k.wantBareDisk()
	k.mustUnpublish(well)
	k.end(v)
	return at, done
}

// dropped returns nil once the plugin knows that the volume is gone.
func (k *killing) dropped(v *harness.Volume) error {
	if _, err := os.Lstat(k.recordPath(v)); !os.IsNotExist(err) {
		return fmt.Errorf("the record is still there (%v)", err)
	}
	return nil
}

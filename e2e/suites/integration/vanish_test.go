package integration

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// TestMountRemovedAtAnyCall unmounts a volume behind the plugin's back right before each call, one by one, of an update of it. The plugin
// must go on, and never write to the disk under the mount.
func TestMountRemovedAtAnyCall(t *testing.T) {
	t.Parallel()
	random, removed := harness.Rand(t), map[string]int{}
	for _, s := range []*shape{shapes()[0], shapes()[2]} {
		t.Run(s.name, func(t *testing.T) {
			k := newKilling(t, s, newTally())
			for nth := 1; ; nth += harness.Scaled(10+random.IntN(30), 1) {
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
	every := []string{"openat", "openat2", "open_tree", "mount_setattr", "mkdirat", "write", "symlinkat", "renameat"}
	for _, name := range harness.Scaled(every[:1], every) {
		if removed[name] == 0 {
			t.Errorf("never removed at %s", name)
		}
	}
}

// removeMountAt publishes a volume and removes its mount at the nth call of an update. It says which call that was, or
// that all was done before.
func (k *killing) removeMountAt(nth int) (at supervise.Call, done bool) {
	k.t.Helper()
	v, well := k.newVolume(), k.newVolume()
	k.mustPublish(v)
	k.mustPublish(well)
	before := k.changed(v)
	logged := len(k.log())
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
		harness.Eventually(k.t, afterRestart, func() error { return k.dropped(v, logged) })
	default:
		done = true
	}
	k.wantBareDisk()
	if now := k.changed(v); !now.Equal(before) {
		k.t.Errorf("something was on the disk for a moment, below the mount, at %s", now)
	}
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

// dropped returns nil once the plugin has logged, after so many bytes, that the volume is gone.
func (k *killing) dropped(v *harness.Volume, logged int) error {
	for line := range bytes.Lines(k.log()[logged:]) {
		if bytes.Contains(line, []byte("no longer mounted")) && bytes.Contains(line, []byte(v.ID())) {
			return nil
		}
	}
	return errors.New("the plugin has not said that the volume is gone")
}

// changed returns when the directory that a volume is mounted on was last changed: that tells also of what came into it for a moment only.
func (k *killing) changed(v *harness.Volume) time.Time {
	k.t.Helper()
	path, err := filepath.Rel(k.KubeletDir(), k.Target(v))
	if err != nil {
		k.t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(k.disk, path))
	if err != nil {
		k.t.Fatal(err)
	}
	return info.ModTime()
}

package integration

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// removal is what the plugin does while the mount of a volume is removed.
type removal struct {
	name string
	// prepare comes before the calls that count, and run makes the plugin do them.
	prepare, run func(*killing, *harness.Volume)
	// over returns nil once the plugin has coped with the loss of the mount.
	over func(*killing, *harness.Volume) error
	// stride is how many calls the short form goes on by, at most. short and long are the
	// calls that must have been hit, in either form.
	stride      int
	short, long []string
}

func removals() []removal {
	return []removal{
		{
			name:    "update",
			prepare: func(*killing, *harness.Volume) {},
			run:     func(k *killing, _ *harness.Volume) { k.change() },
			over:    (*killing).dropped,
			stride:  15,
			short:   []string{"openat"},
			long:    []string{"openat", "openat2", "open_tree", "mount_setattr", "mkdirat", "write", "symlinkat", "renameat"},
		},
		{
			name:    "publish again",
			prepare: func(*killing, *harness.Volume) {},
			run:     (*killing).publishAgain,
			over:    (*killing).droppedOrAnew,
			stride:  1,
			short:   []string{"openat2"},
			long:    []string{"openat", "openat2"},
		},
		{
			name:    "start",
			prepare: func(k *killing, _ *harness.Volume) { k.mustKill(); k.change() },
			run:     func(k *killing, _ *harness.Volume) { k.mustStart() },
			// It may never have known the volume.
			over:   func(*killing, *harness.Volume) error { return nil },
			stride: 30,
			short:  []string{"openat"},
			long:   []string{"openat", "openat2", "open_tree", "mount_setattr", "write"},
		},
	}
}

// TestMountRemovedAtAnyCall unmounts a volume behind the plugin's back right before each
// call, one by one, of an update of it, of a publish of what is there already, and of a
// start of the plugin. The plugin must go on, and never write to the disk under the mount.
func TestMountRemovedAtAnyCall(t *testing.T) {
	t.Parallel()
	seed := harness.Seed(t)
	for i, r := range removals() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			removed, random := map[string]int{}, rand.New(rand.NewPCG(seed, uint64(i)))
			for _, s := range []*shape{shapes()[0], shapes()[3]} {
				t.Run(s.name, func(t *testing.T) {
					k := newKilling(t, s, newTally())
					for nth := 1; ; nth += harness.Scaled(1+random.IntN(r.stride), 1) {
						at, done := k.removeMountAt(r, nth)
						if done {
							break
						}
						t.Logf("mount of %s removed at call %d: %s", s.name, nth, at)
						removed[at.Name]++
					}
				})
			}
			t.Logf("removed at %v", removed)
			for _, name := range harness.Scaled(r.short, r.long) {
				if removed[name] == 0 {
					t.Errorf("never removed at %s", name)
				}
			}
		})
	}
}

// removeMountAt publishes a volume and removes its mount at the nth call of what the
// plugin does then. It says which call that was, or that all was done before.
func (k *killing) removeMountAt(r removal, nth int) (at supervise.Call, done bool) {
	k.t.Helper()
	v, well := k.newVolume(), k.newVolume()
	k.mustPublish(v)
	k.mustPublish(well)
	wantUntouched := k.watchDisk(v)
	k.logged = len(k.log())
	r.prepare(k, v)
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
	r.run(k, v)
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
		harness.Eventually(k.t, afterRestart, func() error { return r.over(k, v) })
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
	wantUntouched()
	k.mustUnpublish(well)
	k.end(v)
	return at, done
}

// publishAgain publishes a volume that is there. Who finds the mount gone may refuse to:
// the kubelet calls again.
func (k *killing) publishAgain(v *harness.Volume) {
	k.t.Helper()
	if err := k.Publish(k.t.Context(), v); err != nil {
		k.t.Logf("publish again: %v", err)
	}
}

// dropped returns nil once the plugin has logged that the volume is gone.
func (k *killing) dropped(v *harness.Volume) error {
	for line := range bytes.Lines(k.log()[k.logged:]) {
		if bytes.Contains(line, []byte("no longer mounted")) && bytes.Contains(line, []byte(v.ID())) {
			return nil
		}
	}
	return errors.New("the plugin has not said that the volume is gone")
}

// droppedOrAnew returns nil once the plugin knows that the volume is gone, or has
// mounted it anew.
func (k *killing) droppedOrAnew(v *harness.Volume) error {
	root, _, err := visible(k.Target(v))
	if err != nil {
		return err
	}
	if root < 0 {
		return k.dropped(v)
	}
	unix.Close(root)
	return k.current(v)
}

// watchDisk watches the directory that a volume is mounted on. The returned function
// checks that nothing came into it, be it for a moment only.
func (k *killing) watchDisk(v *harness.Volume) (wantUntouched func()) {
	k.t.Helper()
	path, err := filepath.Rel(k.KubeletDir(), k.Target(v))
	if err != nil {
		k.t.Fatal(err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		k.t.Fatal(os.NewSyscallError("inotify_init1", err))
	}
	end := sync.OnceFunc(func() { unix.Close(fd) })
	k.t.Cleanup(end)
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(k.disk, path), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		k.t.Fatal(os.NewSyscallError("inotify_add_watch", err))
	}
	return func() {
		k.t.Helper()
		defer end() // a user may have few of them
		var events [4 << 10]byte
		switch n, err := unix.Read(fd, events[:]); {
		case err == nil:
			k.t.Errorf("something was on the disk for a moment, below the mount: %q", events[:n])
		case !errors.Is(err, unix.EAGAIN):
			k.t.Error(os.NewSyscallError("read from inotify", err))
		}
	}
}

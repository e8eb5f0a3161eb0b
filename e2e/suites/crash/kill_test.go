package crash

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// shapes are the volumes that are killed; each use needs its own, as the node fills in the contents.
func shapes() []*shape {
	return []*shape{
		{name: "one ConfigMap", strategy: "Atomic", objects: []*object{{kind: "configMap", name: "app"}}},
		{name: "two sources", strategy: "Atomic", objects: []*object{{kind: "configMap", name: "app"}, {kind: "secret", name: "db"}}},
		{name: "in place", strategy: "InPlace", objects: []*object{{kind: "configMap", name: "app"}}},
	}
}

// essential are the calls that must each have been the last one of some process.
func essential() []string {
	return []string{
		"publish fsopen", "publish fsconfig", "publish fsmount", "publish mkdirat", "publish openat", "publish write",
		"publish fsetxattr", "publish symlinkat", "publish mount_setattr", "publish move_mount",
		"update open_tree", "update mount_setattr", "update mkdirat", "update linkat", "update symlinkat", "update fsetxattr", "update renameat",
		"update write", "update unlinkat", "unpublish umount2", "unpublish unlinkat",
	}
}

// TestKilledAnywhere kills the plugin at its file, mount and rename calls, one by one, while it publishes, updates and unpublishes a
// volume, and starts it again.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	seed, sum := harness.Seed(t), &tally{}
	t.Run("shapes", func(t *testing.T) {
		for round := range harness.Scaled(1, 2) {
			for i, s := range shapes() {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					k := newKilling(t, s, sum)
					random := rand.New(rand.NewPCG(seed, uint64(round*len(shapes())+i)))
					for _, o := range operations() {
						k.killAll(o, random)
					}
				})
			}
		}
	})
	t.Logf("%d reads", sum.reads.Load())
	if t.Failed() {
		return
	}
	if sum.reads.Load() == 0 {
		t.Error("the readers saw nothing")
	}
	for _, name := range essential() {
		if _, was := sum.kills.Load(name); !was {
			t.Errorf("never killed at: %s", name)
		}
	}
}

// killAll kills an operation at each of its calls, or in the short form at one of a hundred, and at each of a name at which no operation of
// this name has been killed. A first publish makes the calls of each publish. The calls go by their names: the next run may make one more
// or less before, as the check of the mounts' propagation.
func (k *killing) killAll(o operation, random *rand.Rand) {
	k.T.Helper()
	calls, _ := o.run(k, supervise.CountOnly)
	k.T.Logf("%s of %s makes %d calls: %v", o.name, k.shape.name, len(calls), calls)
	before, known := map[string]int{}, strings.TrimPrefix(o.name, "first ")
	for _, call := range calls {
		before[call]++
		if _, was := k.tally.kills.Load(known + " " + call); was && random.IntN(harness.Scaled(100, 1)) > 0 {
			continue
		}
		nth, seen := before[call], 0
		made, killed := o.run(k, func(_ int, name string) bool {
			if name == call {
				seen++
			}
			return name == call && seen == nth
		})
		if killed {
			k.tally.kills.Store(o.name+" "+call, true)
			k.T.Logf("%s of %s killed at call %d: %s", o.name, k.shape.name, len(made), call)
		}
		if k.T.Failed() {
			k.T.FailNow()
		}
	}
}

// TestMountRemovedAtAnyCall unmounts a volume behind the plugin's back right before each call, one by one, of an update of it. The plugin
// must go on, and never write to the disk under the mount.
func TestMountRemovedAtAnyCall(t *testing.T) {
	t.Parallel()
	random, removed := harness.Rand(t), map[string]bool{}
	for _, s := range []*shape{shapes()[0], shapes()[2]} {
		t.Run(s.name, func(t *testing.T) {
			k := newKilling(t, s, &tally{})
			for nth := 1; ; nth += harness.Scaled(10+random.IntN(30), 1) {
				at := k.removeMountAt(nth)
				if at == "" {
					break
				}
				t.Logf("mount of %s removed at call %d: %s", s.name, nth, at)
				removed[at] = true
			}
		})
	}
	every := []string{"openat", "openat2", "open_tree", "mount_setattr", "mkdirat", "write", "symlinkat", "renameat"}
	for _, name := range harness.Scaled(every[:1], every) {
		if !removed[name] {
			t.Errorf("never removed at %s", name)
		}
	}
}

// removeMountAt publishes a volume and removes its mount at the nth call of an update. It says which call that was, "" if all was done
// before.
func (k *killing) removeMountAt(nth int) (at string) {
	k.T.Helper()
	v, well := k.newVolume(), k.newVolume()
	k.MustPublish(v)
	k.MustPublish(well)
	before, logged := k.changed(v), len(k.Log())
	var removed atomic.Bool
	var unmounted error
	k.Arm(func(n int, call string) bool {
		if n == nth {
			at, unmounted = call, os.NewSyscallError("umount2", unix.Unmount(k.Target(v), unix.MNT_DETACH))
			removed.Store(true)
		}
		return false
	})
	k.change()
	harness.Eventually(k.T, world.Soon, func() error {
		if removed.Load() {
			return k.current(well)
		}
		return errors.Join(k.settled(well), k.settled(v))
	})
	k.Disarm()
	must.Do(k.T, unmounted)
	k.change()
	k.becomesCurrent(well)
	if removed.Load() {
		harness.Eventually(k.T, world.Soon, func() error { return k.dropped(v, logged) })
	}
	k.wantBareDisk()
	if now := k.changed(v); !now.Equal(before) {
		k.T.Errorf("something was on the disk for a moment, below the mount, at %s", now)
	}
	k.MustPublish(v) // as the kubelet does after its own restart
	k.WantMounts(2)
	k.becomesCurrent(v)
	k.change()
	k.becomesCurrent(v)
	k.wantBareDisk()
	k.UnpublishAll([]*harness.Volume{well, v})
	return at
}

// dropped returns nil once the plugin has logged, after so many bytes, that the volume is gone.
func (k *killing) dropped(v *harness.Volume, logged int) error {
	for line := range bytes.Lines(k.Log()[logged:]) {
		if bytes.Contains(line, []byte("no longer mounted")) && bytes.Contains(line, []byte(v.ID())) {
			return nil
		}
	}
	return errors.New("the plugin has not said that the volume is gone")
}

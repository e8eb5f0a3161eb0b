package integration

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// shapes are the volumes that are killed; each use needs its own, as the node fills in
// the contents.
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
		"update write", "update unlinkat", "touch fsetxattr", "unpublish umount2", "unpublish unlinkat",
	}
}

// TestKilledAnywhere kills the plugin at its file, mount and rename calls, one by one,
// while it publishes, updates and unpublishes a volume, and starts it again.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	seed := harness.Seed(t)
	sum := newTally()
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
	t.Logf("%d reads; kills by call: %v", sum.reads.Load(), sum.names)
	if t.Failed() {
		return
	}
	if sum.reads.Load() == 0 {
		t.Error("the readers saw nothing")
	}
	for _, name := range essential() {
		if sum.names[name] == 0 {
			t.Errorf("never killed at: %s", name)
		}
	}
}

// killAll kills an operation at each of its calls, or in the short form at one of a hundred, and at each of a name at which no
// operation of this name has been killed. A first publish makes the calls of each publish. The calls go by their names: the next run may
// make one more or less before, as the check of the mounts' propagation.
func (k *killing) killAll(o operation, random *rand.Rand) {
	k.t.Helper()
	calls, _ := o.run(k, supervise.CountOnly)
	k.t.Logf("%s of %s makes %d calls: %v", o.name, k.shape.name, len(calls), calls)
	before, known := map[string]int{}, strings.TrimPrefix(o.name, "first ")
	for _, call := range calls {
		before[call.Name]++
		if nth := before[call.Name]; !k.tally.has(known+" "+call.Name) || random.IntN(harness.Scaled(100, 1)) == 0 {
			k.kill(o, killAtCall(call.Name, nth))
		}
	}
}

// kill runs an operation that is to be killed.
func (k *killing) kill(o operation, at supervise.Decide) {
	k.t.Helper()
	made, killed := o.run(k, at)
	if killed {
		k.killed(o.name, made)
	}
	if k.t.Failed() {
		k.t.FailNow()
	}
}

// killAtCall kills at the nth call of a name.
func killAtCall(name string, nth int) supervise.Decide {
	seen := 0
	return func(_ int, call supervise.Call) bool {
		if call.Name != name {
			return false
		}
		seen++
		return seen == nth
	}
}

package crash

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// TestChurnEndsWhereItBegan publishes, updates and unpublishes volumes for a long time, of both
// strategies, and has the plugin have then what it had before.
func TestChurnEndsWhereItBegan(t *testing.T) {
	const heapMayGrow = 2 << 20
	n := lab.NewNode(t, "-v=1", "--profiling-address=127.0.0.1:0")
	configMaps, secrets := must.Get(lab.OpenWatches(t.Context(), "configmaps"))(t), must.Get(lab.OpenWatches(t.Context(), "secrets"))(t)
	seed := harness.Seed(t)
	churn(n, seed, 60)                       // what is made once and kept, and what caches hold
	wantWatches(t, "configmaps", configMaps) // the last ones end a moment after the volumes
	wantWatches(t, "secrets", secrets)
	before := holds(n)
	churn(n, seed, harness.Scaled(100, 20_000))
	n.WantNothingLeft()
	wantWatches(t, "configmaps", configMaps)
	wantWatches(t, "secrets", secrets)
	harness.Eventually(t, world.Soon, func() error {
		now := holds(n)
		for what, count := range now {
			most := before[what]
			if what == heapInUse {
				most += heapMayGrow
			}
			if count > most {
				return fmt.Errorf("the plugin has %v, before it had %v", now, before)
			}
		}
		return nil
	})
	t.Logf("the plugin had %v, and has %v", before, holds(n))
}

const heapInUse = "heap?gc=1&debug=1"

// holds counts what the plugin has: bytes of memory in use, goroutines, and open descriptors by what they are. It must run with
// --profiling-address.
func holds(n *world.Node) map[string]int {
	n.T.Helper()
	open := must.Get(n.Descriptors())(n.T)
	count := map[string]int{}
	for _, d := range open {
		count[d]++
	}
	for profile, number := range map[string]string{heapInUse: `(?m)^# HeapAlloc = (\d+)$`, "goroutine?debug=1": `^goroutine profile: total (\d+)\n`} {
		answer, err := harness.Get(n.T.Context(), "http://"+n.Address(n.ProfilingAddress)+"/debug/pprof/"+profile)
		found := regexp.MustCompile(number).FindStringSubmatch(answer.Body)
		if err != nil || found == nil {
			n.T.Fatalf("get %s: %v, %.100s", profile, err, answer.Body)
		}
		if count[profile], err = strconv.Atoi(found[1]); err != nil {
			n.T.Fatal(err)
		}
	}
	return count
}

// churn has so many volumes be published, updated and unpublished, some at a time.
func churn(n *world.Node, seed uint64, cycles int) {
	n.T.Helper()
	errs := make([]error, 8)
	var begun atomic.Int64
	var group sync.WaitGroup
	for i := range errs {
		choose := rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(func() {
			for begun.Add(1) <= int64(cycles) && errs[i] == nil {
				// Some objects are a worker's own, so that their watches come and go.
				errs[i] = cycle(n, fmt.Sprintf("churn-%d-%d", i, choose.IntN(5)), []string{"Atomic", "InPlace"}[choose.IntN(2)], choose.IntN(3) == 0)
			}
		})
	}
	group.Wait()
	must.Do(n.T, errors.Join(errs...))
}

// cycle is one volume's life. If it deletes its object, then last: an event for each pod would
// fill client-go's caches, which keep thousands.
func cycle(n *world.Node, name, strategy string, deletes bool) error {
	ctx, before, after := n.T.Context(), leak.NewValue(), leak.NewValue()
	v := harness.NewVolume(n.Namespace, "pod", map[string]string{
		"sources": fmt.Sprintf("[{configMap: {name: %s}}, {secret: {name: %s, optional: true}}]", name, name), "writeStrategy": strategy,
	})
	set := func(value string) error {
		_, err := harness.PutObject(ctx, lab.Client(), n.Namespace, "configMap", name, map[string]string{"key": value})
		return err
	}
	steps := []func() error{
		func() error { return set(before) },
		func() error { return n.Publish(ctx, v) },
		func() error { return set(after) },
		func() error {
			return harness.Poll(ctx, world.Soon, 2*time.Millisecond, func() error { return n.ShowsJust(v, map[string]string{"key": after}) })
		},
		func() error { return n.Publish(ctx, v) }, // as the kubelet does after its own restart
		func() error { return n.Unpublish(ctx, v) },
	}
	if deletes {
		steps = append(steps, func() error {
			return lab.Client().CoreV1().ConfigMaps(n.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		})
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d of %s: %w", i, name, err)
		}
	}
	return nil
}

// TestRestartWithManyVolumes kills the plugin, changes what its volumes show, each of an object of its own, and starts
// it again: all is current, and not a mount was touched for it.
func TestRestartWithManyVolumes(t *testing.T) {
	n := lab.NewPlain(t)
	kinds, states := []string{"configMap", "secret"}, make([]map[string]string, harness.Scaled(120, 500))
	name := func(i int) string { return fmt.Sprint("app-", i) }
	write := func(i int) {
		states[i] = map[string]string{"key": n.Canary()}
		n.PutObject(kinds[i%2], name(i), states[i])
	}
	volumes := make([]*harness.Volume, len(states))
	for i := range states {
		write(i)
		volumes[i] = n.Volume(map[string]string{kinds[i%2]: name(i)})
		n.MustPublish(volumes[i])
		root := must.Get(os.Open(n.Target(volumes[i])))(t) // no other mount gets its id as long as this is open
		t.Cleanup(func() { root.Close() })
	}
	before := mountIDs(n)
	n.WantMounts(len(states))
	n.MustKill()
	for i := range states { // every fourth of either kind stays as it is; a volume keeps the files of what is deleted
		change := i / 2 % 4
		if change > 1 {
			n.RemoveObject(kinds[i%2], name(i))
		}
		if change == 1 || change == 3 {
			write(i)
		}
	}
	n.MustStart() // make bench judges the time
	n.Each(volumes, func(i int) error { return errors.Join(n.ShowsJust(volumes[i], states[i]), n.Pruned(volumes[i])) })
	if after := mountIDs(n); !maps.Equal(before, after) {
		t.Error("the ids of the mounts are not what they were")
	}
	n.UnpublishAll(volumes)
}

func mountIDs(n *world.Node) map[string]string {
	n.T.Helper()
	mounts := must.Get(n.VolumeMounts())(n.T)
	ids := make(map[string]string, len(mounts))
	for _, mount := range mounts {
		ids[mount.Target] = mount.ID
	}
	return ids
}

// wantWatches waits until the API server holds so many watches of a resource open.
func wantWatches(t *testing.T, resource string, want int) {
	t.Helper()
	harness.Eventually(t, world.Soon, func() error {
		got, err := lab.OpenWatches(t.Context(), resource)
		if err == nil && got != want {
			err = fmt.Errorf("%d open watches of %s, want %d", got, resource, want)
		}
		return err
	})
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	churnWorkers = 8
	// churnHeap is how many MiB more than before the plugin may have in use, of numbers
	// that are rounded down: less than 2 MiB.
	churnHeap = 1
)

// TestChurnEndsWhereItBegan publishes, updates and unpublishes volumes for a long time, of both
// strategies, and has the plugin have then what it had before. (That no restart loses anything is
// TestReadersDuringUpdates.)
func TestChurnEndsWhereItBegan(t *testing.T) {
	n := newNodeWith(t, harness.PluginOptions{
		Kubeconfig: shared.kubeconfig, Args: []string{"-v=1"}, Env: harness.TraceHeap(),
	})
	configMaps, secrets := watches(t.Context(), t, "configmaps"), watches(t.Context(), t, "secrets")
	c := &churning{node: n, seed: harness.Seed(t)}
	c.run(t, 100)                            // what is made once and kept, and what caches hold
	wantWatches(t, "configmaps", configMaps) // the last ones end a moment after the volumes
	wantWatches(t, "secrets", secrets)
	heap, descriptors := c.idleHeap(t), n.descriptors()

	cycles := harness.Scaled(150, 20_000)
	begin := time.Now()
	c.run(t, cycles)
	t.Logf("%d volumes published, updated and unpublished in %s", cycles, time.Since(begin).Round(time.Millisecond))

	n.wantNothingLeft()
	wantWatches(t, "configmaps", configMaps)
	wantWatches(t, "secrets", secrets)
	after := c.idleHeap(t)
	t.Logf("live heap: %d MiB before, %d MiB after", heap, after)
	if after > heap+churnHeap {
		t.Errorf("live heap = %d MiB, before = %d MiB", after, heap)
	}
	harness.Eventually(t, soon, func() error {
		now := n.descriptors()
		if now["socket"] < descriptors["socket"] { // a connection of the start that nobody has used since may be closed
			now["socket"] = descriptors["socket"]
		}
		if !maps.Equal(now, descriptors) {
			return fmt.Errorf("open descriptors = %v, before = %v", now, descriptors)
		}
		return nil
	})

	// Another plugin that has served one volume has what is made once and kept.
	idle := newNode(t)
	idle.value("warm")
	idle.mustUnpublish(idle.published("warm"))
	wantWatches(t, "configmaps", configMaps)
	atMost, left := idle.goroutines(), n.goroutines()
	for f, count := range left {
		// Go's own come and go with the load. The other one asks now and then whether an idle connection still works.
		if count > atMost[f] && !strings.HasPrefix(f, "runtime.") && f != "golang.org/x/net/http2.(*ClientConn).healthCheck-fm" {
			t.Errorf("%d goroutines of %s, an idle plugin has %d", count, f, atMost[f])
		}
	}
}

// churning runs the lives of many volumes, some at a time.
type churning struct {
	*node
	seed uint64
}

// run has so many volumes be published, updated and unpublished.
func (c *churning) run(t *testing.T, cycles int) {
	t.Helper()
	errs := make([]error, churnWorkers)
	var begun atomic.Int64
	var group sync.WaitGroup
	for i := range churnWorkers {
		choose := rand.New(rand.NewPCG(c.seed, uint64(i)))
		group.Go(func() {
			for begun.Add(1) <= int64(cycles) && errs[i] == nil {
				// Some objects are a worker's own, so that their watches come and go. The kubelet publishes again after a restart.
				errs[i] = c.cycle(t.Context(), fmt.Sprintf("churn-%d-%d", i, choose.IntN(5)), choose.IntN(3) == 0, choose.IntN(2) == 0, choose.IntN(3) == 0)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// cycle is one volume's life. If it deletes its object, then last: an event for each pod would
// fill client-go's caches, which keep thousands.
func (c *churning) cycle(ctx context.Context, name string, deletes, inPlace, again bool) error {
	before, after := harness.NewCanary(), harness.NewCanary()
	if err := c.set(name, before); err != nil {
		return err
	}
	v := harness.NewVolume(c.namespace, "pod", map[string]string{
		"sources": fmt.Sprintf("- configMap: {name: %s}\n- secret: {name: %s, optional: true}\n", name, name),
	})
	if inPlace {
		v.Attributes["writeStrategy"] = "InPlace"
	}
	if err := c.Publish(ctx, v); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := c.set(name, after); err != nil {
		return err
	}
	err := harness.Poll(ctx, soon, 2*time.Millisecond, func() error {
		if got, err := c.content(v, "key"); err != nil || got != after {
			return fmt.Errorf("%s holds %q, %v, want %q", name, got, err, after)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if again {
		if err := c.Publish(ctx, v); err != nil {
			return fmt.Errorf("publish again: %w", err)
		}
	}
	if err := c.Unpublish(ctx, v); err != nil || !deletes {
		return err
	}
	return shared.Client().CoreV1().ConfigMaps(c.namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func (c *churning) set(name, value string) error {
	_, err := c.tryConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": value}})
	return err
}

// idleHeap returns what the plugin has in use while it has no volume, in MiB. It
// publishes a volume now and then for a collection to take place; the second one
// begins when nothing of the time before is in use.
func (c *churning) idleHeap(t *testing.T) int {
	t.Helper()
	const settled = 3
	first, _, err := c.LiveHeap()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if err := c.cycle(t.Context(), "warm", false, false, false); err != nil {
			t.Fatal(err)
		}
		now, mib, err := c.LiveHeap()
		if err != nil {
			t.Fatal(err)
		}
		if now >= first+settled {
			return mib
		}
	}
}

// descriptors counts the plugin's open descriptors by what they are.
func (n *node) descriptors() map[string]int {
	n.t.Helper()
	open, err := n.Descriptors()
	if err != nil {
		n.t.Fatal(err)
	}
	count := make(map[string]int)
	for _, d := range open {
		count[d]++
	}
	return count
}

// goroutines ends the plugin and counts the goroutines that it had, by the function
// that started them.
func (n *node) goroutines() map[string]int {
	n.t.Helper()
	count, err := n.Quit(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return count
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

// TestChurnEndsWhereItBegan publishes, updates and unpublishes volumes for a long time, of both
// strategies, and has the plugin have then what it had before.
func TestChurnEndsWhereItBegan(t *testing.T) {
	const heapMayGrow = 2 << 20
	n := newNode(t, "-v=1", "--profiling-address=127.0.0.1:0")
	configMaps, secrets, seed := watches(t.Context(), t, "configmaps"), watches(t.Context(), t, "secrets"), harness.Seed(t)
	n.churn(seed, 60)                        // what is made once and kept, and what caches hold
	wantWatches(t, "configmaps", configMaps) // the last ones end a moment after the volumes
	wantWatches(t, "secrets", secrets)
	before := n.holds()
	n.churn(seed, harness.Scaled(100, 20_000))
	n.wantNothingLeft()
	wantWatches(t, "configmaps", configMaps)
	wantWatches(t, "secrets", secrets)
	harness.Eventually(t, soon, func() error {
		now := n.holds()
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
	t.Logf("the plugin had %v, and has %v", before, n.holds())
}

const heapInUse = "heap?gc=1&debug=1"

// holds counts what the plugin has: bytes of memory in use, goroutines, and open descriptors by what they are. It must run with
// --profiling-address.
func (n *node) holds() map[string]int {
	n.t.Helper()
	open, err := n.Descriptors()
	if err != nil {
		n.t.Fatal(err)
	}
	count := map[string]int{}
	for _, d := range open {
		count[d]++
	}
	for profile, number := range map[string]string{heapInUse: `(?m)^# HeapAlloc = (\d+)$`, "goroutine?debug=1": `^goroutine profile: total (\d+)\n`} {
		answer, err := harness.Get(n.t.Context(), "http://"+n.address(n.ProfilingAddress)+"/debug/pprof/"+profile)
		found := regexp.MustCompile(number).FindStringSubmatch(answer.Body)
		if err != nil || found == nil {
			n.t.Fatalf("get %s: %v, %.100s", profile, err, answer.Body)
		}
		if count[profile], err = strconv.Atoi(found[1]); err != nil {
			n.t.Fatal(err)
		}
	}
	return count
}

// churn has so many volumes be published, updated and unpublished, some at a time.
func (n *node) churn(seed uint64, cycles int) {
	n.t.Helper()
	errs := make([]error, 8)
	var begun atomic.Int64
	var group sync.WaitGroup
	for i := range errs {
		choose := rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(func() {
			for begun.Add(1) <= int64(cycles) && errs[i] == nil {
				// Some objects are a worker's own, so that their watches come and go. The kubelet publishes again after a restart.
				errs[i] = n.cycle(n.t.Context(), fmt.Sprintf("churn-%d-%d", i, choose.IntN(5)), choose.IntN(3) == 0, choose.IntN(2) == 0, choose.IntN(3) == 0)
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

// cycle is one volume's life. If it deletes its object, then last: an event for each pod would
// fill client-go's caches, which keep thousands.
func (n *node) cycle(ctx context.Context, name string, deletes, inPlace, again bool) error {
	set := func(value string) error {
		_, err := n.tryPut("configMap", name, map[string]string{"key": value})
		return err
	}
	before, after := leak.NewValue(), leak.NewValue()
	v := harness.NewVolume(n.namespace, "pod", map[string]string{
		"sources": fmt.Sprintf("- configMap: {name: %s}\n- secret: {name: %s, optional: true}\n", name, name),
	})
	if inPlace {
		v.Attributes["writeStrategy"] = "InPlace"
	}
	if err := set(before); err != nil {
		return err
	}
	if err := n.Publish(ctx, v); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := set(after); err != nil {
		return err
	}
	err := harness.Poll(ctx, soon, 2*time.Millisecond, func() error {
		if got, err := n.content(v, "key"); err != nil || got != after {
			return fmt.Errorf("%s holds %q, %v, want %q", name, got, err, after)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if again {
		if err := n.Publish(ctx, v); err != nil {
			return fmt.Errorf("publish again: %w", err)
		}
	}
	if err := n.Unpublish(ctx, v); err != nil || !deletes {
		return err
	}
	return shared.Client().CoreV1().ConfigMaps(n.namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// readersTimeout is how long all readers together may take to get somewhere.
const readersTimeout = 5 * time.Minute

// TestManyNodes has pods on all workers read a ConfigMap that they share and a Secret of their own
// while these change, plugins restart, and nodes go away and come back. No read fails or gives an older
// text, and every change arrives. It runs with no other test, as it counts what the nodes have.
func TestManyNodes(t *testing.T) {
	needsNodes(t, "reboots, pauses, cuts off and drains nodes")
	r := newReaders(t, harness.Scaled(20, 60))
	r.update()
	r.rollPlugins()
	r.loseNodes(harness.Scaled(3*time.Second, 2*time.Minute))
	if harness.Scaled(false, true) { // TestNodeReboot does it in the short form, too
		r.reboot(r.workers[2])
	}
	r.drain(r.workers[0])
	r.update()
	r.scaleToZero()
}

// update brings all objects to the next text, and tells when the last reader had it.
func (r *readers) update() {
	r.t.Helper()
	r.change()
	var shared, own time.Duration
	for _, h := range r.awaitCurrent() {
		shared = max(shared, h.last("settings").At-r.sent["settings"])
		own = max(own, h.last("login").At-r.sent[h.pod.Labels["reader"]])
	}
	r.t.Logf("%d pods on %d workers: the ConfigMap was in the last of them %s after the request of its update, the last Secret after %s",
		r.count, len(r.workers), milliseconds(shared), milliseconds(own))
	if slowest := max(shared, own); slowest >= busyLimit {
		r.t.Errorf("a volume was current after %s", slowest)
	}
}

// rollPlugins restarts the plugins, node by node, while the objects change.
func (r *readers) rollPlugins() {
	r.t.Helper()
	for node := range r.inspectors {
		r.searchBefore(r.t, r.mustPlugin(r.t, node))
	}
	began, first := time.Now(), r.step
	if err := kubectl(r.t.Context(), "--namespace", pluginNamespace, "rollout", "restart", "daemonset/refvol-plugin"); err != nil {
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- kubectl(r.t.Context(), "--namespace", pluginNamespace, "rollout", "status", "daemonset/refvol-plugin", "--timeout="+rollTimeout.String())
	}()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for rolled := false; !rolled; {
		select {
		case err := <-done:
			if err != nil {
				r.t.Fatal(err)
			}
			rolled = true
		case <-ticker.C:
			r.change()
		}
	}
	r.t.Logf("plugins of %d nodes restarted in %.0f s, %d changes of all objects meanwhile", len(r.inspectors), time.Since(began).Seconds(), r.step-first)
	r.awaitCurrent()
}

// loseNodes has two workers go away at once and come back, one paused and one cut off from the API
// server. The objects change meanwhile.
func (r *readers) loseNodes(pause time.Duration) {
	r.t.Helper()
	paused, cutOff := r.workers[0], r.workers[1]
	back := map[string]time.Duration{}
	r.whilePaused(paused, func() {
		r.whileCutOff(cutOff, func() {
			r.change()
			<-time.After(pause)
			back[cutOff] = now(r.t)
		})
		back[paused] = now(r.t)
	})
	late := map[string]time.Duration{}
	for _, h := range r.awaitCurrent() {
		node := h.pod.Spec.NodeName
		late[node] = max(late[node], r.late(h, back[node]))
		for _, volume := range readerVolumes() {
			got, was := h.last(volume), h.before(volume)
			if reads, took := got.Reads-was.Reads, got.At-was.At; node == cutOff && reads < int(took.Seconds()) {
				r.t.Errorf("%s has read %s %d times in %s, while %s was cut off", h.pod.Name, volume, reads, took, node)
			}
		}
	}
	r.t.Logf("away for %s: the paused worker was current after %s, the one that was cut off after %s",
		pause, milliseconds(late[paused]), milliseconds(late[cutOff]))
}

// reboot reboots a worker. The objects change while it is down.
func (r *readers) reboot(node string) {
	r.t.Helper()
	var back, late time.Duration
	r.whileDown(r.t, node, func() {
		r.change()
		back = now(r.t)
	})
	for _, h := range r.awaitCurrent() {
		if h.pod.Spec.NodeName == node {
			late = max(late, r.late(h, back))
		}
	}
	r.t.Logf("the worker that was rebooted was current after %s", milliseconds(late))
}

// late returns how long after its node was back a reader had the change in both volumes.
func (r *readers) late(h history, back time.Duration) time.Duration {
	r.t.Helper()
	var late time.Duration
	for _, volume := range readerVolumes() {
		if h.last(volume).At <= back {
			r.t.Errorf("%s had the change in %s while %s was away", h.pod.Name, volume, h.pod.Spec.NodeName)
		}
		late = max(late, h.last(volume).At-back)
	}
	return late
}

// drain has the readers of a node go elsewhere. Nothing of theirs is left there.
func (r *readers) drain(node string) {
	r.t.Helper()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := kubectl(ctx, "uncordon", node); err != nil {
			r.t.Error(err)
		}
	})
	if err := kubectl(r.t.Context(), "drain", node, "--ignore-daemonsets", "--pod-selector=app=reader", "--timeout="+readersTimeout.String()); err != nil {
		r.t.Fatal(err)
	}
	for _, h := range r.awaitCurrent() {
		if h.pod.Spec.NodeName == node {
			r.t.Errorf("%s is on %s", h.pod.Name, node)
		}
	}
	r.awaitNothingOn(node)
}

// scaleToZero takes all readers away. What they had on the nodes and at the API server goes with them.
func (r *readers) scaleToZero() {
	r.t.Helper()
	if err := kubectl(r.t.Context(), "--namespace", r.name, "scale", "deployment", "--all", "--replicas=0"); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, readersTimeout, "no reader is left", func(ctx context.Context) error {
		pods, err := r.client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{LabelSelector: "app=reader"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are", len(pods.Items))
		}
		return err
	})
	for node := range r.inspectors {
		r.awaitNothingOn(node)
	}
	r.awaitWatches(r.t, r.watches)
}

// awaitNothingOn waits until a node has no volume: no mount in any mount namespace, which is where a
// volume's record is too, and no volume and no object in what the plugin tells.
func (r *readers) awaitNothingOn(node string) {
	r.t.Helper()
	eventually(r.t, podTimeout, "nothing is left on "+node, func(ctx context.Context) error {
		has, err := r.holdings(ctx, node)
		if err == nil && has != (holdings{}) {
			err = fmt.Errorf("it has %+v", has)
		}
		return err
	})
}

// holdings are what a node has of volumes.
type holdings struct{ mounts, volumes, objects int }

// holdings returns those of a node.
func (r *readers) holdings(ctx context.Context, node string) (holdings, error) {
	mounts, err := r.inspectors[node].mounts(ctx, driver+":")
	if err != nil {
		return holdings{}, err
	}
	metrics, err := r.metrics(ctx, node)
	return holdings{len(mounts), metrics["refvol_volumes"], metrics["refvol_objects"]}, err
}

// wantHoldings checks that the nodes have what newReaders made: so finding nothing later means
// something.
func (r *readers) wantHoldings() {
	r.t.Helper()
	var all holdings
	for node := range r.inspectors {
		has, err := r.holdings(r.t.Context(), node)
		if err != nil {
			r.t.Fatal(err)
		}
		if has.mounts < has.volumes {
			r.t.Errorf("%s has %+v", node, has)
		}
		all.volumes, all.objects = all.volumes+has.volumes, all.objects+has.objects
	}
	// Each Secret is on one node, and the ConfigMap on all.
	want := holdings{volumes: len(readerVolumes()) * r.count, objects: r.count + len(r.workers)}
	if all != want {
		r.t.Errorf("the nodes have %+v, want %+v", all, want)
	}
	r.awaitWatches(r.t, r.watches+r.count)
}

// nodes returns the names of all nodes, and those of the workers.
func (c *cluster) nodes(t *testing.T) (all, workers []string) {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		all = append(all, node.Name)
		if _, ok := node.Labels[controlPlaneTaint]; !ok {
			workers = append(workers, node.Name)
		}
	}
	return all, workers
}

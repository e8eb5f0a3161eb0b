package suite

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// readersTimeout is how long all readers together may take to get somewhere.
const readersTimeout = 5 * time.Minute

// TestManyNodes has pods on all workers read a ConfigMap that they share and a Secret of their own
// while these change, and nodes go away and come back. No read fails or gives an older text, and every
// change arrives. It runs with no other test, as it takes nodes away.
func TestManyNodes(t *testing.T) {
	r := newReaders(t, harness.Scaled(20, 60))
	r.update()
	r.loseNodes(harness.Scaled(3*time.Second, 2*time.Minute))
	r.update()
}

// update brings all objects to the next text, and tells when the last reader had it.
func (r *readers) update() {
	r.t.Helper()
	r.change()
	var shared, own time.Duration
	for _, h := range r.awaitCurrent() {
		shared = max(shared, h.last("settings").At-r.sent["settings"])
		own = max(own, h.last("login").At-r.sent[h.pod.Name])
	}
	r.t.Logf("%d pods on %d workers: the ConfigMap was in the last of them %s after the request of its update, the last Secret after %s",
		r.count, len(r.workers), milliseconds(shared), milliseconds(own))
	if slowest := max(shared, own); slowest >= busyLimit {
		r.t.Errorf("a volume was current after %s", slowest)
	}
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

// workers returns the names of all nodes but the control plane's.
func (c *cluster) workers(t *testing.T) []string {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var workers []string
	for _, node := range nodes.Items {
		if _, ok := node.Labels[controlPlaneTaint]; !ok {
			workers = append(workers, node.Name)
		}
	}
	return workers
}

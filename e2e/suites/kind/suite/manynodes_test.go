package suite

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
		settings, _ := h.last(readerFile("settings"))
		login, _ := h.last(readerFile("login"))
		shared, own = max(shared, settings.At-r.sent["settings"]), max(own, login.At-r.sent[h.pod.Name])
	}
	r.t.Logf("%d pods on %d workers: the ConfigMap was in the last of them %s after the request of its update, the last Secret after %s",
		len(r.names), len(r.workers), shared.Round(time.Millisecond), own.Round(time.Millisecond))
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
		for _, volume := range []string{"settings", "login"} {
			got, was := h.last(readerFile(volume))
			if reads, took := got.Reads-was.Reads, got.At-was.At; node == cutOff && reads < int(took.Seconds()) {
				r.t.Errorf("%s has read %s %d times in %s, while %s was cut off", h.pod.Name, volume, reads, took, node)
			}
			if away, ok := back[node]; ok && got.At <= away {
				r.t.Errorf("%s had the change in %s while %s was away", h.pod.Name, volume, node)
			}
			late[node] = max(late[node], got.At-back[node])
		}
	}
	r.t.Logf("away for %s: the paused worker was current after %s, the one that was cut off after %s",
		pause, late[paused].Round(time.Millisecond), late[cutOff].Round(time.Millisecond))
}

// whilePaused freezes all processes of a node, its pods' too, calls do, and lets them go on, also if do
// fails the test.
func (n *namespace) whilePaused(node string, do func()) {
	n.t.Helper()
	defer n.undo(func(ctx context.Context) error { return docker(ctx, "unpause", node) })
	mustDocker(n.t, "pause", node)
	do()
}

// whileCutOff drops what a node and its pods send to the API server's node and get from it, calls do, and
// lets it pass again, also if do fails the test.
func (n *namespace) whileCutOff(node string, do func()) {
	n.t.Helper()
	server := n.apiServerAddress()
	rules := func(ctx context.Context, change string) error {
		mangle := []string{"exec", node, "iptables", "--wait", "--table", "mangle", change}
		return errors.Join(
			docker(ctx, append(mangle, "PREROUTING", "--source", server, "--jump", "DROP")...),
			docker(ctx, append(mangle, "POSTROUTING", "--destination", server, "--jump", "DROP")...))
	}
	defer n.undo(func(ctx context.Context) error { return rules(ctx, "--delete") })
	if err := rules(n.t.Context(), "--insert"); err != nil {
		n.t.Fatal(err)
	}
	do()
}

// undo puts a node back as it was, also when the test's own time is over.
func (n *namespace) undo(how func(context.Context) error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := how(ctx); err != nil {
		n.t.Error(err)
	}
}

// apiServerAddress returns the address of the node that has the API server.
func (n *namespace) apiServerAddress() string {
	n.t.Helper()
	for _, node := range n.nodes(n.t) {
		if _, ok := node.Labels[controlPlaneTaint]; !ok {
			continue
		}
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return a.Address
			}
		}
	}
	n.t.Fatal("no node of the control plane has an address")
	return ""
}

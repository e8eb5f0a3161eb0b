package suite

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Two pods on one node share one watch of an object, and with the last volume that
// watch closes. The API server counts.
//
// The object is a Secret: each kubelet watches ConfigMaps of its own accord, while
// Secrets are watched by controllers alone, whose number stays.
func TestSharedWatch(t *testing.T) {
	n := newNamespace(t)
	n.createSecret("login", object{"user": canary("admin")})
	before := n.settledWatches(t)
	node := n.worker(t)
	reader := func(name string) *corev1.Pod {
		spec := newPod(name, refvol("login", attributes{"secret": "login"}))
		spec.Spec.NodeName = node
		return spec
	}

	first := n.start(reader("first"))
	n.awaitWatches(t, before+1)
	second := n.start(reader("second"))
	if got := n.settledWatches(t); got != before+1 {
		t.Errorf("two pods have %d watches", got-before)
	}
	first.delete()
	// The watch that is left still serves the second pod.
	w := second.await(mountDir+"login/user", canary("root"), podTimeout)
	n.updateSecret("login", object{"user": canary("root")})
	w.arrive()
	if got := n.settledWatches(t); got != before+1 {
		t.Errorf("the pod that is left has %d watches", got-before)
	}
	second.delete()
	n.awaitWatches(t, before)
}

// awaitWatches waits until the API server has exactly want watches of Secrets open.
func (c *cluster) awaitWatches(t *testing.T, want int) {
	t.Helper()
	eventually(t, podTimeout, fmt.Sprintf("%d watches of Secrets", want), func(ctx context.Context) error {
		got, err := c.watches(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("there are %d", got)
		}
		return err
	})
}

// settledWatches returns the number of open watches of Secrets once it has not
// changed for a second: a watch may be on its way while another one still closes.
func (c *cluster) settledWatches(t *testing.T) int {
	t.Helper()
	needsNodes(t, "counts the watches of the whole cluster")
	last, since := -1, time.Now()
	eventually(t, podTimeout, "a steady number of watches", func(ctx context.Context) error {
		got, err := c.watches(ctx)
		if err != nil {
			return err
		}
		if got != last {
			last, since = got, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("there are %d since just now", got)
		}
		return nil
	})
	return last
}

// watches returns how many watches of Secrets the API server has open.
func (c *cluster) watches(ctx context.Context) (int, error) {
	metrics, err := c.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(metrics)) {
		labels, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !containsAll(labels, []string{"apiserver_longrunning_requests{", `resource="secrets"`, `verb="WATCH"`}) {
			continue
		}
		count, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		total += count
	}
	return total, nil
}

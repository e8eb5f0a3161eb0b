package integration

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// askingResync is how often the plugin of a test asks, and arrivalTime how soon a
// change must arrive then, on a busy machine.
const (
	askingResync = time.Second
	arrivalTime  = soon
)

// inEachAsking runs test with a plugin that asks instead of watching, once for each
// strategy, with the rights that the strategy's overlay gives it.
func inEachAsking(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	for strategy, overlay := range map[string]string{"Cache": "cache", "Get": "get"} {
		t.Run(strategy, func(t *testing.T) {
			setNodeTTL(t, "0")
			kubeconfig := overlayAccount(t, overlay)
			test(t, newNodeAs(t, kubeconfig, "--change-detection="+strategy, "--resync-interval="+askingResync.String()))
		})
	}
}

// setNodeTTL has the Node that the plugin is told it runs on exist until the test ends,
// and say how long an answer is good for, in seconds.
func setNodeTTL(t *testing.T, ttl string) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        harness.NodeName,
		Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: ttl},
	}}
	if _, err := nodes.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), harness.NodeName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// sources is a volume of a ConfigMap and a Secret, both called app.
func (n *node) sources() *harness.Volume {
	return n.volume(map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: app, optional: true}\n"})
}

func TestAskingShowsChangesAtEachResync(t *testing.T) {
	watched := map[string]int{}
	for _, resource := range []string{"configmaps", "secrets"} {
		watched[resource] = watches(t.Context(), t, resource)
	}
	inEachAsking(t, func(t *testing.T, n *node) {
		key, password := n.canary(), n.canary()
		n.configMap("app", map[string]string{"key": key})
		n.secret("app", map[string]string{"password": password})
		v := n.sources()
		n.mustPublish(v)
		n.wantContent(v, "key", key)
		n.wantContent(v, "password", password)
		var took []time.Duration
		for range 3 {
			key, password = n.canary(), n.canary()
			n.configMap("app", map[string]string{"key": key})
			n.secret("app", map[string]string{"password": password})
			took = append(took, n.arrives(v, "key", key, arrivalTime), n.arrives(v, "password", password, arrivalTime))
		}
		t.Logf("changes arrived after %v", took)
		// Its rights are for gets alone, so what it shows came by no list either.
		for resource, count := range watched {
			wantWatches(t, resource, count)
		}
		n.mustUnpublish(v)
		n.wantNothingLeft()
	})
}

// TestNothingIsAskedBetweenResyncs has a change not be seen, as it would be by a watch,
// and no request be sent.
func TestNothingIsAskedBetweenResyncs(t *testing.T) {
	for strategy, overlay := range map[string]string{"Cache": "cache", "Get": "get"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNodeAs(t, overlayAccount(t, overlay), "--change-detection="+strategy, "--resync-interval=1h")
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			v := n.sources()
			n.mustPublish(v)
			n.configMap("app", map[string]string{"key": n.canary()})
			before := n.gets()
			n.keeps(v, "key", value, 2*time.Second)
			if after := n.gets(); after != before {
				t.Errorf("%d requests for objects between resyncs", after-before)
			}
		})
	}
}

// keeps checks again and again that a file holds a value.
func (n *node) keeps(v *harness.Volume, path, want string, during time.Duration) {
	n.t.Helper()
	end := time.After(during)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
			n.wantContent(v, path, want)
		}
	}
}

// gets returns how many requests for ConfigMaps and Secrets the API server has answered.
func (n *node) gets() int {
	n.t.Helper()
	requests, err := shared.Requests(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	count := 0
	for _, resource := range []string{"configmaps", "secrets"} {
		count += requests[controlplane.Request{Verb: "GET", Resource: resource}]
	}
	return count
}

// TestCacheKeepsAnswersForTheNodesTTL has the annotation hold up a change.
func TestCacheKeepsAnswersForTheNodesTTL(t *testing.T) {
	setNodeTTL(t, "6")
	n := newNodeAs(t, overlayAccount(t, "cache"), "--change-detection=Cache", "--resync-interval=500ms")
	n.configMap("app", map[string]string{"key": n.canary()})
	v := n.short("app")
	begin := time.Now()
	n.mustPublish(v)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.arrives(v, "key", value, 6*time.Second+arrivalTime)
	if d := time.Since(begin); d < 6*time.Second {
		t.Errorf("the change arrived %s after the publish began, want it after the 6 s of the annotation", d)
	}
}

func TestAskingFollowsDeletions(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *node) {
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		n.secret("app", map[string]string{"password": n.canary()})
		v := n.sources()
		n.mustPublish(v)
		// The optional one's file goes.
		if err := shared.Client().CoreV1().Secrets(n.namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		n.vanishes(v, "password", arrivalTime)
		// The required one's stays, and another one of its name is followed.
		n.deleteConfigMap("app")
		n.hasEvent(v, "RefDeleted", `ConfigMap "`+n.namespace+`/app" not found`)
		n.wantContent(v, "key", value)
		again, password := n.canary(), n.canary()
		n.configMap("app", map[string]string{"key": again})
		n.secret("app", map[string]string{"password": password})
		n.arrives(v, "key", again, arrivalTime)
		n.arrives(v, "password", password, arrivalTime)
	})
}

// TestAskingFindsALateObject while a publish waits for it.
func TestAskingFindsALateObject(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *node) {
		v := n.sources()
		answer := n.publishing(v)
		n.stillWaiting(answer, v, 1500*time.Millisecond)
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		if err := n.answer(answer, arrivalTime); err != nil { // long before its wait is over
			t.Fatalf("publish: %v", err)
		}
		n.wantContent(v, "key", value)
	})
}

func TestAskingSaysWhatIsMissing(t *testing.T) {
	setNodeTTL(t, "0")
	for strategy, overlay := range map[string]string{"Cache": "cache", "Get": "get"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNodeAs(t, overlayAccount(t, overlay), "--change-detection="+strategy, "--publish-wait=100ms")
			wantStatus(t, n.finalAnswer(n.sources()), codes.NotFound, "app")
			n.wantNothingLeft()
			powerless := newNodeAs(t, shared.powerless, "--change-detection="+strategy)
			wantStatus(t, powerless.Publish(t.Context(), powerless.sources()), codes.PermissionDenied)
			powerless.wantNothingLeft()
		})
	}
}

// TestANewPodIsNotGivenAnOldAnswer publishes the object a second time, changed, long
// before any resync.
func TestANewPodIsNotGivenAnOldAnswer(t *testing.T) {
	for strategy, overlay := range map[string]string{"Cache": "cache", "Get": "get"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNodeAs(t, overlayAccount(t, overlay), "--change-detection="+strategy, "--resync-interval=1h")
			n.configMap("app", map[string]string{"key": n.canary()})
			first := n.short("app")
			n.mustPublish(first)
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			second := n.short("app")
			n.mustPublish(second)
			n.wantContent(second, "key", value)
			n.arrives(first, "key", value, arrivalTime) // what is known now is shown
		})
	}
}

// TestAskingOutlivesAnOutage keeps the files while the API server is away, and follows
// it once it is back.
func TestAskingOutlivesAnOutage(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *node) {
		before, after := n.canary(), n.canary()
		n.configMap("app", map[string]string{"key": before})
		v := n.short("app")
		n.mustPublish(v)
		if err := shared.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
		n.wantContent(v, "key", before)
		n.mustKill() // the next process knows nothing, and must keep the files too
		n.mustStart()
		n.wantContent(v, "key", before)
		if err := shared.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.configMap("app", map[string]string{"key": after})
		took := n.arrives(v, "key", after, healed)
		t.Logf("the first change after the outage arrived in %s", took)
	})
}

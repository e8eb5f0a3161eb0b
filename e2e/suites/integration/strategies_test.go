package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// askingResync is how often the plugin of a test asks, and arrivalTime how soon a
// change must arrive then, on a busy machine.
const (
	askingResync = 200 * time.Millisecond
	arrivalTime  = soon
)

// inEachAsking runs test with a plugin that asks instead of watching, once for each
// strategy, with the rights that the strategy's component gives it, and more flags.
func inEachAsking(t *testing.T, test func(t *testing.T, n *proxied), args ...string) {
	t.Parallel()
	for strategy, component := range map[string]string{"Cache": "cache", "Get": "get"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			all := append([]string{onNode(t, "0"), "--change-detection=" + strategy, "--resync-interval=" + askingResync.String()}, args...)
			test(t, newProxiedAs(t, componentAccount(t, component), faultproxy.Options{}, all...))
		})
	}
}

// onNode returns the flag that tells a plugin that it runs on a Node of this test's own. That
// says how long an answer is good for, in seconds.
func onNode(t *testing.T, ttl string) (flag string) {
	t.Helper()
	return "--node-name=" + newNodeObject(t, ttl)
}

// newNodeObject creates a Node, which exists until the test ends, and returns its name.
func newNodeObject(t *testing.T, ttl string) (name string) {
	t.Helper()
	nodes := shared.Client().CoreV1().Nodes()
	object, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "node-",
		Annotations:  map[string]string{corev1.ObjectTTLAnnotationKey: ttl},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Delete(context.WithoutCancel(t.Context()), object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return object.Name
}

// sources is a volume of a ConfigMap and a Secret, both called app.
func (n *node) sources() *harness.Volume {
	return n.volume(map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: app, optional: true}\n"})
}

func TestAskingShowsChangesAtEachResync(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *proxied) {
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
		for _, r := range n.reads() {
			if r.Verb != "GET" {
				t.Errorf("it has sent %s of %v, and may only get", r.Verb, r.Object)
			}
		}
		n.mustUnpublish(v)
		n.wantNothingLeft()
	})
}

// reads returns the requests for ConfigMaps and Secrets since forgetRequests.
func (n *proxied) reads() []faultproxy.Request {
	return slices.DeleteFunc(slices.Clone(n.requests()), func(r faultproxy.Request) bool {
		return r.Resource != "configmaps" && r.Resource != "secrets"
	})
}

// TestCacheKeepsAnswersForTheNodesTTL has the annotation hold up a change.
func TestCacheKeepsAnswersForTheNodesTTL(t *testing.T) {
	t.Parallel()
	n := newNodeAs(t, componentAccount(t, "cache"), onNode(t, "6"), "--change-detection=Cache", "--resync-interval=500ms")
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

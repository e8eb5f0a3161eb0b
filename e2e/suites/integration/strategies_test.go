package integration

import (
	"context"
	"path"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
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

// withoutNode tells a plugin that it runs on a Node that there is not, so that an answer is good
// for as long as by default.
const withoutNode = "--node-name=none"

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

// TestNothingIsAskedBetweenResyncs has a change not be seen, as it would be by a watch,
// and no request be sent.
func TestNothingIsAskedBetweenResyncs(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *proxied) {
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		v := n.sources()
		n.mustPublish(v)
		n.configMap("app", map[string]string{"key": n.canary()})
		n.forgetRequests()
		n.keeps(v, "key", value, 2*time.Second)
		if reads := n.reads(); len(reads) > 0 {
			t.Errorf("requests for objects between resyncs: %v", reads)
		}
	}, "--resync-interval=1h", withoutNode)
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

func TestAskingFollowsDeletions(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *proxied) {
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
	inEachAsking(t, func(t *testing.T, n *proxied) {
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
	inEachAsking(t, func(t *testing.T, n *proxied) {
		wantStatus(t, n.finalAnswer(n.sources()), codes.NotFound, "app")
		n.wantNothingLeft()
		powerless := newNodeAs(t, shared.powerless, "--change-detection="+path.Base(t.Name()))
		wantStatus(t, powerless.Publish(t.Context(), powerless.sources()), codes.PermissionDenied)
		powerless.wantNothingLeft()
	}, "--publish-wait=100ms")
}

// TestANewPodIsNotGivenAnOldAnswer publishes the object a second time, changed, long
// before any resync.
func TestANewPodIsNotGivenAnOldAnswer(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *proxied) {
		n.configMap("app", map[string]string{"key": n.canary()})
		first := n.short("app")
		n.mustPublish(first)
		value := n.canary()
		n.configMap("app", map[string]string{"key": value})
		second := n.short("app")
		n.mustPublish(second)
		n.wantContent(second, "key", value)
		n.arrives(first, "key", value, arrivalTime) // what is known now is shown
	}, "--resync-interval=1h", withoutNode)
}

// TestAskingOutlivesAnOutage keeps the files while the API server is away, and follows
// it once it is back.
func TestAskingOutlivesAnOutage(t *testing.T) {
	inEachAsking(t, func(t *testing.T, n *proxied) {
		before, after := n.canary(), n.canary()
		n.configMap("app", map[string]string{"key": before})
		v := n.short("app")
		n.mustPublish(v)
		n.inject(faultproxy.Refused)
		n.wantContent(v, "key", before)
		n.mustKill() // the next process knows nothing, and must keep the files too
		n.mustStart()
		n.wantContent(v, "key", before)
		n.heal()
		n.configMap("app", map[string]string{"key": after})
		took := n.arrives(v, "key", after, healed)
		t.Logf("the first change after the outage arrived in %s", took)
	})
}

package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// healed is how long after the end of a fault a volume may take to be current. The
	// longest pause is the wait that a server may ask for, of a minute, and half of that as
	// jitter.
	healed = 2 * time.Minute
	// pingAfter and pingTimeout are the plugin's: a connection without a frame for so long is
	// pinged, and given up without an answer after so long.
	pingAfter, pingTimeout = 5 * time.Second, 45 * time.Second
	// noticed is how long a connection may be half-open before it is given up.
	noticed = pingAfter + pingTimeout
	// answered is how long an API server that keeps the connection alive may take to
	// answer before the request is given up.
	answered = 30 * time.Second
)

// proxied is a node whose plugin reaches the API server through a proxy of its own.
type proxied struct {
	*node
	proxy *faultproxy.Proxy
	// seen are the requests that the proxy had since forgetRequests.
	seen []faultproxy.Request
}

// newProxied starts a plugin behind a proxy. The log has each request that failed, but no
// bodies, as these tests may run for long.
func newProxied(t *testing.T, o faultproxy.Options, args ...string) *proxied {
	t.Helper()
	return newProxiedAs(t, shared.kubeconfig, o, args...)
}

// newProxiedAs is newProxied with the rights that another kubeconfig gives.
func newProxiedAs(t *testing.T, rights string, o faultproxy.Options, args ...string) *proxied {
	t.Helper()
	proxy, kubeconfig := startProxy(t, rights, o)
	return &proxied{node: newNodeAs(t, kubeconfig, append([]string{"-v=4"}, args...)...), proxy: proxy}
}

// startProxy starts a proxy, and returns the kubeconfig of its clients, with the token of rights.
func startProxy(t *testing.T, rights string, o faultproxy.Options) (proxy *faultproxy.Proxy, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(rights)
	if err != nil {
		t.Fatal(err)
	}
	token := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].Token
	o.Target = shared.Config()
	if proxy, err = faultproxy.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := proxy.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	return proxy, kubeconfig
}

// requests returns the requests since forgetRequests; not for concurrent use.
func (n *proxied) requests() []faultproxy.Request {
	n.seen = append(n.seen, n.proxy.Requests()...)
	return n.seen
}

func (n *proxied) forgetRequests() {
	n.proxy.Requests()
	n.seen = nil
}

func (n *proxied) inject(f faultproxy.Fault) {
	n.t.Helper()
	if err := n.proxy.Inject(f); err != nil {
		n.t.Fatal(err)
	}
}

func (n *proxied) heal() {
	n.t.Helper()
	if err := n.proxy.Heal(); err != nil {
		n.t.Fatal(err)
	}
}

// during calls f now and then until d is over.
func during(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-end.C:
			return
		case <-t.Context().Done():
			return
		}
	}
}

// publishes waits until a publish succeeds, as the kubelet does, which tries again.
func (n *node) publishes(v *harness.Volume, within time.Duration) {
	n.t.Helper()
	harness.Eventually(n.t, within, func() error { return n.Publish(n.t.Context(), v) })
}

// noWatches returns an error while a watch is open through the proxy.
func noWatches(p *faultproxy.Proxy) error {
	if open := p.Watches(); len(open) > 0 {
		return fmt.Errorf("watches are open: %v", open)
	}
	return nil
}

// noReflectors checks that of a plugin's goroutines, counted by the function that each began with, none belongs to an object.
func noReflectors(goroutines map[string]int) error {
	var errs []error
	for f, n := range goroutines {
		if strings.Contains(f, "pkg/manager.(*item)") || strings.Contains(f, "client-go/tools/cache") || strings.Contains(f, "StreamWatcher") {
			errs = append(errs, fmt.Errorf("%d goroutines of %s are left", n, f))
		}
	}
	return errors.Join(errs...)
}

// pausesWithin returns how many pauses of the back-off fit into d at the most. They are
// random; the shortest are 0.25, 0.5, 1 and 2 s, and 2.5 s from then on. That they begin
// anew after a calm time makes no more of them: that is as long as six of the longest.
func pausesWithin(d time.Duration) int {
	const longest = 2500 * time.Millisecond
	count := 0
	for pause := 250 * time.Millisecond; d >= pause; pause = min(2*pause, longest) {
		d -= pause
		count++
	}
	return count
}

// rounds are the requests for an object by their kinds.
type rounds struct{ initial, lists, goingOn int }

// roundsOf counts the rounds of each object.
func roundsOf(requests []faultproxy.Request) map[faultproxy.Object]rounds {
	all := make(map[faultproxy.Object]rounds)
	for _, r := range requests {
		c := all[r.Object]
		switch {
		case r.Initial:
			c.initial++
		case r.Verb == "WATCH":
			c.goingOn++
		case r.Verb == "LIST":
			c.lists++
		default:
			continue
		}
		all[r.Object] = c
	}
	return all
}

// checkPaced checks that no object was asked for more often within a time than the
// back-off allows: there is one round before each pause, and one after the last. At the
// most that is a watch that goes on; if it may not, a watch that begins with the state; if
// that may not, a list, and a second one of any version if the first one's is not to be
// had; and the watch that follows a list. Each is sent once, whatever its answer is, and
// what the server says, be it that it is busy, makes no pause shorter. turns is how often the server began to answer
// otherwise: after a refusal of the account or the connection requests go on with the first answer, and at once.
func checkPaced(requests []faultproxy.Request, took time.Duration, turns int) error {
	most := pausesWithin(took) + 1 + turns
	var errs []error
	for object, c := range roundsOf(requests) {
		if c.initial > most || c.lists > 2*most || c.goingOn > 2*most {
			errs = append(errs, fmt.Errorf("%v was asked for by %d watches that begin with the state, %d lists and %d other watches in %s; "+
				"that is more than %d rounds", object, c.initial, c.lists, c.goingOn, took, most))
		}
	}
	return errors.Join(errs...)
}

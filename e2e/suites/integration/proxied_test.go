package integration

import (
	"fmt"
	"path/filepath"
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
	// noticed is how long a connection may be half-open before it is given up: it is pinged after 5 s without a frame, and an answer may
	// take 45 s.
	noticed = 50 * time.Second
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
	config, err := clientcmd.LoadFromFile(rights)
	if err != nil {
		t.Fatal(err)
	}
	token := config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].Token
	o.Target = shared.Config()
	proxy, err := faultproxy.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := proxy.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	return &proxied{node: newNodeAs(t, kubeconfig, append([]string{"-v=4"}, args...)...), proxy: proxy}
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

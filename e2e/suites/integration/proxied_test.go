package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
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
}

// newProxied starts a plugin behind a proxy. The log has each request that failed, but no
// bodies, as these tests may run for long.
func newProxied(t *testing.T, args ...string) *proxied {
	t.Helper()
	return newProxiedAs(t, shared.Kubeconfig, args...)
}

// newProxiedAs is newProxied with the rights that another kubeconfig gives.
func newProxiedAs(t *testing.T, rights string, args ...string) *proxied {
	t.Helper()
	config, err := clientcmd.LoadFromFile(rights)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(shared.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	for name := range config.Clusters {
		config.Clusters[name] = proxy.Cluster()
	}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return &proxied{node: newNodeAs(t, kubeconfig, append([]string{"-v=4"}, args...)...), proxy: proxy}
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

// noWatches returns an error while a watch is open through the proxy.
func noWatches(p *faultproxy.Proxy) error {
	if open, _ := p.Watches(""); open > 0 {
		return fmt.Errorf("%d watches are open", open)
	}
	return nil
}

package integration

import (
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// balancer gives each connection to the next of its servers, as a load balancer does that does not look how they are.
type balancer struct {
	net.Listener
	servers []string
	next    atomic.Int64
	running sync.WaitGroup
}

// balance starts a balancer, and returns a kubeconfig that leads to it: the given one, which leads to one of the servers.
func balance(t *testing.T, kubeconfig string, servers ...string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: listener, servers: servers}
	b.running.Go(b.serve)
	t.Cleanup(func() {
		listener.Close()
		b.running.Wait()
	})
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + listener.Addr().String()
	}
	path := filepath.Join(t.TempDir(), "balanced")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func (b *balancer) serve() {
	for {
		client, err := b.Accept()
		if err != nil {
			return // it was closed
		}
		b.running.Go(func() {
			defer client.Close()
			server, err := net.Dial("tcp", b.servers[int(b.next.Add(1))%len(b.servers)])
			if err != nil {
				return
			}
			defer server.Close()
			var both sync.WaitGroup
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				both.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					client.Close()
					server.Close()
				})
			}
			both.Wait()
		})
	}
}

// cutInterval is how often connections are cut. It is longer than a dial to the black hole: each third connection leads there, so if
// other clients dialled twice meanwhile, the next dial of the same client would lead there again, and so on.
const cutInterval = 7 * time.Second

// TestOneOfThreeServers is bad: a load balancer leads to a black hole with each third connection, or one server answers 429 with
// a Retry-After of half a minute to one account. Publishes of other accounts go on.
func TestOneOfThreeServers(t *testing.T) {
	for name, inject := range map[string]func(p *faultproxy.Proxy, busy string) error{
		"black hole": func(p *faultproxy.Proxy, _ string) error {
			defer p.ResetConnections() // one that dies silently takes the plugin 50 s to notice: docs/limits.md
			return p.Inject(faultproxy.HalfOpen)
		},
		"busy for one account": func(p *faultproxy.Proxy, busy string) error {
			p.SetRetryAfter("30")
			p.InjectFor(faultproxy.TooManyRequests, func(r faultproxy.Request) bool { return r.Namespace == busy })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			var proxies []*faultproxy.Proxy
			var servers []string
			kubeconfig := ""
			for range 3 {
				var p *faultproxy.Proxy
				p, kubeconfig = startProxy(t, componentAccount(t, "pod-identity"), faultproxy.Options{})
				proxies, servers = append(proxies, p), append(servers, p.Address())
			}
			n := newPodNodeWith(t, harness.PluginOptions{Kubeconfig: balance(t, kubeconfig, servers...)})
			n.secret("db", map[string]string{"password": n.canary()})
			allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
			first := n.own("secret", "db", "web")
			harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), first) })

			if err := inject(proxies[0], n.source); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			var busy sync.WaitGroup
			busy.Go(func() { // connections are cut now and then
				for i := 0; ; i++ {
					select {
					case <-ended:
						return
					case <-time.After(cutInterval):
						proxies[1+i%2].ResetConnections()
					}
				}
			})
			var took []time.Duration
			for i, began := 0, time.Now(); time.Since(began) < harness.Scaled(15*time.Second, time.Minute); i++ {
				v := n.own("secret", "db", "web")
				begin := time.Now()
				if err := n.Publish(t.Context(), v); err != nil {
					t.Errorf("publish %d: %v", i, err)
				}
				took = append(took, time.Since(begin))
				n.mustUnpublish(v)
			}
			close(ended)
			busy.Wait()
			slices.Sort(took)
			t.Logf("%d publishes: p50 %s, p99 %s, most %s", len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
			if p99 := took[len(took)*99/100]; p99 > 12*time.Second {
				t.Error("a publish waits for too long")
			}
			if err := proxies[0].Heal(); err != nil {
				t.Fatal(err)
			}
			n.mustUnpublish(first)
		})
	}
}

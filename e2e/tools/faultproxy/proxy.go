package faultproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options says what to stand before.
type Options struct {
	// Target is how the API server is reached; its credentials are not used: each
	// request carries the client's own. Required.
	Target *rest.Config
	// MaxStreams is how many requests at once the proxy allows on a connection; 0: 250.
	MaxStreams int
	// NoWatchList refuses watches that begin with the state, as API servers before 1.32
	// do, so that clients list.
	NoWatchList bool
}

// Proxy is a running proxy. Its methods are safe for concurrent use; those that change
// the fault take turns.
//
// Its goroutines are those of its server and one for each open watch; Close ends them.
// mu guards everything below it.
type Proxy struct {
	target  *url.URL
	forward *http.Transport
	server  *http.Server
	network *network
	ca      []byte
	history *history
	serving sync.WaitGroup
	// noWatchList is the option.
	noWatchList bool

	changing sync.Mutex

	mu    sync.Mutex
	fault Fault
	// only are the faults of some requests; a later one counts.
	only       []partialFault
	retryAfter string
	// changed is closed, and replaced, when the fault changes.
	changed  chan struct{}
	requests []Request
	watches  map[Object]int
}

// Start returns a proxy that lets everything pass.
func Start(o Options) (*Proxy, error) {
	target, err := url.Parse(o.Target.Host)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	upstream, err := rest.TLSConfigFor(o.Target)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	network, err := newNetwork()
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	certificate, ca, err := newCertificate(network.address)
	if err != nil {
		return nil, errors.Join(err, network.refuse())
	}
	p := &Proxy{
		target:  target,
		forward: &http.Transport{TLSClientConfig: upstream, ForceAttemptHTTP2: true, DisableCompression: true},
		network: network,
		ca:      ca,
		history: newHistory(),
		changed: make(chan struct{}),
		watches: make(map[Object]int),

		noWatchList: o.NoWatchList,
		retryAfter:  "1",
	}
	p.server = &http.Server{
		Handler:   p,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: o.MaxStreams},
		ErrorLog:  log.New(io.Discard, "", 0), // broken connections are its work
	}
	p.serve(network.listener)
	return p, nil
}

// partialFault is a fault of the requests that match.
type partialFault struct {
	fault Fault
	match func(Request) bool
}

func (p *Proxy) serve(l net.Listener) {
	p.serving.Go(func() { _ = p.server.ServeTLS(l, "", "") }) // ends with the listener
}

// Close ends the proxy and all that passes through it, and waits for that.
func (p *Proxy) Close() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.network.release()
	err := errors.Join(p.network.refuse(), p.server.Close())
	p.network.reset()
	p.serving.Wait()
	err = errors.Join(err, p.server.Shutdown(context.Background()))
	p.forward.CloseIdleConnections()
	return err
}

// WriteKubeconfig writes a kubeconfig file, mode 0600, that leads to the proxy and
// carries token.
func (p *Proxy) WriteKubeconfig(path, token string) error {
	const name = "proxy"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + p.network.address, CertificateAuthorityData: p.ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	return nil
}

// Inject replaces the faults that are on, if any, by f.
func (p *Proxy) Inject(f Fault) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.network.release()
	p.network.hear()
	p.network.cutNew(f == Cut)
	if f != Refused {
		if err := p.listen(); err != nil {
			return err
		}
	}
	p.setFault(f)
	switch f {
	case Refused:
		err := p.network.refuse()
		p.network.reset()
		return err
	case HalfOpen:
		p.network.swallow()
	case Partition:
		p.network.hold()
	case Reset, Cut:
		p.network.reset()
	}
	return nil
}

// InjectFor adds a fault of the requests that match, which must be one that hits single
// requests. Open watches stay as they are. match must be safe for concurrent use.
func (p *Proxy) InjectFor(f Fault, match func(Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.only = append(p.only, partialFault{f, match})
}

// SetRetryAfter sets what TooManyRequests and Unavailable say in Retry-After, whatever it
// is; at first "1".
func (p *Proxy) SetRetryAfter(value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retryAfter = value
}

func (p *Proxy) retryAfterNow() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retryAfter
}

// Heal ends the faults that are on.
func (p *Proxy) Heal() error { return p.Inject(None) }

// ResetConnections resets all connections, whatever fault is on.
func (p *Proxy) ResetConnections() { p.network.reset() }

func (p *Proxy) listen() error {
	l, err := p.network.listen()
	if err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	if l != nil {
		p.serve(l)
	}
	return nil
}

func (p *Proxy) setFault(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.only = f, nil
	close(p.changed)
	p.changed = make(chan struct{})
}

// current returns the fault that is on, and what is closed when that changes.
func (p *Proxy) current() (Fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.changed
}

// Requests returns the requests that have arrived since the last call.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requests
	p.requests = nil
	return all
}

// Watches returns how many watches of each object pass through now.
func (p *Proxy) Watches() map[Object]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := make(map[Object]int, len(p.watches))
	for o, n := range p.watches {
		if n > 0 {
			open[o] = n
		}
	}
	return open
}

// Connections returns how many connections are open, and how many there ever
// were, those that were reset at once among them.
func (p *Proxy) Connections() (open, accepted int) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	return len(p.network.conns), p.network.accepted
}

// Package faultproxy stands between a client and a real API server and breaks what passes, the way networks, load
// balancers and API servers break it.
//
// It terminates TLS under a certificate of its own and speaks HTTP/2 on both sides, so that a fault can hit one
// request or whole connections.
package faultproxy

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxStreams is how many requests at once the proxy allows on a connection, as an API server does.
const maxStreams = 250

// Proxy is a running proxy. Its methods are safe for concurrent use; those that change the fault take turns.
type Proxy struct {
	forward   *httputil.ReverseProxy
	transport *http.Transport
	server    *http.Server
	network   network
	// ca is what clients have to trust, in PEM, for serverName.
	ca      []byte
	serving sync.WaitGroup

	changing sync.Mutex

	// mu guards what is below it.
	mu    sync.Mutex
	fault Fault
	// only is in the paths of the requests that meet the fault.
	only string
	// watches is how many are open, and begun how many there ever were, by what they select.
	watches int
	begun   map[string]int
}

// serverName is in the certificate of every httptest.Server.
const serverName = "example.com"

// Start returns a proxy that stands before an API server and lets everything pass. The credentials of target are not
// used: each request carries the client's own.
func Start(target *rest.Config) (*Proxy, error) {
	host, err := url.Parse(target.Host)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	upstream, err := rest.TLSConfigFor(target)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	errorLog := log.New(io.Discard, "", 0) // broken connections are its work
	transport := &http.Transport{TLSClientConfig: upstream, ForceAttemptHTTP2: true, DisableCompression: true}
	p := &Proxy{
		forward: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(host) }, Transport: transport, ErrorLog: errorLog,
			FlushInterval: -1, // the events of a watch pass as they come
		},
		transport: transport,
		begun:     map[string]int{},
		ca:        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw}),
	}
	p.server = &http.Server{
		Handler:   p,
		TLSConfig: &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS12},
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:  errorLog,
	}
	return p, p.Heal()
}

// Close ends the proxy and all that passes through it.
func (p *Proxy) Close() error {
	err := p.Inject(Refused)
	err = errors.Join(err, p.server.Close())
	p.serving.Wait()
	err = errors.Join(err, p.server.Shutdown(context.Background()))
	p.transport.CloseIdleConnections()
	return err
}

// Cluster is where clients find the proxy.
func (p *Proxy) Cluster() *clientcmdapi.Cluster {
	return &clientcmdapi.Cluster{Server: "https://" + p.network.address, CertificateAuthorityData: p.ca, TLSServerName: serverName}
}

// Inject replaces the faults that are on, if any, by f.
func (p *Proxy) Inject(f Fault) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	opened, err := p.network.inject(f)
	if opened != nil {
		p.serving.Go(func() { _ = p.server.ServeTLS(opened, "", "") }) // ends with the listener
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.only = f, ""
	return err
}

// InjectFor is Inject for the requests with a text in their path; f must be a fault that hits single requests. Open
// watches stay as they are.
func (p *Proxy) InjectFor(f Fault, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.only = f, path
}

// Heal ends the faults that are on.
func (p *Proxy) Heal() error { return p.Inject(None) }

// ResetConnections resets all connections, whatever fault is on.
func (p *Proxy) ResetConnections() { p.network.reset() }

// Watches returns how many watches pass through now, and how many ever did that selected an object by this name.
func (p *Proxy) Watches(name string) (open, begun int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watches, p.begun["metadata.name="+name]
}

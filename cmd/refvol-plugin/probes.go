package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// probes serves what the kubelet's probes of the plugin's own pod ask.
type probes struct {
	// address is what it listens on.
	address string
	server  *http.Server
	ended   chan error
}

// startProbes serves /healthz, which answers as long as the process does, and
// /readyz, which answers 200 once ready says so. failed is called if serving ends
// by itself.
func startProbes(address string, ready func() bool, failed context.CancelCauseFunc) (*probes, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve probes (--http-address): %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the kubelet has not registered the driver yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	p := &probes{
		address: listener.Addr().String(),
		server:  &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second},
		ended:   make(chan error, 1),
	}
	go func() {
		err := p.server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			failed(fmt.Errorf("serve probes: %w", err))
		}
		p.ended <- err
	}()
	return p, nil
}

// stop closes the server and returns when it has ended.
func (p *probes) stop() error {
	return errors.Join(p.server.Close(), <-p.ended)
}

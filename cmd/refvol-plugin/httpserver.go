package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"k8s.io/klog/v2"
)

// readTimeout limits the arrival of a request. answerTimeout limits an answer, so that a client that reads nothing does not delay the next
// scrape.
const (
	readTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second
)

// httpServer serves one of the plugin's own HTTP addresses. stop ends its goroutine.
type httpServer struct {
	// address is the address on which it listens.
	address string
	server  *http.Server
	ended   chan struct{}
}

// startHTTP serves a handler at the address of a flag. answers limits an answer; 0 means no limit. It calls failed if serving ends without
// stop.
func startHTTP(flag, address string, handler http.Handler, answers time.Duration, failed context.CancelCauseFunc) (*httpServer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve --%s: %w", flag, err)
	}
	s := &httpServer{
		address: listener.Addr().String(),
		server:  &http.Server{Handler: handler, ReadTimeout: readTimeout, WriteTimeout: answers, IdleTimeout: time.Minute},
		ended:   make(chan struct{}),
	}
	go func() {
		err := s.server.Serve(listener)
		if !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("serve --%s: %w", flag, err))
		}
		close(s.ended)
	}()
	return s, nil
}

// startHTTPServers serves at the addresses of the flags. The returned function stops all servers. failed is called if a server ends
// otherwise.
func startHTTPServers(ctx context.Context, opts *serveOptions, monitoring, statuses http.Handler, failed context.CancelCauseFunc) (stop func() error, err error) {
	var started []*httpServer
	stop = func() error {
		var errs []error
		for _, s := range started {
			errs = append(errs, s.stop())
		}
		return errors.Join(errs...)
	}
	for _, s := range []struct {
		flag, address string
		handler       http.Handler
		answers       time.Duration
	}{
		{"http-address", opts.httpAddress, monitoring, answerTimeout},
		{"profiling-address", opts.profilingAddress, profiles(), 0}, // it takes as long as the request asks for
		{"status-address", opts.statusAddress, statuses, answerTimeout},
	} {
		if s.address == "" {
			continue
		}
		server, err := startHTTP(s.flag, s.address, s.handler, s.answers, failed)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		started = append(started, server)
		klog.FromContext(ctx).Info("Serving HTTP", "flag", s.flag, "address", server.address)
	}
	return stop, nil
}

// stop closes the server and returns when it has ended.
func (s *httpServer) stop() error {
	err := s.server.Close()
	<-s.ended
	return err
}

// validateLoopback returns an error unless the value of a flag is "" or a loopback address with a port, such as example. Names are refused
// too, whatever they resolve to.
func validateLoopback(flag, address, example, why string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--%s: Invalid value: %q: must be a loopback address and a port, such as %s", flag, address, example)
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("--%s: Invalid value: %q: must be a loopback address, such as %s: %s", flag, address, example, why)
	}
	return nil
}

// profiles serves the profiles of net/http/pprof, but not the command line. They show where time and memory are used, and hold no value of
// an object.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

// validateProfilingAddress returns an error unless the address is a loopback address.
func validateProfilingAddress(address string) error {
	return validateLoopback("profiling-address", address, "127.0.0.1:6060", "profiles are not for the network")
}

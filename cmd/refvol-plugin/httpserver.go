package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/klog/v2"
)

// readTime is how long a request may take to come. answerTime is how long an answer may take, so that
// who reads nothing doesn't hold up the next scrape.
const (
	readTime   = 10 * time.Second
	answerTime = 30 * time.Second
)

// httpServer serves one of the plugin's own HTTP addresses. Its goroutine ends with stop.
type httpServer struct {
	// address is what it listens on.
	address string
	server  *http.Server
	ended   chan error
}

// startHTTP serves a handler at the address of a flag. answers is how long an answer may take; 0 is no
// limit. It calls failed if serving ends without stop.
func startHTTP(flag, address string, handler http.Handler, answers time.Duration, failed context.CancelCauseFunc) (*httpServer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve --%s: %w", flag, err)
	}
	s := &httpServer{
		address: listener.Addr().String(),
		server:  &http.Server{Handler: handler, ReadTimeout: readTime, WriteTimeout: answers, IdleTimeout: time.Minute},
		ended:   make(chan error, 1),
	}
	go func() {
		err := s.server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			failed(fmt.Errorf("serve --%s: %w", flag, err))
		}
		s.ended <- err
	}()
	return s, nil
}

// startHTTPServers serves at the addresses that the flags name; the returned function ends
// that. failed is called if one ends by itself.
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
		{"http-address", opts.httpAddress, monitoring, answerTime},
		{"profiling-address", opts.profilingAddress, profiles(), 0}, // it takes as long as the request asks for
		{"status-address", opts.statusAddress, statuses, answerTime},
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
	return errors.Join(s.server.Close(), <-s.ended)
}

// validateLoopback refuses the value of a flag that is neither empty nor a loopback address with a
// port, such as example. A name is refused too, whatever it resolves to.
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

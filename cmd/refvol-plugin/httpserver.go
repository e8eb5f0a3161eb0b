package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// httpServer serves one of the plugin's own HTTP addresses. Its goroutine ends with stop.
type httpServer struct {
	// address is what it listens on.
	address string
	server  *http.Server
	ended   chan error
}

// startHTTP serves a handler at an address, which a flag names. failed is called if serving
// ends by itself.
func startHTTP(flag, address string, handler http.Handler, failed context.CancelCauseFunc) (*httpServer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve --%s: %w", flag, err)
	}
	s := &httpServer{
		address: listener.Addr().String(),
		server:  &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second},
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

// stop closes the server and returns when it has ended.
func (s *httpServer) stop() error {
	return errors.Join(s.server.Close(), <-s.ended)
}

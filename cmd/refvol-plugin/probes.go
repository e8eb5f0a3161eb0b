package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// condition is one of those that make the plugin ready; err returns why it isn't met, nil if it is.
type condition struct {
	name string
	err  func() error
}

// monitoring serves what the kubelet's probes of the plugin's own pod ask, and Prometheus:
//
//   - /healthz answers 200 if probe, a call through the plugin's own socket, has no error.
//   - /readyz answers 200 if all conditions are met, and names each.
//   - /metrics is that of the handler.
func monitoring(probe func(context.Context) error, ready []condition, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	health := &sharedProbe{probe: probe}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := health.ask(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		report, met := describe(ready)
		if !met {
			http.Error(w, report, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(report + "\n"))
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// probeAge is how old the result of a probe may be.
const probeAge = time.Second

// sharedProbe has whoever asks within probeAge share the result of one probe. It is safe for concurrent
// use.
type sharedProbe struct {
	// probe must end by itself: who asked first may leave, and others wait for the result.
	probe func(context.Context) error

	mu  sync.Mutex
	at  time.Time
	err error
}

func (s *sharedProbe) ask(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) >= probeAge {
		s.err = s.probe(context.WithoutCancel(ctx))
		s.at = time.Now()
	}
	return s.err
}

// describe names each condition in a line, as the components of Kubernetes do, and says whether all are met.
func describe(ready []condition) (report string, met bool) {
	lines, met := make([]string, 0, len(ready)), true
	for _, c := range ready {
		if err := c.err(); err != nil {
			met = false
			lines = append(lines, fmt.Sprintf("[-]%s: %v", c.name, err))
			continue
		}
		lines = append(lines, fmt.Sprintf("[+]%s ok", c.name))
	}
	return strings.Join(lines, "\n"), met
}

// unmet names each condition that is not met, and why.
func unmet(ready []condition) (lines []string) {
	for _, c := range ready {
		if err := c.err(); err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", c.name, err))
		}
	}
	return lines
}

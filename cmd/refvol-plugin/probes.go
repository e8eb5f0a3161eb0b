package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := probe(r.Context()); err != nil {
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

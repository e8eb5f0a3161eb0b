package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// condition is one condition of readiness. err returns why it isn't met, or nil if it is.
type condition struct {
	name string
	err  func() error
}

// monitoring serves the kubelet's probes of the plugin's own pod, and Prometheus:
//
//   - /healthz answers 200 if probe, a call through the plugin's own socket, succeeds.
//   - /readyz answers 200 if all conditions are met, and names each of them.
//   - /metrics is served by the handler metrics.
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

// sharedProbe shares the result of one probe among all requests within probeAge. It is safe for concurrent use.
type sharedProbe struct {
	// probe must end by itself, because the first request may end while others wait for the result.
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

// describe returns a line for each condition, as the components of Kubernetes do, and reports whether all are met.
func describe(ready []condition) (report string, met bool) {
	var lines []string
	met = true
	for _, c := range ready {
		if err := c.err(); err != nil {
			lines, met = append(lines, fmt.Sprintf("[-]%s: %v", c.name, err)), false
			continue
		}
		lines = append(lines, fmt.Sprintf("[+]%s ok", c.name))
	}
	return strings.Join(lines, "\n"), met
}

// unmet returns a line for each condition that is not met, with the reason.
func unmet(ready []condition) (lines []string) {
	for _, c := range ready {
		if err := c.err(); err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", c.name, err))
		}
	}
	return lines
}

// readiness returns the conditions of readiness: mounts reach the node, the plugin has its rights, and the kubelet has registered the
// driver.
func readiness(notShared, rights func() error, registered func() bool) []condition {
	return []condition{
		{"shared-mounts", notShared},
		{"rights", rights},
		{"registration", func() error {
			if !registered() {
				return errors.New("the kubelet has not registered the driver yet")
			}
			return nil
		}},
	}
}

// notShared returns the error of mount.Mounter.CheckPropagation if it is certain that mounts don't reach the node. If that could not be
// checked, it returns nil, and volumes are published. It logs both cases. A container's mounts keep their propagation, so one check per
// process is enough.
func notShared(ctx context.Context, propagation error) error {
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(propagation, mount.ErrNotShared):
		logger.Error(propagation, "Not ready: pods would get empty directories")
		return propagation
	case propagation != nil:
		logger.Error(propagation, "Can't tell whether volumes reach the node")
	}
	return nil
}

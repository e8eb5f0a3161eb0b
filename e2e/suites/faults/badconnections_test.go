package faults

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// TestBadConnections: connections are refused, cut or deaf; the other faults of an API server are in internal/simulation and pkg/requests.
// Meanwhile files stay as they are, a publish fails in a way that the kubelet repeats, and an unpublish works. Soon after, everything is
// current. A short stall drops no watch.
func TestBadConnections(t *testing.T) {
	t.Parallel()
	for _, fault := range harness.Scaled([]fault{refusedConns, cutConns, halfOpenConns}, []fault{refusedConns, cutConns, halfOpenConns, heldConns}) {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			n, proxy := newProxied(t, world.AnyPort, "--profiling-address=127.0.0.1:0", "--publish-wait=3s")
			before := n.Value("app")
			n.ConfigMap("late", map[string]string{"key": "late"})
			stays, goes, comes := n.Published("app"), n.Published("app"), n.Short("late")
			restarts := n.Scrape().Sum("refvol_reflector_restarts_total")
			proxy.inject(fault)
			changed := n.Value("app")
			for range 2 { // longer than a connection is silent before it is pinged
				world.WantStatus(t, n.Publish(t.Context(), comes), codes.Unavailable)
			}
			n.MustUnpublish(goes)
			n.WantContent(stays, "key", before) // else there is no fault
			proxy.inject(noFault)
			took := n.Arrives(stays, "key", changed, world.Healed)
			n.Publishes(comes, world.Healed)
			n.WantContent(comes, "key", "late")
			t.Logf("current %s after the fault", took)
			if now := n.Scrape().Sum("refvol_reflector_restarts_total"); fault == heldConns && now != restarts {
				t.Errorf("a short stall dropped a watch: %v were opened again, %v before", now, restarts)
			}
			n.UnpublishAll([]*harness.Volume{stays, comes})
			harness.Eventually(t, world.Soon, func() error {
				stacks, err := harness.Get(t.Context(), "http://"+n.Address(n.ProfilingAddress)+"/debug/pprof/goroutine?debug=1")
				if err == nil && strings.Contains(stacks.Body, "manager.(*watcher)") {
					err = errors.New("a watch is left")
				}
				return err
			})
		})
	}
}

// An API server that starts refuses everybody for a moment. That is nobody's fault and no event.
func TestNoDenialWhileTheAPIServerStarts(t *testing.T) {
	n := lab.NewNode(t)
	n.Value("app")
	var volumes []*harness.Volume
	for range 10 {
		volumes = append(volumes, n.Published("app"))
	}
	for range harness.Scaled(1, 10) {
		must.Do(t, errors.Join(lab.StopAPIServer(), lab.StartAPIServer(t.Context())))
		value := n.Value("app")
		for _, v := range volumes {
			n.Arrives(v, "key", value, world.Soon)
			n.HasCondition(v, "")
		}
	}
	for _, v := range volumes {
		if events := n.EventsOf(v, "RefForbidden"); len(events) > 0 {
			t.Errorf("%d events, the first: %s", len(events), events[0].Message)
		}
	}
	n.UnpublishAll(volumes)
}

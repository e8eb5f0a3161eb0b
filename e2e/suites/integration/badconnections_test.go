package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// healed is how long after the end of a fault a volume may take to be current. A half-open connection is given up after 50 s. The longest
// pause is the wait that a server may ask for, of a minute, and half of that as jitter.
const healed = 3 * time.Minute

// TestBadConnections: connections are refused, cut or deaf; the other faults of an API server are in internal/simulation and pkg/requests.
// Meanwhile files stay as they are, a publish fails in a way that the kubelet repeats, and an unpublish works. Soon after, everything is
// current. A short stall drops no watch.
func TestBadConnections(t *testing.T) {
	t.Parallel()
	for _, fault := range harness.Scaled([]fault{refusedConns, cutConns, halfOpenConns}, []fault{refusedConns, cutConns, halfOpenConns, heldConns}) {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			n, proxy := newProxied(t, anyPort, "--profiling-address=127.0.0.1:0", "--publish-wait=3s")
			before := n.value("app")
			n.configMap("late", map[string]string{"key": "late"})
			stays, goes, comes := n.published("app"), n.published("app"), n.short("late")
			restarts := n.scrape().sum("refvol_reflector_restarts_total")
			proxy.inject(fault)
			changed := n.value("app")
			for range 2 { // longer than a connection is silent before it is pinged
				wantStatus(t, n.Publish(t.Context(), comes), codes.Unavailable)
			}
			n.mustUnpublish(goes)
			n.wantContent(stays, "key", before) // else there is no fault
			proxy.inject(noFault)
			took := n.arrives(stays, "key", changed, healed)
			n.publishes(comes, healed)
			n.wantContent(comes, "key", "late")
			t.Logf("current %s after the fault", took)
			if now := n.scrape().sum("refvol_reflector_restarts_total"); fault == heldConns && now != restarts {
				t.Errorf("a short stall dropped a watch: %v were opened again, %v before", now, restarts)
			}
			n.unpublishAll([]*harness.Volume{stays, comes})
			harness.Eventually(t, soon, func() error {
				stacks, err := harness.Get(t.Context(), "http://"+n.address(n.ProfilingAddress)+"/debug/pprof/goroutine?debug=1")
				if err == nil && strings.Contains(stacks.Body, "manager.(*watcher)") {
					err = errors.New("a watch is left")
				}
				return err
			})
		})
	}
}

// An API server that starts refuses everybody for a moment. That is nobody's fault and
// no event.
func TestNoDenialWhileTheAPIServerStarts(t *testing.T) {
	n := newNode(t)
	n.value("app")
	var volumes []*harness.Volume
	for range 10 {
		volumes = append(volumes, n.published("app"))
	}
	for range harness.Scaled(1, 10) {
		must.Do(t, errors.Join(shared.StopAPIServer(), shared.StartAPIServer(t.Context())))
		value := n.value("app")
		for _, v := range volumes {
			n.arrives(v, "key", value, soon)
			n.hasCondition(v, "")
		}
	}
	for _, v := range volumes {
		if events := n.eventsOf(v, "RefForbidden"); len(events) > 0 {
			t.Errorf("%d events, the first: %s", len(events), events[0].Message)
		}
	}
	n.unpublishAll(volumes)
}

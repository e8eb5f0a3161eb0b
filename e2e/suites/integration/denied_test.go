package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// An API server that starts refuses everybody for a moment. That is nobody's fault and
// no event.
func TestNoDenialWhileTheAPIServerStarts(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	var volumes []*harness.Volume
	for range 10 {
		volumes = append(volumes, n.published("app"))
	}
	for range harness.Scaled(1, 10) {
		if err := errors.Join(shared.StopAPIServer(), shared.StartAPIServer(t.Context())); err != nil {
			t.Fatal(err)
		}
		value := n.value("app")
		for _, v := range volumes {
			n.arrives(v, "key", value, time.Minute)
			n.hasCondition(v, "")
		}
	}
	for _, v := range volumes {
		if events := n.eventsOf(v, "RefForbidden"); len(events) > 0 {
			t.Errorf("%d events, the first: %s", len(events), events[0].Message)
		}
		n.mustUnpublish(v)
	}
}

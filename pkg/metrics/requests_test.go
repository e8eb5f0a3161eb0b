package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/pkg/requests"
)

// Waiting requests are reported, and each reason from the start.
func TestRequestsThatWait(t *testing.T) {
	m := New(apiversion.Info{})
	state := func() requests.State {
		return requests.State{UnderWay: 3, Waiting: 7, Closed: map[requests.Reason]int{requests.Unauthorized: 2}}
	}
	if err := m.ShowRequests(state); err != nil {
		t.Fatal(err)
	}
	const want = `
# HELP refvol_requests_paused_identities Identities whose requests to the API server wait until one of them succeeds, by the reason.
# TYPE refvol_requests_paused_identities gauge
refvol_requests_paused_identities{reason="no-credential"} 0
refvol_requests_paused_identities{reason="unauthorized"} 2
refvol_requests_paused_identities{reason="unavailable"} 0
refvol_requests_paused_identities{reason="unreachable"} 0
# HELP refvol_requests_under_way Requests to the API server without an answer, for a second each: 12 at most, 16 with urgent ones.
# TYPE refvol_requests_under_way gauge
refvol_requests_under_way 3
# HELP refvol_requests_waiting Requests to the API server that are not sent yet.
# TYPE refvol_requests_waiting gauge
refvol_requests_waiting 7
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "refvol_requests_paused_identities", "refvol_requests_under_way", "refvol_requests_waiting"); err != nil {
		t.Error(err)
	}
	if err := m.ShowRequests(state); err == nil || !strings.HasPrefix(err.Error(), "register the metrics of requests: ") {
		t.Errorf("a second time: %v", err)
	}
}

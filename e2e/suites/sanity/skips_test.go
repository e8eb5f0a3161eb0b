package sanity

import (
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// ours are the cases that this test leaves out: the plugin has no controller, and they would test the wrapper's. Others csi-sanity
// leaves out by itself, as the plugin announces no such capability: of snapshots, groups, stages, expansion, and health.
const ours = "Controller Service [Controller Server]"

// wantRun is how many cases run: fewer mean that csi-sanity has changed, or that a
// capability is no longer announced.
const wantRun = 17

// checkRun has all cases pass that did run, and as many as there should be.
func checkRun(t *testing.T, reports types.SpecReports) {
	t.Helper()
	run := 0
	for _, report := range reports {
		switch {
		case report.LeafNodeType != types.NodeTypeIt:
		case report.State.Is(types.SpecStatePassed):
			run++
			t.Logf("ran: %s", report.FullText())
		case !report.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			t.Errorf("%q ended %s", report.FullText(), report.State)
		}
	}
	if run != wantRun {
		t.Errorf("%d cases ran, want %d", run, wantRun)
	}
}

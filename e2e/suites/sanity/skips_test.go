package sanity

import (
	"regexp"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// skip is a group of cases that do not run.
type skip struct {
	// cases is how the full texts of the cases start.
	cases string
	// why says what is missing, and what for.
	why string
	// ours is set where this test leaves the cases out. The others csi-sanity leaves
	// out by itself, as the plugin announces no such capability.
	ours bool
}

// wantRun is how many cases run: fewer mean that csi-sanity has changed, or that a
// capability is no longer announced.
const wantRun = 17

var skips = []skip{
	{
		cases: "Controller Service [Controller Server]", ours: true,
		why: "the plugin has no controller: they would test the wrapper's",
	},
	{cases: "ListSnapshots [Controller Server]", why: "no controller, so no snapshots"},
	{cases: "GetSnapshot [Controller Server]", why: "no controller, so no snapshots"},
	{cases: "DeleteSnapshot [Controller Server]", why: "no controller, so no snapshots"},
	{cases: "CreateSnapshot [Controller Server]", why: "no controller, so no snapshots"},
	{cases: "ExpandVolume [Controller Server]", why: "no controller; a volume's size follows its objects"},
	{cases: "ModifyVolume [Controller Server]", why: "no controller; an inline volume's attributes are the pod's"},
	{cases: "ControllerGetVolumeHealth [Controller Server]", why: "no controller"},
	{cases: "ControllerListVolumeHealth [Controller Server]", why: "no controller"},
	{cases: "GroupController Service [GroupController Server]", why: "no controller, so no groups of volumes"},
	{cases: "GroupController Service [GroupController VolumeGroupSnapshots]", why: "no controller, so no groups of volumes"},
	{
		cases: "Node Service NodePublishVolume with single node multi writer capability",
		why:   "volumes are read-only, so there is no writer to tell from another",
	},
	{cases: "Node Service NodeStageVolume", why: "an inline volume has one target on the node, and nothing to stage"},
	{cases: "Node Service NodeUnstageVolume", why: "an inline volume has one target on the node, and nothing to stage"},
	{cases: "Node Service NodeExpandVolume", why: "a volume's size is fixed at its mount, by --max-volume-size"},
	{cases: "Node Service NodeGetVolumeHealth", why: "of a later CSI than the kubelet speaks; NodeGetVolumeStats has the condition"},
	{cases: "Node Service NodeGetStorageHealth", why: "of a later CSI than the kubelet speaks; there is no storage behind the node"},
}

// leftOut are patterns for what csi-sanity would run if it were not told otherwise.
func leftOut() []string {
	var patterns []string
	for _, s := range skips {
		if s.ours {
			patterns = append(patterns, "^"+regexp.QuoteMeta(suiteName+" "+s.cases))
		}
	}
	return patterns
}

// checkSkips has what did not run be exactly what the list names, and the rest run.
func checkSkips(t *testing.T, reports types.SpecReports) {
	t.Helper()
	skipped := make([]int, len(skips))
	run := 0
	for _, report := range reports {
		if report.LeafNodeType != types.NodeTypeIt {
			continue
		}
		text := report.FullText()
		entry := entryOf(text)
		switch {
		case report.State.Is(types.SpecStatePassed):
			run++
			t.Logf("ran: %s", text)
			if entry >= 0 {
				t.Errorf("%q ran, and is in the list of skips", text)
			}
		case !report.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			t.Errorf("%q ended %s", text, report.State)
		case entry < 0:
			t.Errorf("%q did not run, and is not in the list of skips: %s", text, report.Failure.Message)
		default:
			skipped[entry]++
		}
	}
	for i, n := range skipped {
		if n == 0 {
			t.Errorf("no case is skipped that starts with %q: strike the entry out", skips[i].cases)
		}
		t.Logf("skipped: %d of %s: %s", n, skips[i].cases, skips[i].why)
	}
	if run != wantRun {
		t.Errorf("%d cases ran, want %d", run, wantRun)
	}
}

// entryOf returns the index of the longest entry that a case starts with, or -1.
func entryOf(text string) int {
	found := -1
	for i, s := range skips {
		if strings.HasPrefix(text, s.cases) && (found < 0 || len(s.cases) > len(skips[found].cases)) {
			found = i
		}
	}
	return found
}

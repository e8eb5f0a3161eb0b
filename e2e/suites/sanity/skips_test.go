package sanity

import (
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// ours are the cases that this test leaves out: the plugin has no controller, and they would test the wrapper's.
const ours = "Controller Service [Controller Server]"

// wantRun is how many cases run: fewer mean that csi-sanity has changed, or that a
// capability is no longer announced.
const wantRun = 17

// skips are how the full texts of the cases start that do not run, and why. Others than ours csi-sanity leaves out by itself,
// as the plugin announces no such capability.
func skips() map[string]string {
	const snapshots, groups, inline = "no controller, so no snapshots", "no controller, so no groups of volumes", "an inline volume has one target on the node, and nothing to stage"
	return map[string]string{
		ours:                                                                      "no controller",
		"ListSnapshots [Controller Server]":                                       snapshots,
		"GetSnapshot [Controller Server]":                                         snapshots,
		"DeleteSnapshot [Controller Server]":                                      snapshots,
		"CreateSnapshot [Controller Server]":                                      snapshots,
		"ExpandVolume [Controller Server]":                                        "no controller; a volume's size follows its objects",
		"ModifyVolume [Controller Server]":                                        "no controller; an inline volume's attributes are the pod's",
		"ControllerGetVolumeHealth [Controller Server]":                           "no controller",
		"ControllerListVolumeHealth [Controller Server]":                          "no controller",
		"GroupController Service [GroupController Server]":                        groups,
		"GroupController Service [GroupController VolumeGroupSnapshots]":          groups,
		"Node Service NodePublishVolume with single node multi writer capability": "volumes are read-only, so there is no writer to tell from another",
		"Node Service NodeStageVolume":                                            inline,
		"Node Service NodeUnstageVolume":                                          inline,
		"Node Service NodeExpandVolume":                                           "a volume's size is fixed at its mount, by --max-volume-size",
		"Node Service NodeGetVolumeHealth":                                        "the kubelet (1.37) does not probe inline volumes; events tell what ails one",
		"Node Service NodeGetStorageHealth":                                       "there is no storage behind the node",
	}
}

// checkSkips has what did not run be exactly what the list names, and the rest run.
func checkSkips(t *testing.T, reports types.SpecReports) {
	t.Helper()
	left, run := skips(), 0
	for _, report := range reports {
		if report.LeafNodeType != types.NodeTypeIt {
			continue
		}
		text := report.FullText()
		listed := ""
		for cases := range skips() {
			if strings.HasPrefix(text, cases) {
				listed = cases
				delete(left, cases)
			}
		}
		switch {
		case report.State.Is(types.SpecStatePassed):
			run++
			t.Logf("ran: %s", text)
			if listed != "" {
				t.Errorf("%q ran, and is in the list of skips", text)
			}
		case !report.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			t.Errorf("%q ended %s", text, report.State)
		case listed == "":
			t.Errorf("%q did not run, and is not in the list of skips: %s", text, report.Failure.Message)
		}
	}
	for cases := range left {
		t.Errorf("no case is skipped that starts with %q: strike the entry out", cases)
	}
	if run != wantRun {
		t.Errorf("%d cases ran, want %d", run, wantRun)
	}
}

package manager

import (
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestReferences: an object is watched as long as a volume names it, however often, whichever pods the volumes have.
func TestReferences(t *testing.T) {
	a, b := secretRef("a"), configMapRef("a")
	inEachBubble(t, func(t *testing.T, e *env) {
		for i, step := range []struct {
			pod, volumeID string
			refs          []volume.Ref // nil unregisters the volume
			watched       map[volume.Ref]int
		}{
			{"p", "v", []volume.Ref{a, b, a}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "w", []volume.Ref{a}, map[volume.Ref]int{a: 1, b: 1}},
			{"q", "v", []volume.Ref{a}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "v", []volume.Ref{b}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "w", nil, map[volume.Ref]int{a: 1, b: 1}},
			{"q", "v", nil, map[volume.Ref]int{b: 1}},
			{"q", "v", nil, map[volume.Ref]int{b: 1}},
			{"p", "v", []volume.Ref{}, nil},
			{"p", "v", []volume.Ref{a}, map[volume.Ref]int{a: 1}},
			{"p", "v", nil, nil},
		} {
			if step.refs == nil {
				e.UnregisterPod(pod(step.pod), step.volumeID)
			} else {
				e.RegisterPod(pod(step.pod), step.volumeID, step.refs)
			}
			if all := slices.Collect(e.Objects); len(all) != len(step.watched) {
				t.Errorf("after step %d %d objects are reported, want %d", i, len(all), len(step.watched))
			}
			for _, ref := range []volume.Ref{a, b} {
				e.wantWatches(ref, step.watched[ref])
				if isRegistered := e.item(ref) != nil; isRegistered != (step.watched[ref] > 0) {
					t.Errorf("after step %d %s is registered: %t", i, ref, isRegistered)
				}
			}
		}
	})
}

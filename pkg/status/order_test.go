package status

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestOrder: the worst volumes come first, whatever the order in which they were told.
func TestOrder(t *testing.T) {
	volume := func(abnormal bool, condition, namespace, pod, uid, name, id string) Volume {
		return Volume{Unhealthy: abnormal, Condition: condition, Pod: Pod{Namespace: namespace, Name: pod, UID: uid}, Name: name, VolumeID: id}
	}
	want := []Volume{
		volume(true, "NewerThanThis", "z", "z", "", "z", ""),
		volume(true, "RefForbidden", "z", "z", "", "z", ""),
		volume(true, "VolumeUpdateFailed", "z", "z", "", "z", ""),
		volume(true, "RefDeleted", "z", "z", "", "z", ""),
		volume(true, "RefKeyNotFound", "z", "z", "", "z", ""),
		volume(true, "RefNotFound", "z", "z", "", "z", ""),
		volume(true, "Unknown", "z", "z", "", "z", ""),
		volume(true, "Publishing", "z", "z", "", "z", ""),
		volume(true, "Current", "z", "z", "", "z", ""),
		volume(false, "AlsoNewer", "z", "z", "", "z", ""),
		volume(false, "NewerThanThis", "a", "a", "", "a", ""),
		volume(false, "Unknown", "", "", "1", "a", ""),
		volume(false, "Unknown", "", "", "2", "a", ""),
		volume(false, "Publishing", "z", "z", "", "z", ""),
		volume(false, "Current", "a", "b", "1", "b", "1"),
		volume(false, "Current", "a", "b", "1", "b", "2"),
		volume(false, "Current", "a", "b", "1", "c", "1"),
		volume(false, "Current", "a", "b", "2", "a", "1"),
		volume(false, "Current", "a", "c", "1", "a", "1"),
		volume(false, "Current", "b", "a", "1", "a", "1"),
		volume(false, "Pinned", "a", "a", "", "a", ""),
	}
	compare := func(a, b Volume) int { return Compare(&a, &b) }
	for range 20 {
		got := slices.Clone(want)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, compare)
		if !slices.EqualFunc(got, want, func(a, b Volume) bool { return compare(a, b) == 0 }) {
			t.Fatalf("got %+v", got)
		}
	}
	if n := (&Report{Volumes: want}).Unhealthy(); n != 9 {
		t.Errorf("%d are abnormal, want 9", n)
	}
}

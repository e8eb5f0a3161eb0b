package status

import (
	"cmp"
	"slices"
)

// worstFirst returns the conditions in the order in which a Report lists volumes. One that this
// release does not know stands before all of them.
func worstFirst() []string {
	return []string{
		"RefForbidden", "VolumeUpdateFailed", "RefDeleted", "RefKeyNotFound", "RefNotFound",
		"Unknown", "Publishing", "Current", "Pinned",
	}
}

// Compare orders volumes: the abnormal ones first, then by how bad the condition is, then by pod and
// volume. Only two reports of one volume are equal.
func Compare(a, b *Volume) int {
	rank := func(v *Volume) int { return slices.Index(worstFirst(), v.Condition) }
	if a.Unhealthy != b.Unhealthy {
		if a.Unhealthy {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		cmp.Compare(a.Condition, b.Condition),
		cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
		cmp.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.Pod.UID, b.Pod.UID),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.VolumeID, b.VolumeID),
	)
}

// Unhealthy returns how many of the volumes are abnormal.
func (r *Report) Unhealthy() int {
	n := 0
	for i := range r.Volumes {
		if r.Volumes[i].Unhealthy {
			n++
		}
	}
	return n
}

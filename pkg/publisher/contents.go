package publisher

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/volume"
)

// has says whether the files show, or showed, an object.
func (v *vol) has(ref volume.Ref) bool { return v.contents.shown[ref].UID != "" }

// isCurrent says whether the files are known to show the objects as they are.
func (v *vol) isCurrent(got *answers) bool {
	c := &v.contents
	return v.mounted && c.proven && got.unknown == nil && maps.Equal(c.shown, got.at) && maps.Equal(c.withdrawn, got.refused)
}

// older returns an object whose version is older than what the files show of it. An
// API server may answer so after a restart of this process, while it catches up.
func (v *vol) older(got *answers) (volume.Ref, bool) {
	for ref, version := range got.at {
		shown := v.contents.shown[ref]
		if shown.ResourceVersion == "" || version.ResourceVersion == "" {
			continue
		}
		order, err := resourceversion.CompareResourceVersion(version.ResourceVersion, shown.ResourceVersion)
		if err == nil && order < 0 {
			return ref, true
		}
	}
	return volume.Ref{}, false
}

// showsAny says whether files of one of refused are, or may be, there.
func (v *vol) showsAny(refused map[volume.Ref]bool) bool {
	for ref := range refused {
		if !v.contents.withdrawn[ref] {
			return true
		}
	}
	return false
}

// switchedNow notes that files have changed: where they are visible, their readers then have their time.
func (v *vol) switchedNow() {
	if !v.mounted {
		return
	}
	v.contents.switched = time.Now()
	if v.contents.pruneAt.IsZero() {
		v.contents.pruneAt = v.contents.switched.Add(pruneTime)
	}
}

// showed tells the observer that the files have just changed, if that is what a change was waiting for.
func (v *vol) showed() {
	if at := v.contents.changedAt; !at.IsZero() {
		v.p.opts.Observer.Propagated(time.Since(at))
	}
	v.contents.changedAt = time.Time{}
}

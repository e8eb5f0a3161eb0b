package publisher

import (
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// has says whether the files show, or showed, an object.
func (v *vol) has(ref volume.Ref) bool { return v.contents.shown[ref].UID != "" }

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

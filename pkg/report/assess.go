package report

import (
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
)

// patience is how long a volume may be in a condition that is to pass, and how long the proof that a
// stale object is current may be ago.
const patience = 5 * time.Minute

// assess returns why somebody should look at a volume, "" if nobody needs to.
//
//   - A condition with the name of an event is a fault.
//   - Unknown and Publishing pass. The kubelet gives a publish two minutes, and brings tokens within
//     one and a half after a restart, so a token that is missing meanwhile is no fault.
//   - Pinned promises nothing about changes.
//   - Current is what the plugin knows. That is old if nothing has proven it for long, and what follows
//     the object fails. An object that can't change is not followed.
func (r *Reporter) assess(v *publisher.VolumeStatus, objects []manager.ObjectStatus, now time.Time) string {
	switch v.Condition {
	case publisher.ConditionPinned:
		return ""
	case publisher.ConditionUnknown, publisher.ConditionPublishing:
		if now.Sub(v.Since) <= patience {
			return ""
		}
		if v.Reason != "" {
			return v.Reason
		}
		return fmt.Sprintf("the condition should have passed: it is %s since %s", v.Condition, instant(v.Since))
	case publisher.ConditionCurrent:
		if v.WithoutToken {
			return "the pod's service account has no usable token, so no change of an object can arrive"
		}
		return r.stale(objects, now)
	}
	if v.Reason != "" {
		return v.Reason
	}
	return string(v.Condition)
}

// stale names the stale object whose last proof is longest ago, if that is too long.
func (r *Reporter) stale(objects []manager.ObjectStatus, now time.Time) string {
	// What is asked for at each resync is proven that rarely. One round may fail.
	proven := now.Add(-patience - 2*r.opts.ResyncInterval)
	which, others := -1, 0
	for i := range objects {
		o := &objects[i]
		if !o.Stale || !provenAt(o).Before(proven) {
			continue
		}
		others++
		if which < 0 || provenAt(o).Before(provenAt(&objects[which])) {
			which = i
		}
	}
	if which < 0 {
		return ""
	}
	o := &objects[which]
	reason := fmt.Sprintf("%s: nothing has proven since %s that it has not changed", o.Ref, instant(provenAt(o)))
	if others > 1 {
		reason += fmt.Sprintf(", and the same of %d more", others-1)
	}
	return reason
}

// provenAt returns when an object was last proven current. One that never was counts from its first
// reference.
func provenAt(o *manager.ObjectStatus) time.Time {
	if o.LastConfirmed.IsZero() {
		return o.Since
	}
	return o.LastConfirmed
}

// instant is how a reason names a moment: the same at each report.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/publisher"
)

// patience is how long a volume may be in a temporary condition, and how old the last proof of a stale object may be.
const patience = 5 * time.Minute

// assess returns why somebody should look at a volume, or "".
//
//   - A condition with the name of an event is a fault.
//   - Unknown and Publishing are temporary. The kubelet gives a publish two minutes, and brings tokens within
//     one and a half minutes after a restart, so a token that is missing meanwhile is no fault.
//   - Pinned promises nothing about changes, and Spreading and Held were requested.
//   - Current describes the plugin's knowledge. That is too old if there was no proof for a long time, and the watch or the
//     requests fail. An immutable object is not followed.
func (r *Reporter) assess(v *reportedVolume, now time.Time) string {
	switch v.Condition {
	case publisher.ConditionPinned:
		return ""
	case publisher.ConditionUnknown, publisher.ConditionPublishing:
		if now.Sub(v.Since) <= patience {
			return ""
		}
		return cmp.Or(v.Reason, fmt.Sprintf("the condition should have passed: it is %s since %s", v.Condition, instant(v.Since)))
	case publisher.ConditionCurrent, publisher.ConditionSpreading, publisher.ConditionHeld:
		if v.WithoutToken {
			return "the pod's service account has no usable token, so no change of an object can arrive"
		}
		return r.stale(v.objects, now)
	}
	return cmp.Or(v.Reason, string(v.Condition))
}

// stale returns a text about the stale object with the oldest proof, if that is too old.
func (r *Reporter) stale(objects []namedObject, now time.Time) string {
	// Objects that are requested at each resync are proven only that often. One round may fail.
	proven := now.Add(-patience - 2*r.ResyncInterval)
	objects = slices.DeleteFunc(slices.Clone(objects), func(o namedObject) bool { return !o.Stale || !o.provenAt().Before(proven) })
	if len(objects) == 0 {
		return ""
	}
	oldest := slices.MinFunc(objects, func(a, b namedObject) int { return a.provenAt().Compare(b.provenAt()) })
	reason := fmt.Sprintf("%s: nothing has proven since %s that it has not changed", oldest.Ref, instant(oldest.provenAt()))
	if len(objects) > 1 {
		reason += fmt.Sprintf(", and the same of %d more", len(objects)-1)
	}
	return reason
}

// provenAt returns when an object was last proven current. For an object that was never proven, it returns the time of the first reference.
func (o *object) provenAt() time.Time {
	if o.LastConfirmed.IsZero() {
		return o.Since
	}
	return o.LastConfirmed
}

// instant formats a time for a reason, so that the text is the same in each report.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

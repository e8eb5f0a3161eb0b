package publisher

import (
	"cmp"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// report builds what is told of a volume, and knows what was already logged of it. Its worker owns it. What it has told never changes.
type report struct {
	binding.Place
	// pod is known except for its name, if an earlier process has mounted the volume.
	pod    volume.Pod
	refs   []volume.Ref
	pinned bool
	// Record is what all files are known to show. It lags behind the volume's record during a rewrite in place, and after a restart until the
	// files have been verified.
	record.Record
	// revisions are those of the shown versions, as far as they are known; "" is none. It is nil if no shown version has one.
	revisions map[volume.Ref]volume.Revision
	// withdrawn holds the refused objects of which no file remains.
	withdrawn map[volume.Ref]bool
	// opened says which objects were opened.
	opened map[volume.Ref]*opened.Object
	// key distinguishes problems. condition is "" until something is known. from is when the key last changed.
	key, problem string
	condition    Condition
	from         time.Time
	// skipped is the last reported text about variables that the env files lack.
	skipped string
}

func newReport(at binding.Place) report { return report{Place: at, pod: volume.Pod{UID: at.UID}} }

// found notes what is known of a volume whose target was just examined. hint is the pod that it names.
func (r *report) found(hint volume.Pod) {
	r.Record, r.revisions = record.Record{}, nil
	if r.withdrawn, r.opened = nil, nil; r.pod.Name == "" && hint.Name != "" {
		r.pod = hint
	}
}

// note records the end of a reconcile and reports whether that is news. A fault always shows. A reason to wait shows beside it.
//
// For a volume that is not mounted, it reports only what the kubelet does not: the kubelet reports a publish that failed.
func (r *report) note(found failure.List, w waits, isMounted bool) (news bool) {
	worst := found.Worst()
	switch {
	case worst != nil && worst.IsSilent() && (r.condition != "" || !isMounted):
		return false
	case worst != nil && worst.IsSilent():
		news = r.problem != found.Error() && !worst.IsUnlogged()
		r.problem = found.Error()
		return news
	case !isMounted && (worst == nil || !isReportedBefore(worst)):
		return false
	}
	key, condition, problem := string(w.condition), cmp.Or(w.condition, ConditionCurrent), w.text
	if worst != nil {
		key, condition, problem = found.Key(), Condition(worst.Condition()), found.Error()
		if w.text != "" {
			problem += "; " + w.text
		}
	}
	news = r.key != key
	if news || r.condition == "" {
		r.from = time.Now()
	}
	if slices.Contains([]Condition{ConditionSpreading, ConditionHeld, ConditionSplit}, r.condition) && condition == ConditionCurrent {
		news = false // the update itself is logged
	}
	r.key, r.condition, r.problem = key, condition, problem
	return news
}

// shows notes what all files show from now on. The revision of a version of which objects has nothing stays as it is known.
func (r *report) shows(shown record.Record, objects payload.Objects) {
	revisions, isAny := make(map[volume.Ref]volume.Revision, len(shown.Shown)), false
	for ref, version := range shown.Shown {
		was, isKnown := r.revisions[ref]
		isKnown = (isKnown || r.revisions == nil) && r.Shown[ref] == version
		switch object := objects[ref]; {
		case object != nil && object.Revision.IsValid():
			revisions[ref] = object.Revision
		case object != nil:
			revisions[ref] = ""
		case isKnown: // it is held, or the volume is taken over once more
			revisions[ref] = was
		}
		isAny = isAny || revisions[ref] != ""
	}
	if !isAny && len(revisions) == len(shown.Shown) { // most objects have none, and a map for each volume takes memory
		revisions = nil
	}
	r.Record, r.revisions = shown, revisions
}

// isReportedBefore reports whether a failure is reported for a volume that is not mounted yet.
func isReportedBefore(f *failure.Failure) bool {
	return (f.Reason == failure.ReasonNotFound || f.Reason == failure.ReasonInvalid) && f.Waits || f.Reason == failure.ReasonForbidden || f.Reason == failure.ReasonNodeFull || f.Reason == failure.ReasonCacheFull ||
		f.Condition() == string(ConditionSplit)
}

// isSkippedNews notes a text about variables that the env files lack, and reports whether the pod's author must be told.
func (r *report) isSkippedNews(text string) bool {
	isNews := text != "" && text != r.skipped
	r.skipped = text
	return isNews
}

// state is what the table tells of a volume. It never changes.
type state struct {
	isMounted bool
	status    VolumeStatus
}

// state returns what is known about the volume, apart from what it holds.
func (r *report) state(isMounted bool) state {
	s := VolumeStatus{
		VolumeID: r.ID, Target: r.Target, Pod: r.pod, Since: r.Since, Refs: r.refs, Record: r.Record, Revisions: r.revisions, Withdrawn: r.withdrawn,
		Opened: r.opened, Condition: r.condition, Reason: r.problem,
	}
	if s.Pod.UID = r.UID; r.condition != "" {
		s.Since = r.from
	}
	switch isFault := r.condition != "" && r.condition != ConditionCurrent; {
	case !isMounted && !isFault:
		s.Condition = ConditionPublishing
	case isFault:
	case r.pinned:
		s.Condition = ConditionPinned
	case r.condition == "":
		s.Condition = ConditionUnknown
		if s.Reason == "" {
			s.Reason = "the state of its objects is not known yet"
		}
	}
	return state{isMounted, s}
}

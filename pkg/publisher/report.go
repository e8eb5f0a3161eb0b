package publisher

import (
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// Condition says in one word what state a volume is in.
type Condition string

// The conditions that need no event. The others are reasons of events: see Conditions.
const (
	// ConditionCurrent: the files show the newest known state of the objects.
	ConditionCurrent Condition = "Current"
	// ConditionPinned: the files keep their first content, as requested.
	ConditionPinned Condition = "Pinned"
	// ConditionPublishing: a publish is running and nothing is mounted yet.
	ConditionPublishing Condition = "Publishing"
	// ConditionUnknown: an earlier process mounted the volume, and this one does not know yet whether the files are current.
	ConditionUnknown Condition = "Unknown"
	// ConditionSpreading: a change is known and waits for the pod's moment, as requested.
	ConditionSpreading Condition = "Spreading"
	// ConditionHeld: a newer version is known, but the pod does not belong to the share that may take it, as requested.
	ConditionHeld Condition = "Held"
	// ConditionStale: the state of some objects is not known, because requests for them fail. Their files stay as they are, and may be old.
	ConditionStale Condition = "Stale"
)

// Conditions returns all conditions that a volume may have.
func Conditions() []Condition {
	return []Condition{
		ConditionCurrent, ConditionPinned, ConditionPublishing, ConditionUnknown, ConditionSpreading, ConditionHeld, ConditionStale,
		eventRefNotFound, eventRefKeyNotFound, eventRefForbidden, eventRefDeleted, eventVolumeUpdateFailed,
	}
}

// VolumeStatus is what is known about one volume at one moment. It holds no value of an object. Its slice and its maps are shared and must
// not be changed.
type VolumeStatus struct {
	VolumeID, Target string
	// Pod is the pod that the volume belongs to. For a volume of an earlier process only the UID is known until the pod's name has been
	// read.
	Pod volume.Pod
	// Condition is the volume's state. Reason explains it, or is "". Since is when this state began. If it is older than this process,
	// Since is when this process started with the volume.
	Condition Condition
	Reason    string
	Since     time.Time
	// Refs are the objects that the volume names. Shown has the versions of those that the files show. Both are empty for a volume that has
	// not been taken over yet.
	Refs  []volume.Ref
	Shown record.Versions
	// Withdrawn are the objects that the pod may no longer read and of which no file remains.
	Withdrawn map[volume.Ref]bool
	// Opened says which objects were opened, by the files that are shown now. nil means not known. If opens are watched on no volume,
	// OpensWatched is false.
	Opened       map[volume.Ref]*opened.Object
	OpensWatched bool
	// Bytes is the memory that the file system holds, including inodes and old files that readers have open.
	Bytes int64
	// WithoutToken means that the objects are read with the pod's token, but the pod's service account has no usable token.
	WithoutToken bool
}

// OpenState returns whether an object was opened.
func (s *VolumeStatus) OpenState(ref volume.Ref) opened.State {
	switch o := s.Opened[ref]; {
	case !s.OpensWatched:
		return opened.Unsupported
	case o == nil:
		return opened.Unknown
	default:
		return o.State
	}
}

// report is what is reported about a volume. Only the worker changes it, holding table.mu, so the worker may read it without the lock. Its
// maps never change.
type report struct {
	pod    volume.Pod
	refs   []volume.Ref
	pinned bool
	// shown is what all files are known to show. It lags behind the record during a rewrite in place, and after a restart until the files
	// have been verified.
	shown record.Versions
	// withdrawn holds the refused objects of which no file remains.
	withdrawn map[volume.Ref]bool
	// opened says which objects were opened.
	opened map[volume.Ref]*opened.Object
	// kind distinguishes problems. condition is "" until something is known. since is when kind last changed.
	kind, problem string
	condition     Condition
	since         time.Time
}

// note records the end of a reconcile, with nil for success, and reports whether that is news. The caller holds mu.
//
// For a volume that is not mounted, it reports only what the kubelet does not: the kubelet reports a publish that failed.
func (r *report) note(f *failure, isMounted bool) (news bool) {
	switch {
	case f != nil && f.silent && (r.condition != "" || !isMounted):
		return false
	case f != nil && f.silent:
		news = r.problem != f.Error() && !f.isUnlogged()
		r.problem = f.Error()
		return news
	case !isMounted && (f == nil || !f.isReportedBefore()):
		return false
	}
	kind := ""
	if f != nil {
		kind = f.kind
	}
	news = r.kind != kind
	if news || r.condition == "" {
		r.since = time.Now()
	}
	if (r.condition == ConditionSpreading || r.condition == ConditionHeld) && f == nil {
		news = false // the update itself is logged
	}
	r.kind, r.problem, r.condition = kind, "", ConditionCurrent
	if f != nil {
		r.problem, r.condition = f.Error(), Condition(f.event)
	}
	return news
}

// isReportedBefore reports whether a failure is reported for a volume that is not mounted yet.
func (f *failure) isReportedBefore() bool {
	return (f.reason == ReasonNotFound || f.reason == ReasonInvalid) && f.waits || f.reason == ReasonForbidden || f.reason == ReasonNodeFull || f.reason == ReasonCacheFull
}

// withdraw notes that no file shows these objects any more. The caller holds mu.
func (r *report) withdraw(gone map[volume.Ref]bool) {
	r.shown = maps.Clone(r.shown)
	for ref := range gone {
		delete(r.shown, ref)
	}
}

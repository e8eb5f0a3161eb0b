package publisher

import (
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// Condition says in one word how a volume is.
type Condition string

// The conditions that are no fault. The others are the reasons of events: see Conditions.
const (
	// ConditionCurrent: the files show the newest known state of the objects.
	ConditionCurrent Condition = "Current"
	// ConditionPinned: the files show what they showed first, as was asked for.
	ConditionPinned Condition = "Pinned"
	// ConditionPublishing: a publish runs, and nothing is mounted yet.
	ConditionPublishing Condition = "Publishing"
	// ConditionUnknown: an earlier process has mounted the volume, and this one doesn't know yet
	// whether its files are current.
	ConditionUnknown Condition = "Unknown"
	// ConditionSpreading: a change is known, and waits for the pod's moment, as was asked for.
	ConditionSpreading Condition = "Spreading"
	// ConditionHeld: a newer version is known, and the pod is not of the share that may take it, as was asked for.
	ConditionHeld Condition = "Held"
)

// Conditions returns every Condition that a volume may have.
func Conditions() []Condition {
	return []Condition{
		ConditionCurrent, ConditionPinned, ConditionPublishing, ConditionUnknown, ConditionSpreading, ConditionHeld,
		eventRefNotFound, eventRefKeyNotFound, eventRefForbidden, eventRefDeleted, eventVolumeUpdateFailed,
	}
}

// VolumeStatus is what is known of one volume at one moment. It holds no value of an object. Its
// slice and its map are shared, and must not be changed.
type VolumeStatus struct {
	VolumeID, Target string
	// Pod is whom the volume is for. As long as an earlier process's volume does not name it,
	// only the UID is known.
	Pod volume.Pod
	// Condition is how the volume is, Reason why, as a text, or "", and Since when that began
	// or, of a condition from before this process, when this process began with the volume.
	Condition Condition
	Reason    string
	Since     time.Time
	// Refs are the objects that it names, and Shown the versions of those that its files show;
	// both are empty for a volume that is not taken over yet.
	Refs  []volume.Ref
	Shown record.Versions
	// Withdrawn are those that the pod may not have any more, and of which no file is left.
	Withdrawn map[volume.Ref]bool
	// Opened says which of the objects were opened, by files that are shown now; nil: not known. OpensWatched is
	// false where opens are watched on no volume.
	Opened       map[volume.Ref]*Opened
	OpensWatched bool
	// Bytes is the memory that its file system holds, with inodes, and with old files that readers have open.
	Bytes int64
	// WithoutToken says that its objects are read with its pod's token, and that there is no
	// usable one of the pod's service account.
	WithoutToken bool
}

// OpenState returns that of an object.
func (s *VolumeStatus) OpenState(ref volume.Ref) OpenState {
	switch o := s.Opened[ref]; {
	case !s.OpensWatched:
		return OpenUnsupported
	case o == nil:
		return OpenUnknown
	default:
		return o.State
	}
}

// report is what is reported of a volume. Only the worker changes it, with table.mu, so it may read it as it is. Its maps do
// not change.
type report struct {
	pod    volume.Pod
	refs   []volume.Ref
	pinned bool
	// shown is what all files are known to show. It lags behind the record while files are rewritten in place, and until a
	// restarted process has made sure of them.
	shown record.Versions
	// withdrawn holds the refused objects of which no file is left.
	withdrawn map[volume.Ref]bool
	// opened says which of the objects were opened.
	opened map[volume.Ref]*Opened
	// kind distinguishes problems, and condition is "" until something is known, and since is when kind last changed.
	kind, problem string
	condition     Condition
	since         time.Time
}

// note takes in the end of a reconcile, nil for success, and says whether that is news. The caller holds mu.
//
// Of a volume that is not mounted it reports what can't be seen in the pod's spec: for the rest, the kubelet reports the
// publish that failed.
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
		news = false // the log has the update
	}
	r.kind, r.problem, r.condition = kind, "", ConditionCurrent
	if f != nil {
		r.problem, r.condition = f.Error(), Condition(f.event)
	}
	return news
}

// isReportedBefore says whether a failure is reported of a volume that is not mounted yet.
func (f *failure) isReportedBefore() bool {
	return (f.reason == ReasonNotFound || f.reason == ReasonInvalid) && f.waits || f.reason == ReasonForbidden || f.reason == ReasonNodeFull || f.reason == ReasonCacheFull
}

// withdraw notes that no file shows the objects any more. The caller holds mu.
func (r *report) withdraw(gone map[volume.Ref]bool) {
	r.shown = maps.Clone(r.shown)
	for ref := range gone {
		delete(r.shown, ref)
	}
}

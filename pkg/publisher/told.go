package publisher

import (
	"errors"
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/manager"
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
)

// Conditions returns every Condition that a volume may have.
func Conditions() []Condition {
	return []Condition{
		ConditionCurrent, ConditionPinned, ConditionPublishing, ConditionUnknown, ConditionSpreading,
		eventRefNotFound, eventRefKeyNotFound, eventRefForbidden, eventRefDeleted, eventVolumeUpdateFailed,
	}
}

// VolumeStatus is what is known of one volume at one moment. It holds no value of an object. Its
// slice and its map are shared, and must not be changed.
type VolumeStatus struct {
	VolumeID, Target string
	// Pod is whom the volume is for. As long as an earlier process's volume does not tell that,
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
	// Opened says which of the objects were opened, by files that are shown now; nil: that can't be told. OpensWatched is
	// false where opens are watched on no volume.
	Opened       map[volume.Ref]*Opened
	OpensWatched bool
	// Bytes is the memory that its file system holds, with inodes, and with old files that readers have open.
	Bytes int64
	// WithoutToken says that its objects are read with its pod's token, and that there is no
	// usable one of the pod's service account.
	WithoutToken bool
}

// told is what is told of a volume. Only the worker changes it, with Publisher.mu, so it may read it as it is.
type told struct {
	pod    volume.Pod
	refs   []volume.Ref
	pinned bool
	// shown is what all files are known to show. It lags behind that of the contents while files are
	// rewritten in place, and until a restarted process has made sure of them. The map does not change.
	shown record.Versions
	// withdrawn holds the refused objects of which no file is left. The map does not change.
	withdrawn map[volume.Ref]bool
	// opened says which of the objects were opened. Neither the map nor what it holds changes.
	opened map[volume.Ref]*Opened
	// kind tells one problem from another, and condition is "" until something is known, and since is when kind last changed.
	kind, problem string
	condition     Condition
	since         time.Time
}

// note takes in the end of a sync, and says whether that is news. The caller holds mu.
//
// Of a volume that is not mounted it is told what can't be seen in the pod's spec: for the rest, the kubelet tells of the
// publish that failed.
func (t *told) note(o outcome, mounted bool) (news bool) {
	switch {
	case o.silent && (t.condition != "" || !mounted):
		return false
	case o.silent:
		news = t.problem != o.err.Error() && !o.isPending() && !errors.Is(o.err, manager.ErrPending)
		t.problem = o.err.Error()
		return news
	case mounted, o.reason == ReasonNotFound && o.waits, o.reason == ReasonForbidden, o.reason == ReasonNodeFull, o.reason == ReasonCacheFull:
	default:
		return false
	}
	kind := o.kind()
	news = t.kind != kind
	if news || t.condition == "" {
		t.since = time.Now()
	}
	if t.condition == ConditionSpreading && o.err == nil {
		news = false // the log has the update
	}
	t.kind, t.problem, t.condition = kind, "", ConditionCurrent
	if o.err != nil {
		t.problem, t.condition = o.err.Error(), Condition(o.event)
	}
	return news
}

// withdraw notes that no file shows the objects any more. The caller holds mu.
func (t *told) withdraw(gone map[volume.Ref]bool) {
	t.shown = maps.Clone(t.shown)
	for ref := range gone {
		delete(t.shown, ref)
	}
}

// noteWithdrawn tells of the refused objects of which no file is left. While a superseded generation is there, it may have one.
// It is called before each write, so that nothing is told of what the write may show again, and when all is tidied.
func (v *vol) noteWithdrawn(refused map[volume.Ref]bool) {
	superseded := !v.contents.pruneAt.IsZero() || v.contents.leftover != nil
	gone := map[volume.Ref]bool{}
	for ref := range refused {
		if v.contents.withdrawn[ref] && (v.told.withdrawn[ref] || !superseded) {
			gone[ref] = true
		}
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.told.withdrawn = gone
}

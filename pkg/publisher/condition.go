package publisher

import (
	"time"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// eventInvalidNames is the reason of the event about variables that an env file can't hold. The kubelet's own is the same.
const eventInvalidNames = "InvalidEnvironmentVariableNames"

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
	ConditionStale Condition = failure.Stale
	// ConditionSplit: the objects of a volume with sameRevision have different revisions, so nothing of it changes. It is also the reason of
	// the event on a pod that does not start because of that.
	ConditionSplit Condition = "Split"
)

// Conditions returns all conditions that a volume may have.
func Conditions() []Condition {
	return []Condition{
		ConditionCurrent, ConditionPinned, ConditionPublishing, ConditionUnknown, ConditionSpreading, ConditionHeld, ConditionStale, ConditionSplit,
		failure.RefNotFound, failure.RefKeyNotFound, failure.RefForbidden, failure.RefDeleted, failure.VolumeUpdateFailed,
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
	// Refs are the objects that the volume names. The Record has the versions of those that the files show, and of canaries that don't exist
	// for the pod. Both are empty for a volume that has not been taken over yet.
	Refs []volume.Ref
	record.Record
	// Revisions has the revision of each shown version; "" is none. It is not known for a version that is held since before this process. A nil
	// map says that no shown version has one.
	Revisions map[volume.Ref]volume.Revision
	// Withdrawn are the objects that the pod may no longer read and of which no file remains.
	Withdrawn map[volume.Ref]bool
	// Opened says which objects were opened, by the files that are shown now. nil means not known. If opens are watched on no volume,
	// OpensWatched is false.
	Opened       map[volume.Ref]*opened.Object
	OpensWatched bool
	// Bytes is the memory that the file system holds, including inodes and old files that readers have open. It is 0 until the volume is
	// mounted.
	Bytes int64
	// WithoutToken means that the objects are read with the pod's token, but the pod's service account has no usable token.
	WithoutToken bool
}

// Revision returns the revision of the version that the files show of an object, and whether it is known. "" is none.
func (s *VolumeStatus) Revision(ref volume.Ref) (revision volume.Revision, isKnown bool) {
	revision, isKnown = s.Revisions[ref]
	return revision, isKnown || s.Revisions == nil
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

// waits says that a change is known and waits, as requested. That is no failure. The zero value means that nothing waits.
type waits struct {
	condition Condition
	text      string
	until     time.Time
}

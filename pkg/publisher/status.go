package publisher

import (
	"slices"
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
)

// Conditions returns every Condition that a volume may have.
func Conditions() []Condition {
	return []Condition{
		ConditionCurrent, ConditionPinned, ConditionPublishing, ConditionUnknown,
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
	// Bytes is the memory that its file system holds, with inodes. HeldBytes is how much of that readers
	// hold in old files that they have open.
	Bytes, HeldBytes int64
	// WithoutToken says that its objects are read with its pod's token, and that there is no
	// usable one of the pod's service account.
	WithoutToken bool
}

// Volumes calls yield for each volume that is mounted or being published, in no order, until yield
// returns false. It holds no lock meanwhile and waits for no write, so the volumes' states may be
// of different moments. It is safe for concurrent use.
func (p *Publisher) Volumes(yield func(VolumeStatus) bool) {
	known, restored := p.allVolumes()
	for i := range known {
		if !yield(known[i].status()) {
			return
		}
	}
	for i := range restored {
		r := &restored[i]
		if !yield(VolumeStatus{
			VolumeID: r.VolumeID, Target: r.Target, Pod: r.pod, Condition: ConditionUnknown,
			Reason: r.reason(), Since: r.since, Bytes: r.size,
		}) {
			return
		}
	}
}

// counted is a volume with what Publisher.mu guards of it.
type counted struct {
	*published
	live       bool
	size, held int64
}

// allVolumes returns all volumes of this moment.
func (p *Publisher) allVolumes() (known []counted, waiting []restored) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known = slices.Grow(known, len(p.volumes))
	for _, v := range p.volumes {
		known = append(known, counted{v, v.live, v.size, v.held()})
	}
	for id, r := range p.restored {
		if p.volumes[id] == nil { // else it is being taken over
			waiting = append(waiting, *r)
		}
	}
	return known, waiting
}

func (v counted) status() VolumeStatus {
	s := VolumeStatus{
		VolumeID: v.request.VolumeID, Target: v.request.Target, Pod: v.request.Pod,
		Since: v.since, Refs: v.refs, Bytes: v.size, HeldBytes: v.held,
	}
	v.condition.report(&s)
	switch fault := s.Condition != "" && s.Condition != ConditionCurrent; {
	case !v.live && !fault:
		s.Condition = ConditionPublishing
	case v.live && v.spec.Pinned():
		s.Condition = ConditionPinned
	case s.Condition == "":
		s.Condition, s.Reason = ConditionUnknown, "the state of its objects is not known yet"
	}
	if identity := v.p.opts.Identity; identity != nil && s.Condition != ConditionPinned {
		s.WithoutToken = identity.Ready(v.request.Pod.Account()) != nil
	}
	return s
}

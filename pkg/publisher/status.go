package publisher

import (
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
	// Bytes is the memory that its file system holds, with inodes, and with old files that readers have open.
	Bytes int64
	// WithoutToken says that its objects are read with its pod's token, and that there is no
	// usable one of the pod's service account.
	WithoutToken bool
}

// Volumes calls yield for each volume that is mounted or being published, in no order, until yield
// returns false. It holds no lock meanwhile and waits for no write, so the volumes' states may be
// of different moments. It is safe for concurrent use.
func (p *Publisher) Volumes(yield func(VolumeStatus) bool) {
	for _, v := range p.moment() {
		if !yield(v.status()) {
			return
		}
	}
}

// counted is a volume with what Publisher.mu guards of it.
type counted struct {
	*published
	state  state
	reason string
	pod    volume.Pod
	size   int64
}

// moment returns all volumes of this moment.
func (p *Publisher) moment() []counted {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]counted, 0, len(p.volumes))
	for _, v := range p.volumes {
		if v.state != gone {
			all = append(all, counted{v, v.state, v.reason, v.request.Pod, v.size})
		}
	}
	return all
}

func (v counted) status() VolumeStatus {
	s := VolumeStatus{
		VolumeID: v.request.VolumeID, Target: v.request.Target, Pod: v.pod,
		Since: v.since, Refs: v.refs, Bytes: v.size,
	}
	switch v.state {
	case found:
		s.Condition, s.Reason = ConditionUnknown, "an earlier process has mounted it, and this one has not taken it over yet"
		return s
	case frozen:
		s.Condition, s.Reason = ConditionUnknown, "it is not updated until the kubelet publishes it again: "+v.reason
		return s
	}
	v.condition.report(&s)
	switch fault := s.Condition != "" && s.Condition != ConditionCurrent; {
	case v.state != live && !fault:
		s.Condition = ConditionPublishing
	case v.state == live && v.spec.Pinned():
		s.Condition = ConditionPinned
	case s.Condition == "":
		s.Condition, s.Reason = ConditionUnknown, "the state of its objects is not known yet"
	}
	if identity := v.p.opts.Identity; identity != nil && s.Condition != ConditionPinned {
		s.WithoutToken = identity.Ready(v.request.Pod.Account()) != nil
	}
	return s
}

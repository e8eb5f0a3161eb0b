package publisher

import (
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// Volumes calls yield for each volume that is mounted or being published, in no order, until yield
// returns false. It holds no lock meanwhile and waits for no write. It is safe for concurrent use.
func (p *Publisher) Volumes(yield func(VolumeStatus) bool) {
	for _, s := range p.moment() {
		if !yield(s) {
			return
		}
	}
}

// moment returns all volumes of this moment.
func (p *Publisher) moment() []VolumeStatus {
	all := p.table()
	identity := p.opts.Identity
	if identity == nil {
		return all
	}
	usable := map[volume.ServiceAccount]bool{}
	for i := range all {
		if s := &all[i]; s.Condition != ConditionPinned && s.Refs != nil {
			account := s.Pod.Account()
			if _, asked := usable[account]; !asked {
				usable[account] = identity.Ready(account) == nil
			}
			s.WithoutToken = !usable[account]
		}
	}
	return all
}

func (p *Publisher) table() []VolumeStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]VolumeStatus, 0, len(p.volumes))
	for _, v := range p.volumes {
		if v.mounted || v.waits {
			all = append(all, v.status())
		}
	}
	return slices.Clip(all)
}

// status returns what is known of a volume. The caller holds mu.
func (v *vol) status() VolumeStatus {
	t := &v.told
	s := VolumeStatus{
		VolumeID: v.id, Target: v.target, Pod: t.pod, Since: v.since, Refs: t.refs, Shown: t.shown, Bytes: v.size,
		Withdrawn: t.withdrawn, Opened: t.opened, OpensWatched: v.p.opts.Opens != nil,
		Condition: t.condition, Reason: t.problem,
	}
	if s.Pod.UID = v.worker.uid; t.condition != "" {
		s.Since = t.since
	}
	switch fault := t.condition != "" && t.condition != ConditionCurrent; {
	case !v.mounted && !fault:
		s.Condition = ConditionPublishing
	case fault:
	case t.pinned:
		s.Condition = ConditionPinned
	case t.condition == "":
		s.Condition = ConditionUnknown
		if s.Reason == "" {
			s.Reason = "the state of its objects is not known yet"
		}
	}
	return s
}

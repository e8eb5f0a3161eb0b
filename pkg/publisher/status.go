package publisher

import (
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// Volumes calls yield for each volume that is mounted or being published, in no order, until yield returns false. It holds no lock during
// these calls and waits for no write. It is safe for concurrent use.
func (p *Publisher) Volumes(yield func(VolumeStatus) bool) {
	for _, s := range p.moment() {
		if !yield(s) {
			return
		}
	}
}

// moment returns the status of all volumes at this moment.
func (p *Publisher) moment() []VolumeStatus {
	all := p.table.statuses()
	identity, usable := p.opts.Identity, map[volume.ServiceAccount]bool{}
	for i := range all {
		s := &all[i]
		s.OpensWatched = p.opts.Opens != nil
		if identity == nil || s.Condition == ConditionPinned || s.Refs == nil {
			continue
		}
		account := s.Pod.Account()
		if _, asked := usable[account]; !asked {
			usable[account] = identity.Ready(account) == nil
		}
		s.WithoutToken = !usable[account]
	}
	return all
}

func (t *table) statuses() []VolumeStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]VolumeStatus, 0, len(t.entries))
	for _, e := range t.entries {
		if e.phase == mounted || e.wanted.waits {
			status := e.state.status
			status.Bytes = e.room.Held()
			all = append(all, status)
		}
	}
	return slices.Clip(all)
}

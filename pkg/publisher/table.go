package publisher

import (
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// state says what a volume is to this process.
type state int

const (
	// gone: nothing of the volume is there. A call that is under way keeps it in the table.
	gone state = iota
	// publishing: a publish makes it, and nothing is mounted yet.
	publishing
	// found: an earlier process has mounted it. Its files stay as they are until this process knows what was
	// asked for, by the pod's spec or by the kubelet's next publish.
	found
	// frozen: it is mounted, and its files stay as they are until the kubelet publishes it again; reason says why.
	frozen
	// live: it is mounted, and its files follow its objects, unless it is pinned.
	live
)

// known says that it is known what was asked for.
func (v *published) known() bool { return v.state == publishing || v.state == live }

// isThere says that a volume is mounted whose publish this process doesn't know.
func (v *published) isThere() bool { return v.state == found || v.state == frozen }

// follows says that the volume is reconciled when its objects change.
func (v *published) follows() bool { return v.state == live && !v.spec.Pinned() }

// is says whether a volume has a state.
func (v *published) is(s state) bool {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	return v.state == s
}

// lookup returns the volume of an id that is being published or live, or nil.
func (p *Publisher) lookup(volumeID string) *published {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[volumeID]; v != nil && v.known() {
		return v
	}
	return nil
}

// enter puts a new volume into the table, so that changes of its objects reach it.
func (p *Publisher) enter(v *published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(v)
}

// put has a new volume take the place of what the table has of its id. The caller holds mu.
func (p *Publisher) put(v *published) {
	id, size := v.request.VolumeID, v.size
	if old := p.volumes[id]; old != nil {
		v.call = old.call // which is the caller's
		p.takeOut(old)
	}
	v.size = 0
	p.volumes[id] = v
	v.charge(size)
	for _, ref := range v.refs {
		if p.byRef[ref] == nil {
			p.byRef[ref] = map[*published]struct{}{}
		}
		p.byRef[ref][v] = struct{}{}
	}
}

// takeOut undoes put. It is idempotent. The caller holds mu.
func (p *Publisher) takeOut(v *published) {
	if p.volumes[v.request.VolumeID] != v || v.state == gone {
		return
	}
	v.charge(0)
	v.state = gone
	if v.call == nil {
		delete(p.volumes, v.request.VolumeID)
	}
	for _, ref := range v.refs {
		delete(p.byRef[ref], v)
		if len(p.byRef[ref]) == 0 {
			delete(p.byRef, ref)
		}
	}
	if v.worker != nil {
		p.dequeue(v)
	}
}

// remove undoes enter and everything that was counted for the volume. It is
// idempotent. The caller holds the lock of the pod or owns a volume that never
// was live.
//
// The volume leaves the table last: as long as it is there, a publish of the same id
// finds it and waits for its end, so what is undone here can't be the next one's.
func (p *Publisher) remove(v *published) {
	v.letGo()
	p.retries.Forget(v)
	p.mu.Lock()
	p.takeOut(v)
	held := !v.released
	v.state, v.released = gone, true
	p.mu.Unlock()
	if held {
		p.releaseWorker(v.worker)
	}
}

// letGo releases the objects of a volume, and its token. It is idempotent.
func (v *published) letGo() {
	v.p.opts.Objects.UnregisterPod(v.request.Pod, v.request.VolumeID)
	if identity := v.p.opts.Identity; identity != nil {
		identity.Drop(v.request.Pod, v.request.VolumeID)
	}
}

// forget takes a volume at a target out of the table that is not mounted any more, and whose publish this
// process doesn't know.
func (p *Publisher) forget(volumeID, target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[volumeID]; v != nil && v.isThere() && v.request.Target == target {
		p.takeOut(v)
	}
}

// freeze has a mounted volume stay as it is until the kubelet publishes it again. A live one is then to be removed.
func (p *Publisher) freeze(request *Request, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[request.VolumeID]
	if v == nil || !v.isThere() {
		v = &published{p: p, request: Request{VolumeID: request.VolumeID, Target: request.Target}, state: frozen, since: time.Now()}
		p.put(v)
	}
	v.request.Pod, v.state, v.reason = request.Pod, frozen, reason.Error()
}

// isMountedAt says whether the table has a volume as mounted at a target.
func (p *Publisher) isMountedAt(volumeID, target string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[volumeID]
	return v != nil && v.state != gone && v.request.Target == target
}

// changed is called by the manager after an object has changed, as an account reads it or,
// where there are no accounts, everybody. It must not block.
func (p *Publisher) changed(account volume.Account, ref volume.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for v := range p.byRef[ref] {
		switch {
		case account != (volume.Account{}) && account != v.request.Pod.Account():
		case !v.follows():
			v.notify()
		default:
			if v.queuedAt.IsZero() {
				v.queuedAt = now
			}
			p.requeueLocked(v, now)
		}
	}
}

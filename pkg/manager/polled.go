package manager

import (
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// polled is one object that is asked for. Fetches of it are numbered by when they
// began: an answer holds for whoever asked before that.
//
// At most one goroutine at a time, which runs fly, fetches. It is started by whoever
// asks while none runs, and ends when nobody has asked since the last fetch began and no
// read is owed an answer, or with close. known.mu guards everything below gone.
type polled struct {
	*known
	store *pollStore
	// gone is closed by close.
	gone chan struct{}
	// hurry ends a pause of fly; it has room for one.
	hurry chan struct{}

	// asked tells that one more fetch is to begin, flying that the goroutine runs that
	// sees to it, fetching that a fetch is under way, and cancel ends that.
	asked, flying, fetching bool
	cancel                  func()
	// begun is the number of the last fetch that began, valid of the first one whose
	// answer counts.
	begun, valid int
	// answeredAt is when the fetch began whose answer is known.
	answeredAt time.Time
}

// start does nothing: a registration by itself sends no request.
func (p *polled) start() {}

// verify has reads wait for an answer that was asked for from now on: what a pod is
// given must not be older than the pod. Of a pod's volumes, which are published
// together, the first one counts where answers are kept at all.
func (p *polled) verify(newPod bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (newPod || p.store.live()) && p.closed == nil {
		p.valid = p.begun + 1
		p.forgetLocked()
	}
}

// get returns what is known. It asks if nobody has since the last registration; a fetch
// that fails, or whose answer no longer counts, is repeated until there is an answer.
func (p *polled) get() (*volume.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed != nil:
		return nil, p.closed
	case !p.synced:
		p.owed = true
		if p.begun < p.valid {
			p.askLocked()
		}
		return nil, p.notSyncedLocked()
	}
	return p.stateLocked()
}

// refresh asks, unless what is known is fresh or about to be.
func (p *polled) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := p.synced && p.object != nil && p.store.fresh(p.answeredAt)
	underWay := p.fetching && p.begun >= p.valid && !p.store.live()
	if !fresh && !underWay {
		p.askLocked()
	}
}

// askLocked has a fetch begin from now on. Who asks until it begins shares it.
func (p *polled) askLocked() {
	if p.closed != nil {
		return
	}
	p.asked = true
	if !p.flying {
		p.flying = true
		p.store.running.Go(p.fly)
		return
	}
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}

// stopIfUnreadSince does nothing: nothing runs that nobody asked for.
func (p *polled) stopIfUnreadSince(time.Time) {}

// close cancels a fetch that is under way. Every read returns err from then on.
func (p *polled) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed != nil {
		return
	}
	p.closed = err
	p.forgetLocked()
	close(p.gone)
	if p.cancel != nil {
		p.cancel()
	}
}

package manager

import (
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// polled is one object that is asked for by requests. Its fetches are numbered in the order in
// which they begin. An answer counts for everybody who asked before its fetch began.
//
// At most one goroutine runs, fetchWhileAsked. It starts when somebody asks and none runs. It
// ends with close, or when nobody has asked since the last fetch began and no read waits for
// an answer. known.mu guards everything below skipPause.
type polled struct {
	*known
	store *pollStore
	// closing is closed by close.
	closing chan struct{}
	// skipPause ends a pause of fetchWhileAsked; it has room for one.
	skipPause chan struct{}

	// asked says that one more fetch is to begin, fetches that the goroutine runs, and
	// fetching that a fetch is under way, which cancel ends.
	asked, fetches, fetching bool
	cancel                   func()
	// begun is the number of the last fetch that began. valid is the number of the first
	// fetch whose answer counts.
	begun, valid int
	// answeredAt is when the fetch began that brought the known answer.
	answeredAt time.Time
}

// start does nothing: a registration by itself sends no request.
func (p *polled) start() {}

// verify makes earlier answers void: a pod must not get a state that is older than the pod.
// With Cache only the first volume of a pod does that, since a pod's volumes are published
// together.
func (p *polled) verify(newPod bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (newPod || p.store.uncached()) && p.closed == nil {
		p.valid = p.begun + 1
		p.forgetLocked()
	}
}

// get returns what is known. It asks if nobody has since the last registration. The goroutine
// repeats a fetch that fails, or whose answer no longer counts, until there is an answer.
func (p *polled) get() (*volume.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed != nil:
		return nil, p.closed
	case !p.synced:
		p.awaited = true
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
	underWay := p.fetching && p.begun >= p.valid && !p.store.uncached()
	if !fresh && !underWay {
		p.askLocked()
	}
}

// askLocked starts another fetch. Everybody who asks before it begins shares it.
func (p *polled) askLocked() {
	if p.closed != nil {
		return
	}
	p.asked = true
	if !p.fetches {
		p.fetches = true
		p.store.running.Go(p.fetchWhileAsked)
		return
	}
	select {
	case p.skipPause <- struct{}{}:
	default:
	}
}

// stopIfUnreadSince does nothing: a polled object sends requests only when asked.
func (p *polled) stopIfUnreadSince(time.Time) {}

// close cancels a fetch that is under way. Every read returns err from then on.
func (p *polled) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed != nil {
		return
	}
	p.closed = err
	p.openings.forget(&p.candidate)
	p.forgetLocked()
	close(p.closing)
	if p.cancel != nil {
		p.cancel()
	}
}

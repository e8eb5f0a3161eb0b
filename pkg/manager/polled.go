package manager

import (
	"context"
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// retryInterval is how often get asks again while it has no answer.
const retryInterval = time.Second

// polled is one object that is asked for. Fetches of it are numbered by when they
// began: an answer holds for whoever asked before that.
//
// At most one goroutine at a time, which runs fly, fetches. It is started by whoever
// asks while none runs, and ends when nobody has asked since the last fetch began and no
// lookup is owed an answer, or with close. known.mu guards everything below gone.
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
	// answer counts, and answered of the one whose answer is known.
	begun, valid, answered int
	// answeredAt is when fetch answered began.
	answeredAt time.Time
	// ended is closed, and replaced, at the end of each fetch.
	ended chan struct{}
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

// lookup returns what is known. It asks if nobody has since the last registration; a fetch
// that fails, or whose answer no longer counts, is repeated until there is an answer.
func (p *polled) lookup() (*volume.Object, error) {
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
	p.refreshLocked()
}

// refreshLocked is refresh. It returns the number of the first fetch whose answer is
// good for the caller.
func (p *polled) refreshLocked() int {
	switch {
	case p.synced && p.object != nil && p.store.fresh(p.answeredAt):
		return p.answered
	case p.fetching && p.begun >= p.valid && !p.store.live():
		return p.begun
	}
	p.askLocked()
	return p.begun + 1
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

// get waits for an answer that is good enough, and asks again now and then.
func (p *polled) get(ctx context.Context) (*volume.Object, error) {
	p.mu.Lock()
	enough := p.refreshLocked()
	p.mu.Unlock()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		obj, ended, err := p.read(enough)
		if ended == nil {
			return obj, err
		}
		select {
		case <-ended:
		case <-p.gone:
		case <-retry.C:
			p.refresh()
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", p.notSynced(), ctx.Err())
		}
	}
}

// read returns what is known if it is the answer to fetch enough or to a later one, or
// if such an answer can't be had and what is known may be used instead. Otherwise it
// returns what to wait for before the next try.
func (p *polled) read(enough int) (*volume.Object, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := !p.asked && !p.fetching
	switch {
	case p.closed != nil:
		return nil, nil, p.closed
	case p.synced && (p.answered >= enough || failed && !p.store.live()):
		obj, err := p.stateLocked()
		return obj, nil, err
	}
	return nil, p.ended, nil
}

// stopIfUnreadSince does nothing: nothing runs that nobody asked for.
func (p *polled) stopIfUnreadSince(time.Time) {}

// close cancels a fetch that is under way, and makes every read, also those that wait,
// return err.
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

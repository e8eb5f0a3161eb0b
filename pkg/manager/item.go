package manager

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// item is one object that is watched: what is known of it, and its reflector.
//
// At most one goroutine at a time, that of the present run, drives the reflector, which calls
// the methods of report.go. Each run waits for the one before. known.mu guards everything
// below skipPause.
type item struct {
	*known
	base      *base
	reflector reflector
	// skipPause ends a pause of the reflector; it has room for one.
	skipPause chan struct{}

	// run is the reflector's present life; nil while it is stopped.
	run *run
	// ended is closed when the last run that was started has ended.
	ended    <-chan struct{}
	lastRead time.Time
	// followedSince is when the open watch began; zero while there is none.
	followedSince time.Time
}

// run is one life of the reflector.
type run struct {
	stop context.CancelFunc
	// admitted is set once the run before has ended. Reports that come earlier are from that
	// one, and must be ignored.
	admitted bool
}

// get returns what is known. If nothing is known, it makes sure that the reflector runs.
//
// Reading an immutable object stops its watch: only a deletion can follow, and verify looks
// for that when another pod begins to use the object.
func (it *item) get() (*volume.Object, error) {
	now := time.Now()
	it.mu.Lock()
	defer it.mu.Unlock()
	it.lastRead = now
	switch {
	case it.closed != nil:
		return nil, it.closed
	case !it.synced:
		it.startLocked()
		it.awaited = true
		return nil, it.notSyncedLocked()
	case it.object != nil && it.object.Immutable:
		it.stopLocked()
	}
	return it.stateLocked()
}

// prioritize also ends a pause of the reflector: the failure may be over.
func (it *item) prioritize(pod types.UID) {
	it.known.prioritize(pod)
	select {
	case it.skipPause <- struct{}{}:
	default:
	}
}

// refresh does nothing: the watch brings the changes.
func (it *item) refresh() {}

// start starts the reflector for the first time.
func (it *item) start() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.startLocked()
}

// startLocked starts the reflector, unless it runs or the item is closed.
func (it *item) startLocked() {
	if it.closed != nil || it.run != nil {
		return
	}
	ctx, stop := context.WithCancel(it.base.context(it.account))
	before, ended := it.ended, make(chan struct{})
	r := &run{stop: stop}
	it.run, it.ended = r, ended
	it.base.running.Go(func() {
		defer close(ended)
		<-before
		it.admit(r)
		it.reflector.reflect(ctx)
	})
}

// admit accepts reports of r, now that the run before has ended.
func (it *item) admit(r *run) {
	it.mu.Lock()
	defer it.mu.Unlock()
	r.admitted = true
}

// stopLocked stops the reflector and keeps what is known. Later reports of the run are
// ignored.
func (it *item) stopLocked() {
	if it.run != nil {
		it.run.stop()
		it.run = nil
	}
}

// stopIfUnreadSince stops the reflector if nothing has read the object since t. The next read
// starts it again. A reflector that has not synced yet goes on: another first list would make
// a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run != nil && it.synced && it.lastRead.Before(t) {
		it.stopLocked()
		it.forgetLocked()
	}
}

// verify starts the reflector of an immutable object again for a new pod, since its watch has
// stopped: the object may have been deleted and created with other data. Until that is done,
// get returns ErrNotSynced.
func (it *item) verify(newPod bool) {
	if !newPod {
		return
	}
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.synced && it.run == nil {
		it.forgetLocked()
		it.startLocked()
	}
}

// close stops the reflector for good. Every read returns err from then on.
func (it *item) close(err error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.closed != nil {
		return
	}
	it.closed = err
	it.openings.forget(&it.candidate)
	it.stopLocked()
	it.synced = false
	it.object = nil
	it.holding.release()
}

package manager

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// item is one object that is watched: what is known of it, and its
// reflector, which runs while the object is worth watching.
//
// At most one goroutine at a time, that of the present run, drives the reflector,
// which calls the methods of report.go; each run waits for the one before. known.mu
// guards everything below hurry.
type item struct {
	*known
	base      *base
	reflector reflector
	// hurry ends a pause of the reflector; it has room for one.
	hurry chan struct{}

	// run is the reflector's present life; nil while it is stopped.
	run *run
	// ended is closed when the last run that was started has ended.
	ended    <-chan struct{}
	lastRead time.Time
}

// run is one life of the reflector.
type run struct {
	stop context.CancelFunc
	// admitted is set once the run before has ended. Until then it is still that
	// one which reports, and it must not be heard.
	admitted bool
}

// get returns what is known. If nothing is, it makes sure that the reflector runs.
//
// Reading an immutable object stops its watch: there is nothing more to come but
// its deletion, and that is looked for when another pod begins to use it.
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
		it.owed = true
		return nil, it.notSyncedLocked()
	case it.object != nil && it.object.Immutable:
		it.stopLocked()
	}
	return it.stateLocked()
}

// prioritize also ends a pause of the reflector: what it waits for may be over.
func (it *item) prioritize(pod types.UID) {
	it.known.prioritize(pod)
	select {
	case it.hurry <- struct{}{}:
	default:
	}
}

// refresh does nothing: the watch tells of changes.
func (it *item) refresh() {}

// start lets the reflector run for the first time.
func (it *item) start() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.startLocked()
}

// startLocked lets the reflector run, unless it does or never shall again.
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

// admit lets r be heard, now that the run before has ended.
func (it *item) admit(r *run) {
	it.mu.Lock()
	defer it.mu.Unlock()
	r.admitted = true
}

// stopLocked stops the reflector; what is known stays as it is. Whatever the run
// still reports is ignored.
func (it *item) stopLocked() {
	if it.run != nil {
		it.run.stop()
		it.run = nil
	}
}

// stopIfUnreadSince stops the reflector if nothing has read the object since t. The
// next read starts it again and waits for it. One that has not synced yet keeps
// trying: stopping it would only make a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run != nil && it.synced && it.lastRead.Before(t) {
		it.stopLocked()
		it.forgetLocked()
	}
}

// verify looks for a new pod at an object again whose watch stopped because it is
// immutable: it may have been deleted since, and created with other data. Reads wait
// until this is done.
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
	it.stopLocked()
	it.synced = false
	it.object = nil
}

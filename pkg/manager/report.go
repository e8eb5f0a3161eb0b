package manager

import (
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

// The methods in this file are called by the item's reflector.

// sync sets the state, nil for no object, and marks the item synced. It refuses a state that is
// older than the known one with errOlder: data never goes back, whichever API server answers. It refuses an
// object for which the cache has no room with a FullError.
// complete says that the watch of the object is open, so that no right is missing.
func (it *item) sync(obj *volume.Object, resourceVersion string, complete bool) error {
	it.mu.Lock()
	if !it.listensLocked() {
		it.mu.Unlock()
		return nil
	}
	if older(resourceVersion, it.newestVersion) || it.goesBackLocked(obj) {
		it.mu.Unlock()
		return errOlder
	}
	if !it.synced {
		it.synced = true
		it.lastRead = time.Now() // the caller that waits for this needs time to read it
	}
	it.provedLocked(time.Now())
	allowed, recovered := false, func() {}
	if complete {
		allowed, recovered = it.recoverLocked()
	}
	tell, err := it.setLocked(obj, resourceVersion)
	it.mu.Unlock()
	recovered()
	if tell || allowed {
		it.changed()
	}
	return err
}

// watched records that a watch has begun at the item's version.
func (it *item) watched() {
	it.mu.Lock()
	if !it.listensLocked() {
		it.mu.Unlock()
		return
	}
	allowed, recovered := it.recoverLocked()
	it.mu.Unlock()
	recovered()
	if allowed {
		it.changed()
	}
}

// listensLocked tells whether reports of the caller, the goroutine of some run, count. The
// item may have stopped that run already.
func (it *item) listensLocked() bool { return it.run != nil && it.run.admitted }

// goesBackLocked tells whether obj is an earlier state of the same object that the subscriber
// was notified of.
func (it *item) goesBackLocked(obj *volume.Object) bool {
	return obj != nil && it.notified.present && obj.UID == it.notified.UID &&
		older(obj.ResourceVersion, it.notified.ResourceVersion)
}

// event applies an event. It ignores one that is older than the known state, and one of
// another object, which a real API server doesn't send. It fails as sync does where the cache has no room.
func (it *item) event(e event) error {
	if e.object.Ref != it.ref {
		return nil
	}
	obj := e.object
	if e.kind == watch.Deleted {
		obj = nil
	}
	tell, err := it.apply(obj, e.resourceVersion)
	if tell {
		it.changed()
	}
	return err
}

func (it *item) apply(obj *volume.Object, resourceVersion string) (tell bool, err error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.listensLocked() || !it.synced || older(resourceVersion, it.newestVersion) {
		return false, nil
	}
	it.provedLocked(time.Now())
	return it.setLocked(obj, resourceVersion)
}

// bookmark records that a watch has said that nothing changed until a version.
func (it *item) bookmark(resourceVersion string) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.listensLocked() && it.synced && !older(resourceVersion, it.newestVersion) {
		it.provedLocked(time.Now())
	}
}

// follows records that a watch is open from now on.
func (it *item) follows() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.followedSince = time.Now()
}

// followed records the end of that watch, and returns whether it worked. One that ends at once and brings nothing may
// do so each time.
func (it *item) followed() (worked bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	worked = it.worksLocked()
	it.failing = !worked && (it.failing || it.provenAt.Before(it.followedSince))
	it.followedSince = time.Time{}
	return worked
}

// worksLocked tells whether a watch is open that has lasted. That proves nothing of the object, but a change would
// have come.
func (it *item) worksLocked() bool {
	return !it.followedSince.IsZero() && time.Since(it.followedSince) >= workingTime
}

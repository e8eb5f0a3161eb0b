package manager

import (
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

// This file is what an item's reflector reports to it.

// sync takes in a state, nil for no object, and marks the item synced. One that is older
// than what is known is refused: data never goes back, whichever API server answers. complete
// tells that no right is missing to follow the object from here on.
func (it *item) sync(obj *volume.Object, resourceVersion string, complete bool) error {
	it.mu.Lock()
	if !it.listensLocked() {
		it.mu.Unlock()
		return nil
	}
	if older(resourceVersion, it.floor) || it.goesBackLocked(obj) {
		it.mu.Unlock()
		return errStale
	}
	if !it.synced {
		it.synced = true
		it.lastRead = time.Now() // whoever waited for this gets the time to read it
	}
	allowed, recovered := false, func() {}
	if complete {
		allowed, recovered = it.recoverLocked()
	}
	tell := it.setLocked(obj, resourceVersion) || allowed
	it.mu.Unlock()
	recovered()
	if tell {
		it.changed()
	}
	return nil
}

// watched takes in that a watch has begun where the item is.
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

// listensLocked tells whether the caller, the goroutine of some run, is to be
// heard: the item may have stopped that run already.
func (it *item) listensLocked() bool { return it.run != nil && it.run.admitted }

// goesBackLocked tells whether obj is an earlier state of the very object that the
// subscriber was told of.
func (it *item) goesBackLocked(obj *volume.Object) bool {
	return obj != nil && it.told.present && obj.UID == it.told.UID &&
		older(obj.ResourceVersion, it.told.ResourceVersion)
}

// event takes in an event that tells of an object. One that is older than what is known is
// ignored, and so is one of another object, which a real API server doesn't send.
func (it *item) event(e event) {
	if e.object.Ref != it.ref {
		return
	}
	obj := e.object
	if e.kind == watch.Deleted {
		obj = nil
	}
	if it.apply(obj, e.resourceVersion) {
		it.changed()
	}
}

func (it *item) apply(obj *volume.Object, resourceVersion string) bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.listensLocked() || !it.synced || older(resourceVersion, it.floor) {
		return false
	}
	return it.setLocked(obj, resourceVersion)
}

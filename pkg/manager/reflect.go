package manager

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/refvol/refvol/pkg/volume"
)

// This file is what the reflector calls on an item. None but Replace may return an
// error: the reflector would log it together with the object and so its values.
var _ cache.TransformingStore = (*item)(nil)

// Replace takes in the outcome of a list and marks the item synced. A list that is
// older than what is known is refused, and the reflector lists again: data never
// goes back, whichever API server answers.
func (it *item) Replace(list []any, resourceVersion string) error {
	it.requests.stateTold()
	obj, err := it.pick(list)
	if err == nil {
		err = it.sync(obj, resourceVersion)
	}
	if err != nil {
		it.requests.dropStream()
		it.failed(err)
	}
	return err
}

// pick returns the item's own object out of a list, or nil. A real API server
// sends no other, a fake one that knows no field selectors may.
func (it *item) pick(list []any) (*volume.Object, error) {
	for _, listed := range list {
		obj, err := it.source.convert(listed)
		if err != nil {
			return nil, err
		}
		if obj.Ref == it.ref {
			return obj, nil
		}
	}
	return nil, nil
}

func (it *item) sync(obj *volume.Object, resourceVersion string) error {
	it.mu.Lock()
	if !it.listensLocked() {
		it.mu.Unlock()
		return nil
	}
	if older(resourceVersion, it.floor) || it.goesBackLocked(obj) {
		it.mu.Unlock()
		return errStale
	}
	it.failure = nil
	if !it.synced {
		it.synced = true
		it.lastRead = time.Now() // whoever waited for this gets the time to read it
		close(it.ready)
	}
	tell := it.setLocked(obj, resourceVersion)
	it.mu.Unlock()
	if tell {
		it.changed()
	}
	return nil
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

// Add takes in a watch event.
func (it *item) Add(obj any) error {
	it.event(obj, false)
	return nil
}

// Update takes in a watch event.
func (it *item) Update(obj any) error {
	it.event(obj, false)
	return nil
}

// Delete takes in a watch event.
func (it *item) Delete(obj any) error {
	it.event(obj, true)
	return nil
}

func (it *item) event(event any, deleted bool) {
	obj, err := it.source.convert(event)
	if err != nil {
		it.failed(err)
		return
	}
	if obj.Ref != it.ref {
		return
	}
	resourceVersion := obj.ResourceVersion
	if deleted {
		obj = nil
	}
	if it.apply(obj, resourceVersion) {
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

// Resync does nothing: the reflector is told not to call it.
func (it *item) Resync() error { return nil }

// Transformer trims what the reflector buffers while it collects a list.
func (it *item) Transformer() cache.TransformFunc { return trim }

package manager

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

var errShutdown = errors.New("the manager has shut down")

// references holds the objects that pods reference, and how often.
//
// mu guards what is below it, and makes changes of the counts atomic. It is taken before an object's
// own lock. Readers share it for one map access.
type references struct {
	store store

	mu      sync.RWMutex
	objects map[key]*referenced
	closed  bool
}

// key is an object as it is read with the rights of one account. The zero account stands for
// the client's own rights. Accounts don't share what they read.
type key struct {
	account volume.Account
	ref     volume.Ref
}

// keys returns the keys of objects that one account reads.
func keys(account volume.Account, refs []volume.Ref) []key {
	out := make([]key, 0, len(refs))
	for _, ref := range refs {
		out = append(out, key{account, ref})
	}
	return out
}

// referenced is one object with its references, which its holding counts.
type referenced struct {
	object
	holding *holding
}

func newReferences(s store) *references {
	return &references{store: s, objects: map[key]*referenced{}}
}

func (r *references) subscribe(fn func(volume.Account, volume.Ref)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store.subscribe(fn)
}

// find returns the object of k, or nil if nothing references it.
func (r *references) find(k key) *referenced {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.objects[k]
}

// add counts one reference of uid to each object of v.
func (r *references) add(uid types.UID, v registration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range v.objects {
		obj := r.objects[k]
		if obj != nil {
			obj.verify(obj.holding.refer(uid, v.mounted))
			continue
		}
		if obj = r.newReferenced(k, uid); obj == nil {
			continue
		}
		r.objects[k] = obj
		obj.holding.refer(uid, v.mounted)
		obj.start()
	}
}

// mount counts that the reference of uid to each of objects is that of a mounted volume.
func (r *references) mount(uid types.UID, objects []key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range objects {
		if obj := r.objects[k]; obj != nil {
			obj.holding.mount(uid)
		}
	}
}

// drop removes one reference of uid to each object of v, and every object that has no reference
// left. It ignores a reference that doesn't exist, so no count can become negative.
func (r *references) drop(uid types.UID, v registration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range v.objects {
		if obj := r.objects[k]; obj != nil && obj.holding.unrefer(uid, v.mounted) {
			delete(r.objects, k)
			obj.close(notRegistered(k.ref))
		}
	}
}

// newReferenced returns an object for its first reference, of uid, or nil for a kind that
// can't be read. The caller holds mu.
func (r *references) newReferenced(k key, uid types.UID) *referenced {
	obj := r.store.newObject(k, uid)
	if obj == nil {
		return nil
	}
	if r.closed {
		obj.close(shutdownError(k.ref))
	}
	return &referenced{object: obj, holding: obj.held()}
}

// stopIdle stops what runs for objects that nothing has read since t.
func (r *references) stopIdle(t time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, obj := range r.objects {
		obj.stopIfUnreadSince(t)
	}
}

// shutdown stops everything for good and waits for its end. No object can start
// anything afterwards, because each was closed first.
func (r *references) shutdown() {
	r.mu.Lock()
	r.closed = true
	for k, obj := range r.objects {
		obj.close(shutdownError(k.ref))
	}
	r.mu.Unlock()
	r.store.shutdown()
}

func shutdownError(ref volume.Ref) error {
	return fmt.Errorf("%s: %w: %w", ref, ErrNotSynced, errShutdown)
}

package manager

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// ObjectState says what is known of an object.
type ObjectState string

// The states.
const (
	Present ObjectState = "present"
	Absent  ObjectState = "absent"
	// Unknown: the API server has not said yet.
	Unknown ObjectState = "unknown"
	// Denied: the API server refuses the object, or its changes. What is known of it may be old.
	Denied ObjectState = "denied"
)

// ObjectStates returns every ObjectState.
func ObjectStates() []ObjectState { return []ObjectState{Present, Absent, Unknown, Denied} }

// ObjectStatus is what is known of one object at one moment. It holds no value.
type ObjectStatus struct {
	// Account is whose rights it is read with, zero where those are the client's own.
	Account volume.ServiceAccount
	Ref     volume.Ref
	State   ObjectState
	// Version is that of the last known state; zero for an object that is absent or unknown.
	Version volume.Version
	// Err says why the state is unknown or denied, nil if it is neither.
	Err error
	// Since is when it was first referenced, and LastConfirmed when the API server last said what its
	// state is, or by a bookmark that it has not changed; zero for never.
	Since, LastConfirmed time.Time
	// Watched says that LastConfirmed is to advance: a watch or requests look for changes. Nothing
	// does for an immutable object, or one that nothing has read for long.
	Watched bool
	// Stale says that it does not: the last request for the object, or for a watch of it, has failed, or waits
	// because those before it did. What is known may be as old as LastConfirmed. While a watch is open it isn't
	// stale, however long the API server sends nothing: some send no bookmarks.
	Stale bool
	// OlderAnswer is why the state is denied or unknown, if the API server answers with an older one; nil otherwise.
	OlderAnswer *OlderAnswer
}

// Objects calls yield for each object that pods reference, in no order, until yield returns false.
// It holds no lock meanwhile, so the states may be of different moments. It starts no request, and
// does not count as a read.
func (m *Manager) Objects(yield func(ObjectStatus) bool) {
	for _, it := range m.all() {
		if !yield(it.status()) {
			return
		}
	}
}

// all returns the items of this moment.
func (m *Manager) all() []*item {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.items))
}

func (it *item) status() ObjectStatus {
	it.mu.Lock()
	defer it.mu.Unlock()
	s := ObjectStatus{Account: it.account, Ref: it.ref, Since: it.since, LastConfirmed: it.provenAt}
	r, denied := it.run, it.deniedLocked()
	_, waits := it.m.requests.Err(it.account)
	s.Watched = r != nil && !r.ended && it.closed == nil
	works := r != nil && !r.watching.IsZero() && time.Since(r.watching) >= workingTime
	s.Stale = s.Watched && !works && (it.state.Err != nil || waits != nil)
	switch {
	case it.closed != nil:
		s.State, s.Err = Unknown, it.closed
	case denied != nil:
		s.State, s.Err = Denied, denied
	case r == nil:
		s.State, s.Err = Unknown, ErrNotSynced
	case !it.state.Last.IsKnown():
		s.State, s.Err = Unknown, it.notSyncedLocked()
	case it.state.Last.Value == nil:
		s.State = Absent
	default:
		s.State = Present
	}
	if obj := it.state.Last.Value; obj != nil {
		s.Version = obj.Version
	}
	if refused, ok := errors.AsType[*olderError](s.Err); ok {
		s.OlderAnswer = &refused.answer
	}
	return s
}

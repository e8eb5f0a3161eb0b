package manager

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// ObjectState says what is known about an object.
type ObjectState string

// The states.
const (
	Present ObjectState = "present"
	Absent  ObjectState = "absent"
	// Unknown: the API server has not answered yet.
	Unknown ObjectState = "unknown"
	// Denied: the API server refuses the object or its changes. The known state may be old.
	Denied ObjectState = "denied"
)

// ObjectStates returns all states.
func ObjectStates() []ObjectState { return []ObjectState{Present, Absent, Unknown, Denied} }

// ObjectStatus is what is known about one object at one moment. It holds no value of the object.
type ObjectStatus struct {
	// Account is the account whose rights are used to read the object. It is zero for the client's own rights.
	Account volume.ServiceAccount
	Ref     volume.Ref
	State   ObjectState
	// Version is the version of the last known state; zero if the object is absent or unknown.
	Version volume.Version
	// Immutable means that this state is immutable. Its data is then that of all later versions with the same UID.
	Immutable bool
	// Canary says what the annotation volume.CanaryAnnotation of that state means, such as 10%. It is "" without the annotation.
	Canary string
	// Err says why the state is unknown or denied; otherwise it is nil.
	Err error
	// Since is when the object was first referenced. LastConfirmed is when the API server last sent the state, or confirmed by a bookmark
	// that it is unchanged; zero for never.
	Since, LastConfirmed time.Time
	// Watched means that LastConfirmed should advance: a watch or requests look for changes. It is false for an immutable object, and for
	// one that nothing has read for a long time.
	Watched bool
	// Stale means that LastConfirmed does not advance: the last request for the object, or for a watch of it, has failed, or waits because
	// earlier ones failed. The known state may be as old as LastConfirmed. While a watch is open the object is not stale, however long the
	// API server is silent, because some API servers send no bookmarks.
	Stale bool
	// OlderAnswer says why the state is denied or unknown if the API server answers with an older state; otherwise it is nil.
	OlderAnswer *OlderAnswer
}

// Objects calls yield for each object that pods reference, in no order, until yield returns false. It holds no lock during the calls, so
// the states may be from different moments. It sends no request, does not count as a read, and is safe for concurrent use.
func (m *Manager) Objects(yield func(ObjectStatus) bool) {
	for _, it := range m.all() {
		if !yield(it.status()) {
			return
		}
	}
}

// all returns the items that exist now.
func (m *Manager) all() []*item {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.items))
}

func (it *item) status() ObjectStatus {
	it.mu.Lock()
	defer it.mu.Unlock()
	s := ObjectStatus{Account: it.account, Ref: it.ref, Since: it.since, LastConfirmed: it.state.provenAt}
	r, last, denied := it.run, it.state.last, it.denialErrLocked()
	_, waits := it.m.requests.Err(it.account)
	works := false
	if r != nil && it.closed == nil {
		s.Watched, works = r.follows()
	}
	s.Stale = s.Watched && !works && (it.state.err != nil || waits != nil)
	switch {
	case it.closed != nil:
		s.State, s.Err = Unknown, it.closed
	case denied != nil:
		s.State, s.Err = Denied, denied
	case r == nil:
		s.State, s.Err = Unknown, ErrNotSynced
	case !last.isKnown:
		s.State, s.Err = Unknown, it.notSyncedLocked()
	case last.object == nil:
		s.State = Absent
	default:
		s.State = Present
	}
	if last.object != nil {
		s.Version, s.Immutable = last.object.Version, last.object.Immutable
		if last.object.Canary != "" {
			s.Canary = last.object.CanaryText()
		}
	}
	if refused, ok := errors.AsType[*olderError](s.Err); ok {
		s.OlderAnswer = &refused.answer
	}
	return s
}

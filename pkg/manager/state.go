package manager

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// answer is what the API server said about an object. The zero answer is none.
type answer struct {
	isKnown bool
	// object is the object, or nil if there is none.
	object *volume.Object
	// try is the number of the request that brought it, and askedAt is when that was sent.
	try     uint64
	askedAt time.Time
}

// state is what is known about an object. Only a newer answer replaces an answer. The lock of the item guards it.
type state struct {
	last answer
	// err says why the last try failed; nil after an answer. denial is a lasting refusal.
	err    error
	denial denial
	// tries counts the requests for the state. askedAt is when the last one was sent.
	tries   uint64
	askedAt time.Time
	// provenAt is when the API server last sent the state or confirmed that it is unchanged; zero for never.
	provenAt time.Time
	// newest is the newest resourceVersion that any run has seen. The state never goes back behind it.
	newest string
	// notified is the state that the subscriber was last notified of.
	notified known
}

func isImmutable(obj *volume.Object) bool { return obj != nil && obj.Immutable }

// begin records that a request for the state is sent.
func (s *state) begin() { s.tries, s.askedAt = s.tries+1, time.Now() }

// record stores the answer to the last request.
func (s *state) record(obj *volume.Object) {
	s.last = answer{isKnown: true, object: obj, try: s.tries, askedAt: s.askedAt}
	s.err, s.provenAt = nil, time.Now()
}

// known says which object the API server holds under a name, as far as that is known.
type known struct {
	synced, present bool
	volume.Version
}

func knownOf(obj *volume.Object) known {
	if obj == nil {
		return known{synced: true}
	}
	return known{synced: true, present: true, Version: obj.Version}
}

// isSame reports whether nothing changed from k to other. Without a resourceVersion it returns false.
func (k known) isSame(other known) bool {
	return k == other && (!k.present || k.ResourceVersion != "")
}

// demand is who waits for a state. The lock of the item guards it.
type demand struct {
	// publishes are the pods whose publishes wait for the state. The pointer is constant.
	publishes *requests.Pods
	// isRead means that a GetObject failed with ErrNotSynced. The subscriber is then notified of the sync even if the state is the same.
	isRead bool
	// minTries has the number of the first try whose answer a pod may read. It holds the pods that came after an earlier try was sent.
	minTries map[types.UID]uint64
}

// isOldFor reports whether an answer was requested before a pod came.
func (d *demand) isOldFor(uid types.UID, try uint64) bool {
	wants, waits := d.minTries[uid]
	if waits && try >= wants {
		delete(d.minTries, uid)
		return false
	}
	return waits
}

// isAwaited reports whether a pod waits for a later answer than that of a try.
func (d *demand) isAwaited(try uint64) bool {
	for _, wants := range d.minTries {
		if try < wants {
			return true
		}
	}
	return false
}

// satisfiesAny reports whether the answer of a try is new enough for a pod that waits, or no pod waits.
func (d *demand) satisfiesAny(try uint64) bool {
	for _, wants := range d.minTries {
		if try >= wants {
			return true
		}
	}
	return len(d.minTries) == 0
}

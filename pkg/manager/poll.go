package manager

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// polling is what a run has that asks for the object instead of watching it. One goroutine at most sends its requests: it
// ends when nobody has asked since the last one began, and there is a state. The lock of the item guards it.
type polling struct {
	// asked says that one more request is to begin, polls that the goroutine runs, and fetching that a request is under way.
	asked, polls, fetching bool
	// sent is the number of the last request, and sentAt when it was sent. answered and answeredAt are those of the one that
	// brought the state.
	sent, answered     uint64
	sentAt, answeredAt time.Time
}

// refresh has the state asked for, unless a watch brings the changes, or what is known is fresh or about to be.
func (it *item) refresh() {
	it.mu.Lock()
	defer it.mu.Unlock()
	r := it.run
	if r == nil || it.m.detection == Watch {
		return
	}
	if it.m.detection == Cache && (r.fetching || r.object != nil && !r.isAwaited() && time.Since(r.answeredAt) < it.m.ttl.get()) {
		return
	}
	if r.pausing {
		it.startLocked(r.urgent)
		return
	}
	r.askLocked()
}

func (r *run) askLocked() {
	r.asked = true
	if !r.polls {
		r.polls = true
		r.goLocked(r.poll)
	}
}

// poll sends requests for as long as somebody asks. One that fails is repeated until there is a state.
func (r *run) poll(ctx context.Context) {
	pauses := newPauses()
	for r.begin() {
		obj, err := r.fetch(ctx)
		if err == nil {
			version := ""
			if obj != nil {
				version = obj.ResourceVersion
			}
			err = r.set(obj, version, true)
		}
		if err != nil {
			r.failed(err)
		}
		if _, waits := r.m.requests.Err(r.account); r.end() && waits == nil {
			r.sleep(ctx, pauses.Step())
		}
	}
}

// begin tells whether another request is to be sent. If not, the goroutine counts as ended.
func (r *run) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polls = r.asked && r.item.run == r
	r.asked, r.fetching = false, r.polls
	if r.polls {
		r.item.requests++
		r.sent, r.sentAt = r.item.requests, time.Now()
	}
	return r.polls
}

// end records the end of a request, and tells whether it is to be repeated after a pause.
func (r *run) end() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetching = false
	if r.asked || r.synced && !r.isAwaited() {
		return false
	}
	r.asked = true
	return true
}

// isAwaited says whether a pod waits for a state that is asked for later than the present one. The caller holds the lock.
func (r *run) isAwaited() bool {
	for _, wants := range r.wants {
		if r.answered < wants {
			return true
		}
	}
	return false
}

// fetch sends one request, or two: an answer that the object does not exist must not come from a cache, which may lag
// behind, for it has no version that tells its age. For an object that exists one from a cache is enough, with Cache: it
// spares etcd.
func (r *run) fetch(ctx context.Context) (*volume.Object, error) {
	ctx, cancel := context.WithTimeout(r.with(ctx), bodyTime)
	defer cancel()
	var opts metav1.GetOptions
	if r.m.detection == Cache && r.isCachedEnough() {
		opts.ResourceVersion = "0"
	}
	obj, err := r.source.get(ctx, r.ref, opts)
	if opts.ResourceVersion != "" && isAbsent(err) {
		obj, err = r.source.get(ctx, r.ref, metav1.GetOptions{})
	}
	if isAbsent(err) {
		return nil, nil
	}
	return obj, err
}

// isCachedEnough says whether a state from a cache of the API server will do: the object is there, and no new pod waits.
func (r *run) isCachedEnough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.object != nil && !r.isAwaited()
}

// isAbsent tells whether the API server has answered that the object doesn't exist. A 404 without a Status comes from
// something else on the way to it.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

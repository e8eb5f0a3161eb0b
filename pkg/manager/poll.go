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
	// answeredAt is when the request was sent that brought the state.
	answeredAt time.Time
}

// refresh has the state asked for, unless a watch brings the changes, or what is known is fresh or about to be.
func (it *item) refresh() {
	it.mu.Lock()
	defer it.mu.Unlock()
	r := it.run
	if r == nil || it.m.detection == Watch {
		return
	}
	if it.m.detection == Cache && (r.fetching || r.object != nil && time.Since(r.answeredAt) < it.m.ttl.get()) {
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
		sent := time.Now()
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
		if _, waits := r.m.requests.Err(r.account); r.end(sent, err) && waits == nil {
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
	return r.polls
}

// end records the end of a request, and tells whether it is to be repeated after a pause.
func (r *run) end(sent time.Time, err error) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetching = false
	if err == nil {
		r.answeredAt = sent
	}
	if r.synced || r.asked {
		return false
	}
	r.asked = true
	return true
}

// fetch sends one request, or two: an answer that the object does not exist must not come from a cache, which may lag
// behind, for it has no version that tells its age. For an object that exists one from a cache is enough, with Cache: it
// spares etcd.
func (r *run) fetch(ctx context.Context) (*volume.Object, error) {
	ctx, cancel := context.WithTimeout(r.with(ctx), bodyTime)
	defer cancel()
	var opts metav1.GetOptions
	if r.m.detection == Cache && r.isPresent() {
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

func (r *run) isPresent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.object != nil
}

// isAbsent tells whether the API server has answered that the object doesn't exist. A 404 without a Status comes from
// something else on the way to it.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

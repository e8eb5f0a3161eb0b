package manager

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// A poller requests the object when somebody needs it. Each try has one goroutine.

// refresh requests the state, unless a watch reports changes, or the known state is fresh or soon will be.
func (it *item) refresh() {
	it.mu.Lock()
	defer it.mu.Unlock()
	r := it.run
	if r == nil || it.m.detection == Watch {
		return
	}
	if it.m.detection == Cache && (it.state.IsInFlight() || it.state.Last.Value != nil && !it.isAwaited() && time.Since(it.state.Last.AskedAt) < it.m.ttl.get()) {
		return
	}
	if r.isPausing() {
		it.startLocked(it.state.Urgent)
		return
	}
	r.refreshLocked()
}

// refreshLocked requests the state. If a try is in flight, it requests the state once more after that, because the try may have been sent
// too early. The caller holds the lock.
func (r *run) refreshLocked() {
	it := r.item
	if it.state.IsInFlight() {
		r.again = true
		return
	}
	r.again = false
	ctx := it.state.Begin(requests.With(clientlog.Context(context.Background()), requests.Meta{Account: it.account, For: it.waiters}))
	it.m.running.Go(func() { r.poll(ctx) })
}

// poll sends a request. A failed one is repeated until all waiting pods have a state.
func (r *run) poll(ctx context.Context) {
	obj, err := r.fetch(ctx)
	if err == nil {
		version := ""
		if obj != nil {
			version = obj.ResourceVersion
		}
		err = r.set(obj, version, true)
	}
	var pause time.Duration
	if err != nil {
		pause = r.recordFailure(err)
	}
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	switch isDone := r.item.state.Last.IsKnown() && !r.item.isAwaited(); {
	case r.item.run != r:
	case r.again:
		r.refreshLocked()
	case !isDone:
		r.refreshLaterLocked(pause)
	}
}

// refreshLaterLocked requests the state after a pause, unless another request was sent meanwhile. The caller holds the lock.
func (r *run) refreshLaterLocked(pause time.Duration) {
	if pause == 0 {
		r.refreshLocked()
		return
	}
	tries := r.item.state.Tries()
	time.AfterFunc(pause, func() {
		r.item.mu.Lock()
		defer r.item.mu.Unlock()
		if r.item.run == r && r.item.state.Tries() == tries {
			r.refreshLocked()
		}
	})
}

// fetch sends one request, or two. The answer that an object does not exist must not come from a cache, because it has no version that
// shows its age. For an existing object, with Cache, an answer from a cache is good enough and spares etcd.
func (r *run) fetch(ctx context.Context) (*volume.Object, error) {
	ctx, cancel := context.WithTimeout(whole(ctx), bodyTimeout)
	defer cancel()
	var opts metav1.GetOptions
	if r.item.m.detection == Cache && r.item.isCachedEnough() {
		opts.ResourceVersion = "0"
	}
	obj, err := r.item.source.get(ctx, r.item.ref, opts)
	if opts.ResourceVersion != "" && isAbsent(err) {
		obj, err = r.item.source.get(ctx, r.item.ref, metav1.GetOptions{})
	}
	if isAbsent(err) {
		return nil, nil
	}
	return obj, err
}

// isCachedEnough reports whether an answer from a cache is good enough: the object exists, and no new pod waits.
func (it *item) isCachedEnough() bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.state.Last.Value != nil && !it.isAwaited()
}

// isAbsent reports whether the API server has answered that the object doesn't exist. A 404 without a Status comes from something else on
// the way, such as a proxy.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

package manager

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// poller requests the object when somebody needs it. It has a goroutine while a request is in flight, and in the pause after a failed one.
// The lock of the item guards its fields.
type poller struct {
	tries
	// wanted means that another request is to be sent. isActive means that the goroutine exists. inFlight means that it waits for an answer.
	wanted, isActive, inFlight bool
}

func (*poller) follows() (follows, works bool) { return true, false }

// request requests the state. If a try is in flight, the state is requested once more after that, because the try may have been sent too
// early. A pause is waited for.
func (p *poller) request() {
	p.wanted = true
	if !p.isActive {
		p.isActive = true
		p.start(p.poll)
	}
}

// refresh requests the state, unless the known state is fresh or soon will be.
func (p *poller) refresh() {
	it := p.item
	last := it.state.last
	if it.m.detection == Cache && (p.inFlight || last.object != nil && !it.demand.isAwaited(last.try) && time.Since(last.askedAt) < it.m.ttl.get()) {
		return
	}
	p.request()
}

func (*poller) readAgain() {}

// poll sends the requests that are wanted. A failed one is repeated until all waiting pods have a state.
func (p *poller) poll(ctx context.Context) {
	for {
		try, cached, ok := p.next(ctx)
		if !ok {
			return
		}
		obj, err := p.fetch(try, cached)
		if err == nil {
			version := ""
			if obj != nil {
				version = obj.ResourceVersion
			}
			err = p.item.set(p, obj, version, true)
		}
		if err != nil {
			p.item.fail(p, err)
		}
		if p.end(err); err != nil {
			p.sleep(ctx, err, false)
		}
	}
}

// next begins the next try, or ends the goroutine if none is wanted. cached means that an answer from a cache is good enough: the object
// exists, and no new pod waits.
func (p *poller) next(ctx context.Context) (try context.Context, cached, ok bool) {
	it := p.item
	it.mu.Lock()
	defer it.mu.Unlock()
	if !p.wanted || ctx.Err() != nil {
		p.isActive = false
		return nil, false, false
	}
	p.wanted, p.inFlight = false, true
	cached = it.m.detection == Cache && it.state.last.object != nil && !it.demand.isAwaited(it.state.last.try)
	return p.beginLocked(ctx), cached, true
}

// end ends a try.
func (p *poller) end(err error) {
	it := p.item
	it.mu.Lock()
	defer it.mu.Unlock()
	p.inFlight = false
	if err == nil {
		p.pauses = newPauses()
	}
	p.wanted = p.wanted || !it.state.last.isKnown || it.demand.isAwaited(it.state.last.try)
}

// fetch sends one request, or two. The answer that an object does not exist must not come from a cache, because it has no version that
// shows its age. For an existing object, with Cache, an answer from a cache is good enough and spares etcd.
func (p *poller) fetch(ctx context.Context, cached bool) (*volume.Object, error) {
	ctx, cancel := context.WithTimeout(whole(ctx), bodyTimeout)
	defer cancel()
	var opts metav1.GetOptions
	if cached {
		opts.ResourceVersion = "0"
	}
	obj, err := p.item.source.get(ctx, p.item.ref, opts)
	if cached && isAbsent(err) {
		obj, err = p.item.source.get(ctx, p.item.ref, metav1.GetOptions{})
	}
	if isAbsent(err) {
		return nil, nil
	}
	return obj, err
}

// isAbsent reports whether the API server has answered that the object doesn't exist. A 404 without a Status comes from something else on
// the way, such as a proxy.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

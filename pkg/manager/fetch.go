package manager

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// fetch is one request for the state of an object.
type fetch struct {
	number int
	began  time.Time
	// cached lets the API server answer from its cache.
	cached bool
}

// fly fetches for as long as somebody asks, or waits for an answer.
func (p *polled) fly() {
	began, backoff := time.Now(), retryBackoff(false)
	for p.stillAsked() {
		own, ok := p.fetch()
		if !ok {
			return
		}
		if time.Since(began) >= lastingTime && backoff.Cap != longBackoff {
			backoff = retryBackoff(true)
		}
		// What isn't the object's own failure has the next request wait by itself.
		if p.askAgain() && own && !p.pause(backoff.Step()) {
			return
		}
	}
}

// askAgain asks once more if a reader has been told that there will be an answer, and
// the fetch has brought none.
func (p *polled) askAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	unanswered := p.owed && !p.synced && p.closed == nil
	// What was asked for during the fetch needs no pause.
	pause := unanswered && !p.asked
	p.asked = p.asked || unanswered
	return pause
}

// pause waits, unless somebody asks meanwhile, and returns false if the object is closed.
func (p *polled) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.hurry:
		return true
	case <-p.gone:
		return false
	}
}

// stillAsked tells whether another fetch is to begin. If not, the goroutine is taken
// for ended.
func (p *polled) stillAsked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying = p.asked && p.closed == nil
	return p.flying
}

// fetch asks the API server once and takes in its answer. ok is false if the object is
// closed, own if a failure concerns more than the object.
func (p *polled) fetch() (own, ok bool) {
	ctx, cancel := context.WithCancelCause(p.store.context(p.account))
	defer cancel(nil)
	if !p.cancelOnClose(func() { cancel(nil) }) {
		return false, false
	}
	opening, err := p.openings.begin(ctx, &p.place, cancel)
	if err != nil {
		return false, false
	}
	defer time.AfterFunc(answerTime, func() { cancel(errSilent) }).Stop()
	f := p.begin()
	obj, err := p.request(ctx, f.cached)
	if err != nil && !isAbsent(err) {
		err = errors.Join(context.Cause(ctx), p.store.lacksCredential(p.account), err)
	}
	opening.end(err)
	p.settle(f, obj, err)()
	return !isShared(err), true
}

// cancelOnClose has close call cancel, and returns false if that was called already.
func (p *polled) cancelOnClose(cancel func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel = cancel
	return p.closed == nil
}

// begin numbers a fetch.
func (p *polled) begin() fetch {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hurry: // this fetch is what it was for
	default:
	}
	p.begun++
	p.asked, p.fetching = false, true
	return fetch{
		number: p.begun,
		began:  time.Now(),
		// An answer from the cache is fine for an object that is there, which is the
		// usual case and the one that spares etcd.
		cached: !p.store.live() && p.synced && p.object != nil,
	}
}

// request sends one request, or two: a cache that lags behind may not have the object
// yet, and that it does not exist must be true, since no version tells how old that
// answer is.
func (p *polled) request(ctx context.Context, cached bool) (*volume.Object, error) {
	var opts metav1.GetOptions
	if cached {
		opts.ResourceVersion = "0"
	}
	obj, err := p.source.get(ctx, p.ref.Namespace, p.ref.Name, opts)
	if cached && isAbsent(err) {
		return p.request(ctx, false)
	}
	return obj, err
}

// isAbsent tells whether the answer to a request for an object is that it doesn't exist. A
// 404 that is no answer of an API server comes from something else on the way to it.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// settle takes in the outcome of a fetch and wakes who waits for it. It returns what
// is to be done without the lock.
func (p *polled) settle(f fetch, obj *volume.Object, err error) (tell func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetching = false
	if p.closed != nil || f.number < p.valid {
		p.asked = p.asked || p.owed // of a read from before, whose answer this was
		return func() {}
	}
	resourceVersion := ""
	switch {
	case isAbsent(err):
		obj = nil
	case err != nil:
		return p.failedLocked(err)
	case older(obj.ResourceVersion, p.floor):
		return p.failedLocked(errStale)
	default:
		resourceVersion = obj.ResourceVersion
	}
	p.synced = true
	p.answeredAt = f.began
	allowed, recovered := p.recoverLocked()
	changed := p.setLocked(obj, resourceVersion) || allowed
	return func() {
		recovered()
		if changed {
			p.changed()
		}
	}
}

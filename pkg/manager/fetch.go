package manager

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// fetch is one request for the state of an object.
type fetch struct {
	number int
	began  time.Time
	// cached lets the API server answer from its cache.
	cached bool
}

// fetchWhileAsked fetches for as long as somebody asks or waits for an answer.
func (p *polled) fetchWhileAsked() {
	began, pauses := time.Now(), retryBackoff(backoff.Short)
	for p.stillAsked() {
		own, ok := p.fetch()
		if !ok {
			return
		}
		if most := p.openings.longestBackoff(&p.candidate, time.Since(began) >= backoff.Lasting); most != pauses.Cap {
			pauses = retryBackoff(most)
		}
		// After a failure that isn't the object's own, the openings delay the next request.
		if p.askAgain() && own && !p.pause(pauses.Step()) {
			return
		}
	}
}

// askAgain asks once more if a reader waits for an answer and the fetch has brought none. It
// returns true if a pause should come first.
func (p *polled) askAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	unanswered := p.awaited && !p.synced && p.closed == nil
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
	case <-p.skipPause:
		return true
	case <-p.closing:
		return false
	}
}

// stillAsked tells whether another fetch is to begin. If not, the goroutine counts as ended.
func (p *polled) stillAsked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetches = p.asked && p.closed == nil
	return p.fetches
}

// fetch asks the API server once and records its answer. ok is false if the object is closed.
// own is false if a failure concerns more than the object.
func (p *polled) fetch() (own, ok bool) {
	ctx, cancel := context.WithCancelCause(p.store.context(p.account))
	defer cancel(nil)
	if !p.cancelOnClose(func() { cancel(nil) }) {
		return false, false
	}
	opening, err := p.openings.begin(ctx, &p.candidate, cancel)
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
	return !isShared(err) && !p.openings.pacesRefused(&p.candidate), true
}

// cancelOnClose lets close call cancel. It returns false if the object is closed already.
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
	case <-p.skipPause: // this fetch is the one it asked for
	default:
	}
	p.begun++
	p.asked, p.fetching = false, true
	return fetch{
		number: p.begun,
		began:  time.Now(),
		// For an object that exists, an answer from the cache is enough. That is the usual
		// case, and it spares etcd.
		cached: !p.store.uncached() && p.synced && p.object != nil,
	}
}

// request sends one request, or two. An answer that the object does not exist has no version
// that tells its age, and a cache may lag behind, so that answer must not come from a cache.
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

// isAbsent tells whether the API server has answered that the object doesn't exist. A 404
// without a Status comes from something else on the way to it.
func isAbsent(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// settle records the outcome of a fetch. It returns what the caller must do without the lock.
func (p *polled) settle(f fetch, obj *volume.Object, err error) (tell func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetching = false
	if p.closed != nil || f.number < p.valid {
		p.asked = p.asked || p.awaited // a read waits for the answer of the next fetch
		return func() {}
	}
	resourceVersion := ""
	switch {
	case isAbsent(err):
		obj = nil
	case err != nil:
		return p.failedLocked(err)
	case older(obj.ResourceVersion, p.newestVersion):
		return p.failedLocked(errOlder)
	default:
		resourceVersion = obj.ResourceVersion
	}
	p.synced = true
	p.answeredAt = f.began
	p.provedLocked(f.began)
	allowed, recovered := p.recoverLocked()
	changed, _ := p.setLocked(obj, resourceVersion) // the readers hear of an error from the cache
	return func() {
		recovered()
		if changed || allowed {
			p.changed()
		}
	}
}

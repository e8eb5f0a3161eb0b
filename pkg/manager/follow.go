package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// The reflector is our own. The one of client-go needs four goroutines and a store for each object, keeps the longest event in memory, and
// logs objects that it cannot handle.

const (
	// watchTime is the shortest duration that a watch request asks for. The longest is twice that. It is random, so that watches that
	// started together don't end together. A watch that the server does not end in time is cancelled watchGrace later.
	watchTime  = 30 * time.Minute
	watchGrace = 30 * time.Second
	// bodyTimeout limits a request that is not a watch, including the time in the queue.
	bodyTimeout = 2 * time.Minute
	// calmTime is how long a watch must last before the pauses become short again. workingTime is how long it must last to count as
	// working.
	calmTime    = 15 * time.Second
	workingTime = time.Second
)

var (
	errNoState = errors.New("a watch ended before it sent the object's state")
	errCut     = errors.New("a watch ended as soon as it was open")
	errSilent  = errors.New("a watch did not end in its time")
)

// newPauses returns the pauses of one object between watches or failed requests: from 0.25 s to 15 s, plus up to as much jitter.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 15 * time.Second}
}

// watchStart says where the next watch starts.
type watchStart struct {
	// version is the version after which the watch continues. "" asks for the state first.
	version string
	// notOlder is the oldest version that the state may have. "" asks for the newest state. A run starts with "", because only the newest
	// state shows whether an object was recreated.
	notOlder string
}

// follow keeps the object current until the run ends or the object cannot change any more. The first watch starts with the state. The next
// watch continues where the last one ended. It starts with the state again after a failure, and after a watch that lasted its full time:
// etcd may have been restored meanwhile, which a watch from a later version never notices, and a proxy may keep a dead watch open.
func (r *run) follow(ctx context.Context) {
	var begin watchStart
	pauses := newPauses()
	for watches := 0; ctx.Err() == nil; {
		began := time.Now()
		next, err := r.watch(ctx, begin, &watches)
		if begin.version == "" && r.needsList(err) {
			refused := err
			if next, err = r.list(ctx, begin); err == nil && !r.endIfImmutable() {
				if isRefusal(refused) {
					r.recordFailure(refused)
				}
				if begin = next; begin.version != "" {
					continue // there is no failure, so no pause
				}
			}
		}
		if time.Since(began) > calmTime {
			pauses = newPauses()
		}
		var pause time.Duration
		if err != nil {
			next = r.afterFailure(begin, err)
		}
		if err == nil || r.recordFailure(err) > 0 { // otherwise the next request waits at the gate with the others
			pause = max(pauses.Step(), requests.RetryAfter(err))
		}
		if r.endIfImmutable() {
			return
		}
		begin = next
		r.sleep(ctx, pause)
	}
}

// afterFailure returns where to start the next watch, after a watch that started at a given place has failed.
func (r *run) afterFailure(at watchStart, err error) watchStart {
	if at.version == "" && (isTooLarge(err) || isExpired(err)) {
		return watchStart{}
	}
	return r.startWithState()
}

// startWithState returns the start of a watch that begins with the state.
func (r *run) startWithState() watchStart {
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	if !r.item.state.Last.IsKnown() {
		return watchStart{}
	}
	return watchStart{notOlder: r.item.newest}
}

// startAfter returns the start of a watch that continues after a version. For "" the watch begins with the state.
func (r *run) startAfter(version string) watchStart {
	if version == "" {
		return r.startWithState()
	}
	return watchStart{version: version}
}

// needsList reports whether a list is needed, because the server cannot start a watch with the state, or because the account may list but
// not watch.
func (r *run) needsList(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !r.item.m.refusalsPass
}

// endIfImmutable ends the run of an immutable object. The next pod that references the object starts another run.
func (r *run) endIfImmutable() bool {
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	obj := r.item.state.Last.Value
	r.ended = r.ended || obj != nil && obj.Immutable
	return r.ended
}

// requestContext returns the context for the run's next request.
func (r *run) requestContext(ctx context.Context) context.Context {
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	return requests.With(ctx, requests.Meta{Account: r.item.account, Urgent: r.item.state.Urgent, For: r.item.waiters})
}

// whole returns a context for a request whose answer is read at once. Few of them are in memory at the same time.
func whole(ctx context.Context) context.Context {
	m := requests.MetaOf(ctx)
	m.Whole = true
	return requests.With(ctx, m)
}

// list requests the state, and returns where a watch can continue.
func (r *run) list(ctx context.Context, begin watchStart) (watchStart, error) {
	ctx, cancel := context.WithTimeout(whole(r.requestContext(ctx)), bodyTimeout)
	defer cancel()
	obj, version, err := r.item.source.list(ctx, r.item.ref, metav1.ListOptions{ResourceVersion: begin.notOlder})
	if err != nil {
		return watchStart{}, err
	}
	err = r.set(obj, version, obj != nil && obj.Immutable)
	return r.startAfter(version), err
}

// watch follows the object with one watch, and returns where the next one starts.
func (r *run) watch(ctx context.Context, begin watchStart, count *int) (watchStart, error) {
	lasts := watchTime + rand.N(watchTime)
	seconds := int64(lasts.Seconds())
	opts := metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: begin.version, TimeoutSeconds: &seconds}
	withState := begin.version == ""
	if withState {
		opts.SendInitialEvents, opts.ResourceVersion = &withState, begin.notOlder
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	ctx, cancel := context.WithCancelCause(r.requestContext(ctx))
	defer cancel(nil)
	it := r.item
	body, err := it.source.watch(ctx, it.ref, opts)
	if err != nil {
		return watchStart{}, err
	}
	defer body.Close()
	if *count++; *count > 1 {
		it.m.observer.Rewatched(it.ref.Kind)
	}
	klog.FromContext(ctx).Info("Watching", "ref", it.ref, "from", opts.ResourceVersion)
	limit := lasts + watchGrace
	if withState {
		limit = requests.AnswerTimeout
	} else {
		r.recordAllowed()
	}
	deadline := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer deadline.Stop()
	s, version := &stream{body: body, decoder: it.source.events, ref: it.ref, inFlight: it.m.inFlight}, begin.version
	defer s.settled()
	if withState {
		if version, err = r.readState(ctx, s); err != nil {
			return watchStart{}, errors.Join(context.Cause(ctx), err)
		}
		deadline.Reset(lasts + watchGrace)
	}
	opened := time.Now()
	if version, err = r.processEvents(ctx, s, version); time.Since(opened) >= watchTime {
		version = ""
	}
	return r.startAfter(version), err
}

// readState reads the state that a watch starts with.
func (r *run) readState(ctx context.Context, s *stream) (version string, err error) {
	var obj *volume.Object
	defer s.settled()
	for {
		e, err := s.next(ctx)
		switch {
		case errors.Is(err, errEnded):
			return "", fmt.Errorf("%w: %w", errNoState, err)
		case err != nil:
			return "", err
		case e.initialEventsEnd:
			return e.resourceVersion, r.set(obj, e.resourceVersion, true)
		case e.kind != watch.Bookmark:
			obj = e.present()
		}
	}
}

// processEvents processes events until the watch ends or the object cannot change any more.
func (r *run) processEvents(ctx context.Context, s *stream, version string) (string, error) {
	began, heard := time.Now(), false
	r.setWatching(began)
	defer r.setWatching(time.Time{})
	for !r.endIfImmutable() {
		s.settled()
		e, err := s.next(ctx)
		switch {
		case errors.Is(err, errEnded) && !heard && time.Since(began) < workingTime:
			r.recordFailure(errCut)
			return version, nil
		case errors.Is(err, errEnded):
			return version, nil
		case err != nil:
			return "", err // an expired version, or an event that cannot be decoded
		}
		heard = true
		if e.kind == watch.Bookmark {
			r.recordUnchanged(e.resourceVersion)
		} else if err := r.set(e.present(), e.resourceVersion, true); err != nil && !errors.Is(err, errOlder) {
			return "", err
		}
		version = e.resourceVersion
	}
	return version, nil
}

func (r *run) setWatching(since time.Time) {
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	r.watchOpenedAt = since
}

// recordUnchanged records that the object has not changed up to a version.
func (r *run) recordUnchanged(version string) {
	it := r.item
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run == r && !IsOlder(version, it.newest) {
		it.provenAt, it.state.Err = time.Now(), nil
	}
}

// recordAllowed records that the object is no longer refused.
func (r *run) recordAllowed() {
	it := r.item
	it.mu.Lock()
	notify := it.run == r && it.denial.clear()
	if it.run == r {
		it.state.Err = nil
	}
	it.mu.Unlock()
	if notify {
		it.m.changed(it.account, it.ref)
	}
}

// sleep waits before the next request.
func (r *run) sleep(ctx context.Context, d time.Duration) {
	r.setPausing(true)
	defer r.setPausing(false)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (r *run) setPausing(pausing bool) {
	r.item.mu.Lock()
	defer r.item.mu.Unlock()
	r.pausing = pausing
}

// isUsual reports whether err is a usual end of a watch, a usual answer of a busy API server, or not about a request at all.
func isUsual(err error) bool {
	return isExpired(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInvalid(err) || errors.Is(err, errCut) || errors.As(err, new(*FullError))
}

// isExpired reports whether the API server no longer has the requested version.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// isTooLarge reports whether the API server doesn't have the requested version yet.
func isTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

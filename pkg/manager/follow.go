package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// watcher follows the object with one watch after the other. It has a goroutine, but none while the object cannot change. The lock of the
// item guards its fields.
type watcher struct {
	tries
	// over means that nothing follows the object: it is immutable, and no pod waits for a newer answer.
	over bool
	// openedAt is when the open watch started; zero for none.
	openedAt time.Time
}

func (w *watcher) follows() (follows, works bool) {
	return !w.over, !w.openedAt.IsZero() && time.Since(w.openedAt) >= workingTime
}

func (*watcher) refresh() {}

func (w *watcher) readAgain() { w.request() }

// request starts to follow the object. A watcher that does so already requests the state again by itself, if the object is immutable.
func (w *watcher) request() {
	if w.over {
		w.over = false
		w.start(w.follow)
	}
}

// follow keeps the object current until the run ends or the object cannot change any more. The first watch starts with the state. The next
// watch continues where the last one ended. It starts with the state again after a failure, and after a watch that lasted its full time:
// etcd may have been restored meanwhile, which a watch from a later version never notices, and a proxy may keep a dead watch open.
func (w *watcher) follow(ctx context.Context) {
	var at watchStart
	for watches := 0; ctx.Err() == nil; {
		began := time.Now()
		version, err := w.watch(ctx, at, &watches)
		if at.version == "" && w.needsList(err) {
			refused := err
			if version, err = w.list(ctx, at); err == nil && !w.isImmutable() {
				if isRefusal(refused) {
					w.item.fail(w, refused)
				}
				if at.version = version; version != "" {
					continue // there is no failure, so no pause
				}
			}
		}
		if err != nil {
			w.item.fail(w, err)
			version = ""
		}
		at = watchStart{version, at.version == "" && (isTooLarge(err) || isExpired(err))}
		switch {
		case w.endIfImmutable():
			return
		case err == nil && w.isImmutable():
			at = watchStart{} // a pod came meanwhile, and waits for the next answer
		default:
			w.sleep(ctx, err, time.Since(began) > calmTime)
		}
	}
}

// watchStart says where a watch starts: after a version, or with the state if that is "". needsNewest means that the state must be the newest.
// Otherwise it may be as old as what is known.
type watchStart struct {
	version     string
	needsNewest bool
}

// needsList reports whether a list is needed, because the server cannot start a watch with the state, or because the account may list but
// not watch.
func (w *watcher) needsList(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !w.item.m.refusalsPass
}

// endIfImmutable ends the run of an immutable object, unless a pod waits for a newer answer or the last try for one has failed. The next
// pod that references the object starts it again.
func (w *watcher) endIfImmutable() bool {
	it := w.item
	it.mu.Lock()
	defer it.mu.Unlock()
	w.over = isImmutable(it.state.last.object) && it.state.err == nil && !it.demand.isAwaited(it.state.last.try)
	return w.over
}

func (w *watcher) isImmutable() bool {
	w.item.mu.Lock()
	defer w.item.mu.Unlock()
	return isImmutable(w.item.state.last.object)
}

// begin returns the context for a try, and the oldest version that the state may have; "" asks for the newest. Only the newest state shows
// whether an object was recreated, so new pods wait for that.
func (w *watcher) begin(ctx context.Context, at watchStart) (try context.Context, notOlder string) {
	it := w.item
	it.mu.Lock()
	defer it.mu.Unlock()
	if last := it.state.last; last.isKnown && !it.demand.isAwaited(last.try) && !at.needsNewest {
		notOlder = it.state.newest
	}
	return w.beginLocked(ctx), notOlder
}

// list requests the state, and returns its version.
func (w *watcher) list(ctx context.Context, at watchStart) (version string, err error) {
	ctx, notOlder := w.begin(ctx, at)
	ctx, cancel := context.WithTimeout(whole(ctx), bodyTimeout)
	defer cancel()
	obj, version, err := w.item.source.list(ctx, w.item.ref, metav1.ListOptions{ResourceVersion: notOlder})
	if err != nil {
		return "", err
	}
	return version, w.item.set(w, obj, version, isImmutable(obj))
}

// watch follows the object with one watch, and returns the version after which the next one continues, or "".
func (w *watcher) watch(ctx context.Context, at watchStart, count *int) (version string, err error) {
	lasts := watchTime + rand.N(watchTime)
	seconds := int64(lasts.Seconds())
	opts := metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: at.version, TimeoutSeconds: &seconds}
	ctx, notOlder := w.begin(ctx, at)
	withState := at.version == ""
	if withState {
		opts.SendInitialEvents, opts.ResourceVersion = &withState, notOlder
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	it := w.item
	body, err := it.source.watch(ctx, it.ref, opts)
	if err != nil {
		return "", err
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
		it.prove(w, "")
	}
	deadline := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer deadline.Stop()
	s, version := &stream{body: body, decoder: it.source.events, ref: it.ref, inFlight: it.m.inFlight}, at.version
	defer s.settled()
	if withState {
		if version, err = w.readState(ctx, s); err != nil {
			return "", errors.Join(context.Cause(ctx), err)
		}
		deadline.Reset(lasts + watchGrace)
	}
	opened := time.Now()
	if version, err = w.processEvents(ctx, s, version); time.Since(opened) >= watchTime {
		version = ""
	}
	return version, err
}

// readState reads the state that a watch starts with.
func (w *watcher) readState(ctx context.Context, s *stream) (version string, err error) {
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
			return e.resourceVersion, w.item.set(w, obj, e.resourceVersion, true)
		case e.kind != watch.Bookmark:
			obj = e.present()
		}
	}
}

// processEvents processes events until the watch ends or the object cannot change any more.
func (w *watcher) processEvents(ctx context.Context, s *stream, version string) (string, error) {
	began, heard := time.Now(), false
	w.setWatching(began)
	defer w.setWatching(time.Time{})
	for !w.isImmutable() {
		s.settled()
		e, err := s.next(ctx)
		switch {
		case errors.Is(err, errEnded) && !heard && time.Since(began) < workingTime:
			w.item.fail(w, errCut)
			return version, nil
		case errors.Is(err, errEnded):
			return version, nil
		case err != nil:
			return "", err // an expired version, or an event that cannot be decoded
		}
		heard = true
		if e.kind == watch.Bookmark {
			w.item.prove(w, e.resourceVersion)
		} else if err := w.item.set(w, e.present(), e.resourceVersion, true); err != nil && !errors.Is(err, errOlder) {
			return "", err
		}
		version = e.resourceVersion
	}
	return version, nil
}

func (w *watcher) setWatching(since time.Time) {
	w.item.mu.Lock()
	defer w.item.mu.Unlock()
	w.openedAt = since
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

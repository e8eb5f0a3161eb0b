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

// watchStart says where the next watch starts.
type watchStart struct {
	// version is the version after which the watch continues. "" asks for the state first.
	version string
	// notOlder is the oldest version that the state may have. "" asks for the newest state. A run starts with "", because only the newest
	// state shows whether an object was recreated.
	notOlder string
}

func (w *watcher) isOver() bool { return w.over }

func (w *watcher) isWorking() bool {
	return !w.openedAt.IsZero() && time.Since(w.openedAt) >= workingTime
}

func (*watcher) refresh() {}

// request starts to follow the object. A watcher that does so already requests the state again by itself, if the object is immutable.
func (w *watcher) request() {
	if w.over {
		w.over = false
		w.item.m.running.Go(w.follow)
	}
}

// follow keeps the object current until the run ends or the object cannot change any more. The first watch starts with the state. The next
// watch continues where the last one ended. It starts with the state again after a failure, and after a watch that lasted its full time:
// etcd may have been restored meanwhile, which a watch from a later version never notices, and a proxy may keep a dead watch open.
func (w *watcher) follow() {
	var begin watchStart
	for watches := 0; w.ctx.Err() == nil; {
		began := time.Now()
		next, err := w.watch(begin, &watches)
		if begin.version == "" && w.needsList(err) {
			refused := err
			if next, err = w.list(begin); err == nil && isRefusal(refused) && !w.isImmutable() {
				w.item.fail(w, refused)
			}
			if begin = next; err == nil && begin.version != "" && !w.isImmutable() {
				continue // there is no failure, so no pause
			}
		}
		if time.Since(began) > calmTime {
			w.calm()
		}
		if err != nil {
			next = w.afterFailure(begin, err)
			w.item.fail(w, err)
		}
		switch begin = next; {
		case w.endIfImmutable():
			return
		case err == nil && w.isImmutable():
			begin = watchStart{} // a pod came meanwhile, and waits for the next answer
		default:
			w.sleep(err)
		}
	}
}

// afterFailure returns where to start the next watch, after a watch that started at a given place has failed.
func (w *watcher) afterFailure(at watchStart, err error) watchStart {
	if at.version == "" && (isTooLarge(err) || isExpired(err)) {
		return watchStart{}
	}
	return w.startWithState()
}

// startWithState returns the start of a watch that begins with the state. If a pod waits for a newer state, that must be the newest.
func (w *watcher) startWithState() watchStart {
	it := w.item
	it.mu.Lock()
	defer it.mu.Unlock()
	if last := it.state.last; !last.isKnown || it.demand.isAwaited(last.try) {
		return watchStart{}
	}
	return watchStart{notOlder: it.state.newest}
}

// startAfter returns the start of a watch that continues after a version. For "" the watch begins with the state.
func (w *watcher) startAfter(version string) watchStart {
	if version == "" {
		return w.startWithState()
	}
	return watchStart{version: version}
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

// begin returns the context for a try.
func (w *watcher) begin() context.Context {
	w.item.mu.Lock()
	defer w.item.mu.Unlock()
	return w.beginLocked()
}

// list requests the state, and returns where a watch can continue.
func (w *watcher) list(begin watchStart) (watchStart, error) {
	ctx, cancel := context.WithTimeout(whole(w.begin()), bodyTimeout)
	defer cancel()
	obj, version, err := w.item.source.list(ctx, w.item.ref, metav1.ListOptions{ResourceVersion: begin.notOlder})
	if err != nil {
		return watchStart{}, err
	}
	err = w.item.set(w, obj, version, isImmutable(obj))
	return w.startAfter(version), err
}

// watch follows the object with one watch, and returns where the next one starts.
func (w *watcher) watch(begin watchStart, count *int) (watchStart, error) {
	lasts := watchTime + rand.N(watchTime)
	seconds := int64(lasts.Seconds())
	opts := metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: begin.version, TimeoutSeconds: &seconds}
	withState := begin.version == ""
	if withState {
		opts.SendInitialEvents, opts.ResourceVersion = &withState, begin.notOlder
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	ctx, cancel := context.WithCancelCause(w.begin())
	defer cancel(nil)
	it := w.item
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
		it.allow(w)
	}
	deadline := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer deadline.Stop()
	s, version := &stream{body: body, decoder: it.source.events, ref: it.ref, inFlight: it.m.inFlight}, begin.version
	defer s.settled()
	if withState {
		if version, err = w.readState(ctx, s); err != nil {
			return watchStart{}, errors.Join(context.Cause(ctx), err)
		}
		deadline.Reset(lasts + watchGrace)
	}
	opened := time.Now()
	if version, err = w.processEvents(ctx, s, version); time.Since(opened) >= watchTime {
		version = ""
	}
	return w.startAfter(version), err
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

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

// The reflector is our own: client-go's takes four goroutines and a store for each object, keeps the longest event in
// memory, and logs objects that it can't take.

const (
	// watchTime is the shortest time that a watch is asked to last. The longest is twice that. It is random, so that watches
	// that began together don't end together. A watch that its server does not end is ended watchGrace later.
	watchTime  = 30 * time.Minute
	watchGrace = 30 * time.Second
	// bodyTime is how long a request may take that is no watch, with its wait for its turn.
	bodyTime = 2 * time.Minute
	// calmTime is how long a watch must last for the next pause to be short, and workingTime for it to count as one that works.
	calmTime    = 15 * time.Second
	workingTime = time.Second
)

var (
	errNoState = errors.New("a watch ended before it told the object's state")
	errCut     = errors.New("a watch ended as soon as it was open")
	errSilent  = errors.New("a watch did not end in its time")
)

// newPauses returns the pauses of one object between watches, or failed requests: from 0.25 s up to 15 s, with as much
// jitter again.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 15 * time.Second}
}

// reflect follows the object until the run ends, or the object can't change any more. It asks for the state by a watch
// that begins with it. The next watch goes on where that one has ended, but not after a failure, nor after one that has
// lasted its time: etcd may have been restored meanwhile, and a proxy may keep a dead watch open.
func (r *run) reflect(ctx context.Context) {
	pauses, version := newPauses(), ""
	anew := false // the state is asked for without a bound on its age
	for watches := 0; ctx.Err() == nil; {
		began := time.Now()
		next, err := r.watch(ctx, version, anew, &watches)
		if version == "" && r.needsList(err) {
			refused := err
			if next, err = r.list(ctx, anew); err == nil && !r.endIfImmutable() {
				if isRefusal(refused) {
					r.failed(refused)
				}
				if version = next; version != "" {
					continue // there is no failure to pause after
				}
			}
		}
		if err != nil {
			next = ""
			r.failed(err)
		}
		anew = version == "" && (isTooLarge(err) || isExpired(err))
		if r.endIfImmutable() {
			return
		}
		version = next
		if time.Since(began) > calmTime {
			pauses = newPauses()
		}
		if _, waits := r.m.requests.Err(r.account); err == nil || waits == nil { // else the next request waits with the others
			r.sleep(ctx, pauses.Step())
		}
	}
}

// needsList tells whether the server can't begin a watch with the state, or the account may list and not watch.
func (r *run) needsList(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !r.m.refusalsPass
}

// endIfImmutable ends the run of an object that can only be deleted: the next pod that references it starts another one.
func (r *run) endIfImmutable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = r.ended || r.object != nil && r.object.Immutable
	return r.ended
}

// present returns the oldest version that the next state may have; "" asks for the newest. The first state of a run must
// be the newest, as only that tells whether an object was created anew.
func (r *run) present(anew bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced || anew {
		return ""
	}
	return r.newest
}

// list asks for the state, and returns the version from which a watch can go on.
func (r *run) list(ctx context.Context, anew bool) (string, error) {
	ctx, cancel := context.WithTimeout(r.with(ctx), bodyTime)
	defer cancel()
	obj, version, err := r.source.list(ctx, r.ref, metav1.ListOptions{ResourceVersion: r.present(anew)})
	if err != nil {
		return "", err
	}
	return version, r.set(obj, version, obj != nil && obj.Immutable)
}

// watch follows the object by one watch, which goes on from version, or begins with the state if that is "". It returns
// the version from which the next one can go on.
func (r *run) watch(ctx context.Context, version string, anew bool, count *int) (string, error) {
	lasts := watchTime + rand.N(watchTime)
	seconds := int64(lasts.Seconds())
	opts := metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: version, TimeoutSeconds: &seconds}
	withState := version == ""
	if withState {
		opts.SendInitialEvents, opts.ResourceVersion = &withState, r.present(anew)
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	ctx, cancel := context.WithCancelCause(r.with(ctx))
	defer cancel(nil)
	body, err := r.source.watch(ctx, r.ref, opts)
	if err != nil {
		return "", err
	}
	defer body.Close()
	if *count++; *count > 1 {
		r.m.observer.Rewatched(r.ref.Kind)
	}
	klog.FromContext(ctx).Info("Watching", "ref", r.ref, "from", opts.ResourceVersion)
	limit := lasts + watchGrace
	if withState {
		limit = requests.AnswerTime
	} else {
		r.allowed()
	}
	deadline := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer deadline.Stop()
	s := &stream{body: body, decoder: r.source.events, ref: r.ref}
	if withState {
		if version, err = r.takeState(s); err != nil {
			return "", errors.Join(context.Cause(ctx), err)
		}
		deadline.Reset(lasts + watchGrace)
	}
	opened := time.Now()
	version, err = r.follow(s, version)
	if time.Since(opened) >= watchTime {
		return "", err
	}
	return version, err
}

// takeState reads the state that a watch begins with.
func (r *run) takeState(s *stream) (version string, err error) {
	var obj *volume.Object
	for {
		e, err := s.next()
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

// follow takes over events until the watch ends, or the object can't change any more.
func (r *run) follow(s *stream, version string) (string, error) {
	began, heard := time.Now(), false
	r.setWatching(began)
	defer r.setWatching(time.Time{})
	for !r.endIfImmutable() {
		e, err := s.next()
		switch {
		case errors.Is(err, errEnded) && !heard && time.Since(began) < workingTime:
			r.failed(errCut)
			return version, nil
		case errors.Is(err, errEnded):
			return version, nil
		case err != nil:
			return "", err // an expired version, or an event that can't be read
		}
		heard = true
		if e.kind == watch.Bookmark {
			r.proved(e.resourceVersion)
		} else if err := r.set(e.present(), e.resourceVersion, true); err != nil && !errors.Is(err, errOlder) {
			return "", err
		}
		version = e.resourceVersion
	}
	return version, nil
}

func (r *run) setWatching(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watching = since
}

// proved records that nothing has changed until a version.
func (r *run) proved(version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.item.run == r && !IsOlder(version, r.newest) {
		r.provenAt, r.err = time.Now(), nil
	}
}

// isUsual tells whether err is a usual end of a watch, or concerns no request.
func isUsual(err error) bool {
	return isExpired(err) || apierrors.IsInvalid(err) || errors.Is(err, errCut) || errors.As(err, new(*FullError))
}

// isExpired tells whether the API server has forgotten the version that it was asked for.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// isTooLarge tells whether the API server doesn't know the version yet.
func isTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

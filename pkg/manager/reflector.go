package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// minWatchTimeout is the shortest time that a watch is asked to last. The longest is
	// twice that. It is random, so that watches that began together don't end together.
	minWatchTimeout = 30 * time.Minute
	// answerTime is how long a list of one object may take, or the begin of a watch with the
	// object's state. A dead connection ends sooner, by the client's pings. This limit is for
	// servers and proxies that keep the connection alive and send nothing.
	answerTime = 30 * time.Second
	// calmTime without a pause makes the next one short again. It is longer than any pause,
	// and shorter than the time after which a proxy ends an idle watch.
	calmTime = 15 * time.Second
	// workingTime is how long a watch must last to count as working.
	workingTime = time.Second
)

var (
	errSilent  = fmt.Errorf("no answer within %s", answerTime)
	errCutOff  = errors.New("a watch ended before it told the object's state")
	errStopped = errors.New("the reflector was stopped")
	// errNoCredential is why a request was not sent or was refused: the account has no
	// credential.
	errNoCredential = errors.New("the account has no credential")
)

// retryBackoff returns the pauses of one object between failed requests or broken watches:
// from 0.25 s up to 5 s, or from 2.5 s up to twice the longest backoff if the failures have
// lasted. A failure that concerns more than the object has another backoff, see scopes.
func retryBackoff(most time.Duration) wait.Backoff {
	least := backoff.Min
	if most > backoff.Short {
		least = backoff.Short
	}
	return wait.Backoff{Duration: least, Factor: 2, Jitter: 1, Cap: most, Steps: 10}
}

// reflector keeps an item current: it asks for the object's state, follows it by watches, and
// asks for the state again when a watch can't go on.
//
// client-go's reflector has pauses that nothing can end, so a publish can't shorten them. It
// takes four goroutines and a store for each object, which made memory 1.10 times the
// kubelet's instead of 0.65 times. It paces each object alone, so neither the bound on
// openings nor the shared backoff of a scope can hold.
//
// A reflector belongs to the goroutine of the item's present run.
type reflector struct {
	item *item
	// version is the resourceVersion of the item's state, from which a watch can go on;
	// empty if there is none.
	version  string
	backoff  wait.Backoff
	pausedAt time.Time
	// wellAt is when a watch last worked.
	wellAt time.Time
	// shared says that the last failure concerned more than the object. Then the backoff of
	// its scope delays the next request.
	shared bool
	// silent is how many watches in a row brought nothing until they were ended for that.
	silent int
	// watched says that this run has had a watch.
	watched bool
}

// reflect follows the object until ctx ends.
func (r *reflector) reflect(ctx context.Context) {
	r.wellAt, r.watched = time.Now(), false
	for ctx.Err() == nil {
		if !r.awaitCredentials(ctx) {
			return
		}
		if paused := r.attempt(ctx); !paused {
			r.pause(ctx)
		}
	}
}

// awaitCredentials waits until requests of the item's account can be sent, and returns false
// if ctx ends before. The wait is recorded as a failure.
func (r *reflector) awaitCredentials(ctx context.Context) bool {
	credentials := r.item.base.credentials
	if err := credentials.Ready(r.item.account); err != nil {
		r.failed(ctx, err)
		return credentials.Await(ctx, r.item.account) == nil
	}
	return true
}

// attempt asks for the object's state and follows it, by one watch after the other, for as
// long as the next watch can go on where the last one ended. After a refused connection it
// ends: the etcd may have been restored meanwhile, and a watch that goes on would not tell what
// came before. It returns true if it made a pause right before it ended, so that the next
// attempt needs none: an outage that makes the watch's version expire must not cost two pauses.
func (r *reflector) attempt(ctx context.Context) (paused bool) {
	s, err := r.begin(ctx)
	if r.item.openings.refusalsPass() && apierrors.IsForbidden(err) {
		r.failed(ctx, err) // a list would be refused too
		return false
	}
	if isFull(err) {
		return false
	}
	if err != nil {
		// Not all servers can begin a watch with the state. If the list fails too, its error
		// counts.
		if r.list(ctx) != nil {
			return false
		}
		if isRefusal(err) {
			r.failed(ctx, err) // another watch would be refused too
			return false
		}
		if s, err = r.goOn(ctx); err != nil && !apierrors.IsTooManyRequests(err) {
			return false
		}
	}
	for {
		if s != nil {
			err = r.follow(ctx, s)
		}
		if ctx.Err() != nil || err != nil && !apierrors.IsTooManyRequests(err) {
			return paused && time.Since(r.pausedAt) < calmTime
		}
		r.pause(ctx)
		s, err = r.goOn(ctx)
		paused = err == nil || isExpired(err)
	}
}

// begin opens a watch that begins with the object's state, and returns after the state has
// arrived.
func (r *reflector) begin(ctx context.Context) (*stream, error) {
	for {
		s, err := r.beginAt(ctx, r.present())
		switch {
		case err == nil:
			return s, nil
		case isExpired(err), isTooLarge(err):
			r.version = ""
		case isFull(err):
			return nil, err
		case !isWorthRepeating(err):
			klog.FromContext(ctx).Info("A watch that begins with the state failed", "ref", r.item.ref, "err", err)
			return nil, err
		}
		r.failed(ctx, err)
		r.pause(ctx)
		if ctx.Err() != nil {
			return nil, errStopped
		}
	}
}

// present returns the oldest version that the next state may have; "" asks for the newest.
// The first state of a run must be the newest, because an immutable object is read only once
// per run and may just have been deleted and created again. Later states of the run may come
// from a cache of the server that isn't older than the last one.
func (r *reflector) present() string {
	if !r.item.isSynced() {
		return ""
	}
	return r.version
}

func (r *reflector) beginAt(ctx context.Context, version string) (*stream, error) {
	withState := true
	opts := r.watchOptions(version)
	opts.SendInitialEvents = &withState
	opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	s, err := r.open(ctx, opts)
	if err != nil {
		return nil, err
	}
	switch err := r.takeState(ctx, s); {
	case isFull(err):
		s.opened(nil)
		s.close()
		return nil, err
	case err != nil:
		err = errors.Join(s.cause(), err)
		s.opened(err)
		s.close()
		return nil, err
	}
	s.opened(nil)
	s.answered()
	return s, nil
}

// takeState reads the state that a watch begins with.
func (r *reflector) takeState(ctx context.Context, s *stream) error {
	var obj *volume.Object
	for {
		e, err := s.next()
		if errors.Is(err, errEnded) {
			err = errCutOff
		}
		if err != nil {
			return err
		}
		if !e.large {
			s.opened(nil)
		}
		switch {
		case e.initialEventsEnd:
			return r.take(ctx, obj, e.resourceVersion, true)
		case e.kind == watch.Bookmark || e.object.Ref != r.item.ref:
		case e.kind == watch.Deleted:
			obj = nil
		case e.kind == watch.Added || e.kind == watch.Modified:
			obj = e.object
		}
	}
}

// take passes a state to the item; see item.sync.
func (r *reflector) take(ctx context.Context, obj *volume.Object, version string, complete bool) error {
	if err := r.item.sync(obj, version, complete); err != nil {
		if !isFull(err) { // no request failed
			r.failed(ctx, err)
		}
		return err
	}
	r.version = version
	return nil
}

// list asks for the object's state by a list request.
func (r *reflector) list(ctx context.Context) error {
	opts := metav1.ListOptions{FieldSelector: r.selector(), ResourceVersion: r.present()}
	obj, version, err := r.sendList(ctx, opts)
	if opts.ResourceVersion != "" && (isExpired(err) || isTooLarge(err)) {
		opts.ResourceVersion = ""
		obj, version, err = r.sendList(ctx, opts)
	}
	if err != nil {
		return err
	}
	// An immutable object needs no watch.
	return r.take(ctx, obj, version, obj != nil && obj.Immutable)
}

func (r *reflector) sendList(ctx context.Context, opts metav1.ListOptions) (*volume.Object, string, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening, err := r.item.base.openings.begin(ctx, &r.item.candidate, cancel)
	if err != nil {
		return nil, "", errStopped
	}
	defer time.AfterFunc(answerTime, func() { cancel(errSilent) }).Stop()
	obj, version, err := r.item.source.list(bounded, r.item.ref, opts)
	if err != nil {
		err = r.explain(bounded, err)
		r.failed(ctx, err)
	}
	opening.end(err)
	return obj, version, err
}

// explain adds to the error of a request why the reflector ended it, or that it lacked a
// credential.
func (r *reflector) explain(ctx context.Context, err error) error {
	return errors.Join(context.Cause(ctx), r.item.base.lacksCredential(r.item.account), err)
}

// goOn opens a watch from the item's version.
func (r *reflector) goOn(ctx context.Context) (*stream, error) {
	s, err := r.open(ctx, r.watchOptions(r.version))
	if err != nil {
		r.failed(ctx, err)
		return nil, err
	}
	s.opened(nil)
	s.answered()
	r.item.watched()
	return s, nil
}

// open sends a watch request. The stream ends after answerTime, unless answered is called, and the caller calls opened.
func (r *reflector) open(ctx context.Context, opts metav1.ListOptions) (*stream, error) {
	if ctx.Err() != nil {
		return nil, errStopped
	}
	bounded, end := context.WithCancelCause(ctx)
	opening, err := r.item.base.openings.begin(ctx, &r.item.candidate, end)
	if err != nil {
		end(nil)
		return nil, errStopped
	}
	timer := time.AfterFunc(answerTime, func() { end(errSilent) })
	body, err := r.item.source.watch(bounded, r.item.ref.Namespace, opts)
	if err != nil {
		err = r.explain(bounded, err)
		timer.Stop()
		end(nil)
	}
	if err != nil {
		opening.end(err)
		return nil, err
	}
	if r.watched {
		r.item.base.observer.Rewatched(r.item.ref.Kind)
	}
	r.watched = true
	klog.FromContext(ctx).Info("Watching", "ref", r.item.ref, "from", opts.ResourceVersion)
	return &stream{
		body: body, decoder: r.item.source.events, opening: opening, end: end, timer: timer,
		cause: func() error { return context.Cause(bounded) },
	}, nil
}

func (r *reflector) watchOptions(version string) metav1.ListOptions {
	seconds := int64(minWatchTimeout.Seconds() * (1 + rand.Float64()))
	return metav1.ListOptions{
		FieldSelector:       r.selector(),
		ResourceVersion:     version,
		AllowWatchBookmarks: true,
		TimeoutSeconds:      &seconds,
	}
}

func (r *reflector) selector() string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, r.item.ref.Name).String()
}

// follow passes the events of a watch to the item until the watch ends, and closes it. The
// error is nil if another watch can go on from there. After a silent watch none can: the API
// server's state may have been restored to one before the watch's version, of which nothing
// would come until it is as new again.
func (r *reflector) follow(ctx context.Context, s *stream) error {
	defer s.close()
	r.item.follows()
	defer r.watchEnded()
	silence := newSilence(r.silent, &r.item.base.reopens, s.end)
	defer silence.stop()
	for {
		e, err := s.next()
		if errors.Is(err, errEnded) {
			if errors.Is(s.cause(), errQuiet) {
				r.silent++
				klog.FromContext(ctx).Info("A watch is silent: reading the state again", "ref", r.item.ref, "after", silence.limit)
				return errQuiet
			}
			return nil
		}
		if err != nil {
			s.opening.report(err)
			r.failed(ctx, err)
			return err
		}
		silence.hear()
		r.silent = 0
		switch e.kind {
		case watch.Added, watch.Modified, watch.Deleted:
			if err := r.item.event(e); err != nil {
				return err
			}
		case watch.Bookmark:
			r.item.bookmark(e.resourceVersion)
		}
		if e.resourceVersion != "" {
			r.version = e.resourceVersion
		}
	}
}

// watchEnded records the end of a watch.
func (r *reflector) watchEnded() {
	if r.item.followed() {
		r.wellAt = time.Now()
	}
	select {
	case <-r.item.skipPause: // the publish that set it has its object
	default:
	}
}

// failed records err, unless the request failed because its run was stopped.
func (r *reflector) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.shared = isShared(err)
	r.item.failed(err)
}

// pause waits until the next pause is over, a publish waits for the object, or ctx ends.
// After a failure that concerns more than the object it doesn't wait.
func (r *reflector) pause(ctx context.Context) {
	if r.shared || r.item.openings.pacesRefused(&r.item.candidate) {
		r.shared, r.pausedAt = false, time.Now()
		return
	}
	most := r.item.openings.longestBackoff(&r.item.candidate, time.Since(r.wellAt) >= backoff.Lasting)
	if time.Since(r.pausedAt) > calmTime || most != r.backoff.Cap {
		r.backoff = retryBackoff(most)
	}
	timer := time.NewTimer(r.backoff.Step())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.item.skipPause:
	case <-timer.C:
	}
	r.pausedAt = time.Now()
}

// isFull tells whether the cache has no room for an object. The request has succeeded.
func isFull(err error) bool { return errors.As(err, new(*FullError)) }

// isWorthRepeating tells whether a watch that begins with the state may be opened again as it was: the
// server can't be reached or is busy.
func isWorthRepeating(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// isExpired tells whether the API server has forgotten the version that it was asked for.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// isTooLarge tells whether the API server doesn't know the version yet.
func isTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

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

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// minWatchTimeout is the least time that a watch is asked to last; the most is
	// twice that, at random, so that watches that began together don't end together.
	minWatchTimeout = 30 * time.Minute
	// answerTime is how long a list of one object may take, and a watch to begin; one that
	// begins with the object's state has to tell that too. A connection that is dead ends
	// sooner, by the client's own means: this is for servers, and what stands before them,
	// that keep it alive and say nothing.
	answerTime = 30 * time.Second
	// calmTime without a pause makes the next one short again. It is longer than
	// any pause, and shorter than what a proxy lets an idle watch live.
	calmTime = 15 * time.Second
	// workingTime is how long a watch has to last to have been of use.
	workingTime = time.Second
)

var (
	errSilent  = fmt.Errorf("no answer within %s", answerTime)
	errCutOff  = errors.New("a watch ended before it told the object's state")
	errStopped = errors.New("the reflector was stopped")
	// errNoCredential is why a request was not sent, or was refused, for want of a
	// credential of the account.
	errNoCredential = errors.New("the account has no credential")
)

// retryBackoff returns the pauses of one object between requests that fail, or watches
// that break: from 0.25 s up to 5 s, and up to a minute where that lasts. What concerns more
// than the object has a backoff of its own: see scopes.
func retryBackoff(lasts bool) wait.Backoff {
	least, most := minBackoff, shortBackoff
	if lasts {
		least, most = shortBackoff, longBackoff
	}
	return wait.Backoff{Duration: least, Factor: 2, Jitter: 1, Cap: most, Steps: 10}
}

// reflector keeps an item in line with the API server: it asks for the object's state,
// follows it by watches, and asks for the state again where a watch can't go on. It does
// what a reflector of client-go does, with which it shares no code: that one has four
// goroutines and a store for any number of objects, where one object needs one goroutine
// and no store; and it has pauses of its own, some of which nothing can end.
//
// It belongs to the goroutine of the item's present run.
type reflector struct {
	item *item
	// version is the resourceVersion that the item is in line with, from which a watch can
	// go on; empty if there is none.
	version  string
	backoff  wait.Backoff
	pausedAt time.Time
	// wellAt is when a watch was last seen to do its work; lasts says that this was long ago.
	wellAt time.Time
	lasts  bool
	// shared says that the last failure was none of the object's own: the scope that it
	// concerns has the next request wait.
	shared bool
}

// reflect follows the object until ctx ends.
func (r *reflector) reflect(ctx context.Context) {
	r.wellAt, r.lasts = time.Now(), false
	for ctx.Err() == nil {
		if !r.awaitIdentity(ctx) {
			return
		}
		if paused := r.attempt(ctx); !paused {
			r.pause(ctx)
		}
	}
}

// awaitIdentity waits until requests of the item's account can be sent, and returns false
// if ctx ends before. That this takes waiting is a failure like any, but asking again is of
// no use.
func (r *reflector) awaitIdentity(ctx context.Context) bool {
	identity := r.item.base.identity
	if err := identity.Ready(r.item.account); err != nil {
		r.failed(ctx, err)
		return identity.Await(ctx, r.item.account) == nil
	}
	return true
}

// attempt asks for the object's state, and follows it for as long as watches can go on
// where the one before has ended. It returns true if what ended it came after a pause, so
// that the next attempt needs none: after an outage, that a watch is too old must not cost
// a second one.
func (r *reflector) attempt(ctx context.Context) (paused bool) {
	s, err := r.begin(ctx)
	if err != nil {
		// Not all servers begin a watch with the state. Where a list fails too, it is
		// what counts as the failure.
		if r.list(ctx) != nil {
			return false
		}
		if isRefusal(err) {
			r.failed(ctx, err) // which no other watch can mend
			return false
		}
		if s, err = r.goOn(ctx); err != nil && !isWorthRepeating(err) {
			return false
		}
	}
	for {
		if s != nil {
			err = r.follow(ctx, s)
		}
		if ctx.Err() != nil || err != nil && !isWorthRepeating(err) {
			return paused && time.Since(r.pausedAt) < calmTime
		}
		r.pause(ctx)
		s, err = r.goOn(ctx)
		paused = err == nil || isExpired(err)
	}
}

// begin opens a watch that begins with the object's state, and returns it once that has
// come.
func (r *reflector) begin(ctx context.Context) (*stream, error) {
	for {
		s, err := r.beginAt(ctx, r.present())
		switch {
		case err == nil:
			return s, nil
		case isExpired(err), isTooLarge(err):
			r.version = ""
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

// present returns the version that a state asked for now must not be older than. The state
// that a run begins with has to be the present one, for which it returns "", not any that
// a cache of the server holds: an immutable object is looked at once only, so it must not
// be taken for unchanged when it was just deleted and created again. A later one of the
// same run may come from a cache that isn't older than the last one.
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
	if err := r.takeState(ctx, s); err != nil {
		err = errors.Join(s.cause(), err)
		s.opening.report(err)
		s.close()
		return nil, err
	}
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

// take has the item take in a state; see item.sync.
func (r *reflector) take(ctx context.Context, obj *volume.Object, version string, complete bool) error {
	if err := r.item.sync(obj, version, complete); err != nil {
		r.failed(ctx, err)
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
	opening, err := r.item.base.openings.begin(ctx, &r.item.place, cancel)
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

// explain returns the error of a request, with why it was ended from here, or that it
// lacked a credential.
func (r *reflector) explain(ctx context.Context, err error) error {
	return errors.Join(context.Cause(ctx), r.item.base.lacksCredential(r.item.account), err)
}

// goOn opens a watch from where the item is.
func (r *reflector) goOn(ctx context.Context) (*stream, error) {
	s, err := r.open(ctx, r.watchOptions(r.version))
	if err != nil {
		r.failed(ctx, err)
		return nil, err
	}
	s.answered()
	r.item.watched()
	return s, nil
}

// open sends a watch request. The stream ends after answerTime; once answered is called, at
// the time when the server should have ended it: the server, or what stands before it, may
// have forgotten it.
func (r *reflector) open(ctx context.Context, opts metav1.ListOptions) (*stream, error) {
	if ctx.Err() != nil {
		return nil, errStopped
	}
	bounded, end := context.WithCancelCause(ctx)
	opening, err := r.item.base.openings.begin(ctx, &r.item.place, end)
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
	opening.end(err)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("Watching", "ref", r.item.ref, "from", opts.ResourceVersion)
	return &stream{
		body: body, events: newEventReader(body, r.item.source.client.Scheme()), opening: opening, end: end, timer: timer,
		lasts: time.Duration(*opts.TimeoutSeconds)*time.Second + answerTime,
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

// follow has the item take in the events of a watch until that ends, and closes it. The
// error is nil if another watch can go on from there.
func (r *reflector) follow(ctx context.Context, s *stream) error {
	defer s.close()
	defer r.watchEnded(time.Now())
	for {
		e, err := s.next()
		if errors.Is(err, errEnded) {
			return nil
		}
		if err != nil {
			s.opening.report(err)
			r.failed(ctx, err)
			return err
		}
		switch e.kind {
		case watch.Added, watch.Modified, watch.Deleted:
			r.item.event(e)
		}
		if e.resourceVersion != "" {
			r.version = e.resourceVersion
		}
	}
}

// watchEnded takes in the end of a watch that began at a time.
func (r *reflector) watchEnded(began time.Time) {
	if time.Since(began) >= workingTime {
		r.wellAt = time.Now()
	}
	select {
	case <-r.item.hurry: // the publish that left it was served
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

// pause waits for the next pause's time, for a publish that waits for the object, or for ctx
// to end. There is no pause after a
// failure that wasn't the object's own.
func (r *reflector) pause(ctx context.Context) {
	if r.shared {
		r.shared, r.pausedAt = false, time.Now()
		return
	}
	lasts := time.Since(r.wellAt) >= lastingTime
	if time.Since(r.pausedAt) > calmTime || lasts != r.lasts {
		r.backoff, r.lasts = retryBackoff(lasts), lasts
	}
	timer := time.NewTimer(r.backoff.Step())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-r.item.hurry:
	case <-timer.C:
	}
	r.pausedAt = time.Now()
}

// isWorthRepeating tells whether a watch that failed may be opened again as it was: the
// server can't be reached, or is busy, and has said nothing of the object.
func isWorthRepeating(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// isExpired tells whether the API server has forgotten the version that it was asked for.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// isTooLarge tells whether the API server doesn't know the version yet.
func isTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

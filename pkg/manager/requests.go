package manager

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
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
	// maxDelay is the most that a server's wish for a pause, a Retry-After, is heeded: it
	// is often out of date when a server has recovered.
	maxDelay = 5 * time.Second
	// calmTime without a pause makes the next one short again. It is longer than
	// any pause, and shorter than what a proxy lets an idle watch live.
	calmTime = 15 * time.Second
)

var (
	errNoAnswer = errors.New("no answer to a watch request: the connection broke or timed out")
	errSilent   = fmt.Errorf("no answer within %s", answerTime)
)

// retryBackoff returns the pauses between requests that fail, or watches that break:
// from 0.25 s up to 5 s, all with jitter, because thousands of watches on many
// nodes break at the same moment when an API server goes away.
func retryBackoff() wait.Backoff {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 2500 * time.Millisecond, Steps: 10}
}

// requests sends the list and watch requests of an item's reflector, and paces them.
// The reflector's own pauses are switched off: some of them can't be interrupted, so
// they would hold up the end of the program, and none of them spreads the watches
// that a server closed in good order.
//
// All but direct, answered and delay belongs to the goroutine of the item's present run.
type requests struct {
	item *item
	// direct lets the next watch go without a pause: it follows a list, or it
	// is the first request of an attempt. A list runs in a goroutine of its own.
	direct atomic.Bool
	// stream is the last watch opened, and end what frees it.
	stream watch.Interface
	end    context.CancelCauseFunc
	// answered ends the bound on the last watch's answer.
	answered atomic.Pointer[func()]
	// paid tells that the last watch request came after a pause, and was answered: the
	// list that may have to follow it needs no pause of its own.
	paid     bool
	backoff  wait.Backoff
	pausedAt time.Time
	// delay is the pause that the server asked for with its last refusal.
	delay atomic.Int64
}

func newReflector(it *item, client kubernetes.Interface) *cache.Reflector {
	lw := &cache.ListWatch{
		ListWithContextFunc:  it.requests.list,
		WatchFuncWithContext: it.requests.watch,
	}
	return cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, client), it.source.example, it,
		cache.ReflectorOptions{
			Name:            it.ref.String(),
			MinWatchTimeout: minWatchTimeout,
			Backoff:         &wait.Backoff{},
		})
}

// serve has the reflector list and watch until ctx ends.
func (r *requests) serve(ctx context.Context, reflector *cache.Reflector) {
	for ctx.Err() == nil {
		if !r.awaitIdentity(ctx) {
			return
		}
		r.direct.Store(true)
		r.paid = false
		// Its error is dropped: each failure was recorded where it happened.
		_ = reflector.ListAndWatchWithContext(ctx)
		if !r.paid {
			r.pause(ctx)
		}
	}
}

// awaitIdentity waits until requests of the item's account can be sent, and returns false
// if ctx ends before. That this takes waiting is a failure like any, but asking again is of
// no use.
func (r *requests) awaitIdentity(ctx context.Context) bool {
	identity := r.item.base.identity
	if err := identity.Ready(r.item.account); err != nil {
		r.failed(ctx, err)
		return identity.Await(ctx, r.item.account) == nil
	}
	return true
}

// list sends one list request for the item's object.
func (r *requests) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.direct.Store(true)
	r.selectObject(&opts)
	r.askForPresent(&opts)
	bounded, cancel := context.WithTimeoutCause(ctx, answerTime, errSilent)
	defer cancel()
	list, err := r.item.source.list(bounded, r.item.ref.Namespace, opts)
	if err != nil {
		r.failed(ctx, errors.Join(context.Cause(bounded), err))
	}
	return list, err
}

// watch opens one watch of the item's object, which may begin with its state.
func (r *requests) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	paused := !r.direct.Swap(false)
	if paused {
		r.pause(ctx)
	}
	r.paid = false
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.selectObject(&opts)
	withState := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if withState {
		r.askForPresent(&opts)
	}
	bounded, answered := r.boundAnswer(ctx)
	w, err := r.item.source.watch(bounded, r.item.ref.Namespace, opts)
	if err == nil && isEmptyWatch(w) {
		err = errNoAnswer
	}
	if err != nil {
		answered()
		r.failed(ctx, errors.Join(context.Cause(bounded), err))
		r.paid = paused && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err))
		return nil, err
	}
	if !withState {
		answered()
	}
	r.stream, r.paid = w, paused
	return w, nil
}

// boundAnswer returns a context for a watch that ends with ctx or with the next watch, and
// after answerTime unless the returned function, or Replace of the item, is called before.
func (r *requests) boundAnswer(ctx context.Context) (context.Context, func()) {
	if r.end != nil {
		r.end(nil)
		r.stateTold() // or never will be
	}
	bounded, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(answerTime, func() {
		if bounded.Err() == nil {
			end(errSilent)
			r.failed(ctx, errSilent)
		}
	})
	answered := func() { timer.Stop() }
	r.end = end
	r.answered.Store(&answered)
	return bounded, answered
}

// stateTold notes that the state which the last watch was to begin with has come.
func (r *requests) stateTold() {
	if answered := r.answered.Load(); answered != nil {
		(*answered)()
	}
}

// isEmptyWatch tells that the client got no answer to a watch request in all its
// attempts. It returns a watch without events then, and no error; the reflector would
// go on with it for ever, and say nothing.
func isEmptyWatch(w watch.Interface) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch())
}

func (r *requests) selectObject(opts *metav1.ListOptions) {
	opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.item.ref.Name).String()
}

// askForPresent has the state that a run begins with be the present one, not any
// that a cache of the server holds: an immutable object is looked at once only, so
// it must not be taken for unchanged when it was just deleted and created again. A
// later list of the same run may come from a cache that isn't older than the last
// one.
func (r *requests) askForPresent(opts *metav1.ListOptions) {
	if opts.ResourceVersion == "0" || !r.item.isSynced() {
		opts.ResourceVersion = ""
	}
}

// failed records err, unless the request failed because its run was stopped.
func (r *requests) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		r.delay.Store(int64(min(time.Duration(seconds)*time.Second, maxDelay)))
	}
	r.item.failed(err)
}

// dropStream closes the last watch. The reflector forgets one whose first state
// was refused, and its connection would stay open.
func (r *requests) dropStream() {
	if r.stream != nil {
		r.stream.Stop()
	}
}

// pause waits for the next pause's time or for ctx to end.
func (r *requests) pause(ctx context.Context) {
	if time.Since(r.pausedAt) > calmTime {
		r.backoff = retryBackoff()
	}
	timer := time.NewTimer(max(r.backoff.Step(), time.Duration(r.delay.Swap(0))))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	r.pausedAt = time.Now()
}

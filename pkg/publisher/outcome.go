package publisher

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

var (
	// errPutOff is why an update waits for readers; the volume is queued for
	// then.
	errPutOff = errors.New("put off")
	// errPanicked is a panic of an update, reported as an error.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
)

// outcome says what follows from a failure to show a volume's objects. The zero outcome is
// that of success.
type outcome struct {
	err error
	// reason decides the code of a CSI call; 0 stands for an internal error.
	reason Reason
	// waits has a publish go on waiting: a change of an object, or an answer, can end the failure.
	waits bool
	// retry has an update queued again, with backoff. Without it only a change or the resync
	// queues it.
	retry bool
	// silent says that it is no fault of the files, so no event tells of it.
	silent bool
	// event is the reason of the event on the pod.
	event string
}

// outcomeOf is the one place that tells failures apart. Of several that are joined, the
// first case below counts.
func outcomeOf(err error) outcome {
	var missing *payload.MissingError
	var refused *refusedError
	var denied *deniedError
	o := outcome{err: err, reason: ReasonOf(err), event: eventVolumeUpdateFailed}
	switch {
	case err == nil:
		return outcome{}
	case errors.As(err, &missing):
		o.reason, o.waits, o.event = ReasonNotFound, true, eventRefNotFound
		if missing.Missing[0].Key != "" {
			o.event = eventRefKeyNotFound
		}
	case errors.As(err, &refused), errors.As(err, &denied):
		o.reason, o.event = ReasonForbidden, eventRefForbidden
		o.waits = refused == nil && denied.passes
	case o.reason == ReasonForbidden:
		o.event, o.retry = eventRefForbidden, true
	case o.reason == ReasonInvalid, o.reason == ReasonTooLarge:
	case o.reason != 0:
		o.retry = true
	case errors.Is(err, errPutOff), errors.Is(err, access.ErrPending):
		o.reason, o.waits, o.silent = ReasonUnavailable, true, true
	case errors.Is(err, errUnreviewed):
		o.reason, o.waits = ReasonUnavailable, true
	case errors.Is(err, manager.ErrNotSynced):
		o.reason, o.waits, o.silent = ReasonUnavailable, true, true
	case errors.Is(err, manager.ErrNotRegistered):
		o.reason, o.silent, o.retry = ReasonUnavailable, true, true
	case errors.Is(err, errStale):
		o.waits = true
	default:
		o.retry = true
	}
	return o
}

// failure returns the error with its reason.
func (o outcome) failure() error {
	if o.err == nil || o.reason == 0 || ReasonOf(o.err) != 0 {
		return o.err
	}
	return fail(o.reason, "%w", o.err)
}

// kind returns what tells one failure from another: all that is missing or refused, the
// reason and the system's error. The same failure often has another text at each retry,
// with the name of a new generation or what other volumes take just then.
func (o outcome) kind() string {
	if o.err == nil {
		return ""
	}
	var missing *payload.MissingError
	var refused *refusedError
	lacks := ""
	if errors.As(o.err, &missing) {
		lacks = missing.Error()
	}
	if errors.As(o.err, &refused) {
		lacks += "; " + refused.Error()
	}
	var errno syscall.Errno
	errors.As(o.err, &errno)
	// Of a refusal beside another failure, o.reason is that of the refusal.
	return fmt.Sprintf("%s; reasons %d, %d, errno %d, stale %t", lacks, o.reason, ReasonOf(o.err), errno, errors.Is(o.err, errStale))
}

// missing returns the first object that is missing, the zero Ref if that is not the failure.
func (o outcome) missing() volume.Ref {
	var missing *payload.MissingError
	if errors.As(o.err, &missing) && missing.Missing[0].Key == "" {
		return missing.Missing[0].Ref
	}
	return volume.Ref{}
}

// tokenTime is how long after a restart a volume may be without a token before that counts
// as a fault: the kubelet publishes again within one and a half minutes.
const tokenTime = 3 * time.Minute

// isTokenless says whether an outcome is that of a volume whose pod has no token yet, which
// this process has known since a moment.
func (o outcome) isTokenless(since time.Time) bool {
	return errors.Is(o.err, authz.ErrNoToken) && time.Since(since) < tokenTime
}

// condition is what is wrong with a volume. It has a lock of its own, so that nobody who asks
// waits for a write. It is safe for concurrent use.
type condition struct {
	mu            sync.Mutex
	kind, problem string
	// name is "" until something is known. since is when kind last changed.
	name  Condition
	since time.Time
	// shown is what all files are known to show. It lags behind that of the contents while files are
	// rewritten in place, and until a restarted process has made sure of them.
	shown record.Versions
}

// set stores what is wrong with the volume, and says whether that is news.
func (c *condition) set(o outcome) bool {
	kind, problem, name := o.kind(), "", ConditionCurrent
	if o.err != nil {
		problem, name = o.err.Error(), Condition(o.event)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.kind != kind
	if news || c.name == "" {
		c.since = time.Now()
	}
	c.kind, c.problem, c.name = kind, problem, name
	return news
}

// show records the versions that all files show. The map must not change any more.
func (c *condition) show(shown record.Versions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown = shown
}

// withdraw records that no file shows the objects any more.
func (c *condition) withdraw(gone map[volume.Ref]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown = maps.Clone(c.shown)
	for ref := range gone {
		delete(c.shown, ref)
	}
}

// report fills in what a status has of it.
func (c *condition) report(s *VolumeStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Condition, s.Reason, s.Shown = c.name, c.problem, c.shown
	if c.name != "" {
		s.Since = c.since
	}
}

func (c *condition) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

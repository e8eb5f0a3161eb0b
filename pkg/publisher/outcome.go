package publisher

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// The reasons of events.
const (
	eventRefNotFound        = "RefNotFound"
	eventRefKeyNotFound     = "RefKeyNotFound"
	eventRefForbidden       = "RefForbidden"
	eventRefDeleted         = "RefDeleted"
	eventVolumeUpdateFailed = "VolumeUpdateFailed"
	eventInvalidNames       = "InvalidEnvironmentVariableNames"
)

// outcome says what follows from a failure to show a volume's objects. The zero outcome is
// that of success.
type outcome struct {
	err error
	// reason decides the code of a CSI call; 0 stands for an internal error.
	reason Reason
	// waits has a publish go on waiting: a change of an object, or an answer, can end the failure.
	waits bool
	// retry has the volume synced again, later each time. Without it only a change or the resync does that.
	retry bool
	// silent says that it is no fault of the files, so no event tells of it.
	silent bool
	// event is the reason of the event on the pod, or a Condition that needs none.
	event string
	// until is when a change that waits for its pod's moment is due; zero for none.
	until time.Time
}

// outcomeOf is the one place that tells failures apart. Of several that are joined, the
// first case below counts.
func outcomeOf(err error) outcome {
	var two *bothError
	if errors.As(err, &two) {
		return outcomeOf(two.first).and(outcomeOf(two.second))
	}
	var missing *payload.MissingError
	var refused *refusedError
	var denied *deniedError
	var spread *spreadError
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
		o.event = eventRefForbidden
	case o.reason == ReasonInvalid, o.reason == ReasonTooLarge, o.reason == ReasonNotFound:
	case o.reason != 0:
		o.retry = true
	case errors.As(err, new(*pendingError)), errors.Is(err, access.ErrPending):
		o.reason, o.waits, o.silent = ReasonUnavailable, true, true
	case errors.As(err, &spread):
		o.event, o.until = string(ConditionSpreading), spread.at
	case errors.Is(err, errCrowded):
		o.reason, o.waits, o.retry, o.silent = ReasonUnavailable, true, true, true
	case errors.Is(err, errUnreviewed):
		o.reason, o.waits = ReasonUnavailable, true
	case errors.Is(err, manager.ErrNotSynced):
		o.reason, o.waits, o.silent = ReasonUnavailable, true, true
		if apierrors.IsForbidden(err) { // as the node, for which it may pass; else it is a deniedError
			o.reason = ReasonForbidden
		}
	case errors.Is(err, manager.ErrNotRegistered):
		o.reason, o.silent, o.retry = ReasonUnavailable, true, true
	case errors.Is(err, errStale):
		o.waits = true
	default:
		o.retry = true
	}
	return o
}

// and returns what follows from two failures: what one needs, a retry or an event, the other does not take away.
func (o outcome) and(other outcome) outcome {
	both := outcomeOf(errors.Join(o.toTell(), other.toTell()))
	if o.silent && other.silent {
		both = o
	}
	both.retry = o.retry || other.retry
	both.waits = o.waits && other.waits
	both.until = earlier(o.until, other.until)
	return both
}

// toTell returns the error of an outcome that is not silent.
func (o outcome) toTell() error {
	if o.silent {
		return nil
	}
	return o.err
}

// isPending says that the outcome says nothing: somebody has to answer first.
func (o outcome) isPending() bool {
	return o.silent && (errors.Is(o.err, access.ErrPending) || errors.Is(o.err, pod.ErrPending) || errors.Is(o.err, errPutOff))
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
	return fmt.Sprintf("%s; reasons %d, %d, errno %d, stale %t, spread %t", lacks, o.reason, ReasonOf(o.err), errno, errors.Is(o.err, errStale), !o.until.IsZero())
}

// missing returns the first object that is missing, the zero Ref if that is not the failure.
func (o outcome) missing() volume.Ref {
	var missing *payload.MissingError
	if errors.As(o.err, &missing) && missing.Missing[0].Key == "" {
		return missing.Missing[0].Ref
	}
	return volume.Ref{}
}

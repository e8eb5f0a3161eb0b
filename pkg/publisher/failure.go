package publisher

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
)

// Reason says what kind of failure an Error is, so that the caller can choose an
// answer without reading its text.
type Reason int

// The reasons. Errors of none of them are internal.
const (
	// ReasonInvalid: the request can't be met as it is.
	ReasonInvalid Reason = iota + 1
	// ReasonNotFound: a required object or key, or the volume, does not exist.
	ReasonNotFound
	// ReasonForbidden: an object may not be read.
	ReasonForbidden
	// ReasonExists: the volume is published with another spec.
	ReasonExists
	// ReasonTooLarge: the files exceed the volume's limit.
	ReasonTooLarge
	// ReasonNodeFull: the files exceed what is left of the node's total, or of the pod's share.
	ReasonNodeFull
	// ReasonBusy: another call on the volume runs.
	ReasonBusy
	// ReasonUnavailable: something that the call needs is out of reach for now.
	ReasonUnavailable
	// ReasonCacheFull: the objects exceed what is left for those of the node, or of a pod.
	ReasonCacheFull
)

// Error is a failure with a reason. Its text holds no value of an object.
type Error struct {
	Reason Reason
	Err    error
}

// Error returns the text of the cause.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of err, or 0 if it has none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

func fail(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// The reasons of events.
const (
	eventRefNotFound        = "RefNotFound"
	eventRefKeyNotFound     = "RefKeyNotFound"
	eventRefForbidden       = "RefForbidden"
	eventRefDeleted         = "RefDeleted"
	eventVolumeUpdateFailed = "VolumeUpdateFailed"
	eventInvalidNames       = "InvalidEnvironmentVariableNames"
)

// failure is why a volume does not show what it should, with all that follows from it. It is made where it arises, and does
// not change. nil is success.
type failure struct {
	err error
	// reason decides the code of a CSI call; 0 stands for an internal error.
	reason Reason
	// event is the reason of the event on the pod, or a Condition that needs none.
	event string
	// kind distinguishes failures. The same failure often has another text at each try, with the name of a new
	// generation or what other volumes take just then.
	kind string
	// waits has a publish go on waiting: a change of an object, or an answer, can end the failure.
	waits bool
	// retry has the volume reconciled again, later each time. Without it only a change or the resync does that.
	retry bool
	// silent says that it is no fault of the files, so no event reports it.
	silent bool
	// unanswered says that a question about rights, or about the pod, is under way, or a moment close: it says nothing else.
	unanswered bool
	// until is when a change that waits for its pod's moment is due; zero for none.
	until time.Time
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// public returns what a call answers.
func (f *failure) public() error {
	if f.reason == 0 || ReasonOf(f.err) != 0 {
		return f.err
	}
	return &Error{Reason: f.reason, Err: f}
}

// isUnlogged says that there is no need to log it: an answer comes in a moment.
func (f *failure) isUnlogged() bool {
	return f.unanswered || errors.As(f.err, new(*manager.PendingError))
}

// broken is a failure of the node, or of this program: it is tried again.
func broken(err error) *failure {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &failure{err: err, event: eventVolumeUpdateFailed, retry: true, kind: fmt.Sprint("errno ", int(errno))}
}

// unavailable is a failure that may pass: it is tried again.
func unavailable(format string, args ...any) *failure {
	f := broken(fmt.Errorf(format, args...))
	f.reason = ReasonUnavailable
	return f
}

// full is a failure for want of room: it is tried again.
func full(reason Reason, format string, args ...any) *failure {
	f := broken(fmt.Errorf(format, args...))
	f.reason, f.kind = reason, fmt.Sprint("full ", reason)
	return f
}

// final is a failure that no retry ends.
func final(reason Reason, format string, args ...any) *failure {
	return &failure{err: fmt.Errorf(format, args...), reason: reason, event: eventVolumeUpdateFailed, kind: fmt.Sprint("final ", reason)}
}

// forbidden is a failure for want of a right. passes says that it may pass although no right changes.
func forbidden(err error, passes bool) *failure {
	return &failure{err: err, reason: ReasonForbidden, event: eventRefForbidden, kind: "forbidden", waits: passes}
}

// waiting is why a volume can't go on yet: whoever has the answer wakes it.
func waiting(err error) *failure {
	unanswered := errors.Is(err, access.ErrPending) || errors.Is(err, pod.ErrPending) || errors.Is(err, errPutOff)
	return &failure{err: err, reason: ReasonUnavailable, waits: true, silent: true, unanswered: unanswered, kind: "waiting"}
}

// kindUnreviewed is the kind of unreviewed.
const kindUnreviewed = "unreviewed"

// unreviewed is why a pod's right to an object is not known: no question about it was answered.
func unreviewed(err error) *failure {
	return &failure{
		err: fmt.Errorf("access could not be reviewed: %w", err), reason: ReasonUnavailable,
		event: eventVolumeUpdateFailed, waits: true, kind: kindUnreviewed,
	}
}

// stale is why what is known of an object can't be kept current, for another reason than a denial.
func stale(err error) *failure {
	return &failure{err: fmt.Errorf("stale answer: %w", err), event: eventVolumeUpdateFailed, waits: true, kind: "stale"}
}

// crowded is why a volume waits for its render.
func crowded() *failure {
	f := waiting(errCrowded)
	f.retry = true
	return f
}

// rank is the order in which failures that belong together count.
func (f *failure) rank() int {
	switch {
	case f.event == eventRefForbidden:
		return 0
	case !f.silent && !f.waits && f.reason != 0:
		return 1
	case f.silent && !f.retry && !errors.Is(f.err, manager.ErrNotSynced):
		return 2
	case f.kind == kindUnreviewed:
		return 3
	case f.silent && !f.retry && f.reason == ReasonForbidden:
		return 4
	case f.silent && !f.retry:
		return 5
	case f.silent:
		return 7
	}
	return 6
}

// together returns one failure for several that belong together, nil for none: the gravest decides what follows, and the text
// has all.
func together(all []*failure) *failure {
	if len(all) == 0 {
		return nil
	}
	worst, errs := all[0], make([]error, 0, len(all))
	for _, f := range all {
		if f.rank() < worst.rank() {
			worst = f
		}
		errs = append(errs, f.err)
	}
	one := *worst
	if len(all) > 1 && (worst.waits || worst.rank() != 1) { // else what is not known yet changes nothing
		one.err = errors.Join(errs...)
	}
	return &one
}

// also adds a failure to another one that has nothing to do with it: what one of them needs, a retry or an event, the other
// does not take away. nil is none.
func also(f, more *failure) *failure {
	switch {
	case f == nil:
		return more
	case more == nil:
		return f
	}
	grave, other := f, more
	if f.silent && !more.silent || !more.silent && more.rank() < f.rank() {
		grave, other = more, f
	}
	both := *grave
	both.retry = f.retry || more.retry
	both.waits = f.waits && more.waits
	both.unanswered = f.unanswered && more.unanswered
	both.until = earlier(f.until, more.until)
	if !other.silent {
		both.err = &bothError{f.err, more.err}
		both.kind = f.kind + "; " + more.kind
		both.reason = cmp.Or(grave.reason, other.reason)
	}
	return &both
}

// bothError is two failures that have nothing to do with each other.
type bothError struct{ first, second error }

func (e *bothError) Error() string   { return e.first.Error() + "; " + e.second.Error() }
func (e *bothError) Unwrap() []error { return []error{e.first, e.second} }

var (
	// errBusy is why a call is refused.
	errBusy = errors.New("another call on this volume runs")
	// errUnpublished is why a publish ends that an unpublish came after.
	errUnpublished = errors.New("the volume was unpublished meanwhile")
	// errStopping is why a wait ends early.
	errStopping = errors.New("the plugin is stopping")
	// errPodBusy is why a call waits for its pod.
	errPodBusy = errors.New("another volume of the pod is being written")
	// errCrowded is why a volume waits for its render.
	errCrowded = errors.New("the volumes that are rendered just now take all the memory there is for that")
	// errHangs is why a reconcile ended after reconcileTimeout.
	errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")
	// errPanicked is a panic, reported as an error.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
	// errPutOff is why an update waits for readers; the volume is due again then.
	errPutOff = errors.New("put off for the readers of the change before")
	// errNobody is why a volume that is not mounted is not made.
	errNobody = errors.New("nobody waits for the volume any more")
	// errLost is why nothing is written to a volume.
	errLost = errors.New("the volume is no longer mounted")
)

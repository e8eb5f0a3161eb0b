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

// Reason says what kind of failure an Error is, so that the caller can choose an answer without reading the text.
type Reason int

// The reasons. An error without a reason is an internal error.
const (
	// ReasonInvalid: the request cannot be met as it is.
	ReasonInvalid Reason = iota + 1
	// ReasonNotFound: a required object or key, or the volume, does not exist.
	ReasonNotFound
	// ReasonForbidden: an object may not be read.
	ReasonForbidden
	// ReasonExists: the volume is published with another spec.
	ReasonExists
	// ReasonTooLarge: the files exceed the volume's limit.
	ReasonTooLarge
	// ReasonNodeFull: the files need more than what is left of the node's total or of the pod's share.
	ReasonNodeFull
	// ReasonBusy: another call for the volume is running.
	ReasonBusy
	// ReasonUnavailable: something that the call needs is not available now.
	ReasonUnavailable
	// ReasonCacheFull: the objects need more than what is left for the cached objects of the node or of a pod.
	ReasonCacheFull
)

// Error is a failure with a reason. Its text never holds an object's value.
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

// The reasons of events on the pod.
const (
	eventRefNotFound        = "RefNotFound"
	eventRefKeyNotFound     = "RefKeyNotFound"
	eventRefForbidden       = "RefForbidden"
	eventRefDeleted         = "RefDeleted"
	eventVolumeUpdateFailed = "VolumeUpdateFailed"
	eventInvalidNames       = "InvalidEnvironmentVariableNames"
)

// failure says why a volume does not show what it should, and what follows from that. It is created where the problem occurs and never
// changes. nil means success.
type failure struct {
	err error
	// reason decides the gRPC code of a CSI call. 0 is an internal error.
	reason Reason
	// event is the reason of the event on the pod, or a Condition that needs no event.
	event string
	// kind distinguishes failures. The text cannot: it often differs at each try, because it names a new generation or the memory that
	// other volumes hold.
	kind string
	// waits means that a publish continues to wait: a change of an object, or an answer, can end the failure.
	waits bool
	// retry means that the volume is reconciled again, with growing delays. Without it only a change or the resync does that.
	retry bool
	// silent means that no event reports the failure, because the files have no fault.
	silent bool
	// unanswered means that an answer about rights or about the pod is still due, or that a short delay is running. The failure carries no
	// other information.
	unanswered bool
	// until is when a spread change is due, or zero.
	until time.Time
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// public returns the error that a call answers with.
func (f *failure) public() error {
	if f.reason == 0 || ReasonOf(f.err) != 0 {
		return f.err
	}
	return &Error{Reason: f.reason, Err: f}
}

// isUnlogged reports whether the failure needs no log entry, because an answer comes in a moment.
func (f *failure) isUnlogged() bool {
	return f.unanswered || errors.As(f.err, new(*manager.PendingError))
}

// broken returns a failure of the node or of this program. It is retried.
func broken(err error) *failure {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &failure{err: err, event: eventVolumeUpdateFailed, retry: true, kind: fmt.Sprint("errno ", int(errno))}
}

// unavailable returns a failure that may pass. It is retried.
func unavailable(format string, args ...any) *failure {
	f := broken(fmt.Errorf(format, args...))
	f.reason = ReasonUnavailable
	return f
}

// full returns a failure for lack of room. It is retried.
func full(reason Reason, format string, args ...any) *failure {
	f := broken(fmt.Errorf(format, args...))
	f.reason, f.kind = reason, fmt.Sprint("full ", reason)
	return f
}

// final returns a failure that no retry can end.
func final(reason Reason, format string, args ...any) *failure {
	return &failure{err: fmt.Errorf(format, args...), reason: reason, event: eventVolumeUpdateFailed, kind: fmt.Sprint("final ", reason)}
}

// forbidden returns a failure for lack of a right. passes means that it may pass although no right changes.
func forbidden(err error, passes bool) *failure {
	return &failure{err: err, reason: ReasonForbidden, event: eventRefForbidden, kind: "forbidden", waits: passes}
}

// waiting returns the reason why a volume cannot continue yet. The part that gets the answer wakes the volume.
func waiting(err error) *failure {
	unanswered := errors.Is(err, access.ErrPending) || errors.Is(err, pod.ErrPending) || errors.Is(err, errPutOff)
	return &failure{err: err, reason: ReasonUnavailable, waits: true, silent: true, unanswered: unanswered, kind: "waiting"}
}

const kindUnreviewed = "unreviewed"

// unreviewed returns the failure of a right that is not known, because no question about it was answered.
func unreviewed(err error) *failure {
	return &failure{
		err: fmt.Errorf("access could not be reviewed: %w", err), reason: ReasonUnavailable,
		event: eventVolumeUpdateFailed, waits: true, kind: kindUnreviewed,
	}
}

// stale returns the failure of an object that cannot be kept current, for another reason than a denial.
func stale(err error) *failure {
	return &failure{err: fmt.Errorf("stale answer: %w", err), event: eventVolumeUpdateFailed, waits: true, kind: "stale"}
}

// unknownObjects returns the failure of a mounted volume that shows objects whose state is not known, because requests for them fail. Their
// files stay as they are. f says why.
func unknownObjects(f *failure) *failure {
	return &failure{
		err: fmt.Errorf("the files of some objects stay as they are: %w", f.err), reason: f.reason,
		event: string(ConditionStale), waits: true, kind: "unknown objects",
	}
}

// isCondition reports whether the failure is one of the conditions that need no event.
func (f *failure) isCondition() bool {
	switch Condition(f.event) {
	case ConditionSpreading, ConditionHeld, ConditionStale:
		return true
	}
	return false
}

// crowded returns the failure of a volume that waits for its turn to be rendered.
func crowded() *failure {
	f := waiting(errCrowded)
	f.retry = true
	return f
}

// rank orders failures by how grave they are; 0 is the gravest.
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
	case f.event == string(ConditionStale):
		return 8
	case f.isCondition(): // it was requested, and must hide no fault
		return 9
	}
	return 6
}

// together combines failures that belong together, or returns nil if there are none. The gravest one decides what follows. The text names
// all of them.
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
	if len(all) > 1 && (worst.waits || worst.rank() != 1) { // otherwise the other failures change nothing
		one.err = joinErrors(errs)
	}
	return &one
}

// joinErrors combines errors. Those with the same text count once: an API server that is away gives one for each object.
func joinErrors(errs []error) error {
	seen, distinct := map[string]bool{}, make([]error, 0, len(errs))
	for _, err := range errs {
		if text := err.Error(); !seen[text] {
			seen[text] = true
			distinct = append(distinct, err)
		}
	}
	return errors.Join(distinct...)
}

// also combines two independent failures. If one of them needs a retry or an event, the result needs it too. nil means no failure.
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
	if !other.silent {
		both.err = &bothError{f.err, more.err}
		both.kind = f.kind + "; " + more.kind
		both.reason = cmp.Or(grave.reason, other.reason)
	}
	return &both
}

// bothError combines two independent errors.
type bothError struct{ first, second error }

func (e *bothError) Error() string   { return e.first.Error() + "; " + e.second.Error() }
func (e *bothError) Unwrap() []error { return []error{e.first, e.second} }

var (
	// errBusy refuses a call while another one for the volume is running.
	errBusy = errors.New("another call for this volume is running")
	// errUnpublished ends a publish after which an unpublish came.
	errUnpublished = errors.New("the volume was unpublished meanwhile")
	// errStopping ends a wait when the plugin stops.
	errStopping = errors.New("the plugin is stopping")
	// errPodBusy says that a call waits for another volume of its pod.
	errPodBusy = errors.New("another volume of the pod is being written")
	// errCrowded says that a volume waits for its turn to be rendered.
	errCrowded = errors.New("the volumes that are being rendered use all the memory that is reserved for that")
	// errHangs ends a reconcile after reconcileTimeout.
	errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")
	// errPanicked reports a panic.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
	// errPutOff delays an update for the readers of the last change. The volume becomes due again when that time is over.
	errPutOff = errors.New("delayed for readers of the last change")
	// errNobody says that a volume is not mounted because no publish waits for it.
	errNobody = errors.New("nobody waits for the volume any more")
	// errLost says that nothing is written because the volume is not mounted any more.
	errLost = errors.New("the volume is no longer mounted")
)

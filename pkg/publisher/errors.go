package publisher

import (
	"errors"
	"fmt"
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
	// ReasonNodeFull: the files exceed what is left of the node's total.
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

// pendingError is why a sync can't go on yet. Whoever has the answer wakes the volume.
type pendingError struct{ error }

func (e *pendingError) Unwrap() error { return e.error }

func pending(err error) error { return &pendingError{err} }

// bothError is two failures of one sync that have nothing to do with each other.
type bothError struct{ first, second error }

func (e *bothError) Error() string   { return e.first.Error() + "; " + e.second.Error() }
func (e *bothError) Unwrap() []error { return []error{e.first, e.second} }

// also adds a failure to another one, nil for none: what one of them needs, the other does not take away.
func also(err, more error) error {
	switch {
	case err == nil:
		return more
	case more == nil:
		return err
	}
	return &bothError{err, more}
}

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
	// errHangs is why a sync ended after syncTime.
	errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")
	// errPanicked is a panic of a sync, reported as an error.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
	// errPutOff is why an update waits for readers; the volume is due again then.
	errPutOff = errors.New("put off for the readers of the change before")
	// errNobody is why a volume that is not mounted is not made.
	errNobody = errors.New("nobody waits for the volume any more")
	// errLost is why nothing is written to a volume.
	errLost = errors.New("the volume is no longer mounted")
	// errUnreviewed reports that a pod's right to an object is not known: no question about it was answered.
	errUnreviewed = errors.New("access could not be reviewed")
	// errStale reports that what is known of an object can't be kept current, for another reason than a denial.
	errStale = errors.New("stale answer")
)

// refusedError names the objects that a pod may not have. Its text does not tell whether they exist.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// deniedError reports that an object can't be read for a pod: a right is missing, or no token is accepted.
type deniedError struct {
	err error
	// passes says that this may pass although no right changes.
	passes bool
}

func (e *deniedError) Error() string { return e.err.Error() }
func (e *deniedError) Unwrap() error { return e.err }

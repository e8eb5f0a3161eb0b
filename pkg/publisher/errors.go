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

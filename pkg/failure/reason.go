package failure

import (
	"errors"
	"fmt"
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

// Error is what a call answers with: a cause with a reason. Its text never holds an object's value.
type Error struct {
	Reason Reason
	Err    error
}

// Error returns the text of the cause.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an Error with a text as of fmt.Errorf.
func New(reason Reason, format string, args ...any) error {
	return &Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// ReasonOf returns the reason of err, or 0 if it has none.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return 0
}

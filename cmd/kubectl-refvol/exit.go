package main

import (
	"errors"

	"github.com/refvol/refvol/pkg/status"
)

// The exit statuses.
const (
	// no is the status of a negative answer, such as an abnormal volume.
	no = 1
	// unknown is the status of every other error: there is no answer.
	unknown = 2
	// none is the status if no volume names the object, usually because a name is wrong.
	none = 3
)

// statusError is an error with an exit status.
type statusError struct {
	error
	status int
}

func (e *statusError) Unwrap() error { return e.error }

// exitStatus returns the exit status for an error or nil.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	if errors.Is(err, status.ErrAbnormal) {
		return no
	}
	return unknown
}

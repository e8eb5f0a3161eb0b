package main

import (
	"errors"

	"github.com/refvol/refvol/pkg/status"
)

// The exit statuses.
const (
	// no is that of an answer that is known and is no, such as a volume that is abnormal.
	no = 1
	// unknown is that of every error without a status of its own: there is no answer.
	unknown = 2
	// none is that of an answer about nothing, which a wrong name is the usual cause of.
	none = 3
)

// statusError is an error with an exit status.
type statusError struct {
	error
	status int
}

func (e *statusError) Unwrap() error { return e.error }

// exitStatus returns the status that the program ends with after an error, or nil.
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

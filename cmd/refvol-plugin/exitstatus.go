package main

import "errors"

// exitError is an error with which the program ends with another status than 1.
type exitError struct {
	error
	status int
}

func (e *exitError) Unwrap() error { return e.error }

// withExitStatus has the program end with a status if err is not nil.
func withExitStatus(err error, status int) error {
	if err == nil {
		return nil
	}
	return &exitError{err, status}
}

// exitStatus returns the status that the program ends with.
func exitStatus(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.status
	}
	return 1
}

package faultproxy

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Fault is one way in which an API server, or the way to it, is bad. internal/simulation has those that need no socket.
type Fault int

const (
	// None lets everything pass.
	None Fault = iota
	// Refused closes the listener and resets all connections.
	Refused
	// Cut resets all connections, and each new one at once, as a load balancer without a server does.
	Cut
	// HalfOpen swallows what comes and goes on every connection. Those that it has hit stay deaf after it.
	HalfOpen
	// Partition holds up all bytes of all connections, and passes them on after it.
	Partition
	// ServerError answers with 500, in the API server's form.
	ServerError
	// Unauthorized answers with 401.
	Unauthorized
)

// String returns the fault's name.
func (f Fault) String() string {
	return [...]string{"None", "Refused", "Cut", "HalfOpen", "Partition", "ServerError", "Unauthorized"}[f]
}

// refusal returns the error that requests are answered with, or nil.
func refusal(fault Fault) *apierrors.StatusError {
	switch fault {
	case ServerError:
		return apierrors.NewInternalError(fmt.Errorf("the server is told to fail"))
	case Unauthorized:
		return apierrors.NewUnauthorized("the server is told to know nobody")
	}
	return nil
}

package faultproxy

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Fault is one way in which an API server, or the way to it, is bad.
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
	// TooManyRequests answers with 429 and a Retry-After of one second.
	TooManyRequests
	// Unavailable answers with 503 and a Retry-After of one second.
	Unavailable
	// ServerError answers with 500, in the API server's form.
	ServerError
	// BadGateway answers with 502 and HTML, as a load balancer does.
	BadGateway
	// Unauthorized answers with 401.
	Unauthorized
	// TooLarge answers reads as an API server whose cache is behind the resourceVersion: 504 with its cause.
	TooLarge
	// SecretsFail answers reads of Secrets with 500, as an API server that can't decrypt one of them.
	SecretsFail
	// Gone answers each watch that names a resourceVersion with 410, and ends each open one.
	Gone
	// GoneEvent ends each watch after its state with an event that says 410.
	GoneEvent
	// WatchClosed ends each watch after its state in good order.
	WatchClosed
	// WatchTorn ends each watch after its state in the middle of a frame.
	WatchTorn
	// Stale answers what asks for the state with the oldest one that was passed on of that object; such a watch then
	// stays silent. A watch that goes on is answered with 410; an open one gets the oldest event of its object after
	// each new one.
	Stale
	// GoAway has each connection that carries another request closed in good order.
	GoAway
	// Stalled sends no answer and no event until the fault is over. Pings are answered.
	Stalled
	// NoHeaders never answers a request that arrives during it, not even after it.
	NoHeaders
	// Forbidden answers reads with 403, as a Node authorizer does that doesn't know the pods yet.
	Forbidden
)

// All returns every fault but None and Forbidden, which most clients have to take for an answer.
func All() []Fault {
	var all []Fault
	for f := Refused; f < Forbidden; f++ {
		all = append(all, f)
	}
	return all
}

// String returns the fault's name.
func (f Fault) String() string {
	return [...]string{
		"None", "Refused", "Cut", "HalfOpen", "Partition", "TooManyRequests", "Unavailable", "ServerError", "BadGateway", "Unauthorized",
		"TooLarge", "SecretsFail", "Gone", "GoneEvent", "WatchClosed", "WatchTorn", "Stale", "GoAway", "Stalled", "NoHeaders", "Forbidden",
	}[f]
}

// refusal returns the error that fault has requests like r answered with, or nil.
func refusal(fault Fault, r Request) *apierrors.StatusError {
	reads := r.Verb == "LIST" || r.Verb == "WATCH" || r.Verb == http.MethodGet
	switch {
	case fault == TooManyRequests:
		return apierrors.NewTooManyRequests("the server is told to be busy", 0)
	case fault == Unavailable:
		return apierrors.NewServiceUnavailable("the server is told to be unavailable")
	case fault == Unauthorized:
		return apierrors.NewUnauthorized("the server is told to know nobody")
	case fault == ServerError:
		return apierrors.NewInternalError(fmt.Errorf("the server is told to fail"))
	case fault == SecretsFail && r.Resource == "secrets" && reads:
		return apierrors.NewInternalError(fmt.Errorf("corrupt object: Key: %q", "/registry/secrets/tenant-a/payroll-2f9c"))
	case (fault == Gone || fault == Stale) && r.goesOn:
		return apierrors.NewResourceExpired("too old resource version")
	case fault == TooLarge && reads:
		err := apierrors.NewTimeoutError("Too large resource version", 0)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
		return err
	case fault == Forbidden && reads:
		return apierrors.NewForbidden(schema.GroupResource{Resource: r.Resource}, r.Name,
			fmt.Errorf("User %q cannot %s resource %q in API group \"\" in the namespace %q: no relationship found between node and this object", r.User, strings.ToLower(r.Verb), r.Resource, r.Namespace))
	}
	return nil
}

package faultproxy

import "fmt"

// Fault is one way in which an API server, or the way to it, is bad.
type Fault int

const (
	// None lets everything pass.
	None Fault = iota
	// Refused closes the listener and resets all connections.
	Refused
	// Cut resets all connections, and each new one as soon as it is made, as a load
	// balancer without a server behind it does. The attempts count as connections.
	Cut
	// HalfOpen swallows what comes and goes on every connection, also on new ones.
	// Connections that it has hit stay deaf after it, until the client gives them up.
	HalfOpen
	// Partition holds up all bytes of all connections, and passes them on after it.
	Partition
	// Reset resets all connections once.
	Reset
	// TooManyRequests answers with 429 and the Retry-After that SetRetryAfter says.
	TooManyRequests
	// ServerError answers with 500, in the API server's form.
	ServerError
	// BadGateway answers with 502 and HTML, as a load balancer does.
	BadGateway
	// Gone answers each watch that names a resourceVersion with 410, and ends each open
	// one; every other list and watch passes.
	Gone
	// GoneEvent ends each watch with an event that says 410, open ones at once and
	// others after their initial state.
	GoneEvent
	// WatchClosed ends each watch in good order, open ones at once and others after
	// their initial state.
	WatchClosed
	// WatchTorn ends each watch in the middle of a frame, as WatchClosed does.
	WatchTorn
	// Slow holds up each new request until the fault is over.
	Slow
	// Stale answers a list, or a watch that begins with the state, with the oldest state
	// that was passed on of that object; such a watch then stays silent. A watch that
	// goes on from a resourceVersion is answered with 410, so that the client asks for
	// the state; an open one gets the oldest event of its object after each new one.
	Stale
	// TooLarge answers every list and watch as an API server whose cache is behind the
	// resourceVersion that was asked for: 504 with its cause.
	TooLarge
	// GoAway has each connection that carries another request closed in good order.
	GoAway
	// Unavailable answers with 503 and the Retry-After that SetRetryAfter says.
	Unavailable
	// Unauthorized answers with 401.
	Unauthorized
	// SecretsFail answers reads of Secrets with 500, as an API server does that can't
	// decrypt one of them, whose key it names. Watches that are open stay.
	SecretsFail
	// Stalled sends no answer and no event until the fault is over. The connections stay
	// alive: pings are answered.
	Stalled
	// NoHeaders never answers a request that arrives during it, not even after it.
	NoHeaders
	// StalledEvent sends half of the next event of each watch, and the rest after it.
	StalledEvent
	// Forbidden answers reads with 403, as a Node authorizer does that doesn't know the pods yet.
	Forbidden
)

// All returns every fault but None and Forbidden, which most clients have to take for an answer.
func All() []Fault {
	var all []Fault
	for f := Refused; f <= StalledEvent; f++ {
		all = append(all, f)
	}
	return all
}

// String returns the fault's name.
func (f Fault) String() string {
	names := [...]string{
		"None", "Refused", "Cut", "HalfOpen", "Partition", "Reset", "TooManyRequests", "ServerError", "BadGateway", "Gone", "GoneEvent",
		"WatchClosed", "WatchTorn", "Slow", "Stale", "TooLarge", "GoAway", "Unavailable", "Unauthorized", "SecretsFail", "Stalled", "NoHeaders",
		"StalledEvent", "Forbidden",
	}
	if f < 0 || int(f) >= len(names) {
		return fmt.Sprintf("Fault(%d)", int(f))
	}
	return names[f]
}

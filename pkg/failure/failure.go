// Package failure owns what a failure of a volume says, and what follows from it: the reason for the caller, the event on the pod, whether a
// publish continues to wait, and whether there is a retry. It must not know about volumes' files or requests.
package failure

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
)

// Kind says what a failure is. The gravest come first: the gravest one of a list decides the event, and the reason of a call's answer.
type Kind int

// The kinds.
const (
	// Refused: a right is missing.
	Refused Kind = iota
	// Wrong: what the pod's author asks for cannot be shown.
	Wrong
	// Fault: the node, this program or the API server fails.
	Fault
	// Unknown: the state of some objects of a mounted volume is not known. Their files stay as they are.
	Unknown
	// The files have no fault in the kinds from here on: an answer is due, and no event reports them. Pending is due in a moment. The others
	// wait for the API server, which refuses to answer (Denied) or does not answer (Unsynced), or for another volume (Crowded).
	Pending
	Denied
	Unsynced
	Crowded
)

// The conditions of volumes that fail. They are also the reasons of the events on the pods, except Stale, which has the event of its cause.
const (
	RefNotFound        = "RefNotFound"
	RefKeyNotFound     = "RefKeyNotFound"
	RefForbidden       = "RefForbidden"
	RefDeleted         = "RefDeleted"
	VolumeUpdateFailed = "VolumeUpdateFailed"
	Stale              = "Stale"
)

// InvalidCanary is the reason of an event about a canary whose annotation is no share. It is no failure of the volume.
const InvalidCanary = "InvalidCanary"

// Failure says why a volume does not show what it should, and what follows from that. Its text never holds an object's value. It is created
// where the problem occurs, and never changes once it is in a List.
type Failure struct { //nolint:errname // the package says what it is
	Kind Kind
	Err  error
	// Reason decides what a call answers. 0 is an internal error.
	Reason Reason
	// Event is the condition of the volume and the reason of the event on the pod, or "" for those of the kind.
	Event string
	// Key distinguishes failures of a kind. The text cannot: it often differs at each try, because it names a new generation or the memory
	// that other volumes hold.
	Key string
	// Waits means that a publish continues to wait: a change of an object, or an answer, can end the failure.
	Waits bool
	// Retry means that the volume is reconciled again, with growing delays. Without it only a change or the resync does that.
	Retry bool
	// Unanswered means that an answer about rights or about the pod is still due, or that a short delay is running. The failure carries no
	// other information.
	Unanswered bool
}

// Error returns the text of the cause.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// IsSilent reports whether the files have no fault.
func (f *Failure) IsSilent() bool { return f.Kind >= Pending }

// Condition returns the condition of a volume whose gravest failure this is. It is also the reason of the event.
func (f *Failure) Condition() string {
	switch {
	case f.Event != "":
		return f.Event
	case f.Kind == Refused:
		return RefForbidden
	case f.Kind == Unknown:
		return Stale
	}
	return VolumeUpdateFailed
}

// IsUnlogged reports whether the failure needs no log entry, because an answer comes in a moment.
func (f *Failure) IsUnlogged() bool {
	return f.Unanswered || errors.As(f.Err, new(*manager.PendingError))
}

// Broken returns a failure of the node, of the API server or of this program. It is retried. reason is 0 if a CSI call gets an internal error.
func Broken(reason Reason, err error) *Failure {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &Failure{Kind: Fault, Err: err, Reason: reason, Retry: true, Key: fmt.Sprint("broken ", reason, " ", int(errno))}
}

// Unavailable returns a failure that may pass. It is retried.
func Unavailable(format string, args ...any) *Failure {
	return Broken(ReasonUnavailable, fmt.Errorf(format, args...))
}

// Final returns a failure that no retry can end.
func Final(reason Reason, err error) *Failure {
	return &Failure{Kind: Wrong, Err: err, Reason: reason, Key: fmt.Sprint("final ", reason)}
}

// Forbidden returns a failure for lack of a right. passes means that it may pass although no right changes.
func Forbidden(err error, passes bool) *Failure {
	return &Failure{Kind: Refused, Err: err, Reason: ReasonForbidden, Waits: passes, Key: "forbidden"}
}

// Outdated returns a failure to keep files current. The answer that ends it wakes the volume.
func Outdated(reason Reason, err error) *Failure {
	return &Failure{Kind: Fault, Err: err, Reason: reason, Waits: true, Key: fmt.Sprint("outdated ", reason)}
}

// The causes that Waiting knows, beside those of the packages that answer.
var (
	// ErrCrowded says that a volume waits for its turn to be rendered.
	ErrCrowded = errors.New("the volumes that are being rendered use all the memory that is reserved for that")
	// ErrPutOff delays an update for the readers of the last change. The volume becomes due again when that time is over.
	ErrPutOff = errors.New("delayed for readers of the last change")
)

// Waiting returns the reason why a volume cannot continue yet. The part that gets the answer wakes the volume.
func Waiting(err error) *Failure {
	f := &Failure{Kind: Pending, Err: err, Reason: ReasonUnavailable, Waits: true, Key: "waiting"}
	switch {
	case errors.Is(err, manager.ErrNotSynced):
		f.Kind = Unsynced
	case errors.Is(err, ErrCrowded):
		f.Kind, f.Retry = Crowded, true
	case errors.Is(err, manager.ErrNotRegistered):
		f.Kind, f.Retry, f.Waits = Crowded, true, false
	}
	f.Unanswered = errors.Is(err, access.ErrPending) || errors.Is(err, pod.ErrPending) || errors.Is(err, ErrPutOff)
	return f
}

package publisher

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/pod"
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

// Error is a failure with a reason. Its text never holds an object's value.
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

// kind says what a failure is. The gravest come first: the gravest one of a list decides the event, and the reason of a call's answer.
type kind int

const (
	// kindRefused: a right is missing.
	kindRefused kind = iota
	// kindWrong: what the pod's author asks for cannot be shown.
	kindWrong
	// kindFault: the node, this program or the API server fails.
	kindFault
	// kindUnknown: the state of some objects of a mounted volume is not known. Their files stay as they are.
	kindUnknown
	// The files have no fault in the kinds from here on: an answer is due, and no event reports them. kindPending is due in a moment. The others
	// wait for the API server, which refuses to answer, does not answer, or for another volume.
	kindPending
	kindDenied
	kindUnsynced
	kindCrowded
)

// failure says why a volume does not show what it should, and what follows from that. It is created where the problem occurs and never
// changes.
type failure struct {
	kind kind
	err  error
	// reason decides the gRPC code of a CSI call. 0 is an internal error.
	reason Reason
	// event is the reason of the event on the pod, or "" for that of the kind.
	event string
	// key distinguishes failures of a kind. The text cannot: it often differs at each try, because it names a new generation or the memory
	// that other volumes hold.
	key string
	// waits means that a publish continues to wait: a change of an object, or an answer, can end the failure.
	waits bool
	// retry means that the volume is reconciled again, with growing delays. Without it only a change or the resync does that.
	retry bool
	// unanswered means that an answer about rights or about the pod is still due, or that a short delay is running. The failure carries no
	// other information.
	unanswered bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// isSilent reports whether the files have no fault.
func (f *failure) isSilent() bool { return f.kind >= kindPending }

// condition returns the condition of a volume whose gravest failure this is. It is also the reason of the event.
func (f *failure) condition() Condition {
	switch {
	case f.event != "":
		return Condition(f.event)
	case f.kind == kindRefused:
		return eventRefForbidden
	case f.kind == kindUnknown:
		return ConditionStale
	}
	return eventVolumeUpdateFailed
}

// isUnlogged reports whether the failure needs no log entry, because an answer comes in a moment.
func (f *failure) isUnlogged() bool {
	return f.unanswered || errors.As(f.err, new(*manager.PendingError))
}

// broken returns a failure of the node, of the API server or of this program. It is retried. reason is 0 if a CSI call gets an internal error.
func broken(reason Reason, err error) *failure {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &failure{kind: kindFault, err: err, reason: reason, retry: true, key: fmt.Sprint("broken ", reason, " ", int(errno))}
}

// unavailable returns a failure that may pass. It is retried.
func unavailable(format string, args ...any) *failure {
	return broken(ReasonUnavailable, fmt.Errorf(format, args...))
}

// final returns a failure that no retry can end.
func final(reason Reason, err error) *failure {
	return &failure{kind: kindWrong, err: err, reason: reason, key: fmt.Sprint("final ", reason)}
}

// forbidden returns a failure for lack of a right. passes means that it may pass although no right changes.
func forbidden(err error, passes bool) *failure {
	return &failure{kind: kindRefused, err: err, reason: ReasonForbidden, waits: passes, key: "forbidden"}
}

// outdated returns a failure to keep files current. The answer that ends it wakes the volume.
func outdated(reason Reason, err error) *failure {
	return &failure{kind: kindFault, err: err, reason: reason, waits: true, key: fmt.Sprint("outdated ", reason)}
}

// waiting returns the reason why a volume cannot continue yet. The part that gets the answer wakes the volume.
func waiting(err error) *failure {
	f := &failure{kind: kindPending, err: err, reason: ReasonUnavailable, waits: true, key: "waiting"}
	switch {
	case errors.Is(err, manager.ErrNotSynced):
		f.kind = kindUnsynced
	case errors.Is(err, errCrowded):
		f.kind, f.retry = kindCrowded, true
	case errors.Is(err, manager.ErrNotRegistered):
		f.kind, f.retry, f.waits = kindCrowded, true, false
	}
	f.unanswered = errors.Is(err, access.ErrPending) || errors.Is(err, pod.ErrPending) || errors.Is(err, errPutOff)
	return f
}

// unknownObjects returns the failure of a mounted volume that shows objects whose state is not known, because requests for them fail. why says
// so.
func unknownObjects(why failures) *failure {
	return &failure{
		kind: kindUnknown, err: fmt.Errorf("the files of some objects stay as they are: %w", why), reason: why.worst().reason,
		waits: true, key: "unknown objects",
	}
}

// failures are what a reconcile has found. An empty list means success. They never change.
type failures []*failure

// with returns a list that has some more failures. Each of them may be nil.
func (all failures) with(more ...*failure) failures {
	next := slices.Clone(all)
	for _, f := range more {
		if f != nil {
			next = append(next, f)
		}
	}
	return next
}

// told returns the failures that count, the gravest first: silent ones count only among themselves, so that they never hide a fault.
func (all failures) told() failures {
	told := slices.DeleteFunc(slices.Clone(all), (*failure).isSilent)
	if len(told) == 0 {
		told = slices.Clone(all)
	}
	slices.SortStableFunc(told, func(a, b *failure) int { return cmp.Compare(a.kind, b.kind) })
	return told
}

// worst returns the failure that decides, or nil if there is none.
func (all failures) worst() *failure {
	if len(all) == 0 {
		return nil
	}
	return all.told()[0]
}

// isSilent reports whether the files have no fault.
func (all failures) isSilent() bool {
	return !slices.ContainsFunc(all, func(f *failure) bool { return !f.isSilent() })
}

// isRetried reports whether a failure needs a retry.
func (all failures) isRetried() bool {
	return slices.ContainsFunc(all, func(f *failure) bool { return f.retry })
}

// isFinal reports whether a failure ends a publish.
func (all failures) isFinal() bool {
	return slices.ContainsFunc(all, func(f *failure) bool { return !f.waits })
}

// isUnanswered reports whether all failures, of which there are some, have no other information than that an answer is due.
func (all failures) isUnanswered() bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(f *failure) bool { return !f.unanswered })
}

// Error names the failures that count, each text once: an API server that is away gives one for each object.
func (all failures) Error() string {
	return joined(all.told(), (*failure).Error)
}

// key distinguishes lists.
func (all failures) key() string { return joined(all.told(), func(f *failure) string { return f.key }) }

// joined joins the distinct texts about some failures, and says how many more there are than fewNames.
func joined(all failures, say func(*failure) string) string {
	var texts []string
	for _, f := range all {
		if text := say(f); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if more := len(texts) - fewNames; more > 0 {
		texts = append(texts[:fewNames], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the failures that count.
func (all failures) Unwrap() (errs []error) {
	for _, f := range all.told() {
		errs = append(errs, f)
	}
	return errs
}

// public returns the error that a call answers with.
func (all failures) public() error {
	var reason Reason
	for _, f := range all.told() {
		reason = cmp.Or(reason, f.reason)
	}
	if reason == 0 {
		return all
	}
	return &Error{Reason: reason, Err: all}
}

var (
	// errBusy refuses a call while another one for the volume is running.
	errBusy = errors.New("another call for this volume is running")
	// errUnpublished ends a publish after which an unpublish came.
	errUnpublished = errors.New("the volume was unpublished meanwhile")
	// errStopping ends a wait when the plugin stops.
	errStopping = errors.New("the plugin is stopping")
	// errPodBusy says that a call waits for another volume of its pod.
	errPodBusy = errors.New("another volume of the pod is being written")
	// errCrowded says that a volume waits for its turn to be rendered.
	errCrowded = errors.New("the volumes that are being rendered use all the memory that is reserved for that")
	// errHangs ends a reconcile after reconcileTimeout.
	errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")
	// errPanicked reports a panic.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
	// errPutOff delays an update for the readers of the last change. The volume becomes due again when that time is over.
	errPutOff = errors.New("delayed for readers of the last change")
	// errNobody says that a volume is not mounted because no publish waits for it.
	errNobody = errors.New("nobody waits for the volume any more")
	// errLost says that nothing is written because the volume is not mounted any more.
	errLost = errors.New("the volume is no longer mounted")
)

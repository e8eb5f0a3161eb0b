package access

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// State is what is known of an object.
type State int

// The states.
const (
	// Unknown: the files that show the object stay as they are.
	Unknown State = iota
	// Present: the object is there, and the pod may have it.
	Present
	// Absent: it does not exist.
	Absent
	// Refused: the pod may not have it, whether it exists or not.
	Refused
)

// Answer is what a volume may show of an object.
type Answer struct {
	State State
	// Object is the newest state of one that is Present.
	Object *volume.Object
	// Err says why an object is Unknown. If the object is Present or Absent, Err says why that
	// can't be kept current any more; nil while it can.
	Err error
	// Confirmed says that a refusal was repeated, so that files may be lost by it.
	Confirmed bool
}

// DeniedError reports that an object can't be read for a pod: a right is missing, or no token is
// accepted.
type DeniedError struct {
	Err error
	// Passes says that this may pass although no right changes.
	Passes bool
}

// Error returns the text of the cause.
func (e *DeniedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DeniedError) Unwrap() error { return e.Err }

// Get returns the present answer about an object of the registration.
func (r *Registration) Get(ref volume.Ref) Answer {
	if err := r.unproven(); err != nil {
		return Answer{State: Unknown, Err: err}
	}
	if r.needs[ref] {
		if answer, allowed := r.tracker.consentTo(r, ref); !allowed {
			return answer
		}
	}
	return r.read(ref)
}

// read is Get for an object that the pod may have.
func (r *Registration) read(ref volume.Ref) Answer {
	objects, pod := r.tracker.opts.Objects, r.opts.Pod
	object, err := objects.GetObject(pod, ref)
	switch {
	case err == nil:
		return Answer{State: Present, Object: object, Err: r.whyNotCurrent(ref)}
	case apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced):
		// Where the state is not known, it was the request that met a 404, of whoever stands
		// between.
		return Answer{State: Absent, Err: r.whyNotCurrent(ref)}
	case apierrors.IsForbidden(err) && !r.tracker.opts.RefusalsPass, isRefusal(err) && objects.Denied(pod, ref) != nil:
		// That a token is not accepted may pass, until it is a denial.
		return Answer{State: Unknown, Err: r.tracker.asDenied(err)}
	}
	return Answer{State: Unknown, Err: err}
}

// ErrStale reports that the answer about an object can't be kept current, for another reason than
// a denial.
var ErrStale = errors.New("stale answer")

// whyNotCurrent returns why the answer about an object can't be kept current: a DeniedError, or
// ErrStale. It returns nil while it can.
func (r *Registration) whyNotCurrent(ref volume.Ref) error {
	switch err := r.tracker.opts.Objects.Denied(r.opts.Pod, ref); {
	case err == nil:
		return nil
	case isRefusal(err):
		return r.tracker.asDenied(err)
	default:
		return fmt.Errorf("%w: %w", ErrStale, err)
	}
}

// asDenied returns a refusal of a read as a DeniedError.
func (t *Tracker) asDenied(err error) error {
	return &DeniedError{Err: err, Passes: t.opts.RefusalsPass && apierrors.IsForbidden(err)}
}

// isRefusal tells whether a request was refused for want of a right or an accepted token.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// RefusedError names the objects that a pod may not have. Its text does not tell whether they
// exist.
type RefusedError struct{ text string }

// Error returns the text.
func (e *RefusedError) Error() string { return e.text }

// maxNamed is how many objects a RefusedError names.
const maxNamed = 10

// Refusal returns an error that names refused objects of the registration, nil if there is
// none.
func (r *Registration) Refusal(refused map[volume.Ref]bool) error {
	if len(refused) == 0 {
		return nil
	}
	needs := "get" // where reviews were switched off since the publish, nobody is asked
	if r.tracker.opts.Reviews != nil {
		needs = authz.Phrase(r.tracker.opts.Reviews.Verbs)
	}
	var texts []string
	for _, use := range r.opts.Consents {
		if !refused[use.Ref] {
			continue
		}
		if len(texts) == maxNamed {
			texts = append(texts, fmt.Sprintf("and %d more of the objects that it names", len(refused)-maxNamed))
			break
		}
		if r.tracker.switchedOff(r.opts.Pod.Namespace, use.Ref) {
			texts = append(texts, fmt.Sprintf("%s: Forbidden: this node shows no objects of other namespaces (its plugin runs without --cross-namespace)", use.Field))
			continue
		}
		texts = append(texts, fmt.Sprintf("%s: Forbidden: service account %q of the pod may not %s %s; whoever owns namespace %q consents by a Role and a RoleBinding there",
			use.Field, r.opts.Pod.ServiceAccount, needs, use.Ref, use.Ref.Namespace))
	}
	return &RefusedError{strings.Join(texts, "; ")}
}

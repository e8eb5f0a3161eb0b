package publisher

import (
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// answers hold what is known about a volume's objects at one moment.
type answers struct {
	objects payload.Objects
	at      record.Versions
	// absent are the canaries that exist for other pods only, at the version that says so. before is what the files show.
	absent record.Versions
	before record.Record
	// refused holds the objects that the pod may not read.
	refused map[volume.Ref]bool
	// held is what the volume does not take yet. objects then lacks it, and at has the versions that the files show of it.
	held payload.Held
	// unknown says why the state of some objects is not known, and unknownRefs are these. stale says why the known state of some objects
	// cannot be kept current.
	unknown, stale failures
	unknownRefs    map[volume.Ref]bool
	// awaited are those of which the first answer is still due.
	awaited map[volume.Ref]bool
	// isFailing means that requests about the unknown objects fail. Otherwise their answers may come in a moment.
	isFailing bool
	// isAsking means that answers about the rights of this volume are still due.
	isAsking bool
}

// record returns what the files will show with these answers.
func (got *answers) record() record.Record { return record.Record{Shown: got.at, Absent: got.absent} }

// isPartial reports whether some objects are refused while answers about others are still due. The next answer brings another reconcile,
// which then reports all refusals together.
func (got *answers) isPartial() bool { return got.isAsking && len(got.refused) > 0 }

// first returns why a new volume may not start with these answers.
func (got *answers) first(refusal *failure) failures {
	switch {
	case refusal != nil: // it was refused after the pod was admitted
		return failures{refusal}
	case len(got.unknown) > 0:
		return got.unknown
	}
	if worst := got.stale.worst(); worst != nil && worst.kind == kindRefused {
		return got.stale // a new volume must not start with an object that may no longer be read
	}
	return nil
}

// answers returns the present answers about a volume's objects, and registers the objects that the pod may read. What is registered stays so
// while it is not known, or only suspected, that the pod may no longer read it: a failed review must end no watch. has reports whether the
// files show an object.
func (b *binding) answers(isMounted bool, has func(volume.Ref) bool) *answers {
	// Check whether answers are due before the answers are read. Otherwise an answer that arrives in between is overlooked.
	got := &answers{objects: payload.Objects{}, at: record.Versions{}, absent: record.Versions{}, refused: map[volume.Ref]bool{}, unknownRefs: map[volume.Ref]bool{}, awaited: map[volume.Ref]bool{}}
	got.isAsking = len(b.spec.consents) > 0 && b.access != nil && b.access.HasPending(b.request.Pod.Account(), b.spec.consent)
	var may, keep []volume.Ref
	unproven := b.rights.prove(b.since, isMounted)
	got.unknown = got.unknown.with(unproven)
	for _, ref := range b.spec.refs {
		verdict, f := access.Unknown, (*failure)(nil)
		if unproven == nil || !b.spec.consent[ref] {
			verdict, f = b.rights.mayKeep(ref, isMounted)
		}
		if verdict == access.Allowed || verdict != access.Refused && slices.Contains(b.registered, ref) {
			keep = append(keep, ref)
		}
		switch {
		case verdict == access.Allowed:
			may = append(may, ref)
		case verdict == access.Unknown, verdict == access.Suspected && has(ref):
			// A suspected refusal needs no confirmation if no file shows the object: there is nothing to remove.
			got.unknownRefs[ref], got.unknown = true, got.unknown.with(f)
		default:
			got.refused[ref] = true
		}
	}
	b.register(keep)
	for _, ref := range may {
		object, err := b.opts.Objects.GetObject(b.request.Pod, ref)
		// If the state is not known, the 404 answers the request and not the object. It may come from a proxy.
		isAbsent := apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced)
		if err != nil && !isAbsent {
			f := b.whyUnknown(ref, err)
			if got.unknownRefs[ref], got.unknown = true, append(got.unknown, f); f.isUnlogged() {
				got.awaited[ref] = true
			}
			continue
		}
		switch {
		case isAbsent:
		case b.spec.canaries[ref] && !b.isFor(object):
			got.absent[ref] = object.Version
		default:
			got.objects[ref], got.at[ref] = object, object.Version
		}
		got.stale = got.stale.with(b.whyStale(ref))
	}
	got.isFailing = slices.ContainsFunc(got.unknown, func(f *failure) bool { return !f.isUnlogged() })
	return got
}

// isFor reports whether a canary exists for the pod.
func (b *binding) isFor(canary *volume.Object) bool {
	share, problem := canary.CanaryShare()
	if b.mistakes.isNews(canary.UID, problem) {
		b.opts.Events.Warn(b.request.Pod, eventInvalidCanary, fmt.Sprintf("%s is a canary for no pod: %s", canary.Ref, problem))
	}
	return share >= volume.RolloutPlace(b.uid)
}

// whyUnknown returns the failure to read an object. A token that is not accepted is a passing problem until the object is denied.
func (b *binding) whyUnknown(ref volume.Ref, err error) *failure {
	var tooMuch *manager.FullError
	isForbidden := apierrors.IsForbidden(err)
	switch {
	case isForbidden && !b.opts.NodeRights, isRefusal(err) && b.opts.Objects.DenialErr(b.request.Pod, ref) != nil:
		return b.denied(err)
	case errors.As(err, &tooMuch):
		return broken(ReasonCacheFull, tooMuch)
	case errors.Is(err, manager.ErrNotSynced), errors.Is(err, manager.ErrNotRegistered):
		f := waiting(err)
		if isForbidden { // with the node's rights a refusal may pass
			f.kind, f.reason = kindDenied, ReasonForbidden
		}
		return f
	}
	return broken(0, err)
}

// whyStale returns why the known state of an object cannot be kept current, or nil if it can.
func (b *binding) whyStale(ref volume.Ref) *failure {
	switch err := b.opts.Objects.DenialErr(b.request.Pod, ref); {
	case err == nil:
		return nil
	case isRefusal(err):
		return b.denied(err)
	default:
		return outdated(0, fmt.Errorf("stale answer: %w", err))
	}
}

func (b *binding) denied(err error) *failure {
	return forbidden(err, b.opts.NodeRights && apierrors.IsForbidden(err))
}

// isRefusal reports whether a request was refused because a right or an accepted token is missing.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

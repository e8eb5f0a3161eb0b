package binding

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// Answers hold what is known about a volume's objects at one moment. They never change.
type Answers struct {
	// Objects are those that exist for the pod and that it may read, and At has their versions.
	Objects payload.Objects
	At      record.Versions
	// Absent are the canaries that exist for other pods only, at the version that says so. Before is what the files show.
	Absent record.Versions
	Before record.Record
	// Refused holds the objects that the pod may not read. Refusal names them, or is nil. suspected are those of which the record names no
	// version, and whose refusal is not confirmed.
	Refused   map[volume.Ref]bool
	Refusal   *failure.Failure
	suspected map[volume.Ref]bool
	// Held is what the volume does not take yet. Objects then lacks it, and At has the versions that the files show of it.
	Held payload.Held
	// Unknown says why the state of some objects is not known, and UnknownRefs are these. Stale says why the known state of some objects
	// cannot be kept current.
	Unknown, Stale failure.List
	UnknownRefs    map[volume.Ref]bool
	// Awaited are those of which the first answer is still due.
	Awaited map[volume.Ref]bool
	// IsFailing means that requests about the unknown objects fail. Otherwise their answers may come in a moment.
	IsFailing bool
	// isAsking means that answers about the rights of this volume are still due.
	isAsking bool
}

// Record returns what the files will show with these answers.
func (got *Answers) Record() record.Record { return record.Record{Shown: got.At, Absent: got.Absent} }

// IsPartial reports whether some objects are refused while answers about others are still due. The next answer brings another reconcile,
// which then reports all refusals together.
func (got *Answers) IsPartial() bool { return got.isAsking && len(got.Refused) > 0 }

// First returns why a new volume may not start with these answers.
func (got *Answers) First() failure.List {
	switch {
	case got.Refusal != nil: // it was refused after the pod was admitted
		return failure.List{got.Refusal}
	case len(got.Unknown) > 0:
		return got.Unknown
	}
	if worst := got.Stale.Worst(); worst != nil && worst.Kind == failure.Refused {
		return got.Stale // a new volume must not start with an object that may no longer be read
	}
	return nil
}

// Confirmed returns the refused objects whose files must not stay, whatever else fails.
func (got *Answers) Confirmed() map[volume.Ref]bool {
	if len(got.suspected) == 0 {
		return got.Refused
	}
	confirmed := maps.Clone(got.Refused)
	maps.DeleteFunc(confirmed, func(ref volume.Ref, _ bool) bool { return got.suspected[ref] })
	return confirmed
}

// Holding returns the answers with some more objects held at these versions; the zero Version means that the files show nothing of the
// object. shown are the files that exist. Objects that are not known must be among them: the answers lack nothing then.
func (got *Answers) Holding(at map[volume.Ref]volume.Version, shown []volume.File) *Answers {
	next := *got
	next.At, next.Absent, next.Objects, next.Unknown = maps.Clone(got.At), maps.Clone(got.Absent), maps.Clone(got.Objects), nil
	next.Held = payload.Held{At: maps.Clone(at), Files: shown}
	maps.Copy(next.Held.At, got.Held.At)
	for ref, version := range at {
		next.At.Set(ref, version)
		next.Absent.Set(ref, got.Before.Absent[ref])
		delete(next.Objects, ref)
	}
	return &next
}

// Answers returns the present answers about a volume's objects, and registers the objects that the pod may read. What is registered stays so
// while it is not known, or only suspected, that the pod may no longer read it: a failed review must end no watch. before is
// what the files show.
func (b *Binding) Answers(isMounted bool, before record.Record) *Answers {
	// Check whether answers are due before the answers are read. Otherwise an answer that arrives in between is overlooked.
	got := &Answers{
		Objects: payload.Objects{}, At: record.Versions{}, Absent: record.Versions{}, Before: before, Refused: map[volume.Ref]bool{},
		suspected: map[volume.Ref]bool{}, UnknownRefs: map[volume.Ref]bool{}, Awaited: map[volume.Ref]bool{},
	}
	got.isAsking = len(b.spec.consents) > 0 && b.node.access != nil && b.node.access.HasPending(b.request.Pod.Account(), b.spec.consent)
	var may, keep []volume.Ref
	unproven := b.rights.prove(b.Since, isMounted)
	got.Unknown = got.Unknown.With(unproven)
	for _, ref := range b.spec.Refs {
		verdict, f := access.Unknown, (*failure.Failure)(nil)
		if unproven == nil || !b.spec.consent[ref] {
			verdict, f = b.rights.mayKeep(ref, isMounted)
		}
		if verdict == access.Allowed || verdict != access.Refused && slices.Contains(b.registered, ref) {
			keep = append(keep, ref)
		}
		switch {
		case verdict == access.Allowed:
			may = append(may, ref)
		case verdict == access.Unknown, verdict == access.Suspected && before.Shown[ref].UID != "":
			// A suspected refusal needs no confirmation if no file shows the object: there is nothing to remove.
			got.UnknownRefs[ref], got.Unknown = true, got.Unknown.With(f)
		default:
			if got.Refused[ref] = true; verdict == access.Suspected {
				got.suspected[ref] = true
			}
		}
	}
	b.register(keep)
	for _, ref := range may {
		object, err := b.node.opts.Objects.GetObject(b.request.Pod, ref)
		// If the state is not known, the 404 answers the request and not the object. It may come from a proxy.
		isAbsent := apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced)
		if err != nil && !isAbsent {
			f := b.whyUnknown(ref, err)
			if got.UnknownRefs[ref], got.Unknown = true, append(got.Unknown, f); f.IsUnlogged() {
				got.Awaited[ref] = true
			}
			continue
		}
		switch {
		case isAbsent:
		case b.spec.Canaries[ref] && !b.isFor(object):
			got.Absent[ref] = object.Version
		default:
			got.Objects[ref], got.At[ref] = object, object.Version
		}
		got.Stale = got.Stale.With(b.whyStale(ref))
	}
	got.Refusal = b.rights.refusal(got.Refused)
	got.IsFailing = slices.ContainsFunc(got.Unknown, func(f *failure.Failure) bool { return !f.IsUnlogged() })
	return got
}

// Count counts what the files will name with the keys of whole objects, before their paths are made. A volume of an earlier process may name
// what its files do, whatever that is, so nothing is refused until this process knows them. It returns nil, or that the volume names too much.
func (b *Binding) Count(got *Answers, isMounted bool) *failure.Failure {
	n := b.spec.names.Plus(payload.Names(b.spec.Resolved, got.Objects))
	if !isMounted || b.spec.isCounted {
		if err := b.room.CheckNames(n); err != nil {
			return failure.Final(failure.ReasonInvalid, err)
		}
	}
	b.room.Name(n)
	b.spec.isCounted = true
	return nil
}

// isFor reports whether a canary exists for the pod.
func (b *Binding) isFor(canary *volume.Object) bool {
	share, problem := canary.CanaryShare()
	if b.node.mistakes.isNews(canary.UID, problem) {
		b.node.opts.Events.Warn(b.request.Pod, failure.InvalidCanary, fmt.Sprintf("%s is a canary for no pod: %s", canary.Ref, problem))
	}
	return share >= volume.RolloutPlace(b.UID)
}

// whyUnknown returns the failure to read an object. A token that is not accepted is a passing problem until the object is denied.
func (b *Binding) whyUnknown(ref volume.Ref, err error) *failure.Failure {
	var tooMuch *manager.FullError
	isForbidden := apierrors.IsForbidden(err)
	switch {
	case isForbidden && !b.node.opts.NodeRights, isRefusal(err) && b.node.opts.Objects.DenialErr(b.request.Pod, ref) != nil:
		return b.denied(err)
	case errors.As(err, &tooMuch):
		return failure.Broken(failure.ReasonCacheFull, tooMuch)
	case errors.Is(err, manager.ErrNotSynced), errors.Is(err, manager.ErrNotRegistered):
		f := failure.Waiting(err)
		if isForbidden { // with the node's rights a refusal may pass
			f.Kind, f.Reason = failure.Denied, failure.ReasonForbidden
		}
		return f
	}
	return failure.Broken(0, err)
}

// whyStale returns why the known state of an object cannot be kept current, or nil if it can.
func (b *Binding) whyStale(ref volume.Ref) *failure.Failure {
	switch err := b.node.opts.Objects.DenialErr(b.request.Pod, ref); {
	case err == nil:
		return nil
	case isRefusal(err):
		return b.denied(err)
	default:
		return failure.Outdated(0, fmt.Errorf("stale answer: %w", err))
	}
}

func (b *Binding) denied(err error) *failure.Failure {
	return failure.Forbidden(err, b.node.opts.NodeRights && apierrors.IsForbidden(err))
}

// isRefusal reports whether a request was refused because a right or an accepted token is missing.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

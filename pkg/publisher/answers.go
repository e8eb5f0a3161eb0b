package publisher

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// answers are what is known of a volume's objects at one moment.
type answers struct {
	objects payload.Objects
	at      record.Versions
	// refused holds those that the pod may not have.
	refused map[volume.Ref]bool
	// held is what the volume does not take yet: objects lacks it then, and at has what is shown of it.
	held payload.Held
	// unknown is why the state of others is not known, stale why what is known of some can't be kept current.
	unknown, stale *failure
	// isAsking says that answers about rights which belong together were not all there yet, and isUnreviewed that questions
	// about some have failed.
	isAsking, isUnreviewed bool
}

// isPartial says that another reconcile comes with an answer that this one has to wait for.
func (got *answers) isPartial() bool {
	return got.isAsking && (len(got.refused) > 0 || got.isUnreviewed)
}

// first returns why a new volume may not begin with the answers, nil if it may.
func (got *answers) first(refusal *failure) *failure {
	switch {
	case refusal != nil: // since the pod was admitted
		return refusal
	case got.unknown != nil:
		return got.unknown
	case got.stale != nil && got.stale.event == eventRefForbidden:
		return got.stale // a new volume must not begin with what nobody may read any more
	}
	return nil
}

// answers returns the present answers about a volume's objects, and has those read that the pod may have. has says whether the
// files show an object.
func (b *binding) answers(has func(volume.Ref) bool) *answers {
	// Whether answers are due is asked before the answers: so none of those is overlooked.
	got := &answers{objects: payload.Objects{}, at: record.Versions{}, refused: map[volume.Ref]bool{}}
	got.isAsking = len(b.spec.consents) > 0 && b.shared.access != nil && b.shared.access.Asks(b.request.Pod.Account(), b.spec.consent)
	var unknown, outdated []*failure
	var may []volume.Ref
	unproven := b.rights.prove(b.entry.since)
	if unproven != nil {
		unknown = append(unknown, unproven)
	}
	for _, ref := range b.spec.refs {
		if unproven != nil && b.spec.consent[ref] {
			continue
		}
		switch verdict, f := b.rights.mayKeep(ref); {
		case verdict == access.Allowed:
			may = append(may, ref)
		case verdict == access.Unknown, verdict == access.Suspected && has(ref):
			// Of a suspected one, what no file shows can't be lost: that needs no confirmation.
			unknown = append(unknown, f)
		default:
			got.refused[ref], got.at[ref] = true, volume.Version{}
		}
	}
	for _, f := range unknown {
		got.isUnreviewed = got.isUnreviewed || f.kind == kindUnreviewed
	}
	b.read(may)
	for _, ref := range may {
		object, err := b.shared.opts.Objects.GetObject(b.request.Pod, ref)
		// Where the state is not known, it was the request that met a 404, of whoever stands between.
		isAbsent := apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced)
		if err != nil && !isAbsent {
			unknown = append(unknown, b.whyUnknown(ref, err))
			continue
		}
		got.at[ref] = volume.Version{}
		if !isAbsent {
			got.objects[ref], got.at[ref] = object, object.Version
		}
		if f := b.whyStale(ref); f != nil {
			outdated = append(outdated, f)
		}
	}
	got.unknown, got.stale = together(unknown), together(outdated)
	return got
}

// whyUnknown returns the failure to read an object. That a token is not accepted may pass, until the object is denied.
func (b *binding) whyUnknown(ref volume.Ref, err error) *failure {
	var tooMuch *manager.FullError
	isForbidden := apierrors.IsForbidden(err)
	switch {
	case isForbidden && !b.shared.opts.NodeRights, isRefusal(err) && b.shared.opts.Objects.Denied(b.request.Pod, ref) != nil:
		return b.denied(err)
	case errors.As(err, &tooMuch):
		return full(ReasonCacheFull, "%w", tooMuch)
	case errors.Is(err, manager.ErrNotSynced):
		f := waiting(err)
		if isForbidden { // as the node, for which it may pass
			f.reason = ReasonForbidden
		}
		return f
	case errors.Is(err, manager.ErrNotRegistered):
		f := waiting(err)
		f.waits, f.retry = false, true
		return f
	}
	return broken(err)
}

// whyStale returns why what is known of an object can't be kept current, nil while it can.
func (b *binding) whyStale(ref volume.Ref) *failure {
	switch err := b.shared.opts.Objects.Denied(b.request.Pod, ref); {
	case err == nil:
		return nil
	case isRefusal(err):
		return b.denied(err)
	default:
		return stale(err)
	}
}

func (b *binding) denied(err error) *failure {
	return forbidden(err, b.shared.opts.NodeRights && apierrors.IsForbidden(err))
}

// isRefusal says whether a request was refused for want of a right or an accepted token.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

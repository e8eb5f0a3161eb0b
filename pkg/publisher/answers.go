package publisher

import (
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"

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
	// unknown joins why the state of others is not known, stale why what is known of some
	// can't be kept current.
	unknown, stale error
	// pending says that answers which belong together were not all there yet.
	pending bool
}

// isPending says that another sync comes with an answer that this one has to wait for.
func (got *answers) isPending() bool {
	return got.pending && (len(got.refused) > 0 || errors.Is(got.unknown, errUnreviewed))
}

// answers returns the present answers about a volume's objects, and has those read that the pod may have.
func (v *vol) answers() *answers {
	// Whether answers are due is asked before the answers: so none of those is overlooked.
	got := &answers{objects: payload.Objects{}, at: record.Versions{}, refused: map[volume.Ref]bool{}}
	got.pending = len(v.spec.consents) > 0 && v.p.access != nil && v.p.access.Asks(v.specOf.Pod.Account(), v.spec.consent)
	var unknown, stale []error
	var may []volume.Ref
	unproven := v.prove(v.since)
	if unproven != nil {
		unknown = append(unknown, unproven)
	}
	for _, ref := range v.spec.refs {
		if unproven != nil && v.spec.consent[ref] {
			continue
		}
		verdict, err := v.mayKeep(ref)
		switch {
		case verdict == access.Allowed:
			may = append(may, ref)
		case verdict == access.Unknown:
			unknown = append(unknown, err)
		case verdict == access.Suspected && v.has(ref):
			// What no file shows can't be lost: that needs no confirmation.
			unknown = append(unknown, err)
		default:
			got.refused[ref], got.at[ref] = true, volume.Version{}
		}
	}
	v.readWhat(may)
	for _, ref := range may {
		object, err := v.p.opts.Objects.GetObject(v.specOf.Pod, ref)
		// Where the state is not known, it was the request that met a 404, of whoever stands between.
		absent := apierrors.IsNotFound(err) && !errors.Is(err, manager.ErrNotSynced)
		if err != nil && !absent {
			unknown = append(unknown, v.whyUnknown(ref, err))
			continue
		}
		got.at[ref] = volume.Version{}
		if !absent {
			got.objects[ref], got.at[ref] = object, object.Version
		}
		if err := v.whyNotCurrent(ref); err != nil {
			stale = append(stale, err)
		}
	}
	got.unknown, got.stale = errors.Join(unknown...), errors.Join(stale...)
	return got
}

// whyUnknown returns the error of a read of an object. That a token is not accepted may pass, until it is a denial.
func (v *vol) whyUnknown(ref volume.Ref, err error) error {
	if apierrors.IsForbidden(err) && !v.p.opts.NodeRights || isRefusal(err) && v.p.opts.Objects.Denied(v.specOf.Pod, ref) != nil {
		return v.denied(err)
	}
	return err
}

// whyNotCurrent returns why what is known of an object can't be kept current: a deniedError, or errStale. It returns nil
// while it can.
func (v *vol) whyNotCurrent(ref volume.Ref) error {
	switch err := v.p.opts.Objects.Denied(v.specOf.Pod, ref); {
	case err == nil:
		return nil
	case isRefusal(err):
		return v.denied(err)
	default:
		return fmt.Errorf("%w: %w", errStale, err)
	}
}

func (v *vol) denied(err error) error {
	return &deniedError{err: err, passes: v.p.opts.NodeRights && apierrors.IsForbidden(err)}
}

// isRefusal tells whether a request was refused for want of a right or an accepted token.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isCurrent says whether the files are known to show the objects as they are.
func (v *vol) isCurrent(got *answers) bool {
	c := &v.contents
	return v.mounted && c.proven && got.unknown == nil && maps.Equal(c.shown, got.at) && maps.Equal(c.withdrawn, got.refused)
}

// older returns an object whose version is older than what the files show of it. An
// API server may answer so after a restart of this process, while it catches up.
func (v *vol) older(got *answers) (volume.Ref, bool) {
	for ref, version := range got.at {
		shown := v.contents.shown[ref]
		if shown.ResourceVersion == "" || version.ResourceVersion == "" {
			continue
		}
		order, err := resourceversion.CompareResourceVersion(version.ResourceVersion, shown.ResourceVersion)
		if err == nil && order < 0 {
			return ref, true
		}
	}
	return volume.Ref{}, false
}

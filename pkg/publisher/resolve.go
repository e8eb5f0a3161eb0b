package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// getPod reads a volume's pod. The caller calls done once it doesn't use the pod any more; a pod may
// take megabytes.
type getPod func(ctx context.Context, pod volume.Pod) (got *pod.Spec, done func(), err error)

// mustBeNamed returns the objects that the spec of a request names without the pod's own spec, where the
// pod's own spec must name them too: the node may read them if a neighbour names them, and no volume must
// depend on its neighbours.
func (p *Publisher) mustBeNamed(request *Request, spec *volume.Spec) []volume.Use {
	if !p.opts.NodeRights {
		return nil
	}
	return slices.Concat(spec.Own(request.Pod), spec.Across(request.Pod))
}

// resolve returns a volume's spec with what the pod's own spec says in place of what it takes from there, and in words
// what of that a volume can't know. What a spec says never changes in the life of a pod.
func (p *Publisher) resolve(ctx, turn context.Context, worker *podWorker, request *Request, spec *volume.Spec, get getPod) (resolved *volume.Spec, leftOut []string, err error) {
	at := spec.NeedsPod()
	if at == "" && !p.opts.NodeRights {
		return spec, nil, nil
	}
	says, done, err := get(ctx, request.Pod)
	if err == nil {
		defer done()
	}
	if err == nil && says.Mirror { // its UID does not matter: anybody may have written it
		err = fmt.Errorf("read pod %s: %w", request.Pod, pod.ErrStatic)
	}
	if err != nil {
		return nil, nil, fail(unread(err), "%s: %w", cmp.Or(at, "with --identity=node a volume shows only what its pod's spec names"), err)
	}
	crowded := p.inTurn(turn, worker, resolveBase+resolveCost*int64(says.Size), func() { resolved, leftOut, err = pod.Resolve(spec, says.Env, says.Shown) })
	if crowded != nil {
		return nil, nil, crowded
	}
	if err == nil {
		err = unnamed(p.mustBeNamed(request, spec), says.Refs)
	}
	if err != nil {
		return nil, nil, fail(ReasonInvalid, "%w", err)
	}
	return resolved, leftOut, nil
}

// unnamed refuses objects that a pod's own spec, which names refs, does not name.
func unnamed(uses []volume.Use, refs []volume.Ref) error {
	var errs []error
	for _, use := range uses {
		if slices.Contains(refs, use.Ref) || len(errs) == fewNames {
			continue
		}
		errs = append(errs, field.Forbidden(field.NewPath(use.Field), "the pod's spec does not name "+use.Ref.String()+
			" itself, and this node's plugin runs with --identity=node: add a volume of the pod that names it, and show that by a volume source"))
	}
	return utilerrors.NewAggregate(errs)
}

// unread returns the reason of a failure to read a pod.
func unread(err error) Reason {
	switch {
	case ReasonOf(err) != 0:
		return ReasonOf(err)
	case errors.Is(err, pod.ErrStatic):
		return ReasonInvalid
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return ReasonNotFound
	case apierrors.IsForbidden(err):
		return ReasonForbidden
	}
	return ReasonUnavailable
}

// podUntil returns what reads the pod of a publish, which gives up at the deadline.
func (p *Publisher) podUntil(deadline time.Time) getPod {
	return func(ctx context.Context, pod volume.Pod) (*pod.Spec, func(), error) {
		ctx, cancel := p.waiting(ctx, deadline)
		defer cancel()
		return p.pods.get(ctx, pod)
	}
}

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

// list returns what the pod's own spec says of what a volume takes from there, nil if the volume takes
// nothing; the caller releases it. unlisted is why the pod's spec can't say that, for resolve to tell where.
// What a spec says never changes in the life of a pod, and may hold passwords: so it is read by the first
// volume that needs it, and kept while such a volume is there.
func (p *Publisher) list(ctx context.Context, request *Request, spec *volume.Spec, get getPod) (list *podList, unlisted, err error) {
	at := spec.NeedsPod()
	if at == "" && !p.opts.NodeRights {
		return nil, nil, nil
	}
	named := p.mustBeNamed(request, spec)
	held := p.lists.hold(request.Pod)
	defer func() { // also when something panics
		if list == nil {
			p.lists.release(held)
		}
	}()
	if held.has(spec, named) {
		return held, nil, nil
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
	unlisted = held.add(says, spec, named)
	return held, unlisted, nil
}

// mustBeNamed returns the objects that the spec of a request names without the pod's own spec, where the
// pod's own spec must name them too: the node may read them if a neighbour names them, and no volume must
// depend on its neighbours.
func (p *Publisher) mustBeNamed(request *Request, spec *volume.Spec) []volume.Use {
	if !p.opts.NodeRights {
		return nil
	}
	return slices.Concat(spec.Own(request.Pod), spec.Across(request.Pod))
}

// resolve returns a volume's spec with what list has of the pod's own spec, and in words what of that
// a volume can't know.
func (p *Publisher) resolve(ctx context.Context, worker *podWorker, request *Request, spec *volume.Spec, list *podList, unlisted error) (resolved *volume.Spec, leftOut []string, err error) {
	if list == nil {
		return spec, nil, nil
	}
	crowded := p.inTurn(ctx, worker, list.heap(spec), func() { resolved, leftOut, err = list.resolve(spec, unlisted) })
	if crowded != nil {
		return nil, nil, crowded
	}
	if err == nil {
		err = unnamed(list.lacks(p.mustBeNamed(request, spec)))
	}
	if err != nil {
		return nil, nil, fail(ReasonInvalid, "%w", err)
	}
	return resolved, leftOut, nil
}

// unnamed refuses objects that a pod's own spec does not name.
func unnamed(uses []volume.Use) error {
	var errs []error
	for _, use := range uses[:min(len(uses), fewNames)] {
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

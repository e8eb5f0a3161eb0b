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

	"github.com/refvol/refvol/pkg/podspec"
	"github.com/refvol/refvol/pkg/volume"
)

// getPod reads a volume's pod.
type getPod func(ctx context.Context, pod volume.Pod) (*podspec.Pod, error)

// resolve returns a volume's spec with what the pod's own spec adds to it, and in words
// what of that a volume can't know. That never changes in the life of a pod, and may hold
// passwords: so it is read by the publish, and once more after a restart.
func (p *Publisher) resolve(ctx context.Context, request *Request, spec *volume.Spec, get getPod) (*volume.Spec, []string, error) {
	at := spec.NeedsPod()
	if at == "" && !p.opts.NodeRights {
		return spec, nil, nil
	}
	pod, err := get(ctx, request.Pod)
	if err == nil && pod.Mirror { // its UID does not matter: anybody may have written it
		err = fmt.Errorf("read pod %s: %w", request.Pod, podspec.ErrStatic)
	}
	if err != nil {
		return nil, nil, fail(unread(err), "%s: %w", cmp.Or(at, "with --identity=node a volume shows only what its pod's spec names"), err)
	}
	var resolved *volume.Spec
	var leftOut []string
	crowded := p.withPlace(ctx, request, smallHeap, func() {
		resolved, leftOut, err = spec.Resolve(pod.Env, pod.Shown)
		if err == nil && p.opts.NodeRights {
			err = unnamed(resolved, pod)
		}
	})
	if crowded != nil {
		return nil, nil, crowded
	}
	if err != nil {
		return nil, nil, fail(ReasonInvalid, "%w", err)
	}
	return resolved, leftOut, nil
}

// unnamed refuses the objects that a pod's own spec does not name: the node may read them if a
// neighbour names them, and no volume must depend on its neighbours.
func unnamed(resolved *volume.Spec, pod *podspec.Pod) error {
	var errs []error
	for _, use := range slices.Concat(resolved.Own(pod.Pod), resolved.Across(pod.Pod)) {
		if len(errs) < fewNames && !slices.Contains(pod.Refs, use.Ref) {
			errs = append(errs, field.Forbidden(field.NewPath(use.Field), "the pod's spec does not name "+use.Ref.String()+
				" itself, and this node's plugin runs with --identity=node: add a volume of the pod that names it, and show that by a volume source"))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// unread returns the reason of a failure to read a pod.
func unread(err error) Reason {
	switch {
	case ReasonOf(err) != 0:
		return ReasonOf(err)
	case errors.Is(err, podspec.ErrStatic):
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
	return func(ctx context.Context, pod volume.Pod) (*podspec.Pod, error) {
		return p.pods.get(ctx, pod, deadline)
	}
}

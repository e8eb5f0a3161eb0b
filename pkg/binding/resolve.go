package binding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// parseRequest validates, parses and resolves a request.
func (b *Binding) parseRequest(ctx context.Context, request *Request, now State) (*Spec, *failure.Failure) {
	if err := request.Validate(&b.node.opts); err != nil {
		return nil, failure.Final(failure.ReasonInvalid, err)
	}
	options := []volume.Option{volume.DefaultSpread(b.node.opts.DefaultSpread)}
	if b.node.opts.CrossNamespace || now.IsMounted { // for a mounted volume, the answers refuse objects of other namespaces
		options = append(options, volume.AcrossNamespaces())
	}
	var parsed *volume.Spec
	var err error
	crowd := b.node.InTurn(ctx, func() { parsed, err = volume.Parse(request.Attributes, request.Pod, options...) })
	switch {
	case crowd != nil:
		return nil, crowd
	case err != nil:
		return nil, failure.Final(failure.ReasonInvalid, err)
	}
	s, f := b.resolve(ctx, request, parsed, now)
	if f != nil {
		return nil, f
	}
	if !now.IsMounted {
		if err := b.node.limits.CheckItems(pod.CountItems(s.Resolved)); err != nil {
			return nil, failure.Final(failure.ReasonTooLarge, err)
		}
	}
	s.names, s.Refs, s.Canaries = s.Resolved.Names(), s.Resolved.Refs(), s.Resolved.Canaries()
	s.consents, s.consent = s.Resolved.CrossNamespaceRefs(request.Pod), map[volume.Ref]bool{}
	if b.node.opts.Identity != nil {
		s.consents = append(s.consents, s.Resolved.LocalRefs(request.Pod)...)
	}
	for _, use := range s.consents {
		s.consent[use.Ref] = true
	}
	return s, nil
}

// resolve adds to a volume's spec what the volume takes from the pod's own spec. A pod's spec never changes in these parts during the pod's
// life.
func (b *Binding) resolve(ctx context.Context, request *Request, parsed *volume.Spec, now State) (*Spec, *failure.Failure) {
	check := b.room.CheckNames
	if now.IsMounted {
		check = func(volume.Names) error { return nil } // a running pod may keep what it has
	}
	at := parsed.NeedsPod()
	if at == "" && !b.node.opts.NodeRights {
		if err := check(parsed.Names()); err != nil {
			return nil, failure.Final(failure.ReasonInvalid, err)
		}
		return &Spec{Spec: parsed, Resolved: parsed}, nil
	}
	at = cmp.Or(at, "with --identity=node a volume shows only what its pod's spec names")
	podSpec, err := b.readPod(request.Pod, now.IsUrgent)
	if err == nil && podSpec.Mirror { // a static pod's UID proves nothing: anybody may have written the mirror pod
		err = fmt.Errorf("read pod %s: %w", request.Pod, pod.ErrStatic)
	}
	if err != nil {
		return nil, b.unreadPod(fmt.Errorf("%s: %w", at, err), now.IsMounted)
	}
	s := &Spec{Spec: parsed}
	var leftOut []string
	crowd := b.node.InTurn(ctx, func() {
		s.Resolved, leftOut, err = pod.Resolve(parsed, podSpec.Env, podSpec.VolumeSources, podSpec.MountsBelow, b.Name, check)
	})
	if crowd != nil {
		return nil, crowd
	}
	s.LeftOut = failure.Few(leftOut)
	if err == nil && b.node.opts.NodeRights {
		// The node may also read objects that other pods name. A volume must not depend on other pods.
		err = unnamed(slices.Concat(parsed.LocalRefs(request.Pod), parsed.CrossNamespaceRefs(request.Pod)), podSpec.Refs, parsed.Canaries())
	}
	if err != nil {
		return nil, failure.Final(failure.ReasonInvalid, err)
	}
	return s, nil
}

// unreadPod returns the failure to read a pod whose spec says what the volume shows. With the node's rights a refusal may pass: the API
// server's authorizer may learn about a pod a moment later than the kubelet.
func (b *Binding) unreadPod(err error, isMounted bool) *failure.Failure {
	switch {
	case errors.Is(err, pod.ErrStatic):
		return failure.Final(failure.ReasonInvalid, err)
	case isNoPod(err):
		return failure.Final(failure.ReasonNotFound, err)
	case apierrors.IsForbidden(err):
		return failure.Forbidden(err, b.node.opts.NodeRights || isMounted)
	}
	return failure.Waiting(err)
}

// unnamed returns an error for the objects that the pod's own spec does not name. refs are the objects that it names, and canaries those that
// the volume names as canaries.
func unnamed(uses []volume.Reference, refs []volume.Ref, canaries map[volume.Ref]bool) error {
	var errs []error
	for _, use := range uses {
		if slices.Contains(refs, use.Ref) || len(errs) == failure.MaxNames {
			continue
		}
		fix := "add a volume of the pod that names it, and show that by a volume source"
		if canaries[use.Ref] {
			fix = "for a canary add a volume of the pod that names it and that nothing mounts or shows"
		}
		errs = append(errs, field.Forbidden(field.NewPath(use.Field), "the pod's spec does not name "+use.Ref.String()+
			" itself, and this node's plugin runs with --identity=node: "+fix))
	}
	return utilerrors.NewAggregate(errs)
}

package publisher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// refusedTime is how long the read of a pod may be refused before that counts as a fault: an API server that has just
// started refuses everybody.
const refusedTime = time.Minute

// derive returns what is wanted of a volume: of one that was found, what its pod's spec says. A request of the kubelet that
// comes meanwhile counts instead.
func (v *vol) derive(asked *Request) (*Request, error) {
	if asked != nil {
		return asked, nil
	}
	if v.hintErr != nil {
		return nil, pending(fmt.Errorf("it is not updated until the kubelet publishes it again: it does not tell its pod: %w", v.hintErr))
	}
	says, err := v.readPod(v.hint, false)
	switch {
	case err == nil:
	case isNoPod(err): // also of a static pod, whose mirror has another UID
		return nil, pending(fmt.Errorf("it is not updated until the kubelet publishes it again: %w", err))
	case apierrors.IsForbidden(err) && time.Since(v.failing) >= refusedTime:
		return nil, fail(ReasonForbidden, "it is not updated since the plugin's restart: the API server does not let the plugin read the pod: %w", err)
	default:
		return nil, pending(fmt.Errorf("an earlier process has mounted it, and this one has not taken it over yet: %w", err))
	}
	want, err := v.requestOf(says)
	if err != nil {
		v.set(func() { v.told.pod = says.Pod })
		return nil, err
	}
	v.set(func() {
		if v.want == nil {
			v.want = want
		}
		want = v.want
	})
	return want, nil
}

// readPod returns the spec of a pod, or an error: pod.ErrPending until it is there, and that of the last read while that is
// tried again.
func (v *vol) readPod(asked volume.Pod, urgent bool) (*pod.Spec, error) {
	if v.says != nil && v.says.Pod.UID == asked.UID {
		return v.says, nil
	}
	says, err := v.p.pods.Get(asked, v.id, urgent)
	switch {
	case err == nil:
		v.says, v.failing = says, time.Time{}
	case v.failing.IsZero() && !errors.Is(err, pod.ErrPending):
		v.failing = time.Now()
	}
	return says, err
}

func isNoPod(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// requestOf returns the request by which the kubelet has published a mounted volume of a pod.
func (v *vol) requestOf(says *pod.Spec) (*Request, error) {
	_, name := targetParts(v.p.opts.KubeletDir, v.target)
	inline, ok := says.Inline[name]
	if !ok || inline.Driver != v.p.opts.Driver {
		return nil, fail(ReasonInvalid, "the pod %s has no inline volume %q of the driver %s", says.Pod, name, v.p.opts.Driver)
	}
	if kubeletsID.MatchString(v.id) && v.id != inlineID(says.Pod, name) {
		return nil, fail(ReasonInvalid, "the volume mounted at %s is not volume %q of the pod %s: its id is that of another", v.target, name, says.Pod)
	}
	return &Request{
		VolumeID:   v.id,
		Target:     v.target,
		Pod:        says.Pod,
		Derived:    true,
		Attributes: volume.Attributes(inline.Attributes),
		ReadOnly:   inline.ReadOnly,
		FSGroup:    says.FSGroup,
	}, nil
}

// kubeletsID is the form of the ids that the kubelet gives inline volumes.
var kubeletsID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// inlineID returns the id that the kubelet gives a pod's inline volume. With it the mount's
// source and its target name the same volume: one that was bound to another pod's target never
// shows what that pod may have.
func inlineID(pod volume.Pod, name string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+name)))
}

// know sees to it that what is wanted is parsed, resolved and registered, once. What is refused stays so until something is
// wanted again.
func (v *vol) know(ctx context.Context, want *Request, waits bool) error {
	switch {
	case v.specOf == want && v.specErr != nil:
		return v.specErr
	case v.specOf == want:
		return nil
	case v.specOf == nil || v.specErr != nil || !v.specOf.isLike(want):
		if v.specOf != nil && v.specOf.Derived {
			klog.FromContext(ctx).Info("The kubelet's request is not the one that was derived from the pod's spec", "derivedFor", v.specOf.Pod)
		}
		found, err := v.understand(ctx, want, waits)
		if o := outcomeOf(err); err != nil && (o.waits || o.retry) {
			return err // there may be another answer
		}
		v.unregister()
		v.spec, v.specErr, v.specOf = found, err, want
		if err == nil {
			v.register(ctx, want)
		}
	}
	v.specOf, v.says = want, nil
	if v.specErr == nil {
		v.offer(ctx, want)
	}
	return v.specErr
}

// understand returns what a request asks for.
func (v *vol) understand(ctx context.Context, want *Request, waits bool) (*spec, error) {
	if err := want.validate(&v.p.opts); err != nil {
		return nil, err
	}
	var options []volume.Option
	if v.p.opts.CrossNamespace || v.mounted { // of what is mounted, answers refuse them
		options = append(options, volume.AcrossNamespaces())
	}
	var parsed *volume.Spec
	var err error
	crowded := v.p.inTurn(ctx, func() { parsed, err = volume.Parse(want.Attributes, want.Pod, options...) })
	switch {
	case crowded != nil:
		return nil, crowded
	case err != nil:
		return nil, fail(ReasonInvalid, "%w", err)
	}
	s, err := v.resolve(ctx, want, parsed, waits)
	if err != nil {
		return nil, err
	}
	if !v.mounted {
		if err := v.p.limits.checkItems(pod.CountItems(s.resolved)); err != nil {
			return nil, err
		}
	}
	s.refs = s.resolved.Refs()
	s.consents, s.consent = s.resolved.CrossNamespaceRefs(want.Pod), map[volume.Ref]bool{}
	if v.p.opts.Identity != nil {
		s.consents = append(s.consents, s.resolved.LocalRefs(want.Pod)...)
	}
	for _, use := range s.consents {
		s.consent[use.Ref] = true
	}
	return s, nil
}

// versionsPath returns that of the file of versions, "" for none.
func (s *spec) versionsPath() string {
	for i := range s.resolved.Sources {
		if source := &s.resolved.Sources[i]; source.Versions {
			return source.Path
		}
	}
	return ""
}

// resolve adds what the pod's own spec says to what a volume takes from there. What a spec says never changes in the life of
// a pod.
func (v *vol) resolve(ctx context.Context, want *Request, parsed *volume.Spec, waits bool) (*spec, error) {
	at := parsed.NeedsPod()
	if at == "" && !v.p.opts.NodeRights {
		return &spec{Spec: parsed, resolved: parsed}, nil
	}
	at = cmp.Or(at, "with --identity=node a volume shows only what its pod's spec names")
	says, err := v.readPod(want.Pod, waits)
	if err == nil && says.Mirror { // its UID does not matter: anybody may have written it
		err = fmt.Errorf("read pod %s: %w", want.Pod, pod.ErrStatic)
	}
	if err != nil {
		return nil, v.unread(at, err)
	}
	s := &spec{Spec: parsed}
	var leftOut []string
	_, name := targetParts(v.p.opts.KubeletDir, want.Target)
	crowded := v.p.inTurn(ctx, func() {
		s.resolved, leftOut, err = pod.Resolve(parsed, says.Env, says.VolumeSources, says.MountsBelow, name)
	})
	if crowded != nil {
		return nil, crowded
	}
	s.leftOut = few(leftOut)
	if err == nil && v.p.opts.NodeRights {
		// The node may read what a neighbour names, and no volume must depend on its neighbours.
		err = unnamed(slices.Concat(parsed.LocalRefs(want.Pod), parsed.CrossNamespaceRefs(want.Pod)), says.Refs)
	}
	if err != nil {
		return nil, fail(ReasonInvalid, "%w", err)
	}
	return s, nil
}

// unread returns the failure to read a pod whose spec says what a volume shows. As the node a refusal may pass: the API
// server's authorizer may know of a pod a moment later than the kubelet.
func (v *vol) unread(at string, err error) error {
	err = fmt.Errorf("%s: %w", at, err)
	switch {
	case errors.Is(err, pod.ErrStatic):
		return fail(ReasonInvalid, "%w", err)
	case isNoPod(err):
		return fail(ReasonNotFound, "%w", err)
	case apierrors.IsForbidden(err):
		return &deniedError{err: err, passes: v.p.opts.NodeRights || v.mounted}
	}
	return pending(err)
}

// unnamed refuses objects that a pod's own spec, which names refs, does not name.
func unnamed(uses []volume.Reference, refs []volume.Ref) error {
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

// register has answers told from now on. The index is there before the first of them is read, so none is overlooked.
func (v *vol) register(ctx context.Context, want *Request) {
	v.follow(v.spec.refs)
	v.askAt, v.asked, v.admitted = time.Time{}, 0, false
	v.token, v.proven = want.Token, want.Derived
	writes := v.receipts.bind(writer.Options{AttributePrefix: v.p.opts.AttributePrefix, InPlace: v.spec.InPlace()}, v.spec.versionsPath())
	if v.contents.writer == nil {
		v.contents.writer = v.p.newWriter(writes)
	}
	if v.mounted && v.contents.shown == nil {
		v.contents.shown = record.Decode(v.contents.record, v.spec.refs)
		klog.FromContext(ctx).V(2).Info("Took over a mounted volume", "refs", describe(v.spec.refs, v.contents.shown))
	}
	if v.mounted && !v.spec.Pinned() { // else it needs no object any more
		v.p.opts.Objects.Keep(want.Pod, v.id)
	}
	v.set(func() {
		v.told.refs, v.told.pinned = v.spec.refs, v.spec.Pinned()
		if v.mounted && (v.spec.Pinned() || !v.spec.InPlace()) {
			// Files that are rewritten in place name the new versions before the first byte.
			v.told.shown = v.contents.shown
		}
	})
}

// letGo releases the objects of a volume, and its token. It is idempotent.
func (v *vol) letGo() {
	v.unfollow(v.spec.refs)
	v.p.opts.Objects.UnregisterPod(v.specOf.Pod, v.id)
	if identity := v.p.opts.Identity; identity != nil {
		identity.Drop(v.specOf.Pod, v.id)
	}
	v.registered = nil
}

// unregister undoes know. It is idempotent.
func (v *vol) unregister() {
	v.p.pods.Leave(v.id)
	if v.spec != nil {
		v.letGo()
	}
	v.spec, v.specErr, v.specOf, v.says = nil, nil, nil, nil
}

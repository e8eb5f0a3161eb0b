package publisher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// refusedTime is how long the API server may refuse to let the plugin read a pod before that counts as a fault. An API server that has
	// just started refuses everybody.
	refusedTime = time.Minute
	// While a publish waits, its objects are refreshed at these intervals, because not every change detection reports changes.
	refreshMin = time.Second
	refreshMax = 10 * time.Second
	// restFactor is how much rarer the resync of a volume is that needs none.
	restFactor = 10
)

// binding connects a volume to what is asked for: the request, its parsed spec, and the objects that are read for it. The pod's worker owns
// it. It must not know about files. isMounted is always the volume's present state.
type binding struct {
	*node
	place
	room *room.Volume
	// hint is the pod of a mounted volume of an earlier process, as far as it is known. hintErr says why the volume names none.
	hint    volume.Pod
	hintErr error
	// podSpec is the pod's spec, kept until the volume is bound. failingSince is when reading it began to fail, or zero while it can be
	// read.
	podSpec      *pod.Spec
	failingSince time.Time
	// request is what the volume is bound to, spec is what the request asks for, and invalid says why the request cannot be met.
	request *Request
	spec    *spec
	invalid *failure
	rights  rights
	// registered are the objects that are registered with Objects.
	registered []volume.Ref
	// refreshAt is when the objects are refreshed next. refreshEvery is the interval from the refresh before.
	refreshAt    time.Time
	refreshEvery time.Duration
}

// find starts with the pod that a mounted volume names. err says why it names none.
func (b *binding) find(pod volume.Pod, err error) { b.hint, b.hintErr = pod, err }

// derive returns the request for a volume. If the kubelet has sent one, that is returned. For a volume of an earlier process it is derived
// from the pod's spec.
func (b *binding) derive(asked *Request) (*Request, *failure) {
	if asked != nil {
		return asked, nil
	}
	if b.hintErr != nil {
		return nil, waiting(fmt.Errorf("it is not updated until the kubelet publishes it again: it does not name its pod: %w", b.hintErr))
	}
	podSpec, err := b.readPod(b.hint, false)
	switch {
	case err == nil:
	case isNoPod(err): // a static pod gives this error too, because its mirror pod has another UID
		return nil, waiting(fmt.Errorf("it is not updated until the kubelet publishes it again: %w", err))
	case apierrors.IsForbidden(err) && time.Since(b.failingSince) >= refusedTime:
		return nil, forbidden(fmt.Errorf("it has not been updated since the plugin restarted: the API server does not let the plugin read the pod: %w", err), false)
	default:
		return nil, waiting(fmt.Errorf("an earlier process has mounted it, and this one has not taken it over yet: %w", err))
	}
	b.hint = podSpec.Pod
	return b.requestOf(podSpec)
}

// readPod returns the spec of a pod. The error is pod.ErrPending until there is an answer, and the error of the last read while the read is
// retried.
func (b *binding) readPod(asked volume.Pod, urgent bool) (*pod.Spec, error) {
	if b.podSpec != nil && b.podSpec.Pod.UID == asked.UID {
		return b.podSpec, nil
	}
	podSpec, err := b.pods.Get(asked, b.id, urgent)
	switch {
	case err == nil:
		b.podSpec, b.failingSince = podSpec, time.Time{}
	case b.failingSince.IsZero() && !errors.Is(err, pod.ErrPending):
		b.failingSince = time.Now()
	}
	return podSpec, err
}

func isNoPod(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// requestOf returns the request with which the kubelet published a mounted volume of a pod.
func (b *binding) requestOf(podSpec *pod.Spec) (*Request, *failure) {
	inline, ok := podSpec.Inline[b.name]
	if !ok || inline.Driver != b.opts.Driver {
		return nil, final(ReasonInvalid, fmt.Errorf("the pod %s has no inline volume %q of the driver %s", podSpec.Pod, b.name, b.opts.Driver))
	}
	if kubeletsID.MatchString(b.id) && b.id != inlineID(podSpec.Pod, b.name) {
		return nil, final(ReasonInvalid, fmt.Errorf("the volume mounted at %s is not volume %q of the pod %s: its id is that of another", b.target, b.name, podSpec.Pod))
	}
	return &Request{
		VolumeID:   b.id,
		Target:     b.target,
		Pod:        podSpec.Pod,
		Derived:    true,
		Attributes: volume.Attributes(inline.Attributes),
		ReadOnly:   inline.ReadOnly,
		FSGroup:    podSpec.FSGroup,
	}, nil
}

// kubeletsID is the form of the IDs that the kubelet gives to inline volumes.
var kubeletsID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// inlineID returns the ID that the kubelet gives to a pod's inline volume. It proves that the source and the target of a mount belong to
// the same volume. So a volume that was bind-mounted to another pod's target never shows what that pod may read.
func inlineID(pod volume.Pod, name string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+name)))
}

// bind parses a request, resolves it, and prepares the volume's rights. It does this once per request. An invalid request stays invalid
// until another request comes. isNew means that the volume was bound to a request for other files: then its objects must be followed before
// the first answer is read, so that no change is overlooked.
func (b *binding) bind(ctx context.Context, request *Request, now snapshot) (isNew bool, f *failure) {
	if b.request == request {
		return false, b.invalid
	}
	if b.request == nil || b.invalid != nil || !b.request.isLike(request) {
		if b.request != nil && b.request.Derived {
			klog.FromContext(ctx).Info("The kubelet's request is not the one that was derived from the pod's spec", "derivedFor", b.request.Pod)
		}
		found, f := b.parseRequest(ctx, request, now)
		if f != nil && (f.waits || f.retry) {
			return false, f // a later try may have another result
		}
		b.unbind()
		b.spec, b.invalid, isNew = found, f, f == nil
	}
	b.request, b.podSpec = request, nil
	if b.invalid != nil {
		return false, b.invalid
	}
	if isNew {
		b.room.Name(b.spec.names)
		b.rights = rights{node: b.node, place: b.place, request: request, spec: b.spec, token: request.Token, isProven: request.Derived}
	}
	b.rights.offer(ctx, request)
	return isNew, nil
}

// parseRequest validates, parses and resolves a request.
func (b *binding) parseRequest(ctx context.Context, request *Request, now snapshot) (*spec, *failure) {
	if err := request.validate(&b.opts); err != nil {
		return nil, final(ReasonInvalid, err)
	}
	options := []volume.Option{volume.DefaultSpread(b.opts.DefaultSpread)}
	if b.opts.CrossNamespace || now.isMounted { // for a mounted volume, the answers refuse objects of other namespaces
		options = append(options, volume.AcrossNamespaces())
	}
	var parsed *volume.Spec
	var err error
	crowd := b.inTurn(ctx, func() { parsed, err = volume.Parse(request.Attributes, request.Pod, options...) })
	switch {
	case crowd != nil:
		return nil, crowd
	case err != nil:
		return nil, final(ReasonInvalid, err)
	}
	s, f := b.resolve(ctx, request, parsed, now)
	if f != nil {
		return nil, f
	}
	if !now.isMounted {
		if err := b.limits.CheckItems(pod.CountItems(s.resolved)); err != nil {
			return nil, final(ReasonTooLarge, err)
		}
	}
	s.names, s.refs, s.canaries = s.resolved.Names(), s.resolved.Refs(), s.resolved.Canaries()
	s.consents, s.consent = s.resolved.CrossNamespaceRefs(request.Pod), map[volume.Ref]bool{}
	if b.opts.Identity != nil {
		s.consents = append(s.consents, s.resolved.LocalRefs(request.Pod)...)
	}
	for _, use := range s.consents {
		s.consent[use.Ref] = true
	}
	return s, nil
}

// resolve adds to a volume's spec what the volume takes from the pod's own spec. A pod's spec never changes in these parts during the pod's
// life.
func (b *binding) resolve(ctx context.Context, request *Request, parsed *volume.Spec, now snapshot) (*spec, *failure) {
	check := b.room.CheckNames
	if now.isMounted {
		check = func(volume.Names) error { return nil } // a running pod may keep what it has
	}
	at := parsed.NeedsPod()
	if at == "" && !b.opts.NodeRights {
		if err := check(parsed.Names()); err != nil {
			return nil, final(ReasonInvalid, err)
		}
		return &spec{Spec: parsed, resolved: parsed}, nil
	}
	at = cmp.Or(at, "with --identity=node a volume shows only what its pod's spec names")
	podSpec, err := b.readPod(request.Pod, now.waits)
	if err == nil && podSpec.Mirror { // a static pod's UID proves nothing: anybody may have written the mirror pod
		err = fmt.Errorf("read pod %s: %w", request.Pod, pod.ErrStatic)
	}
	if err != nil {
		return nil, b.unreadPod(fmt.Errorf("%s: %w", at, err), now.isMounted)
	}
	s := &spec{Spec: parsed}
	var leftOut []string
	crowd := b.inTurn(ctx, func() {
		s.resolved, leftOut, err = pod.Resolve(parsed, podSpec.Env, podSpec.VolumeSources, podSpec.MountsBelow, b.name, check)
	})
	if crowd != nil {
		return nil, crowd
	}
	s.leftOut = few(leftOut)
	if err == nil && b.opts.NodeRights {
		// The node may also read objects that other pods name. A volume must not depend on other pods.
		err = unnamed(slices.Concat(parsed.LocalRefs(request.Pod), parsed.CrossNamespaceRefs(request.Pod)), podSpec.Refs, parsed.Canaries())
	}
	if err != nil {
		return nil, final(ReasonInvalid, err)
	}
	return s, nil
}

// unreadPod returns the failure to read a pod whose spec says what the volume shows. With the node's rights a refusal may pass: the API
// server's authorizer may learn about a pod a moment later than the kubelet.
func (b *binding) unreadPod(err error, isMounted bool) *failure {
	switch {
	case errors.Is(err, pod.ErrStatic):
		return final(ReasonInvalid, err)
	case isNoPod(err):
		return final(ReasonNotFound, err)
	case apierrors.IsForbidden(err):
		return forbidden(err, b.opts.NodeRights || isMounted)
	}
	return waiting(err)
}

// unnamed returns an error for the objects that the pod's own spec does not name. refs are the objects that it names, and canaries those that
// the volume names as canaries.
func unnamed(uses []volume.Reference, refs []volume.Ref, canaries map[volume.Ref]bool) error {
	var errs []error
	for _, use := range uses {
		if slices.Contains(refs, use.Ref) || len(errs) == fewNames {
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

// keepObjects marks the volume as mounted. Its objects are then kept, whatever memory they take.
func (b *binding) keepObjects() { b.opts.Objects.MarkMounted(b.request.Pod, b.id) }

// release unregisters the objects of a volume and drops its token. It is idempotent.
func (b *binding) release() {
	b.opts.Objects.UnregisterPod(b.request.Pod, b.id)
	if identity := b.opts.Identity; identity != nil {
		identity.Drop(b.request.Pod, b.id)
	}
	b.registered = nil
}

// unbind undoes bind. It is idempotent.
func (b *binding) unbind() {
	b.pods.Forget(b.id)
	if b.spec != nil {
		b.release()
	}
	*b = binding{node: b.node, place: b.place, room: b.room, hint: b.hint, hintErr: b.hintErr, failingSince: b.failingSince}
}

// register registers the objects that are to be followed. Nothing is requested about the others.
func (b *binding) register(refs []volume.Ref) {
	if slices.Equal(refs, b.registered) {
		return
	}
	b.registered = refs
	b.opts.Objects.RegisterPod(b.request.Pod, b.id, refs)
}

// refresh refreshes the objects when that is due, and returns when it is due next. A mounted volume is refreshed at each of its
// resyncs, at its own random offset. isCurrent means that it shows what it should. While a publish waits, its volume is refreshed more often.
func (b *binding) refresh(isMounted, isCurrent bool) time.Time {
	now, every := time.Now(), b.resync(isCurrent)
	switch {
	case isMounted && every < b.refreshEvery: // it is not current any more
	case now.Before(b.refreshAt):
		return b.refreshAt
	case !b.refreshAt.IsZero():
		b.opts.Objects.Refresh(b.request.Pod, b.registered)
	}
	switch {
	case !isMounted:
		b.refreshEvery = min(max(b.refreshEvery*3/2, refreshMin), refreshMax)
		b.refreshAt = now.Add(b.refreshEvery)
		return b.refreshAt
	case b.refreshEvery == every:
		now = now.Add(every)
	default:
		resync := b.opts.ResyncInterval
		b.refreshEvery = every
		now = now.Add(resync + rand.N(max(every-resync, resync)))
	}
	b.refreshAt = b.inSlot(now, every)
	return b.refreshAt
}

// resync returns how often a mounted volume is compared with its objects. If it is current, and every change is reported, that is only for a
// report that was lost.
func (b *binding) resync(isCurrent bool) time.Duration {
	if isCurrent && b.opts.Reported && len(b.spec.consents) == 0 {
		return restFactor * b.opts.ResyncInterval
	}
	return b.opts.ResyncInterval
}

// refreshAnew restarts the schedule of refresh, once the volume is mounted.
func (b *binding) refreshAnew() { b.refreshAt = time.Time{} }

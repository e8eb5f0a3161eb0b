// Package binding owns what a volume is asked to show and what it may show: the request, its parsed spec, the pod's rights and token, the
// registered objects, and the answers about them. It must not know about files, mounts or gRPC, and it never waits for the network.
package binding

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/failure"
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

// Binding connects a volume to what is asked for: the request, its parsed spec, and the objects that are read for it. The pod's worker owns
// it. No method may be called while another one runs. After SetHint and Derive comes Bind, and the methods below it may be called only after a
// Bind without a failure.
type Binding struct {
	node *Node
	Place
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
	spec    *Spec
	invalid *failure.Failure
	rights  rights
	// registered are the objects that are registered with Objects.
	registered []volume.Ref
	// refreshAt is when the objects are refreshed next. refreshEvery is the interval from the refresh before.
	refreshAt    time.Time
	refreshEvery time.Duration
}

// New returns the binding of a volume that is bound to nothing. space counts what the volume names.
func New(n *Node, at Place, space *room.Volume) *Binding {
	return &Binding{node: n, Place: at, room: space}
}

// Request returns the request to which the volume is bound, or nil.
func (b *Binding) Request() *Request { return b.request }

// Spec returns what the request asks for, or nil. It must not be changed.
func (b *Binding) Spec() *Spec { return b.spec }

// Hint returns the pod of a mounted volume of an earlier process, as far as it is known.
func (b *Binding) Hint() volume.Pod { return b.hint }

// State is what a Binding needs to know of its volume.
type State struct {
	// IsMounted is the volume's present state.
	IsMounted bool
	// IsUrgent means that a publish waits.
	IsUrgent bool
}

// SetHint starts with the pod that a mounted volume names. err says why it names none.
func (b *Binding) SetHint(pod volume.Pod, err error) { b.hint, b.hintErr = pod, err }

// Derive returns the request for a volume. If the kubelet has sent one, that is returned. For a volume of an earlier process it is derived
// from the pod's spec.
func (b *Binding) Derive(asked *Request) (*Request, *failure.Failure) {
	if asked != nil {
		return asked, nil
	}
	if b.hintErr != nil {
		return nil, failure.Waiting(fmt.Errorf("it is not updated until the kubelet publishes it again: it does not name its pod: %w", b.hintErr))
	}
	podSpec, err := b.readPod(b.hint, false)
	switch {
	case err == nil:
	case isNoPod(err): // a static pod gives this error too, because its mirror pod has another UID
		return nil, failure.Waiting(fmt.Errorf("it is not updated until the kubelet publishes it again: %w", err))
	case apierrors.IsForbidden(err) && time.Since(b.failingSince) >= refusedTime:
		return nil, failure.Forbidden(fmt.Errorf("it has not been updated since the plugin restarted: the API server does not let the plugin read the pod: %w", err), false)
	default:
		return nil, failure.Waiting(fmt.Errorf("an earlier process has mounted it, and this one has not taken it over yet: %w", err))
	}
	b.hint = podSpec.Pod
	return b.requestOf(podSpec)
}

// readPod returns the spec of a pod. The error is pod.ErrPending until there is an answer, and the error of the last read while the read is
// retried.
func (b *Binding) readPod(asked volume.Pod, urgent bool) (*pod.Spec, error) {
	if b.podSpec != nil && b.podSpec.Pod.UID == asked.UID {
		return b.podSpec, nil
	}
	podSpec, err := b.node.pods.Get(asked, b.ID, urgent)
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
func (b *Binding) requestOf(podSpec *pod.Spec) (*Request, *failure.Failure) {
	inline, ok := podSpec.Inline[b.Name]
	if !ok || inline.Driver != b.node.opts.Driver {
		return nil, failure.Final(failure.ReasonInvalid, fmt.Errorf("the pod %s has no inline volume %q of the driver %s", podSpec.Pod, b.Name, b.node.opts.Driver))
	}
	if kubeletsID.MatchString(b.ID) && b.ID != inlineID(podSpec.Pod, b.Name) {
		return nil, failure.Final(failure.ReasonInvalid, fmt.Errorf("the volume mounted at %s is not volume %q of the pod %s: its id is that of another", b.Target, b.Name, podSpec.Pod))
	}
	return &Request{
		VolumeID:   b.ID,
		Target:     b.Target,
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

// Bind parses a request, resolves it, and prepares the volume's rights. It does this once per request. An invalid request stays invalid
// until another request comes. isNew means that the volume was bound to a request for other files: then its objects must be followed before
// the first answer is read, so that no change is overlooked.
func (b *Binding) Bind(ctx context.Context, request *Request, now State) (isNew bool, f *failure.Failure) {
	if b.request == request {
		return false, b.invalid
	}
	if b.request == nil || b.invalid != nil || !b.request.isLike(request) {
		if b.request != nil && b.request.Derived {
			klog.FromContext(ctx).Info("The kubelet's request is not the one that was derived from the pod's spec", "derivedFor", b.request.Pod)
		}
		found, f := b.parseRequest(ctx, request, now)
		if f != nil && (f.Waits || f.Retry) {
			return false, f // a later try may have another result
		}
		b.Unbind()
		b.spec, b.invalid, isNew = found, f, f == nil
	}
	b.request, b.podSpec = request, nil
	if b.invalid != nil {
		return false, b.invalid
	}
	if isNew {
		b.room.Name(b.spec.names)
		b.rights = rights{node: b.node, Place: b.Place, request: request, spec: b.spec, token: request.Token, isProven: request.Derived}
	}
	b.rights.offer(ctx, request)
	return isNew, nil
}

// Admit returns nil when the pod of a new volume may read all objects that need a right, or why not. It asks the missing questions.
func (b *Binding) Admit() failure.List { return b.rights.admit(b.request.Came) }

// KeepObjects marks the volume as mounted. Its objects are then kept, whatever memory they take.
func (b *Binding) KeepObjects() { b.node.opts.Objects.MarkMounted(b.request.Pod, b.ID) }

// Release unregisters the objects of a volume and drops its token. It is idempotent.
func (b *Binding) Release() {
	b.node.opts.Objects.UnregisterPod(b.request.Pod, b.ID)
	if identity := b.node.opts.Identity; identity != nil {
		identity.Drop(b.request.Pod, b.ID)
	}
	b.registered = nil
}

// Unbind undoes Bind. It is idempotent.
func (b *Binding) Unbind() {
	b.node.pods.Forget(b.ID)
	if b.spec != nil {
		b.Release()
	}
	*b = Binding{node: b.node, Place: b.Place, room: b.room, hint: b.hint, hintErr: b.hintErr, failingSince: b.failingSince}
}

// register registers the objects that are to be followed. Nothing is requested about the others.
func (b *Binding) register(refs []volume.Ref) {
	if slices.Equal(refs, b.registered) {
		return
	}
	b.registered = refs
	b.node.opts.Objects.RegisterPod(b.request.Pod, b.ID, refs)
}

// Refresh refreshes the objects when that is due, and returns when it is due next. A mounted volume is refreshed at each of its
// resyncs, at its own random offset. isCurrent means that it shows what it should. While a publish waits, its volume is refreshed more often.
// older are the objects whose known state is older than the files.
func (b *Binding) Refresh(isMounted, isCurrent bool, older []volume.Ref) time.Time {
	now, every := time.Now(), b.resync(isCurrent)
	switch {
	case isMounted && every < b.refreshEvery: // it is not current any more
	case now.Before(b.refreshAt):
		return b.refreshAt
	case !b.refreshAt.IsZero():
		b.node.opts.Objects.Refresh(b.request.Pod, b.registered)
		b.node.opts.Objects.ReadAgain(b.request.Pod, older)
	}
	switch {
	case !isMounted:
		b.refreshEvery = min(max(b.refreshEvery*3/2, refreshMin), refreshMax)
		b.refreshAt = now.Add(b.refreshEvery)
		return b.refreshAt
	case b.refreshEvery == every:
		now = now.Add(every)
	default:
		resync := b.node.opts.ResyncInterval
		b.refreshEvery = every
		now = now.Add(resync + rand.N(max(every-resync, resync)))
	}
	b.refreshAt = b.node.inSlot(now, every)
	return b.refreshAt
}

// resync returns how often a mounted volume is compared with its objects. If it is current, and every change is reported, that is only for a
// report that was lost.
func (b *Binding) resync(isCurrent bool) time.Duration {
	if isCurrent && b.node.opts.Reported && len(b.spec.consents) == 0 {
		return restFactor * b.node.opts.ResyncInterval
	}
	return b.node.opts.ResyncInterval
}

// RefreshAnew restarts the schedule of Refresh, once the volume is mounted.
func (b *Binding) RefreshAnew() { b.refreshAt = time.Time{} }

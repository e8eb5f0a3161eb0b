package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Request asks for a volume to be published.
type Request struct {
	VolumeID string
	// Target is the absolute path at which the volume becomes visible.
	Target string
	// Pod is the pod that the volume is for. PodErr says why the request does not tell. Only a
	// live volume takes a request with a PodErr.
	Pod    volume.Pod
	PodErr error
	// Derived says that the request was derived from the pod's spec, by the pod's UID: the
	// pod is who it claims to be, and there is no token yet.
	Derived bool
	// Token is the pod's own. TokenErr says why the request has none. Where objects are read
	// with pods' tokens, only a live volume takes a request with a TokenErr.
	Token    volume.Token
	TokenErr error
	// Attributes are what the pod's author wrote, without the kubelet's own keys.
	Attributes map[string]string
	ReadOnly   bool
	// FSGroup is the group of the volume, nil for none.
	FSGroup *int64
}

// differs names what another request would change of a live volume, or returns "". It doesn't
// compare what the kubelet may change between two calls for one pod.
func (r *Request) differs(other *Request) string {
	switch {
	case r.Target != other.Target:
		return "target path"
	case other.PodErr == nil && r.Pod.UID != other.Pod.UID:
		return "pod UID"
	case r.ReadOnly != other.ReadOnly:
		return "readonly"
	case !maps.Equal(r.Attributes, other.Attributes):
		return "volume attributes"
	}
	return ""
}

// misderived says whether a derived request is for another pod, account or group than the
// kubelet's.
func (r *Request) misderived(kubelets *Request) bool {
	if (r.FSGroup == nil) != (kubelets.FSGroup == nil) || r.FSGroup != nil && *r.FSGroup != *kubelets.FSGroup {
		return true
	}
	return kubelets.PodErr == nil && r.Pod != kubelets.Pod
}

// Publish makes a volume visible at its target once all its files are written. It waits for
// required objects and keys that don't exist yet. If the volume is live, Publish does nothing,
// or fails with ReasonExists if the request differs. After an error nothing is left of a new
// volume, and a live volume stays as it is. So does a mounted one of a spec that would be refused
// now; that is no error. The logger of ctx names the volume's id and its pod.
func (p *Publisher) Publish(ctx context.Context, request Request) error {
	ctx, end, err := p.beginPublish(ctx, request.VolumeID)
	if err != nil {
		return err
	}
	defer end()
	ctx = requests.With(p.withName(ctx, request.Target), requests.Meta{Urgent: true})
	live, err := p.republish(ctx, &request)
	if live || err != nil {
		return err
	}
	mounted, err := p.isMounted(ctx, &request)
	switch {
	case errors.Is(err, mount.ErrForeign) && p.isMountedAt(request.VolumeID, request.Target):
		p.leave(ctx, &request, unproven(&request))
		return nil
	case err != nil:
	case mounted:
		err = p.takeOver(ctx, request, p.podUntil(time.Now().Add(p.opts.PublishWait)))
		if ReasonOf(err) == ReasonInvalid && request.PodErr == nil && (request.TokenErr == nil || p.opts.Identity == nil) {
			p.leave(ctx, &request, err)
			return nil
		}
		if err != nil {
			// A final error would have the kubelet destroy the volume of a running pod.
			err = fail(ReasonUnavailable, "volume %s is mounted, but can't be taken over: %w", request.VolumeID, err)
		}
	default:
		err = p.create(ctx, request)
	}
	if err != nil {
		return p.failed(ctx, &request, err)
	}
	p.forgetFailure(request.VolumeID)
	return nil
}

// create makes a volume that is not mounted, unless no pod would see it.
func (p *Publisher) create(ctx context.Context, request Request) error {
	if p.opts.NotShared != nil {
		if err := p.opts.NotShared(); err != nil {
			return fail(ReasonUnavailable, "%w", err)
		}
	}
	v, err := p.newVolume(ctx, request)
	if err != nil {
		return err
	}
	p.forget(request.VolumeID, request.Target) // its mount has gone
	done := false
	defer func() {
		if !done { // also when the call panics
			p.remove(v)
		}
	}()
	if err := p.checkPod(v.worker); err != nil {
		return err
	}
	if err := p.limits.checkFiles(pod.CountItems(v.resolved)); err != nil {
		return err
	}
	p.enter(v) // so that answers wake it
	if err := v.authorize(ctx); err != nil {
		return err
	}
	if err := v.publish(ctx); err != nil {
		return err
	}
	done = true
	p.opts.Objects.Keep(request.Pod, request.VolumeID)
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Published volume", "refs", describe(v.refs, v.contents.shown), "took", time.Since(v.since))
	}
	p.activate(v)
	return nil
}

// failed returns the answer to a publish that failed with err, and tells the pod's author
// what can't be seen in the pod's spec.
func (p *Publisher) failed(ctx context.Context, request *Request, err error) error {
	if errors.Is(context.Cause(ctx), errUnpublished) {
		return fail(ReasonBusy, "volume %s: %w: %w", request.VolumeID, errUnpublished, err)
	}
	o := outcomeOf(err)
	news := err.Error()
	switch o.reason {
	case ReasonNodeFull, ReasonCacheFull:
		news = o.kind() // how full the node is changes from one try to the next
	case ReasonForbidden:
	default:
		return err
	}
	if p.isNews(request.VolumeID, news) {
		p.opts.Events.Warn(request.Pod, o.event, err.Error())
	}
	return err
}

// newVolume returns the volume that a request asks for, which is not mounted yet.
func (p *Publisher) newVolume(ctx context.Context, request Request) (*published, error) {
	var across []volume.Option
	if p.opts.CrossNamespace {
		across = append(across, volume.AcrossNamespaces())
	}
	deadline := time.Now().Add(p.opts.PublishWait)
	v, err := p.parsed(ctx, request, deadline, p.podUntil(deadline), across...)
	if err != nil {
		return nil, err
	}
	v.deadline = deadline
	return v, nil
}

// validate refuses a request that nothing can be published for, whatever the spec is.
func (p *Publisher) validate(request *Request) error {
	if request.PodErr != nil {
		return fail(ReasonInvalid, "%w", request.PodErr)
	}
	if !request.ReadOnly {
		return fail(ReasonInvalid, "readOnly: Required value: must be true (set csi.readOnly: true in the pod's volume)")
	}
	if err := checkTarget(p.opts.KubeletDir, request.Pod, request.Target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
	}
	return nil
}

// parsed returns the volume that a request asks for. It waits until the deadline for its turn.
func (p *Publisher) parsed(ctx context.Context, request Request, deadline time.Time, get getPod, opts ...volume.Option) (v *published, err error) {
	if err := p.validate(&request); err != nil {
		return nil, err
	}
	if request.TokenErr != nil && p.opts.Identity != nil {
		return nil, fail(ReasonInvalid, "%w", request.TokenErr)
	}
	turn, cancel := p.waiting(ctx, deadline)
	defer cancel()
	worker := p.holdWorker(request.Pod.UID)
	defer func() { // also when something panics
		if v == nil {
			p.releaseWorker(worker)
		}
	}()
	spec, err := p.parse(turn, worker, &request, opts...)
	if err != nil {
		return nil, err
	}
	resolved, leftOut, err := p.resolve(ctx, turn, worker, &request, spec, get)
	if err != nil {
		return nil, err
	}
	v = p.newPublished(request, spec, resolved)
	v.worker, v.leftOut = worker, few(leftOut)
	return v, nil
}

// waiting returns ctx for a wait of a publish, which ends at the deadline or when the plugin stops.
func (p *Publisher) waiting(ctx context.Context, deadline time.Time) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(ctx)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	go func() { // it ends with the wait
		select {
		case <-p.stopping:
			stop(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); stop(nil) }
}

// newPublished returns a volume that nobody knows of.
func (p *Publisher) newPublished(request Request, spec, resolved *volume.Spec) *published {
	token := request.Token
	request.Token = volume.Token{}
	v := &published{
		p:        p,
		request:  request,
		spec:     spec,
		resolved: resolved,
		refs:     resolved.Refs(),
		consent:  map[volume.Ref]bool{},
		since:    time.Now(),
		state:    publishing,
		wake:     make(chan struct{}, 1),
		contents: contents{shown: record.Versions{}},
	}
	consents := resolved.Across(request.Pod)
	if p.opts.Identity != nil {
		consents = append(consents, resolved.Own(request.Pod)...)
	}
	for _, use := range consents {
		v.consent[use.Ref] = true
	}
	v.consents, v.token, v.proven = consents, token, request.Derived
	v.contents.writer = p.newWriter(writer.Options{AttributePrefix: p.opts.AttributePrefix, InPlace: spec.InPlace()})
	return v
}

// publish writes the first generation on a mount that nobody sees and then shows
// it, so there is no moment at which the volume is visible and not complete.
func (v *published) publish(ctx context.Context) (err error) {
	first, err := v.await(ctx)
	if err != nil {
		return err
	}
	defer v.worker.unlock()
	mnt, err := v.p.opts.Mounts.Create(ctx, v.mountParams(first.Tree))
	if err != nil {
		return fmt.Errorf("make the file system of volume %s: %w", v.request.VolumeID, err)
	}
	attached, done := false, false
	defer func() { // also when something panics
		if err = errors.Join(err, mnt.Close()); err == nil && done {
			return
		}
		if attached {
			err = errors.Join(err, v.p.opts.Mounts.Unmount(ctx, v.request.VolumeID, v.request.Target))
		}
	}()
	if err := record.SetPod(mnt.Root(), v.p.opts.AttributePrefix, v.request.Pod); err != nil {
		return fmt.Errorf("name the pod of volume %s: %w", v.request.VolumeID, err)
	}
	if _, err := v.write(ctx, mnt, first, false); err != nil {
		return err
	}
	attached = true
	if err := mnt.Attach(ctx, v.request.Target); err != nil {
		attached = false
		return fmt.Errorf("show volume %s at %s: %w", v.request.VolumeID, v.request.Target, err)
	}
	done = true
	return nil
}

func (v *published) mountParams(tree *volume.Tree) mount.Params {
	return mount.Params{
		VolumeID: v.request.VolumeID,
		Size:     v.p.limits.mountBytes,
		Inodes:   v.p.limits.mountInodes,
		Mode:     tree.DirMode,
		UID:      tree.UID,
		GID:      tree.GID,
	}
}

package publisher

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/podenv"
	"github.com/refvol/refvol/pkg/volume"
)

// After a failure the next request for a pod waits deriveMin, doubled up to deriveMax.
const (
	deriveMin = time.Second
	deriveMax = 4 * time.Second
)

// takeOverRestored takes over the volumes that Restore has found: each pod's own spec says
// what was asked for. It returns when none is left of which the API server can tell that, or
// at the end of ctx. While requests fail there is one at a time, later each time.
func (p *Publisher) takeOverRestored(ctx context.Context) {
	var failing time.Time
	var delay time.Duration
	for {
		err := p.readPods(ctx)
		pods := p.restoredPods()
		if err == nil && len(pods) == 0 {
			return
		}
		err = errors.Join(p.takeOverPods(ctx, pods), err)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failing, delay = time.Time{}, 0
			continue
		}
		if failing.IsZero() && ReasonOf(err) != ReasonBusy {
			failing = time.Now()
			klog.FromContext(ctx).Error(err, "Mounted volumes are not updated until their pods can be read")
		}
		delay = p.deriveDelay(err, delay, failing)
		select {
		case <-time.After(delay/2 + rand.N(delay)):
		case <-ctx.Done():
			return
		}
	}
}

// deriveDelay returns how long the next try waits on average. Without a connection it stays
// short, as such a try costs the API server nothing; what the API server answers counts for
// longer after a minute, as it may last.
func (p *Publisher) deriveDelay(err error, last time.Duration, failing time.Time) time.Duration {
	longest := deriveMax
	var status apierrors.APIStatus
	if errors.As(err, &status) && !failing.IsZero() && time.Since(failing) > time.Minute {
		longest = max(longest, p.opts.ResyncInterval)
	}
	delay := min(max(2*last, deriveMin), longest)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		delay = max(delay, min(time.Duration(seconds)*time.Second, time.Minute))
	}
	return delay
}

// restoredPods returns the restored volumes whose pods are to be asked for, by pod.
func (p *Publisher) restoredPods() map[volume.Pod][]mount.Mounted {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := map[volume.Pod][]mount.Mounted{}
	for _, r := range p.restored {
		if !r.waits && r.pod.Name != "" {
			pods[r.pod] = append(pods[r.pod], r.Mounted)
		}
	}
	return pods
}

// takeOverPods takes over the volumes of pods, some at a time once the first request has
// succeeded. It stops at the first error.
func (p *Publisher) takeOverPods(ctx context.Context, pods map[volume.Pod][]mount.Mounted) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var asking sync.WaitGroup
	places := make(chan struct{}, maxAsking)
	first := true
	for pod, volumes := range pods {
		if first {
			first = false
			if err := p.takeOverPod(ctx, pod, volumes); err != nil {
				return err
			}
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		asking.Go(func() {
			defer func() { <-places }()
			if err := p.takeOverPod(ctx, pod, volumes); err != nil {
				fail(err)
			}
		})
	}
	asking.Wait()
	return context.Cause(ctx)
}

// takeOverPod takes over the volumes of a pod. The error says nothing about them, and another
// try may succeed.
func (p *Publisher) takeOverPod(ctx context.Context, pod volume.Pod, volumes []mount.Mounted) error {
	got, err := p.opts.Pods.Get(ctx, pod)
	switch {
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		for _, m := range volumes { // also of a static pod, whose mirror has another UID
			p.leaveToKubelet(ctx, m, err)
		}
		return nil
	case err != nil:
		return err
	}
	var errs []error
	for _, m := range volumes {
		errs = append(errs, p.takeOverOne(ctx, got, m))
	}
	return errors.Join(errs...)
}

// takeOverOne takes over one volume of a pod. A CSI call on it goes first.
func (p *Publisher) takeOverOne(ctx context.Context, pod *podenv.Pod, m mount.Mounted) (err error) {
	defer func() {
		if cause := recover(); cause != nil { // nobody else would catch it
			logPanic(ctx, m.VolumeID, cause)
			p.leaveToKubelet(ctx, m, errPanicked)
			err = nil
		}
	}()
	ctx, end, err := p.beginTakeOver(ctx, m.VolumeID)
	if err != nil {
		return err
	}
	defer end()
	if !p.isRestored(m) {
		return nil // a call has dealt with it
	}
	request, err := p.derive(pod, m)
	if err == nil {
		err = p.takeOver(ctx, request, func(context.Context, volume.Pod) (*podenv.Pod, error) { return pod, nil })
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mount.ErrNotMounted):
		p.forgetRestored(m.VolumeID, m.Target)
		return nil
	case ReasonOf(err) != 0 && ReasonOf(err) != ReasonUnavailable:
		p.leaveToKubelet(ctx, m, err)
		p.opts.Events.Warn(pod.Pod, eventVolumeUpdateFailed, err.Error())
		return nil
	}
	return err
}

// derive returns the request by which the kubelet has published a mounted volume of a pod.
func (p *Publisher) derive(pod *podenv.Pod, m mount.Mounted) (Request, error) {
	_, name := targetParts(p.opts.KubeletDir, m.Target)
	inline, ok := pod.Inline[name]
	if !ok || inline.Driver != p.opts.Driver {
		return Request{}, fail(ReasonInvalid, "the pod %s has no inline volume %q of the driver %s", pod.Pod, name, p.opts.Driver)
	}
	return Request{
		VolumeID:   m.VolumeID,
		Target:     m.Target,
		Pod:        pod.Pod,
		Derived:    true,
		Attributes: volume.Attributes(inline.Attributes),
		ReadOnly:   inline.ReadOnly,
		FSGroup:    pod.FSGroup,
	}, nil
}

// isRestored says whether a volume is still one that was restored and not taken over.
func (p *Publisher) isRestored(m mount.Mounted) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.restored[m.VolumeID]
	return r != nil && r.Mounted == m
}

// leaveToKubelet has a restored volume stay as it is until the kubelet's next call.
func (p *Publisher) leaveToKubelet(ctx context.Context, m mount.Mounted, reason error) {
	klog.FromContext(ctx).Info("A mounted volume is not updated until the kubelet publishes it again", "volumeID", m.VolumeID, "target", m.Target, "reason", reason.Error())
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.restored[m.VolumeID]; r != nil && r.Mounted == m {
		r.waits = true
	}
}

package publisher

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/podspec"
	"github.com/refvol/refvol/pkg/volume"
)

// takeOverRestored takes over the volumes that Restore has found: each pod's own spec says
// what was asked for. It returns when none is left of which the API server can tell that, or
// at the end of ctx. While requests fail there is one at a time, later each time.
func (p *Publisher) takeOverRestored(ctx context.Context) {
	var failing time.Time
	var delay backoff.Delay
	refused := refusedPods{told: map[volume.Pod]bool{}}
	logged := map[metav1.StatusReason]bool{} // since the last success
	for {
		err := p.find(ctx)
		pods := p.restoredPods()
		if err == nil && len(pods) == 0 {
			return
		}
		err = errors.Join(p.takeOverPods(ctx, pods), err)
		if ctx.Err() != nil {
			return
		}
		if refused.last(err) {
			refused.tell(p.restoredPods(), p.opts.Events)
		}
		if err == nil {
			failing, delay = time.Time{}, backoff.Delay{}
			clear(logged)
			continue
		}
		if ReasonOf(err) != ReasonBusy {
			if failing.IsZero() {
				failing = time.Now()
			}
			if reason := apierrors.ReasonForError(err); !logged[reason] {
				logged[reason] = true
				klog.FromContext(ctx).Error(err, "Mounted volumes are not updated until their pods can be read")
			}
		}
		select {
		case <-time.After(delay.Next(p.longestPause(err, failing), err)):
		case <-ctx.Done():
			return
		}
	}
}

// refusedPods is since when pods are refused, and who was told.
type refusedPods struct {
	since time.Time
	told  map[volume.Pod]bool
}

// last says whether a round that ended with err is another one with refusals, for backoff.Lasting.
func (r *refusedPods) last(err error) bool {
	if !apierrors.IsForbidden(err) {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since) >= backoff.Lasting
}

// tell tells each pod once. A round asks for few of them while they are refused, so the text is
// not that of an answer, which names its pod.
func (r *refusedPods) tell(pods map[volume.Pod][]mount.Mounted, events Events) {
	for pod := range pods {
		if !r.told[pod] {
			r.told[pod] = true
			events.Warn(pod, eventRefForbidden, "volumes are not updated since the plugin's restart: the API server does not let the plugin read the pod (Forbidden)")
		}
	}
}

// longestPause returns how long the pause after a failure may be. Without a connection it stays
// short, as such a try costs the API server nothing. What the API server answers may last.
func (p *Publisher) longestPause(err error, failing time.Time) time.Duration {
	answered := errors.As(err, new(apierrors.APIStatus))
	switch {
	case !answered || failing.IsZero() || time.Since(failing) <= backoff.Lasting:
		return backoff.Short
	case p.opts.NodeRights && apierrors.IsForbidden(err) && time.Since(failing) < slowAfter: // which may pass
		return 2 * backoff.Short
	}
	return backoff.Long
}

// restoredPods returns the restored volumes whose pods are to be asked for, by pod.
func (p *Publisher) restoredPods() map[volume.Pod][]mount.Mounted {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := map[volume.Pod][]mount.Mounted{}
	for _, r := range p.restored {
		if r.left == "" && r.pod.Name != "" {
			pods[r.pod] = append(pods[r.pod], r.Mounted)
		}
	}
	return pods
}

// takeOverPods takes over the volumes of pods, some at a time once a request has succeeded. What
// concerns one pod or volume holds up no other; a failure of the API server ends the round, and
// so do more pods that may not be read than others.
func (p *Publisher) takeOverPods(ctx context.Context, pods map[volume.Pod][]mount.Mounted) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var errs []error
	read, refused := 0, 0
	try := func(pod volume.Pod, volumes []mount.Mounted) (first bool) {
		err := p.takeOverPod(ctx, pod, volumes)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsForbidden(err):
			refused++
		case err != nil && concernsAll(err):
			stop()
		default:
			read++
		}
		if refused > read+fewRefusals {
			stop()
		}
		if err != nil {
			errs = append(errs, err)
		}
		return read == 0
	}
	var asking sync.WaitGroup
	places := make(chan struct{}, maxAsking)
	noneReadYet := true
	for pod, volumes := range pods {
		if ctx.Err() != nil {
			break
		}
		if noneReadYet {
			noneReadYet = try(pod, volumes)
			continue
		}
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			try(pod, volumes)
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// fewRefusals is how many more pods may be refused than read before a round ends.
const fewRefusals = 3

// concernsAll says whether a failure to take over a pod's volumes is likely to be that of all
// pods: no connection, a credential that is not accepted, or a server in trouble.
func concernsAll(err error) bool {
	if ReasonOf(err) != 0 {
		return false // of one volume
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == http.StatusUnauthorized || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
}

// takeOverPod takes over the volumes of a pod. The error says nothing about them, and another
// try may succeed.
func (p *Publisher) takeOverPod(ctx context.Context, pod volume.Pod, volumes []mount.Mounted) error {
	// The pod stays in memory for its volumes, and keeps no other one from being read: the mounts may
	// hang. Few pods are taken over at once.
	got, done, err := p.pods.read(ctx, pod, p.pods.wait)
	switch {
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		for _, m := range volumes { // also of a static pod, whose mirror has another UID
			p.leaveToKubelet(p.named(ctx, m.VolumeID, m.Target, pod), m, err)
		}
		return nil
	case err != nil:
		return err
	}
	done()
	var errs []error
	for _, m := range volumes {
		errs = append(errs, p.takeOverOne(ctx, got, m))
	}
	return errors.Join(errs...)
}

// takeOverOne takes over one volume of a pod. A CSI call on it goes first.
func (p *Publisher) takeOverOne(ctx context.Context, pod *podspec.Pod, m mount.Mounted) (err error) {
	ctx, end, err := p.beginTakeOver(ctx, m.VolumeID)
	if err != nil {
		return err
	}
	defer end()
	ctx = p.named(ctx, m.VolumeID, m.Target, pod.Pod)
	defer func() {
		if cause := recover(); cause != nil { // nobody else would catch it
			logPanic(ctx, cause)
			p.leaveToKubelet(ctx, m, errPanicked)
			err = nil
		}
	}()
	if !p.isRestored(m) || p.lookup(m.VolumeID) != nil {
		return nil // a call has dealt with it
	}
	request, err := p.derive(pod, m)
	if err == nil {
		err = p.takeOver(ctx, request, func(context.Context, volume.Pod) (*podspec.Pod, func(), error) { return pod, func() {}, nil })
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrForeign), errors.Is(err, mount.ErrOutside):
		p.forgetRestored(m.VolumeID, m.Target)
		return nil
	case ReasonOf(err) != 0 && ReasonOf(err) != ReasonUnavailable:
		p.leaveToKubelet(ctx, m, err)
		if p.isNews(m.VolumeID, err.Error()) {
			p.opts.Events.Warn(pod.Pod, eventVolumeUpdateFailed, err.Error())
		}
		return nil
	case ReasonOf(err) == 0:
		err = fail(ReasonUnavailable, "%w", err)
	}
	return err
}

// derive returns the request by which the kubelet has published a mounted volume of a pod.
func (p *Publisher) derive(pod *podspec.Pod, m mount.Mounted) (Request, error) {
	_, name := targetParts(p.opts.KubeletDir, m.Target)
	inline, ok := pod.Inline[name]
	if !ok || inline.Driver != p.opts.Driver {
		return Request{}, fail(ReasonInvalid, "the pod %s has no inline volume %q of the driver %s", pod.Pod, name, p.opts.Driver)
	}
	if kubeletsID.MatchString(m.VolumeID) && m.VolumeID != inlineID(pod.Pod, name) {
		return Request{}, fail(ReasonInvalid, "the volume mounted at %s is not volume %q of the pod %s: its id is that of another", m.Target, name, pod.Pod)
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

// kubeletsID is the form of the ids that the kubelet gives inline volumes.
var kubeletsID = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// inlineID returns the id that the kubelet gives a pod's inline volume. With it the mount's
// source and its target name the same volume: one that was bound to another pod's target never
// shows what that pod may have.
func inlineID(pod volume.Pod, name string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+name)))
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
	klog.FromContext(ctx).Info("A mounted volume is not updated until the kubelet publishes it again", "target", m.Target, "reason", reason.Error())
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.restored[m.VolumeID]; r != nil && r.Mounted == m {
		r.left = reason.Error()
	}
}

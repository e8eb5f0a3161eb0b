package publisher

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// A restart: the volumes that an earlier process left mounted are found in the mount table. Each names its pod,
// whose spec says what was asked for. With that a volume is live again, and its first reconcile
// brings the files up to date.

// Restore finds the volumes that an earlier process left mounted, which Run takes over. It
// must return before the first Publish or Unpublish. Nothing that it meets stops the start, or
// damages a volume in use.
func (p *Publisher) Restore(ctx context.Context) {
	if err := p.find(ctx); err != nil {
		klog.FromContext(ctx).V(2).Info("Can't read all mounted volumes yet", "err", err) // Run tries again
	}
}

// find finds mounted volumes, and reads which pods they are for. It reads the mount table once;
// what failed is done by the next call. It is for one goroutine at a time.
func (p *Publisher) find(ctx context.Context) error {
	if !p.listed {
		mounted, err := p.opts.Mounts.List(ctx)
		if err != nil {
			return err
		}
		p.listed = true
		for _, m := range mounted {
			p.findOne(ctx, m)
		}
	}
	return p.readPods(ctx)
}

// findOne notes a mounted volume. If its pod's directory is gone, the kubelet has forgotten the
// pod, and no unpublish will come: then it is unmounted.
func (p *Publisher) findOne(ctx context.Context, m mount.Mounted) {
	if checkForm(p.opts.KubeletDir, m.Target) != nil {
		return // what is mounted anywhere else than at a target is nobody's to judge
	}
	if p.podDirectoryGone(m.Target) {
		ctx = p.named(ctx, m.VolumeID, m.Target, volume.Pod{})
		logger := klog.FromContext(ctx)
		if err := p.opts.Mounts.Unmount(ctx, m.VolumeID, m.Target); err != nil {
			logger.Error(err, "Can't unmount a volume whose pod is gone")
			return
		}
		logger.Info("Unmounted a volume whose pod is gone")
		return
	}
	podUID, _ := targetParts(p.opts.KubeletDir, m.Target)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes[m.VolumeID] == nil {
		request := Request{VolumeID: m.VolumeID, Target: m.Target, Pod: volume.Pod{UID: types.UID(podUID)}}
		p.put(&published{p: p, request: request, state: found, since: time.Now()})
	}
}

// readPods reads of each volume that was found which pod it is for, and how much of it is used,
// unless that was done. A volume that is not proven to be this driver's is forgotten.
func (p *Publisher) readPods(ctx context.Context) error {
	p.mu.Lock()
	var unread []*published
	for _, v := range p.volumes {
		if v.state == found && v.request.Pod.Name == "" {
			unread = append(unread, v)
		}
	}
	p.mu.Unlock()
	var errs []error
	for _, v := range unread {
		id, target := v.request.VolumeID, v.request.Target
		switch err := p.readPod(ctx, v); {
		case errors.Is(err, mount.ErrForeign): // its attribute was spoilt
			v.leaveToKubelet(ctx, err)
		case errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrOutside):
			klog.FromContext(ctx).Info("A mounted volume is not proven to be this driver's: leaving it to the kubelet's next call", "volumeID", id, "target", target, "reason", err.Error())
			p.forget(id, target)
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// readPod is readPods for one volume. A volume that names no pod waits for the kubelet.
func (p *Publisher) readPod(ctx context.Context, v *published) error {
	id, target := v.request.VolumeID, v.request.Target
	root, usage, err := p.opts.Mounts.Open(ctx, id, target)
	if err != nil {
		return err
	}
	defer root.Close()
	namespace, name, err := record.Pod(root, p.opts.AttributePrefix)
	if err != nil {
		klog.FromContext(ctx).Info("A mounted volume does not tell its pod: leaving it to the kubelet's next call", "volumeID", id, "target", target, "reason", err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.state != found { // a call has dealt with it
		return nil
	}
	v.charge(memoryOf(usage.Used, usage.InodesUsed))
	v.request.Pod.Namespace, v.request.Pod.Name = namespace, name
	if err != nil {
		v.state, v.reason = frozen, "it does not tell its pod: "+err.Error()
	}
	return nil
}

// podDirectoryGone says whether the directory of the pod that a target path names
// does not exist.
func (p *Publisher) podDirectoryGone(target string) bool {
	kubeletDir, err := os.OpenRoot(p.opts.KubeletDir)
	if err != nil {
		return false
	}
	defer kubeletDir.Close()
	podUID, _ := targetParts(p.opts.KubeletDir, target)
	_, err = kubeletDir.Lstat(filepath.Join("pods", podUID))
	return errors.Is(err, fs.ErrNotExist)
}

// takeOverFound takes over the volumes that Restore has found: each pod's own spec says
// what was asked for. It returns when none is left of which the API server can tell that, or
// at the end of ctx. While requests fail there is one at a time, later each time.
func (p *Publisher) takeOverFound(ctx context.Context) {
	var failing time.Time
	var delay backoff.Delay
	refused := refusedPods{told: map[volume.Pod]bool{}}
	logged := map[metav1.StatusReason]bool{} // since the last success
	for {
		err := p.find(ctx)
		pods := p.foundPods()
		if err == nil && len(pods) == 0 {
			return
		}
		err = errors.Join(p.takeOverPods(ctx, pods), err)
		if ctx.Err() != nil {
			return
		}
		if refused.last(err) {
			refused.tell(p.foundPods(), p.opts.Events)
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
		case <-time.After(delay.Next(longestPause(err, failing), err)):
		case <-ctx.Done():
			return
		}
	}
}

// foundPods returns the volumes whose pods are to be asked for, by pod.
func (p *Publisher) foundPods() map[volume.Pod][]*published {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := map[volume.Pod][]*published{}
	for _, v := range p.volumes {
		if v.state == found && v.request.Pod.Name != "" {
			pods[v.request.Pod] = append(pods[v.request.Pod], v)
		}
	}
	return pods
}

// takeOverPods takes over the volumes of pods, some at a time once a request has succeeded. What
// concerns one pod or volume holds up no other; a failure of the API server ends the round, and
// so do more pods that may not be read than others.
func (p *Publisher) takeOverPods(ctx context.Context, pods map[volume.Pod][]*published) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var errs []error
	read, refused := 0, 0
	try := func(pod volume.Pod, volumes []*published) (first bool) {
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
func (p *Publisher) takeOverPod(ctx context.Context, pod volume.Pod, volumes []*published) error {
	// The pod stays in memory for its volumes, and keeps no other one from being read: the mounts may
	// hang. Few pods are taken over at once.
	got, done, err := p.pods.read(ctx, pod, p.pods.wait)
	switch {
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		for _, v := range volumes { // also of a static pod, whose mirror has another UID
			v.leaveToKubelet(v.logged(ctx), err)
		}
		return nil
	case err != nil:
		return err
	}
	done()
	var errs []error
	for _, v := range volumes {
		errs = append(errs, p.takeOverOne(ctx, got, v))
	}
	return errors.Join(errs...)
}

// takeOverOne takes over one volume of a pod. A CSI call on it goes first.
func (p *Publisher) takeOverOne(ctx context.Context, says *pod.Spec, v *published) (err error) {
	ctx, end, err := p.beginTakeOver(ctx, v.request.VolumeID)
	if err != nil {
		return err
	}
	defer end()
	ctx = p.named(ctx, v.request.VolumeID, v.request.Target, says.Pod)
	defer func() {
		if cause := recover(); cause != nil { // nobody else would catch it
			logPanic(ctx, cause)
			v.leaveToKubelet(ctx, errPanicked)
			err = nil
		}
	}()
	if !v.is(found) {
		return nil // a call has dealt with it
	}
	request, err := p.derive(says, v.request.VolumeID, v.request.Target)
	if err == nil {
		err = p.takeOver(ctx, request, func(context.Context, volume.Pod) (*pod.Spec, func(), error) { return says, func() {}, nil })
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrForeign), errors.Is(err, mount.ErrOutside):
		p.forget(v.request.VolumeID, v.request.Target)
		return nil
	case ReasonOf(err) != 0 && ReasonOf(err) != ReasonUnavailable:
		v.leaveToKubelet(ctx, err)
		if p.isNews(v.request.VolumeID, err.Error()) {
			p.opts.Events.Warn(says.Pod, eventVolumeUpdateFailed, err.Error())
		}
		return nil
	case ReasonOf(err) == 0:
		err = fail(ReasonUnavailable, "%w", err)
	}
	return err
}

// derive returns the request by which the kubelet has published a mounted volume of a pod.
func (p *Publisher) derive(says *pod.Spec, volumeID, target string) (Request, error) {
	_, name := targetParts(p.opts.KubeletDir, target)
	inline, ok := says.Inline[name]
	if !ok || inline.Driver != p.opts.Driver {
		return Request{}, fail(ReasonInvalid, "the pod %s has no inline volume %q of the driver %s", says.Pod, name, p.opts.Driver)
	}
	if kubeletsID.MatchString(volumeID) && volumeID != inlineID(says.Pod, name) {
		return Request{}, fail(ReasonInvalid, "the volume mounted at %s is not volume %q of the pod %s: its id is that of another", target, name, says.Pod)
	}
	return Request{
		VolumeID:   volumeID,
		Target:     target,
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

// leaveToKubelet has a volume that was found stay as it is until the kubelet's next call.
func (v *published) leaveToKubelet(ctx context.Context, reason error) {
	klog.FromContext(ctx).Info("A mounted volume is not updated until the kubelet publishes it again", "target", v.request.Target, "reason", reason.Error())
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.state == found {
		v.state, v.reason = frozen, reason.Error()
	}
}

// takeOver makes a volume live that is mounted already. It has been complete since it became
// visible, and a pod may be reading it. The first reconcile brings it up
// to date; its objects are reviewed before anything of them is written, and those of other
// namespaces are refused then if they were switched off.
func (p *Publisher) takeOver(ctx context.Context, request Request, get getPod) error {
	v, err := p.parsed(ctx, request, time.Now().Add(p.opts.PublishWait), get, volume.AcrossNamespaces())
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also when something panics
			p.remove(v)
		}
	}()
	if err := p.readRecord(ctx, v); err != nil {
		return err
	}
	if !v.spec.Pinned() { // else it needs no object any more
		p.opts.Objects.Keep(v.request.Pod, v.request.VolumeID)
	}
	p.enter(v) // last: until then the volume stays what it is if this fails
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Took over a mounted volume", "refs", describe(v.refs, v.contents.shown))
	}
	v.notify()
	p.activate(v)
	done = true
	return nil
}

// readRecord finds out what a mounted volume shows.
func (p *Publisher) readRecord(ctx context.Context, v *published) error {
	root, usage, err := p.opts.Mounts.Open(ctx, v.request.VolumeID, v.request.Target)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := writer.Record(root, p.opts.AttributePrefix)
	if err != nil {
		return fmt.Errorf("read the record of volume %s: %w", v.request.VolumeID, err)
	}
	v.size = memoryOf(usage.Used, usage.InodesUsed)
	v.contents.pruneAt = v.since.Add(pruneTime) // the earlier process may have been killed before it pruned
	v.contents.shown = record.Decode(text, v.refs)
	if v.spec.Pinned() || !v.spec.InPlace() {
		// Files that are rewritten in place name the new versions before the first byte.
		v.condition.show(v.contents.shown)
	}
	if namespace, name, err := record.Pod(root, p.opts.AttributePrefix); err != nil || namespace != v.request.Pod.Namespace || name != v.request.Pod.Name {
		p.namePod(ctx, v)
	}
	return nil
}

// namePod has a volume that a publish takes over name its pod, which it did not: it is of an
// earlier version, or its attribute was spoilt. If that fails, the next start leaves the volume
// to the kubelet again.
func (p *Publisher) namePod(ctx context.Context, v *published) {
	mnt, err := p.opts.Mounts.Reopen(ctx, v.request.VolumeID, v.request.Target)
	if err == nil {
		err = errors.Join(record.SetPod(mnt.Root(), p.opts.AttributePrefix, v.request.Pod), mnt.Close())
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Can't have a volume name its pod: the next start leaves it to the kubelet", "target", v.request.Target)
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
func (r *refusedPods) tell(pods map[volume.Pod][]*published, events Events) {
	for pod := range pods {
		if !r.told[pod] {
			r.told[pod] = true
			events.Warn(pod, eventRefForbidden, "volumes are not updated since the plugin's restart: the API server does not let the plugin read the pod (Forbidden)")
		}
	}
}

// longestPause returns how long the pause after a failure may be. Without a connection it stays
// short, as such a try costs the API server nothing. What the API server answers may last.
func longestPause(err error, failing time.Time) time.Duration {
	answered := errors.As(err, new(apierrors.APIStatus))
	if !answered || failing.IsZero() || time.Since(failing) <= backoff.Lasting {
		return backoff.Short
	}
	return backoff.Long
}

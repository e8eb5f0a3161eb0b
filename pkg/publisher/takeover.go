package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// isMounted says whether the volume of a request is mounted at its target, though it is not
// live: an earlier process has mounted it. A volume of an earlier version, or one whose
// attribute was spoilt, gets the attribute that proves it first.
func (p *Publisher) isMounted(ctx context.Context, request *Request) (bool, error) {
	err := p.prove(ctx, request)
	if errors.Is(err, mount.ErrForeign) || errors.Is(err, mount.ErrOutside) {
		if refusal := p.validate(request); refusal != nil {
			return false, refusal // nothing of this request can be mounted there
		}
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, mount.ErrNotMounted):
		return false, nil
	case errors.Is(err, mount.ErrOutside):
		return false, fail(ReasonInvalid, "target_path: %w", err)
	case errors.Is(err, mount.ErrForeign):
		return false, fmt.Errorf("look at the target of volume %s: %w", request.VolumeID, err)
	}
	// It may well be mounted, and a pod may be reading it: a final error would have the
	// kubelet destroy it.
	return false, fail(ReasonUnavailable, "look at the target of volume %s: %w", request.VolumeID, err)
}

// prove proves that the volume of a request is mounted at its target. Where its attribute was
// spoilt, the mount's source tells, and the volume gets the attribute again.
func (p *Publisher) prove(ctx context.Context, request *Request) error {
	err := p.opts.Mounts.Check(ctx, request.VolumeID, request.Target)
	if errors.Is(err, mount.ErrForeign) {
		err = p.opts.Mounts.Adopt(ctx, request.VolumeID, request.Target)
	}
	return err
}

// checkRestored refuses a request for a volume that an earlier process has mounted elsewhere.
func (p *Publisher) checkRestored(request *Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.restored[request.VolumeID]; r != nil && r.Target != request.Target {
		return fail(ReasonExists, "volume %s is published already, with another target path", request.VolumeID)
	}
	return nil
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
		if !done { // it is a restored volume again, also when something panics
			v.registration.Close()
			p.remove(v)
		}
	}()
	if err := p.readRecord(ctx, v); err != nil {
		return err
	}
	if v.spec.Pinned() {
		p.track(v)
	} else {
		v.registration.Keep()
		p.add(v)
	}
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Took over a mounted volume", "refs", describe(v.refs, v.contents.shown))
	}
	v.poke()
	p.activate(v)
	done = true
	return nil
}

// leave has a mounted volume stay as it is, which an earlier process has published with another
// identity, or whose spec an earlier version took. A failed publish would keep the containers of its
// running pod from being restarted.
func (p *Publisher) leave(ctx context.Context, request *Request, reason error) {
	p.listRestored(request, reason)
	if !p.isNews(request.VolumeID, reason.Error()) {
		return
	}
	klog.FromContext(ctx).Info("A mounted volume is not updated any more", "target", request.Target, "reason", reason.Error())
	p.opts.Events.Warn(request.Pod, eventVolumeUpdateFailed, reason.Error())
}

// listRestored lists a mounted volume, which is not live, among those that only a publish makes live.
func (p *Publisher) listRestored(request *Request, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.restored[request.VolumeID]
	if r == nil {
		r = &restored{Mounted: mount.Mounted{VolumeID: request.VolumeID, Target: request.Target}, since: time.Now()}
		p.restored[request.VolumeID] = r
	}
	r.pod, r.left = request.Pod, reason.Error()
}

// readRecord finds out what a mounted volume shows, and how much that takes.
func (p *Publisher) readRecord(ctx context.Context, v *published) error {
	root, usage, err := p.opts.Mounts.Open(ctx, v.request.VolumeID, v.request.Target)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := writer.ReadRecord(root, p.opts.AttributePrefix)
	if err != nil {
		return fmt.Errorf("read the record of volume %s: %w", v.request.VolumeID, err)
	}
	size, err := v.contents.writer.Size(ctx, root)
	if err != nil {
		return fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, err)
	}
	v.contents.named, err = v.contents.writer.Shows(ctx, root, v.consent)
	if err != nil {
		return fmt.Errorf("read which objects the files of volume %s name: %w", v.request.VolumeID, err)
	}
	v.contents.overhead = overhead(text)
	v.size = memoryOf(usage.Used, usage.InodesUsed)
	v.tree = memoryOf(size.Bytes, size.Inodes+v.contents.overhead)
	if !v.contents.writer.Stale() {
		v.files = v.tree
	}
	v.contents.shown = record.Decode(text, v.refs)
	if v.spec.Pinned() || !v.spec.InPlace() {
		// Files that are rewritten in place name the new versions before the first byte.
		v.condition.show(v.contents.shown)
	}
	for ref := range v.consent { // also of files from before the pod needed a right to it
		if v.contents.shown[ref].UID == "" {
			continue
		}
		// Those of other namespaces always needed a right: one that no file names has no files.
		if !v.contents.named[ref] && ref.Namespace == v.request.Pod.Namespace {
			v.contents.unnamed[ref] = true
		}
		v.contents.named[ref] = true
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

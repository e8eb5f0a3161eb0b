package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// restored is a volume that an earlier process has mounted, or one of this process whose mount is no
// longer proven. Its files stay as they are until this process knows what was asked for: by the pod's
// spec, see takeOverRestored, or by the kubelet's next publish. Publisher.mu guards it.
type restored struct {
	mount.Mounted
	// pod is whom the volume is for. The UID is that of the target path; namespace and name
	// are empty until they have been read, and a hint.
	pod volume.Pod
	// size is the bytes that are counted for the volume.
	size int64
	// since is when this process found it.
	since time.Time
	// left says why the pod's spec does not tell what was asked for, so that only a publish does;
	// "" while it may.
	left string
}

// reason says why the volume is not updated.
func (r *restored) reason() string {
	if r.left != "" {
		return "it is not updated until the kubelet publishes it again: " + r.left
	}
	return "an earlier process has mounted it, and this one has not taken it over yet"
}

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
			p.restore(ctx, m)
		}
	}
	return p.readPods(ctx)
}

// restore notes a mounted volume. If its pod's directory is gone, the kubelet has forgotten the
// pod, and no unpublish will come: then it is unmounted.
func (p *Publisher) restore(ctx context.Context, m mount.Mounted) {
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
		p.restored[m.VolumeID] = &restored{Mounted: m, pod: volume.Pod{UID: types.UID(podUID)}, since: time.Now()}
	}
}

// readPods reads of each restored volume which pod it is for, and how much of it is used,
// unless that was done. A volume that is not proven to be this driver's is forgotten.
func (p *Publisher) readPods(ctx context.Context) error {
	p.mu.Lock()
	var unread []restored
	for _, r := range p.restored {
		if r.pod.Name == "" && r.left == "" {
			unread = append(unread, *r)
		}
	}
	p.mu.Unlock()
	var errs []error
	for i := range unread {
		r := &unread[i]
		err := p.readPod(ctx, r)
		switch {
		case errors.Is(err, mount.ErrNotMounted), errors.Is(err, mount.ErrForeign), errors.Is(err, mount.ErrOutside):
			klog.FromContext(ctx).Info("A mounted volume is not proven to be this driver's: leaving it to the kubelet's next call", "volumeID", r.VolumeID, "target", r.Target, "reason", err.Error())
			p.forgetRestored(r.VolumeID, r.Target)
		case err != nil:
			errs = append(errs, err)
		default:
			p.noteRead(r)
		}
	}
	return errors.Join(errs...)
}

// readPod is readPods for a copy of one volume. A volume that names no pod waits.
func (p *Publisher) readPod(ctx context.Context, r *restored) error {
	root, usage, err := p.opts.Mounts.Open(ctx, r.VolumeID, r.Target)
	if err != nil {
		return err
	}
	defer root.Close()
	r.size = memoryOf(usage.Used, usage.InodesUsed)
	r.pod.Namespace, r.pod.Name, err = record.Pod(root, p.opts.AttributePrefix)
	if err != nil {
		r.left = "it does not tell its pod: " + err.Error()
		klog.FromContext(ctx).Info("A mounted volume does not tell its pod: leaving it to the kubelet's next call", "volumeID", r.VolumeID, "target", r.Target, "reason", err.Error())
	}
	return nil
}

// noteRead keeps what was read of a restored volume, if it is still one.
func (p *Publisher) noteRead(read *restored) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.restored[read.VolumeID]; r != nil && r.Mounted == read.Mounted {
		p.used += read.size - r.size
		*r = *read
	}
}

// forgetRestored forgets a volume at a target that is now live, or no longer mounted. It is
// idempotent.
func (p *Publisher) forgetRestored(volumeID, target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetRestoredLocked(volumeID, target)
}

func (p *Publisher) forgetRestoredLocked(volumeID, target string) {
	if r := p.restored[volumeID]; r != nil && r.Target == target {
		delete(p.restored, volumeID)
		p.used -= r.size
	}
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

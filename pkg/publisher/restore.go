package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// Restore takes over the volumes that an earlier process left mounted, by their
// records, and queues each to be brought up to date. It must return before the
// first Publish or Unpublish. If that process still runs, as in a rollout, it first waits
// for its end, and fails if ctx ends before. A record that can't be used is set aside and
// logged, and never stops the start; neither a mount is made nor one of a volume in use
// removed.
func (p *Publisher) Restore(ctx context.Context) error {
	if err := p.records.acquire(ctx); err != nil {
		return err
	}
	names, err := p.records.names(ctx)
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, name := range names {
		r, err := p.records.load(name, p.opts.KubeletDir)
		switch {
		case errors.Is(err, errDamaged):
			p.setAside(ctx, name, err)
		case err != nil:
			// It may be good: it stays for the next start, or the kubelet's next publish.
			logger.Error(err, "Record can't be read: its volume is not updated", "record", name)
		default:
			p.restore(ctx, r)
		}
	}
	p.removeOrphans(ctx)
	return nil
}

func (p *Publisher) setAside(ctx context.Context, record string, reason error) {
	logger := klog.FromContext(ctx)
	logger.Error(reason, "Record can't be used: setting it aside", "record", record)
	if err := p.records.setAside(record); err != nil {
		logger.Error(err, "Record can't be set aside", "record", record)
	}
}

// restore takes over one volume, if its target is still our mount of it.
func (p *Publisher) restore(ctx context.Context, r *record) {
	logger := klog.FromContext(ctx).WithValues("volumeID", r.VolumeID, "target", r.Target)
	usage, err := p.opts.Mounts.Usage(ctx, r.VolumeID, r.Target)
	if errors.Is(err, mount.ErrOutside) {
		p.setAside(ctx, r.VolumeID+recordSuffix, err)
		return
	}
	if errors.Is(err, mount.ErrNotMounted) || errors.Is(err, mount.ErrForeign) {
		logger.Info("Dropping the record of a volume that is no longer mounted", "reason", err.Error())
		if err := p.records.remove(r.VolumeID); err != nil {
			logger.Error(err, "Record of a dropped volume stays behind until the next start")
		}
		return
	}
	if err != nil {
		// It may well be there. Taking it over does no harm: each write proves the
		// mount first, and is tried again until that works or shows that it is gone.
		logger.Error(err, "Can't tell whether a recorded volume is still mounted: taking it over")
	}
	v := p.recorded(r)
	v.size = p.sizeOf(r, usage, err)
	if v.spec.Pinned() {
		p.track(v)
	} else {
		p.add(v)
	}
	v.poke()
	p.goLive(v)
	logger.V(2).Info("Restored volume", "pod", klog.KRef(r.Pod.Namespace, r.Pod.Name))
}

// sizeOf returns what to count for a recorded volume until it is written again. A record may
// say anything, and the file system may still hold the generation before: the less of the two.
// usageErr says that the usage is not known.
func (p *Publisher) sizeOf(r *record, usage mount.Usage, usageErr error) int64 {
	switch {
	case usageErr != nil:
		return min(r.Size, p.opts.MaxVolumeSize)
	case r.Size == 0: // also where an earlier version took the volume over
		return usage.Used
	}
	return min(r.Size, usage.Used)
}

// removeOrphans unmounts what no record tells of and whose pod directory is gone:
// the kubelet has forgotten the pod, so no unpublish will come. Any other mount
// without a record is left for the kubelet's next call.
func (p *Publisher) removeOrphans(ctx context.Context) {
	logger := klog.FromContext(ctx)
	mounted, err := p.opts.Mounts.List(ctx)
	if err != nil {
		logger.Error(err, "Can't look for mounts of pods that are gone")
		return
	}
	for _, m := range mounted {
		if p.lookup(m.VolumeID) != nil {
			continue
		}
		logger := logger.WithValues("volumeID", m.VolumeID, "target", m.Target)
		if !p.podDirectoryGone(m.Target) {
			logger.Info("Mounted volume has no record: leaving it to the kubelet's next call")
			continue
		}
		if err := p.opts.Mounts.Unmount(ctx, m.VolumeID, m.Target); err != nil {
			logger.Error(err, "Can't unmount a volume whose pod is gone")
			continue
		}
		logger.Info("Unmounted a volume whose pod is gone")
	}
}

// podDirectoryGone says whether the directory of the pod that a target path names
// does not exist. What is mounted anywhere else than at a target is nobody's to judge.
func (p *Publisher) podDirectoryGone(target string) bool {
	if checkForm(p.opts.KubeletDir, target) != nil {
		return false
	}
	kubeletDir, err := os.OpenRoot(p.opts.KubeletDir)
	if err != nil {
		return false
	}
	defer kubeletDir.Close()
	podUID, _ := targetParts(p.opts.KubeletDir, target)
	_, err = kubeletDir.Lstat(filepath.Join("pods", podUID))
	return errors.Is(err, fs.ErrNotExist)
}

package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

// Restore finds the volumes that an earlier process left mounted. Nobody knows yet what is wanted of them: their pods' specs
// say that, or the kubelet's next publish. It must return before the first call and before Run, so that all of them count
// before a publish can take their room. It fails if it can't read the mount table.
func (p *Publisher) Restore(ctx context.Context) error {
	mounted, err := p.opts.Mounts.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounted {
		if checkForm(p.opts.KubeletDir, m.Target) != nil {
			continue // what is mounted anywhere else than at a target is nobody's to judge
		}
		if p.podDirectoryGone(m.Target) {
			p.unmountOrphan(ctx, m.VolumeID, m.Target)
			continue
		}
		if v := p.find(m.VolumeID, m.Target); v != nil {
			v.guarded(v.logged(ctx), func(ctx context.Context) synced { return synced{err: v.look(ctx)} }) // its first sync tries again
		}
	}
	return nil
}

// find notes a mounted volume, and returns it, or nil if its id is known already: it is stacked, or bound to a second target.
func (p *Publisher) find(volumeID, target string) *vol {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes[volumeID] != nil {
		return nil
	}
	v := p.add(volumeID, volumeID, target)
	v.mounted = true
	p.wake(v, time.Now())
	return v
}

// unmountOrphan unmounts a volume whose pod the kubelet has forgotten, as no unpublish will come.
func (p *Publisher) unmountOrphan(ctx context.Context, volumeID, target string) {
	logger := klog.FromContext(ctx).WithValues("volumeID", volumeID, "target", target)
	if err := p.opts.Mounts.Unmount(ctx, volumeID, target); err != nil {
		logger.Error(err, "Can't unmount a volume whose pod is gone")
		return
	}
	logger.Info("Unmounted a volume whose pod is gone")
}

// podDirectoryGone says whether the directory of the pod that a target path names
// does not exist.
func (p *Publisher) podDirectoryGone(target string) bool {
	kubeletDir, err := os.OpenRoot(p.opts.KubeletDir)
	if err != nil {
		return false
	}
	defer kubeletDir.Close()
	_, err = kubeletDir.Lstat(filepath.Join("pods", podUID(p.opts.KubeletDir, target)))
	return errors.Is(err, fs.ErrNotExist)
}

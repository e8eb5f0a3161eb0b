package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// Restore finds the volumes that an earlier process left mounted. Nobody knows yet what is wanted of them: their pods' specs
// say that, or the kubelet's next publish. It reads the mount table and looks at no volume, as a look may hang: each pod's
// goroutine does that. It must return before the first call and before Run, so that no volume is mounted twice. It fails if
// it can't read the mount table.
func (p *Publisher) Restore(ctx context.Context) error {
	mounted, err := p.opts.Mounts.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounted {
		switch {
		case checkForm(p.opts.KubeletDir, m.Target) != nil: // what is mounted anywhere else is nobody's to judge
		case p.podDirectoryGone(m.Target):
			p.orphans = append(p.orphans, m)
		default:
			p.find(m.VolumeID, m.Target)
		}
	}
	return nil
}

// find notes a mounted volume, unless its id is known already: it is stacked, or bound to a second target.
func (p *Publisher) find(volumeID, target string) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.entries[volumeID] != nil {
		return
	}
	e := p.table.add(volumeID, volumeID, target)
	e.phase = mounted
	e.wakeLocked(time.Now())
}

// unmountOrphan unmounts a volume whose pod the kubelet has forgotten, as no unpublish will come.
func (p *Publisher) unmountOrphan(ctx context.Context, m mount.Mounted) {
	logger := klog.FromContext(ctx).WithValues("volumeID", m.VolumeID, "target", m.Target)
	if err := p.Unpublish(ctx, m.VolumeID, m.Target); err != nil {
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

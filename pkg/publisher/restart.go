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

// Restore finds the volumes that an earlier process left mounted. What is wanted of them is found later, in their pods' specs or in the
// kubelet's next publish. Restore reads the mount table and touches no volume, because that may hang; each pod's goroutine does it later.
// It must return before the first call and before Run, so that no volume is mounted twice. It fails if the mount table cannot be read.
func (p *Publisher) Restore(ctx context.Context) error {
	mounted, err := p.opts.Mounts.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounted {
		switch {
		case checkForm(p.opts.KubeletDir, m.Target) != nil: // mounts at other places are not ours to judge
		case p.podDirectoryGone(m.Target):
			p.orphans = append(p.orphans, m)
		default:
			p.find(m.VolumeID, m.Target)
		}
	}
	return nil
}

// find adds a mounted volume to the table. If the ID is known already, the mount is stacked or bind-mounted to a second target and is
// ignored.
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

// unmountOrphan unmounts a volume whose pod is gone, because the kubelet will send no unpublish for it.
func (p *Publisher) unmountOrphan(ctx context.Context, m mount.Mounted) {
	logger := klog.FromContext(ctx).WithValues("volumeID", m.VolumeID, "target", m.Target)
	if err := p.Unpublish(ctx, m.VolumeID, m.Target); err != nil {
		logger.Error(err, "Can't unmount a volume whose pod is gone")
		return
	}
	logger.Info("Unmounted a volume whose pod is gone")
}

// podDirectoryGone reports whether the directory of the target path's pod does not exist.
func (p *Publisher) podDirectoryGone(target string) bool {
	kubeletDir, err := os.OpenRoot(p.opts.KubeletDir)
	if err != nil {
		return false
	}
	defer kubeletDir.Close()
	_, err = kubeletDir.Lstat(filepath.Join("pods", podUID(p.opts.KubeletDir, target)))
	return errors.Is(err, fs.ErrNotExist)
}

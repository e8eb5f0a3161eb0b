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
	"github.com/refvol/refvol/pkg/volume"
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
		uid, _, err := volume.ParseTarget(p.opts.KubeletDir, m.Target)
		switch {
		case err != nil: // mounts at other places are not ours to judge
		case p.isPodGone(uid):
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
	e := p.table.add(volumeID, volumeID, target, true)
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

// isPodGone reports whether the pod's directory does not exist.
func (p *Publisher) isPodGone(uid types.UID) bool {
	kubeletDir, err := os.OpenRoot(p.opts.KubeletDir)
	if err != nil {
		return false
	}
	defer kubeletDir.Close()
	_, err = kubeletDir.Lstat(filepath.Join("pods", string(uid)))
	return errors.Is(err, fs.ErrNotExist)
}

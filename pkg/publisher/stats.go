package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// Stats returns a volume's use of memory. It fails with ReasonNotFound if the volume is not published at target, or if its mount is gone.
// It is safe for concurrent use.
func (p *Publisher) Stats(ctx context.Context, volumeID, target string) (Usage, error) {
	if _, _, err := volume.ParseTarget(p.opts.KubeletDir, target); err != nil {
		return Usage{}, failure.New(failure.ReasonNotFound, "volume_path: %w", err)
	}
	if !p.table.isMountedAt(volumeID, target) {
		return Usage{}, failure.New(failure.ReasonNotFound, "volume %s is not published at %s", volumeID, target)
	}
	root, usage, err := p.opts.Mounts.Open(ctx, volumeID, target)
	if errors.Is(err, mount.ErrNotMounted) || errors.Is(err, mount.ErrForeign) {
		return Usage{}, failure.New(failure.ReasonNotFound, "volume %s is not mounted at %s: %w", volumeID, target, err)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("measure volume %s: %w", volumeID, err)
	}
	return usage, root.Close()
}

package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/refvol/refvol/pkg/mount"
)

// Stats are what is known of a volume's health and use.
type Stats struct {
	Usage mount.Usage
	// Problem is what ails the volume, "" for nothing.
	Problem string
}

// Stats returns a volume's use of memory and its condition. It fails with
// ReasonNotFound if the volume is not published at target.
func (p *Publisher) Stats(ctx context.Context, volumeID, target string) (Stats, error) {
	if err := checkForm(p.opts.KubeletDir, target); err != nil {
		return Stats{}, fail(ReasonNotFound, "volume_path: %w", err)
	}
	v := p.lookup(volumeID)
	if v != nil && v.request.Target != target {
		v = nil
	}
	if v == nil && !p.isRestored(mount.Mounted{VolumeID: volumeID, Target: target}) {
		return Stats{}, fail(ReasonNotFound, "volume %s is not published at %s", volumeID, target)
	}
	usage, err := p.opts.Mounts.Usage(ctx, volumeID, target)
	if errors.Is(err, mount.ErrNotMounted) || errors.Is(err, mount.ErrForeign) {
		return Stats{Problem: err.Error()}, nil
	}
	if err != nil {
		return Stats{}, fmt.Errorf("measure volume %s: %w", volumeID, err)
	}
	if v == nil {
		return Stats{Usage: usage, Problem: "the volume is not updated: its pod could not be read since the plugin's restart"}, nil
	}
	return Stats{Usage: usage, Problem: v.condition.get()}, nil
}

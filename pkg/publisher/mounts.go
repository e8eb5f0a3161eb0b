package publisher

import (
	"context"

	"github.com/refvol/refvol/pkg/mount"
)

// NewMounts returns the real Mounts of the node.
func NewMounts(mounter *mount.Mounter) Mounts { return realMounts{mounter} }

// realMounts adapts the result types of a Mounter's methods to Mounts.
type realMounts struct{ *mount.Mounter }

func (m realMounts) Create(ctx context.Context, params mount.Params) (Mount, error) {
	created, err := m.Mounter.Create(ctx, params)
	if err != nil {
		return nil, err
	}
	return created, nil
}

func (m realMounts) Reopen(ctx context.Context, volumeID, target string) (Mount, error) {
	reopened, err := m.Mounter.Reopen(ctx, volumeID, target)
	if err != nil {
		return nil, err
	}
	return reopened, nil
}

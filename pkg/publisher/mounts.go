package publisher

import (
	"context"

	"github.com/refvol/refvol/pkg/mount"
)

// NewMounts returns the Mounts that work on the node.
func NewMounts(mounter *mount.Mounter) Mounts { return realMounts{mounter} }

// realMounts lends a Mounter's methods the result type that Mounts asks for.
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

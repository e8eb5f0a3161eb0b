package harness

import (
	"strconv"

	"github.com/moby/sys/mountinfo"
)

// Mount is one line of a mountinfo file.
type Mount struct {
	// ID is the mount's id, unique among the mounts that exist now.
	ID string
	// Target is the mount point.
	Target string
	// Options are the mount's own, SuperOptions the file system's.
	Options, SuperOptions string
	// Type and Source are the file system's type and what it was mounted from.
	Type, Source string
}

// Mounts returns the mounts of this process's namespace.
func Mounts() ([]Mount, error) { return mountsThat(nil) }

// MountsBelow returns the mounts whose target is dir or below it.
func MountsBelow(dir string) ([]Mount, error) { return mountsThat(mountinfo.PrefixFilter(dir)) }

func mountsThat(filter mountinfo.FilterFunc) ([]Mount, error) {
	infos, err := mountinfo.GetMounts(filter)
	mounts := make([]Mount, 0, len(infos))
	for _, m := range infos {
		mounts = append(mounts, Mount{
			ID: strconv.Itoa(m.ID), Target: m.Mountpoint, Options: m.Options, SuperOptions: m.VFSOptions,
			Type: m.FSType, Source: m.Source,
		})
	}
	return mounts, err
}

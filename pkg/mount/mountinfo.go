package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// identifyByMountTable reads the mount table up to the mount of fd. The id that it
// looks for can't be reused while fd is open.
func identifyByMountTable(fd int) (identity, error) {
	st, err := statxMount(fd, unix.STATX_MNT_ID)
	if err != nil || !isMountRoot(st) {
		return identity{}, err
	}
	found, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		same := uint64(info.ID) == st.Mnt_id
		return !same, same
	})
	if err != nil {
		return identity{}, fmt.Errorf("read the mount table: %w", err)
	}
	if len(found) == 0 {
		return identity{}, fmt.Errorf("the mount has gone meanwhile: %w", ErrNotMounted)
	}
	return identity{mountRoot: true, fsRoot: found[0].Root, source: found[0].Source}, nil
}

// Mounted is a volume that is mounted.
type Mounted struct {
	VolumeID, Target string
}

// List returns the mounts of this driver below the kubelet's directory, each once
// however often it is stacked, sorted by target. It reads the whole mount table, so
// it is for a start; what it returns is a hint, to be proven by Check.
func (m *Mounter) List(_ context.Context) ([]Mounted, error) {
	dir, err := openKubeletDir(m.kubeletDir)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer unix.Close(dir)
	// The table has paths without symbolic links, as the kernel knows this one.
	realDir, err := os.Readlink(procPath(dir))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	infos, err := mountinfo.GetMounts(wholeTmpfs)
	if err != nil {
		return nil, fmt.Errorf("list mounts: read the mount table: %w", err)
	}
	return m.ours(infos, realDir), nil
}

// wholeTmpfs skips every entry of the mount table that is not all of a tmpfs.
func wholeTmpfs(info *mountinfo.Info) (skip, stop bool) {
	return info.FSType != "tmpfs" || info.Root != "/", false
}

// ours picks this driver's mounts below realDir, which is how the mount table
// spells the kubelet's directory.
func (m *Mounter) ours(infos []*mountinfo.Info, realDir string) []Mounted {
	var all []Mounted
	for _, info := range infos {
		id, ok := strings.CutPrefix(info.Source, m.source(""))
		if !ok || ValidateVolumeID(id) != nil {
			continue
		}
		rel, err := relative(realDir, info.Mountpoint)
		if err != nil {
			continue
		}
		all = append(all, Mounted{VolumeID: id, Target: filepath.Join(m.kubeletDir, rel)})
	}
	slices.SortFunc(all, func(a, b Mounted) int {
		return strings.Compare(a.Target+"\x00"+a.VolumeID, b.Target+"\x00"+b.VolumeID)
	})
	return slices.Compact(all)
}

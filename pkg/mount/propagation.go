package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
)

// ErrNotShared says that what is mounted below the pods' directories doesn't reach the node, so
// that pods would get empty directories.
var ErrNotShared = errors.New("mounts of this process don't reach the node")

// ownMountTable is the table of this process's mounts.
const ownMountTable = "/proc/self/mountinfo"

// CheckPropagation returns an error that matches ErrNotShared, and says what to set, if the
// mount of <kubelet-dir>/pods belongs to no group of peers, so that what is mounted there stays
// with this process. Any other error says that the mount table could not be read. A group that
// a container runtime has made for the container alone is not seen. It reads the whole table.
func (m *Mounter) CheckPropagation() error {
	path := filepath.Join(m.kubeletDir, "pods")
	fd, err := openKubeletDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = m.kubeletDir // the kubelet makes the other one at its first start
		fd, err = openKubeletDir(path)
	}
	if err != nil {
		return fmt.Errorf("check the propagation of mounts: %w", err)
	}
	defer unix.Close(fd)
	id, err := mountID(fd)
	if err != nil {
		return fmt.Errorf("check the propagation of mounts at %s: %w", path, err)
	}
	if err := checkShared(ownMountTable, id); err != nil {
		return fmt.Errorf("check the propagation of mounts at %s: %w", path, err)
	}
	return nil
}

// checkShared looks for a mount in the file that holds a mount table.
func checkShared(table string, id uint64) error {
	mounts, err := mountutils.ParseMountInfo(table)
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	at := slices.IndexFunc(mounts, func(info mountutils.MountInfo) bool { return info.ID >= 0 && uint64(info.ID) == id })
	if at < 0 {
		return errors.New("read the mount table: the mount is not in it")
	}
	if !slices.ContainsFunc(mounts[at].OptionalFields, func(field string) bool { return strings.HasPrefix(field, "shared:") }) {
		return fmt.Errorf("%w: set mountPropagation: Bidirectional where the plugin's container mounts this path from the node, "+
			"or make the mount shared (mount --make-rshared) where the plugin runs without a container", ErrNotShared)
	}
	return nil
}

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotShared says that what is mounted below the pods' directories doesn't reach the node, so
// that pods would get empty directories.
var ErrNotShared = errors.New("mounts of this process don't reach the node")

// CheckPropagation returns an error that matches ErrNotShared, and says what to set, if the
// mount of <kubelet-dir>/pods belongs to no group of peers, so that what is mounted there stays
// with this process. Any other error says that the mount table could not be read. A group that
// a container runtime has made for the container alone is not seen. It looks into the table that
// List has read, and reads it if List has not.
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
	hasPeers := m.hasPeers.Load()
	if hasPeers == nil {
		table, err := readMountTable()
		if err != nil {
			return fmt.Errorf("check the propagation of mounts at %s: %w", path, err)
		}
		hasPeers = &table.hasPeers
	}
	if err := checkShared(*hasPeers, id); err != nil {
		return fmt.Errorf("check the propagation of mounts at %s: %w", path, err)
	}
	return nil
}

// checkShared looks for a mount in what the mount table says of peers.
func checkShared(hasPeers map[int]bool, id uint64) error {
	shared, found := hasPeers[int(id)]
	if !found {
		return errors.New("read the mount table: the mount is not in it")
	}
	if !shared {
		return fmt.Errorf("%w: set mountPropagation: Bidirectional where the plugin's container mounts this path from the node, "+
			"or make the mount shared (mount --make-rshared) where the plugin runs without a container", ErrNotShared)
	}
	return nil
}

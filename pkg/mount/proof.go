package mount

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

const (
	// volumeAttribute, after the prefix, is the name of the attribute of each volume's root directory. Its value is the mount's source.
	volumeAttribute = "volume"
	// maxSource is the longest source in bytes; see maxDriverLength.
	maxSource = 255
)

// source returns the source of a volume's mount.
func (m *Mounter) source(volumeID string) string { return m.driver + ":" + volumeID }

// prove returns nil if fd is the root of the volume's mount. Otherwise the error matches ErrNotMounted or ErrForeign, or says why the proof
// failed. It must be called before the descriptor is cloned, because any clone is the root of a mount.
func (m *Mounter) prove(fd int, volumeID string) error {
	if err := checkTmpfsMount(fd); err != nil {
		return err
	}
	// A container with CAP_SYS_ADMIN can write this attribute of its own volume. The value is only compared, so only that volume can lose
	// its proof.
	var buf [maxSource]byte
	n, err := unix.Getxattr(procPath(fd), m.attributePrefix+volumeAttribute, buf[:])
	switch {
	case isOneOf(err, unix.ENODATA, unix.EOPNOTSUPP):
		return fmt.Errorf("the tmpfs there names no volume: %w", ErrForeign)
	case isOneOf(err, unix.ERANGE):
		return fmt.Errorf("the tmpfs there has a longer attribute than ours: %w", ErrForeign)
	case err != nil:
		return fmt.Errorf("read attribute %s%s: %w", m.attributePrefix, volumeAttribute, err)
	case string(buf[:n]) != m.source(volumeID):
		return fmt.Errorf("the tmpfs there is of another volume: %w", ErrForeign)
	}
	return nil
}

// proveBySource is like prove, but uses the source of the mount, which nobody can change. It reads the mount table.
func (m *Mounter) proveBySource(fd int, volumeID string) error {
	if err := checkTmpfsMount(fd); err != nil {
		return err
	}
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	all, err := readTable()
	if err != nil {
		return err
	}
	for _, mnt := range all.tmpfs {
		if uint64(mnt.ID) == id && mnt.Source == m.source(volumeID) { // the ID of an existing mount is not used again
			return nil
		}
	}
	return fmt.Errorf("the tmpfs there is of another source, or not all of it is mounted: %w", ErrForeign)
}

// checkTmpfsMount returns nil if fd is the root of a mount of a tmpfs. Otherwise the error matches ErrNotMounted or ErrForeign, or says why
// the check failed.
func checkTmpfsMount(fd int) error {
	st, err := statx(fd, 0)
	if err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return ErrNotMounted
	}
	var fileSystem unix.Statfs_t
	if err := unix.Fstatfs(fd, &fileSystem); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if int64(fileSystem.Type) != unix.TMPFS_MAGIC {
		return fmt.Errorf("the mount there is not a tmpfs: %w", ErrForeign)
	}
	return nil
}

// openProven opens the volume's mount at the target path.
func (m *Mounter) openProven(volumeID, path string) (int, error) {
	if err := ValidateVolumeID(volumeID); err != nil {
		return noDescriptor, err
	}
	t, err := m.resolve(path)
	if err != nil {
		return noDescriptor, notMounted(err)
	}
	defer t.close()
	fd, err := t.open()
	if err != nil {
		return noDescriptor, notMounted(err)
	}
	if err := m.prove(fd, volumeID); err != nil {
		unix.Close(fd)
		return noDescriptor, err
	}
	return fd, nil
}

// notMounted adds ErrNotMounted to the error of a path that does not exist.
func notMounted(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotMounted, err)
	}
	return err
}

// statx returns what the kernel knows about fd, without a call to a file system that may hang.
func statx(fd int, mask int) (*unix.Statx_t, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, mask, &st); err != nil {
		return nil, fmt.Errorf("statx: %w", err)
	}
	return &st, nil
}

// mountID returns the ID of fd's mount in the mount table.
func mountID(fd int) (uint64, error) {
	st, err := statx(fd, unix.STATX_MNT_ID)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = fmt.Errorf("statx does not tell the mount id: %w", unix.ENOSYS)
	}
	if err != nil {
		return 0, err
	}
	return st.Mnt_id, nil
}

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// volumeAttribute follows the prefix in the name of the attribute that each volume's root
// directory has: its value is the mount's source.
const volumeAttribute = "volume"

// maxSource is how long a value of that attribute can be; see maxDriverLength.
const maxSource = 255

// prove returns nil if fd is the root of the volume's mount, and otherwise an error
// that matches ErrNotMounted or ErrForeign, or says why it could not tell. The mount
// table, whose length others decide, is not read.
func (m *Mounter) prove(fd int, volumeID string) error {
	if err := isTmpfsMount(fd); err != nil {
		return err
	}
	// Who has CAP_SYS_ADMIN in a container can write this attribute of its own volume. What
	// it says is compared and nothing else, so that only that volume can lose its proof.
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

// proveByTable is prove by the source of the mount, for a volume whose attribute is missing
// or wrong. Nobody can change the source of a mount.
func (m *Mounter) proveByTable(fd int, volumeID string) error {
	if err := isTmpfsMount(fd); err != nil {
		return err
	}
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	table, err := readMountTable()
	if err != nil {
		return err
	}
	for _, info := range table.tmpfs {
		// The id can't be reused while fd is open.
		if uint64(info.ID) == id && info.Source == m.source(volumeID) {
			return nil
		}
	}
	return fmt.Errorf("the tmpfs there is of another source, or not all of it is mounted: %w", ErrForeign)
}

// isTmpfsMount returns nil if fd is the root of a mount of a tmpfs, and otherwise an error
// that matches ErrNotMounted or ErrForeign, or says why it could not tell.
func isTmpfsMount(fd int) error {
	st, err := statx(fd, 0)
	if err != nil {
		return err
	}
	if !isMountRoot(st) {
		return ErrNotMounted
	}
	var fileSystem unix.Statfs_t
	if err := unix.Fstatfs(fd, &fileSystem); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if int64(fileSystem.Type) != unix.TMPFS_MAGIC {
		return fmt.Errorf("the mount there is no tmpfs: %w", ErrForeign)
	}
	return nil
}

// openProven opens the volume's mount at the target path.
func (m *Mounter) openProven(volumeID, path string) (int, error) {
	return m.openIf(m.prove, volumeID, path)
}

// openIf opens what is mounted at the target path if proof has no error for it.
func (m *Mounter) openIf(proof func(fd int, volumeID string) error, volumeID, path string) (int, error) {
	if err := ValidateVolumeID(volumeID); err != nil {
		return -1, err
	}
	t, err := m.resolve(path)
	if err != nil {
		return -1, notMounted(err)
	}
	defer t.close()
	fd, err := t.open()
	if err != nil {
		return -1, notMounted(err)
	}
	if err := proof(fd, volumeID); err != nil {
		unix.Close(fd)
		return -1, err
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

func sameFile(info os.FileInfo, want *unix.Stat_t) bool {
	got, ok := info.Sys().(*syscall.Stat_t)
	return ok && got.Dev == want.Dev && got.Ino == want.Ino
}

// statx returns what the kernel tells of fd without asking a file system that may hang.
func statx(fd int, mask int) (*unix.Statx_t, error) {
	var st unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(fd, "", flags, mask, &st); err != nil {
		return nil, fmt.Errorf("statx: %w", err)
	}
	return &st, nil
}

// mountID returns the id that the mount of fd has in the mount table.
func mountID(fd int) (uint64, error) {
	st, err := statx(fd, unix.STATX_MNT_ID)
	if err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, fmt.Errorf("statx does not tell the mount id: %w", unix.ENOSYS)
	}
	return st.Mnt_id, nil
}

func isMountRoot(st *unix.Statx_t) bool { return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 }

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity is what the kernel tells about a descriptor's mount.
type identity struct {
	// mountRoot says that the descriptor is the root of a mount; without it the
	// other fields are empty.
	mountRoot bool
	// fsRoot is the path of the mount's root within its file system: "/", or less of
	// it for a bind mount.
	fsRoot string
	// source is the mount's source.
	source string
}

// prove returns nil if fd is the root of the volume's mount, and otherwise an error
// that matches ErrNotMounted or ErrForeign, or says why it could not tell. It asks
// the file system itself only when the mount's source is ours, so that a foreign
// one that hangs holds nothing up.
func (m *Mounter) prove(fd int, volumeID string) error {
	id, err := m.identify(fd)
	if err != nil {
		return err
	}
	switch {
	case !id.mountRoot:
		return ErrNotMounted
	case id.source != m.source(volumeID):
		return fmt.Errorf("the mount there has another source: %w", ErrForeign)
	case id.fsRoot != "/":
		return fmt.Errorf("the mount there is only a part of its file system: %w", ErrForeign)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if int64(st.Type) != unix.TMPFS_MAGIC {
		return fmt.Errorf("the mount there is no tmpfs: %w", ErrForeign)
	}
	return nil
}

// openProven opens the volume's mount at the target path.
func (m *Mounter) openProven(volumeID, path string) (int, error) {
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
	if err := m.prove(fd, volumeID); err != nil {
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

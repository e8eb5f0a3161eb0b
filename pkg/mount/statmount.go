package mount

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// statmount(2): what to ask for, of linux/mount.h.
const (
	statmountMntRoot  = 0x8
	statmountSBSource = 0x200
)

// mntIDReq is struct mnt_id_req in its first version, which every kernel takes.
type mntIDReq struct {
	size  uint32
	spare uint32
	mntID uint64
	param uint64
}

// statmountBuf is struct statmount, as far as it is used here, with room for the
// strings that follow its 512 bytes: a path and a source at their longest. The
// numbers of strings are offsets into str.
type statmountBuf struct {
	size     uint32
	mntOpts  uint32
	mask     uint64
	_        [88]byte
	mntRoot  uint32
	mntPoint uint32
	mntNSID  uint64
	fsSub    uint32
	sbSource uint32
	_        [384]byte
	str      [unix.PathMax + 512]byte
}

// identifyByStatmount asks for one mount, by an id that the kernel never reuses. It
// works where statmount tells the source, which is since Linux 6.13.
func identifyByStatmount(fd int) (identity, error) {
	st, err := statxMount(fd, unix.STATX_MNT_ID_UNIQUE)
	if err != nil || !isMountRoot(st) {
		return identity{}, err
	}
	return statmount(st.Mnt_id)
}

func statmount(mountID uint64) (identity, error) {
	var buf statmountBuf
	req := mntIDReq{mntID: mountID, param: statmountMntRoot | statmountSBSource}
	req.size = uint32(unsafe.Sizeof(req))
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&buf)), unsafe.Sizeof(buf), 0, 0, 0)
	switch {
	case errors.Is(errno, unix.ENOENT):
		return identity{}, fmt.Errorf("the mount has gone meanwhile: %w", ErrNotMounted)
	case errors.Is(errno, unix.EOVERFLOW):
		return identity{}, fmt.Errorf("the mount there has a longer source than ours: %w", ErrForeign)
	case errno != 0:
		return identity{}, fmt.Errorf("statmount: %w", errno)
	}
	id := identity{mountRoot: true}
	if buf.mask&statmountMntRoot != 0 {
		id.fsRoot = buf.string(buf.mntRoot)
	}
	if buf.mask&statmountSBSource != 0 {
		id.source = buf.string(buf.sbSource)
	}
	return id, nil
}

// probeStatmount returns nil if statmount tells the source of the mount that fd is
// in, be fd its root or not.
func probeStatmount(fd int) error {
	st, err := statxMount(fd, unix.STATX_MNT_ID_UNIQUE)
	if err != nil {
		return err
	}
	id, err := statmount(st.Mnt_id)
	if err == nil && id.source == "" {
		err = errors.New("statmount does not tell the source")
	}
	return err
}

func (b *statmountBuf) string(offset uint32) string {
	if uint64(offset) >= uint64(len(b.str)) {
		return ""
	}
	return unix.ByteSliceToString(b.str[offset:])
}

// statxMount returns which mount fd is in. idMask chooses the kind of mount id.
func statxMount(fd int, idMask int) (*unix.Statx_t, error) {
	var st unix.Statx_t
	// Without a sync, a foreign network file system that hangs is not asked.
	const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(fd, "", flags, idMask, &st); err != nil {
		return nil, fmt.Errorf("statx: %w", err)
	}
	if st.Mask&uint32(idMask) == 0 {
		return nil, fmt.Errorf("statx does not tell the mount id: %w", unix.ENOSYS)
	}
	return &st, nil
}

func isMountRoot(st *unix.Statx_t) bool { return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 }

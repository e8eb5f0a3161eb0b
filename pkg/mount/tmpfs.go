package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// setting is one option of a file system to be made; one without a value is a flag.
type setting struct{ key, value string }

// attributeInodes is what the kernel charges, at most, for the attribute of a volume's root
// directory: since Linux 6.6 an inode per KiB of attributes.
const attributeInodes = 1

// totalInodes returns the limit of a tmpfs whose caller wants so many for itself.
func totalInodes(inodes int64) int64 {
	return min(inodes, math.MaxInt64-attributeInodes) + attributeInodes
}

// settings returns what the tmpfs of a volume is made with.
func (m *Mounter) settings(p Params) []setting {
	mode := uint64(p.Mode.Perm())
	if p.Mode&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	all := []setting{
		{"source", m.source(p.VolumeID)},
		{"size", strconv.FormatInt(p.Size, 10)},
		{"nr_inodes", strconv.FormatInt(totalInodes(p.Inodes), 10)},
		{"mode", strconv.FormatUint(mode, 8)},
	}
	if p.UID != volume.NoOwner {
		all = append(all, setting{"uid", strconv.Itoa(p.UID)})
	}
	if p.GID != volume.NoOwner {
		all = append(all, setting{"gid", strconv.Itoa(p.GID)})
	}
	if m.seLinuxContext != "" {
		all = append(all, setting{"context", m.seLinuxContext})
	}
	if m.hugeNever {
		all = append(all, setting{"huge", "never"})
	}
	if m.noswap {
		all = append(all, setting{key: "noswap"})
	}
	return all
}

// growth returns what makes a tmpfs that is used as has hold at least size bytes, inodes, and
// the root's attribute; nothing if it does. What is not named, or is smaller, stays as it is.
func (m *Mounter) growth(has Usage, size, inodes int64) []setting {
	var all []setting
	// A total of zero stands for no limit, which the kernel would not take back.
	if has.Capacity != 0 && has.Capacity < size {
		all = append(all, setting{"size", strconv.FormatInt(size, 10)})
	}
	if total := totalInodes(inodes); has.Inodes != 0 && has.Inodes < total {
		all = append(all, setting{"nr_inodes", strconv.FormatInt(total, 10)})
	}
	if len(all) > 0 && m.noswap {
		// Many kernels since 6.4 take its absence for the wish to swap again, and refuse that.
		all = append(all, setting{key: "noswap"})
	}
	return all
}

// source returns what the mount of a volume carries as its source.
func (m *Mounter) source(volumeID string) string { return m.driver + ":" + volumeID }

// newTmpfs makes a tmpfs and returns the descriptor of a writable, detached mount
// of it, which goes with the descriptor.
func newTmpfs(settings []setting) (int, error) {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen tmpfs: %w", err)
	}
	defer unix.Close(fsfd)
	if err := applyAll(fsfd, settings); err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return -1, fmt.Errorf("make a tmpfs: %w%s", err, kernelMessages(fsfd))
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}

// reconfigure changes settings of the tmpfs that fd is the root of a mount of, for all of its
// mounts at once; the attributes of the mounts stay. It needs CAP_SYS_ADMIN in the user
// namespace that made the tmpfs.
func reconfigure(fd int, settings []setting) error {
	fsfd, err := unix.Fspick(fd, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(fsfd)
	if err := applyAll(fsfd, settings); err != nil {
		return err
	}
	if err := unix.FsconfigReconfigure(fsfd); err != nil {
		return fmt.Errorf("reconfigure a tmpfs: %w%s", err, kernelMessages(fsfd))
	}
	return nil
}

func applyAll(fsfd int, settings []setting) error {
	for _, s := range settings {
		if err := s.apply(fsfd); err != nil {
			return fmt.Errorf("set %s of a tmpfs: %w%s", s, err, kernelMessages(fsfd))
		}
	}
	return nil
}

func (s setting) apply(fsfd int) error {
	if s.value == "" {
		return unix.FsconfigSetFlag(fsfd, s.key)
	}
	return unix.FsconfigSetString(fsfd, s.key, s.value)
}

func (s setting) String() string {
	if s.value == "" {
		return s.key
	}
	return s.key + "=" + s.value
}

// kernelMessages returns what the kernel has to say about a failed step in making
// a file system, in parentheses, or "".
func kernelMessages(fsfd int) string {
	var messages []string
	buf := make([]byte, 1024)
	for {
		// One read takes one message, and fails when there is none left.
		n, err := unix.Read(fsfd, buf)
		if err != nil || n <= 0 {
			break
		}
		messages = append(messages, strings.TrimSpace(string(buf[:n])))
	}
	if len(messages) == 0 {
		return ""
	}
	return " (" + strings.Join(messages, "; ") + ")"
}

// setReadOnly makes a mount read-only or writable, and no other mount of the same
// file system.
func setReadOnly(fd int, readOnly bool) error {
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("mount_setattr read-only=%t: a file is still open for writing: %w", readOnly, err)
	case err != nil:
		return fmt.Errorf("mount_setattr read-only=%t: %w", readOnly, err)
	}
	return nil
}

// detach unmounts the very mount that fd points into the root of, wherever its path
// leads by now: the magic link stands for the descriptor, not for a path. The
// kernel then also unmounts every peer, which is how it goes from the host when the
// plugin runs in a container. It must be lazy, since fd itself keeps the mount busy.
func detach(fd int) error {
	if err := unix.Unmount(procPath(fd), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

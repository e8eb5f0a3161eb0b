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

// setting is one option of a new file system. A setting without a value is a flag.
type setting struct{ key, value string }

func (s setting) String() string { return strings.TrimSuffix(s.key+"="+s.value, "=") }

// attributeInodes is what the kernel charges, at most, for the attribute of a volume's root directory. Since Linux 6.6 it charges an inode
// per KiB of attributes.
const attributeInodes = 1

// settings returns the options for a volume's tmpfs.
func (m *Mounter) settings(p Params) []setting {
	mode := uint64(p.Mode.Perm())
	if p.Mode&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	all := []setting{
		{"source", m.source(p.VolumeID)},
		{"size", strconv.FormatInt(p.Size, 10)},
		{"nr_inodes", strconv.FormatInt(min(p.Inodes, math.MaxInt64-attributeInodes)+attributeInodes, 10)},
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

// newTmpfs makes a tmpfs and returns the descriptor of a writable, detached mount of it. The mount disappears when the descriptor is
// closed.
func newTmpfs(settings []setting) (int, error) {
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return noDescriptor, fmt.Errorf("fsopen tmpfs: %w", err)
	}
	defer unix.Close(fsfd)
	for _, s := range settings {
		if s.value == "" {
			err = unix.FsconfigSetFlag(fsfd, s.key)
		} else {
			err = unix.FsconfigSetString(fsfd, s.key, s.value)
		}
		if err != nil {
			return noDescriptor, fmt.Errorf("set %s of a tmpfs: %w%s", s, err, kernelMessages(fsfd))
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return noDescriptor, fmt.Errorf("make a tmpfs: %w%s", err, kernelMessages(fsfd))
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return noDescriptor, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}

// kernelMessages returns the kernel's messages about a failed step, in parentheses, or "".
func kernelMessages(fsfd int) string {
	var messages []string
	buf := make([]byte, 1024)
	for {
		n, err := unix.Read(fsfd, buf) // each read returns one message, and fails when there are no more
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

// setReadOnly makes a mount read-only or writable. Other mounts of the same file system don't change.
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

// detach unmounts exactly the mount whose root fd is, wherever its path leads now, because the magic link stands for the descriptor and not
// for a path. The kernel also unmounts every peer, so the mount disappears from the host when the plugin runs in a container. The unmount
// must be lazy, because fd itself keeps the mount busy.
func detach(fd int) error {
	if err := unix.Unmount(procPath(fd), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount: %w", err)
	}
	return nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

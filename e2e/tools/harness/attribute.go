package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// AttributePrefix returns what starts the names of the extended attributes of a mounted volume.
func AttributePrefix(target string) (string, error) {
	for _, prefix := range []string{"trusted.refvol.", "security.refvol."} {
		if _, err := unix.Getxattr(target, prefix+"volume", nil); err == nil {
			return prefix, nil
		}
	}
	return "", fmt.Errorf("%s has neither attribute of a volume", target)
}

// ChangeVolume calls change with a path below which a mounted volume can be written, though it is mounted read-only:
// as a container could that has the node's CAP_SYS_ADMIN.
func ChangeVolume(target string, change func(dir string) error) (err error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone the mount at %s: %w", target, err)
	}
	defer unix.Close(fd)
	writable := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, writable); err != nil {
		return fmt.Errorf("make a clone of the mount at %s writable: %w", target, err)
	}
	return change("/proc/self/fd/" + strconv.Itoa(fd) + "/.")
}

// Record returns the record of the generation that a mounted volume shows.
func Record(target string) (string, error) {
	prefix, err := AttributePrefix(target)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 64<<10)
	n, err := unix.Getxattr(filepath.Join(target, "..data"), prefix+"record", buf)
	if err != nil {
		return "", os.NewSyscallError("getxattr", err)
	}
	return string(buf[:n]), nil
}

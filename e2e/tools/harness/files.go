package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Mount is one line of a mountinfo file.
type Mount struct {
	// ID is the mount's id, unique among the mounts that exist now.
	ID string
	// Target is the mount point.
	Target string
	// Options are the mount's own, SuperOptions the file system's.
	Options, SuperOptions string
	// Type and Source are the file system's type and what it was mounted from.
	Type, Source string
}

// Mounts returns the mounts of this process's namespace.
func Mounts() ([]Mount, error) { return mountsThat(nil) }

// MountsBelow returns the mounts whose target is dir or below it.
func MountsBelow(dir string) ([]Mount, error) { return mountsThat(mountinfo.PrefixFilter(dir)) }

func mountsThat(filter mountinfo.FilterFunc) ([]Mount, error) {
	infos, err := mountinfo.GetMounts(filter)
	mounts := make([]Mount, 0, len(infos))
	for _, m := range infos {
		mounts = append(mounts, Mount{
			ID: strconv.Itoa(m.ID), Target: m.Mountpoint, Options: m.Options, SuperOptions: m.VFSOptions,
			Type: m.FSType, Source: m.Source,
		})
	}
	return mounts, err
}

// Pruned returns nil once a volume holds nothing but its files and the present generation: nothing of interrupted writes, nor what was kept
// for readers.
func Pruned(target string) error {
	names, err := filepath.Glob(filepath.Join(target, "..*"))
	if err == nil && (len(names) != 2 || filepath.Base(names[1]) != "..data") {
		err = fmt.Errorf("%q are there beside the files, want one generation and ..data", names)
	}
	return err
}

// Files returns the contents of the regular files of a volume by path, as a container finds them: links are followed, and
// the names that belong to the volume's own workings, which start with two dots, are left out.
func Files(dir string) (map[string]string, error) {
	files := make(map[string]string)
	return files, collectFiles(dir, "", files)
}

func collectFiles(root, dir string, into map[string]string) error {
	names, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	for _, name := range names {
		if dir == "" && strings.HasPrefix(name.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, name.Name())
		info, err := os.Stat(filepath.Join(root, path))
		switch {
		case err != nil:
		case info.IsDir():
			err = collectFiles(root, path, into)
		case info.Mode().IsRegular():
			var text []byte
			text, err = os.ReadFile(filepath.Join(root, path))
			into[path] = string(text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

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

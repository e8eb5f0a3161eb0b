package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// memory is where the new tmpfs of a sandbox is mounted. It is there on every system.
const memory = "/dev/shm"

// world is a new root that is being made.
type world struct {
	// dir is a tmpfs: it holds what the overlays' changes are kept in, and root.
	dir, root string
	// layers counts the overlays.
	layers int
	// leftOut says why some mounts of the machine are not in the new root.
	leftOut []error
}

// enterOverlay gives this process, which has a mount and a process namespace of its own, a new
// root. It is a copy of the machine's whose changes are in memory, but for the directories of keep.
func enterOverlay(keep []string) error {
	// Only the old /proc knows by which number this process goes outside.
	pid, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	w := &world{dir: memory, root: memory + "/root"}
	err = makePrivate()
	for _, step := range []func() error{
		w.makeLayers, w.makeProc, w.makeSys, w.makeDev,
		func() error { return w.keep(keep) },
		func() error { return pivot(w.root) },
	} {
		if err == nil {
			err = step()
		}
	}
	if err == nil {
		err = os.Chdir(cwd)
	}
	if err != nil {
		return errors.Join(append([]error{err}, w.leftOut...)...)
	}
	return errors.Join(os.Setenv("TMPDIR", memory), arrive(pid))
}

// makeLayers makes overlays of / and of all that is mounted below it. The kernel's own file systems
// come later.
func (w *world) makeLayers() error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	if err := mountTmpfs(w.dir); err != nil {
		return err
	}
	if err := os.Mkdir(w.root, 0o755); err != nil {
		return err
	}
	if err := w.overlay("/"); err != nil {
		return err
	}
	var made []string
	for _, m := range mounts {
		if m.Mountpoint == "/" || isBelow(m.Mountpoint, "/proc", "/sys", "/dev") || slices.Contains(made, m.Mountpoint) {
			continue
		}
		made = append(made, m.Mountpoint)
		if err := w.copyMount(m.Mountpoint); err != nil {
			w.leftOut = append(w.leftOut, fmt.Errorf("%s (%s) is left out: %w", m.Mountpoint, m.FSType, err))
		}
	}
	return nil
}

// copyMount copies what is mounted at a path: as an overlay, or the content of a file.
func (w *world) copyMount(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return w.overlay(path)
	}
	const most = 1 << 20 // such as a container's /etc/resolv.conf
	if !info.Mode().IsRegular() || info.Size() > most {
		return errors.New("neither a directory nor a small file")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(w.root+path, content, info.Mode().Perm())
}

func (w *world) overlay(path string) error {
	w.layers++
	upper, work := fmt.Sprintf("%s/upper%d", w.dir, w.layers), fmt.Sprintf("%s/work%d", w.dir, w.layers)
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return err
	}
	if err := copyAttributes(path, upper); err != nil {
		return err
	}
	escaped := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(path)
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escaped, upper, work)
	return wrap("mount an overlay of "+path, unix.Mount("overlay", filepath.Join(w.root, path), "overlay", 0, options))
}

// copyAttributes gives a directory the mode and owner of another: an overlay's root has those of its
// upper layer.
func copyAttributes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777))
}

// makeProc mounts a proc of this process's own namespace: that of the machine has a link to the
// root of each process.
func (w *world) makeProc() error {
	return wrap("mount proc", unix.Mount("proc", w.root+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
}

// makeSys shows /sys, in which nothing can be removed, and in it the control groups, which tests
// make, and SELinux. What else is mounted there would lead outside.
func (w *world) makeSys() error {
	if err := bind("/sys", w.root+"/sys", 0); err != nil {
		return err
	}
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/selinux"} {
		if mounted, err := mountinfo.Mounted(path); err != nil || !mounted {
			continue
		}
		if err := bind(path, w.root+path, unix.MS_REC); err != nil {
			return err
		}
	}
	return nil
}

// makeDev makes a /dev with what a container has there: the names of the machine's devices could be
// removed.
func (w *world) makeDev() error {
	dev := w.root + "/dev"
	if err := mountTmpfs(dev); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := os.WriteFile(dev+"/"+name, nil, 0o600); err != nil {
			return err
		}
		if err := bind("/dev/"+name, dev+"/"+name, 0); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir(dev+"/shm", 0o755), os.Mkdir(dev+"/pts", 0o755)); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/pts/ptmx"); err == nil {
		if err := bind("/dev/pts", dev+"/pts", 0); err != nil {
			return err
		}
	}
	return errors.Join(
		mountTmpfs(dev+"/shm"),
		os.Symlink("pts/ptmx", dev+"/ptmx"),
		os.Symlink("/proc/self/fd", dev+"/fd"),
		os.Symlink("fd/0", dev+"/stdin"), os.Symlink("fd/1", dev+"/stdout"), os.Symlink("fd/2", dev+"/stderr"))
}

// keep shows directories of the machine as they are.
func (w *world) keep(paths []string) error {
	for _, path := range paths {
		if err := bind(path, filepath.Join(w.root, path), 0); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the root of this process, and detaches the one before.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// Both at one place: the old root is then mounted on the new one.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return wrap("detach the old root", unix.Unmount(".", unix.MNT_DETACH))
}

func bind(from, to string, flags uintptr) error {
	return wrap(fmt.Sprintf("bind %s to %s", from, to), unix.Mount(from, to, "", unix.MS_BIND|flags, ""))
}

func mountTmpfs(path string) error {
	return wrap("mount a tmpfs at "+path, unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID, "mode=1777"))
}

// isBelow says whether path is one of those above, or below one.
func isBelow(path string, above ...string) bool {
	return slices.ContainsFunc(above, func(a string) bool {
		rel, err := filepath.Rel(a, path)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	})
}

// exists says whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

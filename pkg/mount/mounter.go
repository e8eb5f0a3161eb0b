// Package mount makes, proves, reopens and removes the mounts of volumes. Each volume is a tmpfs that is filled while it is detached, and
// then moved read-only to its target path in one step. It needs Linux 5.12, and does not use mount(8).
// For pods with a user namespace the runtime mounts the volume once more, with other ids. A tmpfs allows that from Linux 6.3 on.
//
// It owns the kernel's mount interface, the resolution of target paths below the kubelet's directory, and the answer to "is this mount
// ours?". It must not know what a volume shows, who asked for it, or how it is kept current.
//
// A mount is ours if a single descriptor proves all of this: it is the root of a mount, the root of a tmpfs, and has the attribute
// "<driver>:<volume id>". Nothing is written through a descriptor without this proof, because between two system calls a path may come to
// lead to another mount, or to none. A volume whose attribute was damaged is never written again. To unmount it, the source of its mount is
// enough proof.
package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// The errors that callers distinguish with errors.Is.
var (
	// ErrNotMounted says that nothing is mounted at the target, or that the target does not exist.
	ErrNotMounted = errors.New("not mounted")
	// ErrForeign says that something at the target does not belong to this volume, and was left alone.
	ErrForeign = errors.New("not of this volume")
	// ErrOutside says that the target is not below the kubelet's directory, or that a symbolic link is in its path.
	ErrOutside = errors.New("outside of the kubelet's directory")
)

// Mounter makes and finds the mounts of one driver. It is safe for concurrent use, and keeps no descriptor open. The caller must order
// calls for the same volume or target.
type Mounter struct {
	driver, kubeletDir, seLinuxContext string
	// noswap means that the kernel can keep tmpfs pages out of swap. hugeNever means that it can disable huge pages: otherwise a file of a
	// few bytes may use one of 2 MiB.
	noswap, hugeNever bool
	// attributePrefix is the prefix of the names of extended attributes that we may set.
	attributePrefix string
	// shared is taken from the mount table by List; nil before that.
	shared atomic.Pointer[map[uint64]bool]
}

// New returns a Mounter. It makes and drops a detached tmpfs to find out what the kernel allows. The error says what is missing. It logs a
// warning if values may reach swap.
func New(ctx context.Context, opts Options) (*Mounter, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("mount options: %w", err)
	}
	m := &Mounter{driver: opts.Driver, kubeletDir: filepath.Clean(opts.KubeletDir), seLinuxContext: opts.SELinuxContext}
	if err := m.probe(ctx); err != nil {
		return nil, explain(err)
	}
	return m, nil
}

// AttributePrefix returns the prefix of the extended attributes of files and directories in volumes, such as "trusted.refvol.". A container
// without the node's CAP_SYS_ADMIN cannot set them. The attribute "volume" of the root directory belongs to the Mounter.
func (m *Mounter) AttributePrefix() string { return m.attributePrefix }

// Create makes a tmpfs that is not visible anywhere yet: writable, nosuid, nodev, noexec, limited in size and inodes. The caller must close
// the Volume. Unless it was attached, the tmpfs then disappears.
func (m *Mounter) Create(ctx context.Context, p Params) (*Volume, error) {
	if err := cmp.Or(ValidateVolumeID(p.VolumeID), ctx.Err()); err != nil {
		return nil, fmt.Errorf("volume %q: %w", p.VolumeID, err)
	}
	v, err := m.newDetached(p)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", p.VolumeID, err)
	}
	if err := v.setAttribute(m.attributePrefix); err != nil {
		return nil, errors.Join(fmt.Errorf("volume %s: %w", p.VolumeID, err), v.Close())
	}
	return v, nil
}

// newDetached makes a tmpfs without the attribute that proves it.
func (m *Mounter) newDetached(p Params) (*Volume, error) {
	fd, err := newTmpfs(m.settings(p))
	if err != nil {
		return nil, err
	}
	v, err := m.newVolume(p.VolumeID, fd)
	if err == nil {
		v.attachable = true
	}
	return v, err
}

// Reopen returns a writable handle on a volume that is mounted at target. What is visible there stays read-only. If the mount is not proven
// to be this volume's, the error matches ErrNotMounted, and also ErrForeign or ErrOutside if that is the reason. Any other error says
// nothing about the mount. The caller must close the Volume.
func (m *Mounter) Reopen(ctx context.Context, volumeID, target string) (v *Volume, err error) {
	err = m.withProven(ctx, "reopen", volumeID, target, func(fd int) error {
		v, err = m.clone(volumeID, fd)
		return err
	})
	if errors.Is(err, ErrForeign) || errors.Is(err, ErrOutside) {
		err = fmt.Errorf("%w: %w", ErrNotMounted, err)
	}
	return v, err
}

// Check returns nil if the mount at target belongs to this volume. Otherwise the error matches ErrNotMounted, ErrForeign or ErrOutside, or
// says why the check failed.
func (m *Mounter) Check(ctx context.Context, volumeID, target string) error {
	return m.withProven(ctx, "check", volumeID, target, func(int) error { return nil })
}

// Open returns the root directory of the volume mounted at target, read-only as everybody sees it, and the volume's usage. Its errors are
// those of Check. The caller must close the directory.
func (m *Mounter) Open(ctx context.Context, volumeID, target string) (root *os.Root, usage Usage, err error) {
	err = m.withProven(ctx, "open", volumeID, target, func(fd int) error {
		if usage, err = usageAt(fd); err == nil {
			root, err = os.OpenRoot(procPath(fd))
		}
		return err
	})
	return root, usage, err
}

// withProven calls do with a descriptor of the volume's mount at the target path.
func (m *Mounter) withProven(ctx context.Context, what, volumeID, path string, do func(fd int) error) error {
	fd, err := m.openProven(volumeID, path)
	if err == nil {
		if err = ctx.Err(); err == nil {
			err = do(fd)
		}
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("volume %.*s: %s %s: %w", maxVolumeIDLength, volumeID, what, path, err)
	}
	return nil
}

// Unmount unmounts this volume from target, also if it is stacked there several times, and removes the empty directory below. It returns
// nil if nothing is mounted. If something else is there, it leaves that alone and returns an error that matches ErrForeign. It ignores the
// cancellation of ctx, so that it can clean up after a cancelled call. Processes that have the volume open, or mounted in a container, keep
// it until they end.
func (m *Mounter) Unmount(ctx context.Context, volumeID, target string) error {
	if err := m.unmount(ctx, volumeID, target); err != nil {
		return fmt.Errorf("volume %.*s: unmount %s: %w", maxVolumeIDLength, volumeID, target, err)
	}
	return nil
}

func (m *Mounter) unmount(ctx context.Context, volumeID, path string) error {
	if err := ValidateVolumeID(volumeID); err != nil {
		return err
	}
	t, err := m.resolve(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.close()
	for {
		err := m.unmountTop(volumeID, t)
		if errors.Is(err, ErrNotMounted) {
			return t.rmdir()
		}
		if err != nil {
			return err
		}
		klog.FromContext(ctx).V(4).Info("Unmounted", "target", path)
	}
}

// unmountTop unmounts the uppermost mount at the target if it belongs to the volume.
func (m *Mounter) unmountTop(volumeID string, t *target) error {
	fd, err := t.open()
	if err != nil {
		return notMounted(err)
	}
	defer unix.Close(fd)
	if err = m.prove(fd, volumeID); errors.Is(err, ErrForeign) {
		err = m.proveBySource(fd, volumeID)
	}
	if err != nil {
		return err
	}
	return detach(fd)
}

// Usage is how much of a volume is used, including deleted files that readers still have open. Capacity, Available and Used are in bytes.
type Usage struct {
	Capacity, Available, Used      int64
	Inodes, InodesFree, InodesUsed int64
}

func usageAt(fd int) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return Usage{}, fmt.Errorf("statfs: %w", err)
	}
	return usageOf(&st), nil
}

func usageOf(st *unix.Statfs_t) Usage {
	block := int64(st.Bsize)
	return Usage{
		Capacity:   int64(st.Blocks) * block,
		Available:  int64(st.Bavail) * block,
		Used:       int64(st.Blocks-st.Bfree) * block,
		Inodes:     int64(st.Files),
		InodesFree: int64(st.Ffree),
		InodesUsed: int64(st.Files - st.Ffree),
	}
}

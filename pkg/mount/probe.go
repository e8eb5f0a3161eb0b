package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// errNoAttributes says that the kernel has no extended attributes on tmpfs, so the plugin cannot start.
var errNoAttributes = errors.New("extended attributes on tmpfs are needed (a kernel with CONFIG_TMPFS_XATTR)")

// probe finds out what this kernel allows by doing what the other methods will do, on temporary objects. It opens the kubelet's directory,
// makes a tmpfs with as many of Create's options as the kernel accepts, sets an attribute in it, and switches it between writable and
// read-only.
func (m *Mounter) probe(ctx context.Context) error {
	dir, err := openKubeletDir(m.kubeletDir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	below, err := openBeneath(dir, ".", unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", m.kubeletDir, err)
	}
	defer unix.Close(below)
	var v *Volume
	withNoswap, err := m.tryOptions(func() (err error) {
		v, err = m.newDetached(Params{VolumeID: "probe", Size: 4096, Inodes: 8, Mode: 0o700, UID: volume.NoOwner, GID: volume.NoOwner})
		return err
	})
	if err != nil {
		return err
	}
	defer v.Close()
	if !m.noswap {
		klog.FromContext(ctx).Info("Warning: this kernel refuses noswap here, so values may reach a swap device; turn swap off or encrypt it", "err", withNoswap)
	}
	if err := m.probeAttributes(v); err != nil {
		return err
	}
	if err := setReadOnly(v.mount, true); err != nil {
		return err
	}
	return setReadOnly(v.mount, false)
}

// tryOptions sets the optional mount options to those with which try succeeds. noswap is more important than huge=never, and a tmpfs
// without both is better than none. It returns why noswap was refused, if it was, and the last error if no try succeeded.
func (m *Mounter) tryOptions(try func() error) (withNoswap, err error) {
	for _, m.noswap = range []bool{true, false} {
		for _, m.hugeNever = range []bool{true, false} {
			if err = try(); err == nil {
				return withNoswap, nil
			}
			if m.noswap {
				withNoswap = err
			}
		}
	}
	return withNoswap, err
}

// probeAttributes finds out in which namespace for node administrators the kernel lets us set attributes. In a user namespace the first one
// is refused. Without attributes no mount could be proven to be ours, and files could not name their objects.
func (m *Mounter) probeAttributes(v *Volume) (err error) {
	for _, m.attributePrefix = range []string{"trusted.refvol.", "security.refvol."} {
		refusal := v.setAttribute(m.attributePrefix)
		if refusal == nil {
			return nil
		}
		err = errors.Join(err, refusal)
	}
	return fmt.Errorf("%w: %w", errNoAttributes, err)
}

// explain adds to a probe's error what an operator can do.
func explain(err error) error {
	switch {
	case errors.Is(err, errNoAttributes):
		return err
	case errors.Is(err, unix.ENOSYS):
		var uts unix.Utsname
		_ = unix.Uname(&uts)
		return fmt.Errorf("the kernel is too old: Linux 5.12 or newer is needed, this is %s: %w", unix.ByteSliceToString(uts.Release[:]), err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("the capability CAP_SYS_ADMIN is needed (a privileged container, or a user and mount namespace): %w", err)
	}
	return fmt.Errorf("probe the kernel's mount interface: %w", err)
}

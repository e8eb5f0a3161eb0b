package mount

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// probe finds out what this kernel grants, by doing on throw-away objects what the
// other methods will do.
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
	if err := m.probeTmpfs(ctx); err != nil {
		return err
	}
	m.identify = identifyByStatmount
	if err := probeStatmount(below); err != nil {
		klog.FromContext(ctx).V(2).Info("Telling mounts apart by the mount table, for want of statmount", "err", err)
		m.identify = identifyByMountTable
	}
	return nil
}

// probeTmpfs makes a tmpfs as Create does, first with noswap, sets an attribute in it, and
// switches it between writable and read-only.
func (m *Mounter) probeTmpfs(ctx context.Context) error {
	params := Params{VolumeID: "probe", Size: 4096, Inodes: 8, Mode: 0o700, UID: volume.NoOwner, GID: volume.NoOwner}
	v, err := m.Create(ctx, params)
	if err != nil {
		withNoswap := err
		m.noswap = false
		if v, err = m.Create(ctx, params); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Warning: this kernel refuses noswap here, so values may reach a swap device; turn swap off or encrypt it", "err", withNoswap)
	}
	defer v.Close()
	if err := m.probeAttributes(v); err != nil {
		return err
	}
	if err := setReadOnly(v.mount, true); err != nil {
		return err
	}
	return setReadOnly(v.mount, false)
}

// The namespaces of attributes that are for the node's administrators only. In a user
// namespace the kernel refuses the first one.
const (
	trustedAttributes  = "trusted.refvol."
	securityAttributes = "security.refvol."
)

// probeAttributes finds out which attributes the kernel lets us set. Without any, files
// could not name the objects that need consent, and a revocation could not be relied upon.
func (m *Mounter) probeAttributes(v *Volume) error {
	dir, err := v.root.Open(".")
	if err != nil {
		return fmt.Errorf("open the root of a tmpfs: %w", err)
	}
	defer dir.Close()
	var errs []error
	for _, prefix := range []string{trustedAttributes, securityAttributes} {
		if err := unix.Fsetxattr(int(dir.Fd()), prefix+"probe", []byte("1"), 0); err != nil {
			errs = append(errs, fmt.Errorf("set attribute %sprobe: %w", prefix, err))
			continue
		}
		m.attributePrefix = prefix
		return nil
	}
	return fmt.Errorf("%w: %w", errNoAttributes, errors.Join(errs...))
}

// errNoAttributes is why the plugin doesn't start on a kernel that keeps no attributes.
var errNoAttributes = errors.New("extended attributes on tmpfs are needed (a kernel with CONFIG_TMPFS_XATTR)")

// explain adds what an operator can do about a probe that failed.
func explain(err error) error {
	switch {
	case errors.Is(err, errNoAttributes):
		return err
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("the kernel is too old: Linux 5.12 or newer is needed, this is %s: %w", kernelRelease(), err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("the capability CAP_SYS_ADMIN is needed (a privileged container, or a user and mount namespace): %w", err)
	}
	return fmt.Errorf("probe the kernel's mount interface: %w", err)
}

func kernelRelease() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(uts.Release[:])
}

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
	return m.probeTmpfs(ctx)
}

// probeTmpfs makes a tmpfs as Create does, with as many of its options as the kernel takes, sets an
// attribute in it, and switches it between writable and read-only.
func (m *Mounter) probeTmpfs(ctx context.Context) error {
	params := Params{VolumeID: "probe", Size: 4096, Inodes: 8, Mode: 0o700, UID: volume.NoOwner, GID: volume.NoOwner}
	var v *Volume
	withNoswap, err := m.tryOptions(func() (err error) {
		v, err = m.newDetached(params)
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

// tryOptions sets the options that not each kernel takes to those with which try succeeds: a
// tmpfs without huge=never is better than one without noswap, and one without both better than none. It
// returns why noswap was refused, if it was, and the last error if nothing succeeded.
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

// The namespaces of attributes that are for the node's administrators only. In a user
// namespace the kernel refuses the first one.
const (
	trustedAttributes  = "trusted.refvol."
	securityAttributes = "security.refvol."
)

// probeAttributes finds out which attributes the kernel lets us set. Without any, no mount
// could be told to be ours, and files could not name the objects that need consent.
func (m *Mounter) probeAttributes(v *Volume) error {
	var errs []error
	for _, prefix := range []string{trustedAttributes, securityAttributes} {
		if err := v.setAttribute(prefix); err != nil {
			errs = append(errs, err)
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

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

// Options say whose mounts a Mounter makes, and where.
type Options struct {
	// Driver is the CSI driver's name; the mounts carry the source "<driver>:<volume id>".
	Driver string
	// KubeletDir is the kubelet's root directory, absolute. It must exist, and may be reached through symbolic links;
	// targets must lie below it, and may not.
	KubeletDir string
	// SELinuxContext is the context of every file in every volume, or "" for none.
	SELinuxContext string
}

// The kernel takes 255 bytes as the source of a mount; these two and a colon fit.
const (
	maxDriverLength   = 63
	maxVolumeIDLength = 128
)

var (
	driverForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)
	volumeIDForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

func (o *Options) validate() error {
	var errs []error
	if !driverForm.MatchString(o.Driver) || len(o.Driver) > maxDriverLength {
		errs = append(errs, fmt.Errorf("Driver: Invalid value: %q: must be 1 to %d letters, digits, '-' and '.', and start with a letter or digit", o.Driver, maxDriverLength))
	}
	if !filepath.IsAbs(o.KubeletDir) {
		errs = append(errs, fmt.Errorf("KubeletDir: Invalid value: %q: must be an absolute path", o.KubeletDir))
	}
	if strings.ContainsRune(o.SELinuxContext, 0) {
		errs = append(errs, errors.New("SELinuxContext: Invalid value: must not contain a NUL byte"))
	}
	return errors.Join(errs...)
}

// Params describe a volume to make. Whoever makes them has checked them; the kernel refuses what it can't do.
type Params struct {
	// VolumeID identifies the volume on this node; see ValidateVolumeID.
	VolumeID string
	// Size is the limit of the content in bytes; the kernel rounds it up to pages.
	Size int64
	// Inodes is the limit of files, directories and links, the root directory included; each hard link counts, and
	// since Linux 6.6 each KiB of attributes. The Mounter's own attribute is not in it.
	Inodes int64
	// Mode is that of the root directory: permission bits, and fs.ModeSetgid.
	Mode fs.FileMode
	// UID and GID own the root directory; volume.NoOwner stands for root.
	UID, GID int
}

// ValidateVolumeID says what keeps an id from being that of a volume, nil if nothing does.
func ValidateVolumeID(id string) error {
	if volumeIDForm.MatchString(id) && len(id) <= maxVolumeIDLength {
		return nil
	}
	return fmt.Errorf("VolumeID: Invalid value: %.*q: must be 1 to %d letters, digits, '.', '_' and '-', and start with a letter or digit", maxVolumeIDLength, id, maxVolumeIDLength)
}

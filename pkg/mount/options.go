package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

// Options are the options of a Mounter.
type Options struct {
	// Driver is the CSI driver's name. The mounts have the source "<driver>:<volume id>".
	Driver string
	// KubeletDir is the absolute path of the kubelet's root directory. It must exist. Its path may have symbolic links, but the paths of
	// targets below it may not.
	KubeletDir string
	// SELinuxContext is the context of every file in every volume, or "" for none.
	SELinuxContext string
}

// The kernel accepts 255 bytes as the source of a mount. These two and a colon fit.
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

// Params describe a new volume. The caller has checked them. The kernel refuses what it cannot do.
type Params struct {
	// VolumeID identifies the volume on this node; see ValidateVolumeID.
	VolumeID string
	// Size limits the content in bytes. The kernel rounds it up to pages.
	Size int64
	// Inodes limits the number of files, directories and links, including the root directory. Each hard link counts, and since Linux 6.6
	// each KiB of attributes. The Mounter's own attribute does not count.
	Inodes int64
	// Mode is the mode of the root directory: permission bits and fs.ModeSetgid.
	Mode fs.FileMode
	// UID and GID own the root directory. volume.NoOwner stands for root.
	UID, GID int
}

// ValidateVolumeID returns an error if an ID cannot be that of a volume.
func ValidateVolumeID(id string) error {
	if volumeIDForm.MatchString(id) && len(id) <= maxVolumeIDLength {
		return nil
	}
	return fmt.Errorf("VolumeID: Invalid value: %.*q: must be 1 to %d letters, digits, '.', '_' and '-', and start with a letter or digit", maxVolumeIDLength, id, maxVolumeIDLength)
}

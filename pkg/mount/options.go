package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"

	"github.com/refvol/refvol/pkg/volume"
)

// Options say whose mounts a Mounter makes, and where.
type Options struct {
	// Driver is the CSI driver's name; the mounts carry the source
	// "<driver>:<volume id>".
	Driver string
	// KubeletDir is the kubelet's root directory, absolute. It must exist, and may be
	// reached through symbolic links; targets must lie below it, and may not.
	KubeletDir string
	// SELinuxContext is the context of every file in every volume, or "" for none.
	SELinuxContext string
}

// The kernel takes 255 bytes as the source of a mount; these two and a colon fit.
const (
	maxDriverLength   = 63
	maxVolumeIDLength = 128
)

func (o *Options) validate() error {
	var errs []error
	if !isName(o.Driver, maxDriverLength, "-.") {
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

func (o *Options) kubeletDir() string { return filepath.Clean(o.KubeletDir) }

// Params describe a volume to make.
type Params struct {
	// VolumeID identifies the volume on this node: 1 to 128 letters, digits and
	// "._-", of which the first is a letter or digit.
	VolumeID string
	// Size is the limit of the content in bytes; the kernel rounds it up to pages.
	Size int64
	// Inodes is the limit of files, directories and links, the root directory
	// included; each hard link counts, and since Linux 6.6 each KiB of attributes. The
	// Mounter's own attribute is not in it.
	Inodes int64
	// Mode is that of the root directory: permission bits, and fs.ModeSetgid.
	Mode fs.FileMode
	// UID and GID own the root directory; volume.NoOwner stands for root.
	UID, GID int
}

func (p *Params) validate() error {
	errs := []error{ValidateVolumeID(p.VolumeID)}
	if p.Size <= 0 {
		errs = append(errs, fmt.Errorf("Size: Invalid value: %d: must be positive", p.Size))
	}
	if p.Inodes <= 0 {
		errs = append(errs, fmt.Errorf("Inodes: Invalid value: %d: must be positive", p.Inodes))
	}
	if p.Mode&^(fs.ModePerm|fs.ModeSetgid) != 0 || p.Mode.Perm() == 0 {
		errs = append(errs, fmt.Errorf("Mode: Invalid value: %v: must be permission bits, and setgid where wanted", p.Mode))
	}
	errs = append(errs, validateOwner("UID", p.UID), validateOwner("GID", p.GID))
	return errors.Join(errs...)
}

// ValidateVolumeID says what keeps an id from being that of a volume, nil if nothing does.
func ValidateVolumeID(id string) error {
	if isName(id, maxVolumeIDLength, "._-") {
		return nil
	}
	return fmt.Errorf("VolumeID: Invalid value: %.*q: must be 1 to %d letters, digits, '.', '_' and '-', and start with a letter or digit", maxVolumeIDLength, id, maxVolumeIDLength)
}

func validateOwner(field string, id int) error {
	// The kernel takes the largest 32-bit number to mean "no change".
	if id == volume.NoOwner || id >= 0 && int64(id) < math.MaxUint32 {
		return nil
	}
	return fmt.Errorf("%s: Invalid value: %d: must be between 0 and %d, or volume.NoOwner", field, id, uint32(math.MaxUint32-1))
}

// isName says whether s has between 1 and longest bytes that are ASCII letters, digits
// or, but for the first, one of others.
func isName(s string, longest int, others string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || strings.IndexByte(others, c) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= longest
}

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

func TestSettings(t *testing.T) {
	base := []setting{{"source", "csi.refvol.dev:v1"}, {"size", "65536"}, {"nr_inodes", "101"}}
	for name, tc := range map[string]struct {
		mounter *Mounter
		params  Params
		want    []setting
	}{
		"plain": {
			&Mounter{},
			Params{Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner},
			[]setting{{"mode", "755"}},
		},
		"owned by root": {
			&Mounter{},
			Params{Mode: 0o700, UID: 0, GID: 0},
			[]setting{{"mode", "700"}, {"uid", "0"}, {"gid", "0"}},
		},
		"group only, setgid": {
			&Mounter{},
			Params{Mode: 0o550 | fs.ModeSetgid, UID: volume.NoOwner, GID: 2000},
			[]setting{{"mode", "2550"}, {"gid", "2000"}},
		},
		"all": {
			&Mounter{noswap: true, hugeNever: true, seLinuxContext: "system_u:object_r:container_file_t:s0:c1,c2"},
			Params{Mode: 0o755, UID: 1, GID: 2},
			[]setting{{"mode", "755"}, {"uid", "1"}, {"gid", "2"}, {"context", "system_u:object_r:container_file_t:s0:c1,c2"}, {"huge", "never"}, {"noswap", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.mounter.driver = "csi.refvol.dev"
			tc.params.VolumeID, tc.params.Size, tc.params.Inodes = "v1", 65536, 100
			got := tc.mounter.settings(tc.params)
			if want := slices.Concat(base, tc.want); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestOptionsThatTheKernelRefuses: each is left out alone.
func TestOptionsThatTheKernelRefuses(t *testing.T) {
	errHuge, errNoswap, errNone := errors.New("no huge"), errors.New("no noswap"), errors.New("no tmpfs")
	for name, tc := range map[string]struct {
		huge, noswap, none bool // refused
		wantNoswap, want   error
	}{
		"none":          {},
		"huge":          {huge: true},
		"noswap":        {noswap: true, wantNoswap: errNoswap},
		"both":          {huge: true, noswap: true, wantNoswap: errNoswap},
		"no tmpfs ever": {none: true, wantNoswap: errNone, want: errNone},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Mounter{}
			withNoswap, err := m.tryOptions(func() error {
				switch {
				case tc.none:
					return errNone
				case tc.huge && m.hugeNever:
					return errHuge
				case tc.noswap && m.noswap:
					return errNoswap
				}
				return nil
			})
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && (m.hugeNever == tc.huge || m.noswap == tc.noswap || !m.noswap && !errors.Is(withNoswap, tc.wantNoswap)) {
				t.Errorf("huge=never: %t, noswap: %t, %v", m.hugeNever, m.noswap, withNoswap)
			}
		})
	}
}

// The kernel takes a source of 255 bytes, and the longest names must fit.
func TestLongestSourceFits(t *testing.T) {
	m := &Mounter{driver: strings.Repeat("d", maxDriverLength)}
	if n := len(m.source(strings.Repeat("v", maxVolumeIDLength))); n > maxSource {
		t.Errorf("the longest source has %d bytes, the kernel takes %d", n, maxSource)
	}
}

func TestExplain(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"old kernel":  {fmt.Errorf("mount_setattr: %w", unix.ENOSYS), "Linux 5.12 or newer is needed, this is "},
		"not allowed": {fmt.Errorf("fsopen: %w", unix.EPERM), "CAP_SYS_ADMIN"},
		"no attributes": {
			fmt.Errorf("%w: set attribute trusted.refvol.volume: %w", errNoAttributes, unix.EPERM),
			"extended attributes on tmpfs are needed (a kernel with CONFIG_TMPFS_XATTR): set attribute trusted.refvol.volume: operation not permitted",
		},
		"other": {unix.EINVAL, "probe the kernel's mount interface"},
	} {
		t.Run(name, func(t *testing.T) {
			err := explain(tc.err)
			checkText(t, err, tc.want)
			if !errors.Is(err, tc.err) {
				t.Errorf("%v does not wrap %v", err, tc.err)
			}
		})
	}
}

func TestUsageOf(t *testing.T) {
	st := unix.Statfs_t{Bsize: 4096, Blocks: 10, Bfree: 7, Bavail: 6, Files: 20, Ffree: 15}
	want := Usage{Capacity: 40960, Available: 24576, Used: 12288, Inodes: 20, InodesFree: 15, InodesUsed: 5}
	if got := usageOf(&st); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

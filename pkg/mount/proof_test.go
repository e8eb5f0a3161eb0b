package mount

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// These need no mount of ours; those that do are in the integration tier.
func TestProve(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/file")
	for name, tc := range map[string]struct {
		path string
		want error
		text string
	}{
		"directory":              {dir, ErrNotMounted, "not mounted"},
		"file":                   {dir + "/file", ErrNotMounted, "not mounted"},
		"foreign mount":          {"/proc", ErrForeign, "no tmpfs"},
		"directory of a foreign": {"/proc/self", ErrNotMounted, "not mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Mounter{driver: "d", attributePrefix: "trusted.refvol."}
			fd := openPath(t, tc.path)
			for how, prove := range map[string]func(int, string) error{"attribute": m.prove, "mount table": m.proveBySource} {
				err := prove(fd, "v")
				if !errors.Is(err, tc.want) {
					t.Errorf("%s: got %v, want %v", how, err, tc.want)
				}
				checkText(t, err, tc.text)
			}
		})
	}
}

// A descriptor that tells nothing is no proof of anything.
func TestProveWithoutAnAnswer(t *testing.T) {
	m := &Mounter{driver: "d", attributePrefix: "trusted.refvol."}
	err := m.prove(-1, "v")
	if !errors.Is(err, unix.EBADF) || errors.Is(err, ErrNotMounted) || errors.Is(err, ErrForeign) {
		t.Errorf("got %v, want %v alone", err, unix.EBADF)
	}
}

// Nothing but the lack of a proven mount may count as "not mounted": callers give a
// volume up for that.
func TestReopenErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		target string
		want   error
	}{
		"plain directory":   {"v", ErrNotMounted},
		"missing directory": {"w", fs.ErrNotExist},
		"outside":           {"../../../outside", ErrOutside},
		"link":              {"link", ErrOutside},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := tree(t)
			symlink(t, "v", m.kubeletDir+"/pods/1/link")
			before := openDescriptors(t)
			v, err := m.Reopen(t.Context(), "v", m.kubeletDir+"/pods/1/"+tc.target)
			if v != nil || !errors.Is(err, tc.want) {
				t.Errorf("got %v, %v; want %v", v, err, tc.want)
			}
			if !errors.Is(err, ErrNotMounted) {
				t.Errorf("%v: want ErrNotMounted too", err)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

func TestMethodsRefuseBadIDs(t *testing.T) {
	m, _ := tree(t)
	target := m.kubeletDir + "/pods/1/v"
	ctx := t.Context()
	_, createErr := m.Create(ctx, Params{VolumeID: "a/b", Size: 1, Inodes: 1, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner})
	_, reopenErr := m.Reopen(ctx, "a/b", target)
	_, _, openErr := m.Open(ctx, "a/b", target)
	for name, err := range map[string]error{
		"Create":  createErr,
		"Reopen":  reopenErr,
		"Open":    openErr,
		"Check":   m.Check(ctx, "a/b", target),
		"Unmount": m.Unmount(ctx, "a/b", target),
	} {
		t.Run(name, func(t *testing.T) { checkText(t, err, "VolumeID: Invalid value") })
	}
	if _, err := os.Stat(target); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
}

// Without any mount, Unmount removes an empty directory and touches nothing else.
func TestUnmountWithoutMount(t *testing.T) {
	m, outside := tree(t)
	pod := m.kubeletDir + "/pods/1"
	mkdirAll(t, pod+"/full/x")
	writeFile(t, pod+"/file")
	symlink(t, outside, pod+"/link")
	for name, tc := range map[string]struct {
		target string
		want   error
		stays  bool
	}{
		"missing":           {pod + "/missing", nil, false},
		"parent missing":    {pod + "/missing/mount", nil, false},
		"pod missing":       {m.kubeletDir + "/pods/2/v/mount", nil, false},
		"parent is a file":  {pod + "/file/mount", nil, false},
		"empty directory":   {pod + "/v", nil, false},
		"not empty":         {pod + "/full", ErrForeign, true},
		"file":              {pod + "/file", ErrForeign, true},
		"link":              {pod + "/link", ErrOutside, true},
		"below a link":      {pod + "/link/v", ErrOutside, true},
		"outside":           {outside + "/v", ErrOutside, true},
		"the directory":     {m.kubeletDir, ErrOutside, true},
		"relative":          {"pods/1", ErrOutside, false},
		"through a parent":  {m.kubeletDir + "/../outside/v", ErrOutside, true},
		"NUL in the target": {pod + "/a\x00b", ErrOutside, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := m.Unmount(t.Context(), "v", tc.target); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := os.Lstat(tc.target); (err == nil) != tc.stays {
				t.Errorf("lstat says %v; it should stay: %t", err, tc.stays)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/file")
	for name, tc := range map[string]struct {
		opts Options
		want string
	}{
		"bad options":              {Options{}, "mount options: Driver: Invalid value"},
		"missing directory":        {Options{Driver: "d", KubeletDir: dir + "/nowhere"}, "open the kubelet's directory " + dir + "/nowhere: no such file"},
		"directory that is a file": {Options{Driver: "d", KubeletDir: dir + "/file"}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			before := openDescriptors(t)
			m, err := New(t.Context(), tc.opts)
			if m != nil {
				t.Errorf("got a Mounter, want none")
			}
			checkText(t, err, tc.want)
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

func openPath(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/sandbox"
)

func TestRelative(t *testing.T) {
	for path, want := range map[string]string{
		"/k/pods/1/mount":   "pods/1/mount",
		"/k//pods/./1/":     "pods/1",
		"/k/..pods/mount":   "..pods/mount",
		"/k":                "",
		"/k/.":              "",
		"/":                 "",
		"/kubelet2/pods":    "",
		"/etc/passwd":       "",
		"/k/../etc":         "",
		"/k/pods/../1":      "",
		"/k/..":             "",
		"k/pods/1":          "",
		"":                  "",
		"../k/pods":         "",
		"/k/pods/1\x00":     "",
		"/proc/self/root/k": "",
	} {
		got, err := relative("/k", path)
		if got != want || (want == "") != errors.Is(err, ErrOutside) {
			t.Errorf("relative(%q) = %q, %v; want %q", path, got, err, want)
		}
	}
}

// tree makes a kubelet's directory, reached through a symbolic link, beside a
// directory that must never be touched.
func tree(t *testing.T) (m *Mounter, outside string) {
	t.Helper()
	top := t.TempDir()
	outside = filepath.Join(top, "outside")
	mkdirAll(t, filepath.Join(top, "real/pods/1/v"), filepath.Join(outside, "v/mount"))
	sandbox.NewOutside(t, outside)
	symlink(t, "real", filepath.Join(top, "kubelet"))
	return &Mounter{driver: "d", kubeletDir: filepath.Join(top, "kubelet")}, outside
}

func TestResolve(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, pods, outside string)
		target  string // below pods/1
		want    error
	}{
		"directory":                {nil, "v", nil},
		"missing":                  {nil, "v/mount", fs.ErrNotExist},
		"parent missing":           {nil, "w/mount", fs.ErrNotExist},
		"through another's parent": {nil, "v/../../1/v", ErrOutside},
		"link as the target":       {func(t *testing.T, pods, outside string) { symlink(t, outside, pods+"/1/v/mount") }, "v/mount", ErrOutside},
		"link that stays inside":   {func(t *testing.T, pods, _ string) { symlink(t, ".", pods+"/1/v/mount") }, "v/mount", ErrOutside},
		"link that dangles":        {func(t *testing.T, pods, _ string) { symlink(t, "nowhere", pods+"/1/v/mount") }, "v/mount", ErrOutside},
		"link as the parent":       {func(t *testing.T, pods, outside string) { symlink(t, outside+"/v", pods+"/1/w") }, "w/mount", ErrOutside},
		"relative link as parent":  {func(t *testing.T, pods, _ string) { symlink(t, "../../../outside/v", pods+"/1/w") }, "w/mount", ErrOutside},
		"magic link as the parent": {func(t *testing.T, pods, outside string) { symlink(t, magicLink(t, outside), pods+"/1/w") }, "w/etc", ErrOutside},
		"file as the target":       {func(t *testing.T, pods, _ string) { writeFile(t, pods+"/1/v/mount") }, "v/mount", nil},
		"file as the parent":       {func(t *testing.T, pods, _ string) { writeFile(t, pods+"/1/w") }, "w/mount", fs.ErrNotExist},
		"too long an element":      {nil, strings.Repeat("x", 256) + "/mount", fs.ErrNotExist},
		"too long a target":        {nil, "v/" + strings.Repeat("x", 256), fs.ErrNotExist},
		"too long altogether":      {nil, strings.Repeat("v/", 4096), fs.ErrNotExist},
		"pipe as the target":       {func(t *testing.T, pods, _ string) { mkfifo(t, pods+"/1/v/mount") }, "v/mount", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, outside := tree(t)
			pods := filepath.Join(m.kubeletDir, "pods")
			if tc.prepare != nil {
				tc.prepare(t, pods, outside)
			}
			before := openDescriptors(t)
			err := resolveAndOpen(m, pods+"/1/"+tc.target)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

// magicLink returns a link of proc that leads to dir wherever it is mounted.
func magicLink(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}

func resolveAndOpen(m *Mounter, path string) error {
	tgt, err := m.resolve(path)
	if err != nil {
		return err
	}
	defer tgt.close()
	fd, err := tgt.open()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

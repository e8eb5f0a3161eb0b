package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestResolveWithoutKubeletDir(t *testing.T) {
	m, _ := tree(t)
	m.kubeletDir = filepath.Join(m.kubeletDir, "nowhere")
	if _, err := m.resolve(m.kubeletDir + "/pods/1/mount"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

// What happens at a target stays with the directory that was resolved, whatever its
// path becomes meanwhile.
func TestTargetKeepsItsParent(t *testing.T) {
	m, outside := tree(t)
	v := filepath.Join(m.kubeletDir, "pods/1/v")
	tgt, err := m.resolve(v + "/mount")
	if err != nil {
		t.Fatal(err)
	}
	defer tgt.close()
	if err := os.Rename(v, v+"-moved"); err != nil {
		t.Fatal(err)
	}
	symlink(t, outside+"/v", v)

	made, err := tgt.mkdir()
	if !made || err != nil {
		t.Fatalf("mkdir: %t, %v", made, err)
	}
	if _, err := os.Stat(v + "-moved/mount"); err != nil {
		t.Errorf("the directory is not where its parent is: %v", err)
	}
	if err := tgt.rmdir(); err != nil {
		t.Errorf("rmdir: %v", err)
	}
	if _, err := os.Stat(outside + "/v/mount"); err != nil {
		t.Errorf("a directory outside was removed: %v", err)
	}
}

// A parent that turns into a link and back, as fast as it can, must never lead out.
func TestSwappedParent(t *testing.T) {
	m, outside := tree(t)
	v := filepath.Join(m.kubeletDir, "pods/1/v")
	symlink(t, outside+"/etc", v+"-link")
	// A directory's time of change tells whether anything was ever made in it.
	untouched := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(outside+"/etc", untouched, untouched); err != nil {
		t.Fatal(err)
	}
	defer swapForEver(t, v, v+"-link")()

	refused, done := 0, 0
	for refused < 50 || done < 50 {
		tgt, err := m.resolve(v + "/mount")
		if errors.Is(err, ErrOutside) {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = tgt.mkdir()
		err = errors.Join(err, tgt.rmdir())
		tgt.close()
		if err != nil {
			t.Fatal(err)
		}
		done++
	}
	if changed := modTime(t, outside+"/etc"); !changed.Equal(untouched) {
		t.Errorf("the directory outside was changed at %v", changed)
	}
}

func TestRmdir(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, target string)
		want    error
		stays   bool
	}{
		"missing":         {func(*testing.T, string) {}, nil, false},
		"empty directory": {func(t *testing.T, target string) { mkdirAll(t, target) }, nil, false},
		"not empty":       {func(t *testing.T, target string) { mkdirAll(t, target+"/x") }, ErrForeign, true},
		"file":            {func(t *testing.T, target string) { writeFile(t, target) }, ErrForeign, true},
		"link":            {func(t *testing.T, target string) { symlink(t, "..", target) }, ErrForeign, true},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := tree(t)
			path := filepath.Join(m.kubeletDir, "pods/1/v/mount")
			tc.prepare(t, path)
			tgt, err := m.resolve(path)
			if err != nil {
				t.Fatal(err)
			}
			defer tgt.close()
			if err := tgt.rmdir(); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := os.Lstat(path); (err == nil) != tc.stays {
				t.Errorf("lstat says %v; it should stay: %t", err, tc.stays)
			}
		})
	}
}

func TestIsFree(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, target string)
		want    error
	}{
		"empty":     {func(t *testing.T, target string) { mkdirAll(t, target) }, nil},
		"not empty": {func(t *testing.T, target string) { mkdirAll(t, target+"/x") }, ErrForeign},
		"file":      {func(t *testing.T, target string) { writeFile(t, target) }, ErrForeign},
		"pipe":      {func(t *testing.T, target string) { mkfifo(t, target) }, ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := tree(t)
			path := filepath.Join(m.kubeletDir, "pods/1/v/mount")
			tc.prepare(t, path)
			before := openDescriptors(t)
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.isFree(fd, "v"); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			unix.Close(fd)
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

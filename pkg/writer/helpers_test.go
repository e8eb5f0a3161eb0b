package writer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/volume"
)

// testVolume is a directory that stands for a mounted volume.
type testVolume struct {
	testing.TB
	path string
	root *os.Root
}

func TestMain(m *testing.M) {
	status, done := do()
	if !done {
		status = sandbox.Main(m)
		_ = os.Remove(builtProgram()) // there may be none
	}
	os.Exit(status)
}

// newVolume creates a volume, and beside it files that must not be changed.
func newVolume(t testing.TB) *testVolume {
	t.Helper()
	v := &testVolume{TB: t, path: filepath.Join(sandbox.TempDir(t), "volume")}
	sandbox.Outside(t, outside(v.path, ""))
	v.must(os.Mkdir(v.path, 0o755))
	var err error
	v.root, err = os.OpenRoot(v.path)
	v.must(err)
	t.Cleanup(func() { v.root.Close() })
	return v
}

// outside returns the path of a file beside the volume at path, which no write to the volume may change.
func outside(path, name string) string { return filepath.Join(filepath.Dir(path), "outside", name) }

func file(path, content string) volume.File {
	return volume.File{Path: path, Data: []byte(content), Mode: 0o644}
}

// tree returns a tree of files, sorted, and owned by the user who runs the test.
func tree(files ...volume.File) *volume.Payload {
	slices.SortFunc(files, func(a, b volume.File) int { return cmp.Compare(a.Path, b.Path) })
	return &volume.Payload{Files: files, DirMode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
}

func newInPlace(o Options) *Writer {
	o.InPlace = true
	return New(o)
}

func isGeneration(name string) bool {
	_, ok := visibleSince(name)
	return ok
}

func topNames(tree *volume.Payload) (names []string) {
	for i := range tree.Files {
		names = append(names, topOf(tree.Files[i].Path))
	}
	for _, dir := range tree.Inner {
		names = append(names, topOf(dir))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// write writes tree and prunes, expects success, and checks the result on disk.
func (v *testVolume) write(w *Writer, tree *volume.Payload) Result {
	v.Helper()
	result, err := w.Write(v.Context(), v.root, tree)
	if err != nil {
		v.Fatalf("Write: %v", err)
	}
	v.prune()
	v.check(tree)
	if got := v.readlink(dataName); result.Generation != got {
		v.Errorf("Result.Generation = %q, ..data points at %q", result.Generation, got)
	}
	return result
}

// prune removes the last generation, as the writer's user does after the readers' time.
func (v *testVolume) prune() {
	v.Helper()
	left, err := Prune(v.root, nil, nil)
	if err != nil || left > 0 {
		v.Fatalf("Prune = %v, %v", left, err)
	}
}

// check fails unless the volume shows tree and contains nothing else.
func (v *testVolume) check(tree *volume.Payload, strays ...string) {
	v.Helper()
	if got, want := v.shown(), dump(tree); got != want {
		v.Fatalf("the volume shows\n%swant\n%s", got, want)
	}
	generation := v.readlink(dataName)
	if !isGeneration(generation) {
		v.Errorf("..data points at %q, which is no name of a generation", generation)
	}
	want := append([]string{dataName, generation}, strays...)
	for _, name := range topNames(tree) {
		want = append(want, name)
		if target := v.readlink(name); target != "..data/"+name {
			v.Errorf("link %s points at %q", name, target)
		}
	}
	for _, dir := range tree.Directories {
		want = append(want, topOf(dir))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := v.names(); !slices.Equal(got, want) {
		v.Errorf("entries of the root: %q, want %q", got, want)
	}
	info := v.lstat(".")
	if got := info.Mode() & (fs.ModePerm | fs.ModeSetgid); got != tree.DirMode {
		v.Errorf("mode of the root: %v, want %v", got, tree.DirMode)
	}
}

// shown describes everything that is reachable through ..data: a line for every directory and file with mode, owner and content, or
// "nothing" without a ..data.
func (v *testVolume) shown() string {
	v.Helper()
	generation, err := os.Readlink(filepath.Join(v.path, dataName))
	if errors.Is(err, fs.ErrNotExist) {
		return "nothing\n"
	}
	v.must(err)
	top := filepath.Join(v.path, generation)
	var lines []string
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		rel, err := filepath.Rel(top, path)
		st := info.Sys().(*syscall.Stat_t)
		lines = append(lines, line(rel, info.Mode(), int(st.Uid), int(st.Gid), content))
		return err
	})
	v.must(err)
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// dump describes a tree in the form of shown.
func dump(tree *volume.Payload) string {
	uid, gid := tree.UID, tree.GID
	if uid == volume.NoOwner {
		uid = os.Getuid()
	}
	if gid == volume.NoOwner {
		gid = os.Getgid()
	}
	dirs := map[string]bool{".": true}
	var lines []string
	for _, f := range tree.Files {
		lines = append(lines, line(f.Path, f.Mode, uid, gid, f.Data))
		for dir := filepath.Dir(f.Path); dir != "."; dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	for _, dir := range tree.Inner {
		for ; dir != "."; dir = filepath.Dir(dir) {
			dirs[dir] = true
		}
	}
	for dir := range dirs {
		lines = append(lines, line(dir, tree.DirMode|fs.ModeDir, uid, gid, nil))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func line(path string, mode fs.FileMode, uid, gid int, content []byte) string {
	return fmt.Sprintf("  %-12s %v %d:%d %q\n", path, mode, uid, gid, content)
}

func (v *testVolume) names() []string {
	v.Helper()
	entries, err := os.ReadDir(v.path)
	v.must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (v *testVolume) readlink(name string) string {
	v.Helper()
	target, err := os.Readlink(filepath.Join(v.path, name))
	v.must(err)
	return target
}

func (v *testVolume) lstat(name string) fs.FileInfo {
	v.Helper()
	info, err := os.Lstat(filepath.Join(v.path, name))
	v.must(err)
	return info
}

// inode returns the status of a file that is reached through the links, without its access time.
func (v *testVolume) inode(name string) syscall.Stat_t {
	v.Helper()
	var st syscall.Stat_t
	v.must(syscall.Stat(filepath.Join(v.path, name), &st))
	st.Atim = syscall.Timespec{}
	return st
}

func (v *testVolume) must(err error) {
	v.Helper()
	if err != nil {
		v.Fatal(err)
	}
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func bothWriters() map[string]*Writer {
	return map[string]*Writer{"Atomic": New(Options{}), "InPlace": newInPlace(Options{})}
}

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

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
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
	v.root = must.Get(os.OpenRoot(v.path))(t)
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
	result := v.writes(w, tree)
	v.prune()
	v.check(tree)
	return result
}

// writes writes tree, expects success, the name of what ..data points at, and that no descriptor is left open.
func (v *testVolume) writes(w *Writer, tree *volume.Payload) Result {
	v.Helper()
	before := openDescriptors(v)
	result := must.Get(w.Write(v.Context(), v.root, tree))(v)
	expect.Equal(v, "open descriptors", openDescriptors(v), before)
	expect.Equal(v, "Result.Generation", result.Generation, v.readlink(dataName))
	return result
}

// prune removes the last generation, as the writer's user does after the readers' time.
func (v *testVolume) prune() {
	v.Helper()
	expect.Equal(v, "generations that are left", must.Get(Prune(v.root, nil, nil))(v), 0)
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
		expect.Equal(v, "target of the link "+name, v.readlink(name), "..data/"+name)
	}
	for _, dir := range tree.Directories {
		want = append(want, topOf(dir))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	expect.Equal(v, "entries of the root", v.names(), want)
	info := v.lstat(".")
	expect.Equal(v, "mode of the root", info.Mode()&(fs.ModePerm|fs.ModeSetgid), tree.DirMode)
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
	entries := must.Get(os.ReadDir(v.path))(v)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (v *testVolume) readlink(name string) string {
	v.Helper()
	return must.Get(os.Readlink(filepath.Join(v.path, name)))(v)
}

func (v *testVolume) lstat(name string) fs.FileInfo {
	v.Helper()
	return must.Get(os.Lstat(filepath.Join(v.path, name)))(v)
}

func (v *testVolume) content(path string) string {
	v.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(v.path, path)))(v))
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
	must.Do(v, err)
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	return len(must.Get(os.ReadDir("/proc/self/fd"))(t))
}

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// eachWay runs a test with each of the options: with one Writer, and with a new one, which must read what exists, whenever it asks for one.
func eachWay(t *testing.T, options []Options, test func(t *testing.T, o Options, next func() *Writer)) {
	t.Helper()
	for _, restart := range []bool{false, true} {
		for _, o := range options {
			t.Run(fmt.Sprintf("restart=%v/InPlace=%v", restart, o.InPlace), func(t *testing.T) {
				w := New(o)
				test(t, o, func() *Writer {
					if restart {
						w = New(o)
					}
					return w
				})
			})
		}
	}
}

// bothOf returns options with each strategy.
func bothOf(o Options) []Options {
	inPlace := o
	inPlace.InPlace = true
	return []Options{o, inPlace}
}

func bothWriters() map[string]*Writer {
	return map[string]*Writer{"Atomic": New(Options{}), "InPlace": newInPlace(Options{})}
}

package sandbox

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// Outside is a directory that stands for the machine in a test. Nothing in it may change.
type Outside struct {
	// Dir is its path. It has the file passwd and the directory etc, among others.
	Dir    string
	before map[string]string
}

// NewOutside creates an Outside in dir, beside the existing files. At its end, the test fails if anything in it has changed: a name, a
// content, a mode, an owner, a link, or a file's number of links. It must be called from the test's own goroutine.
func NewOutside(t testing.TB, dir string) *Outside {
	t.Helper()
	o := newOutside(t, dir)
	t.Cleanup(func() {
		t.Helper()
		for _, difference := range o.differences() {
			t.Error("outside: " + difference)
		}
	})
	return o
}

func newOutside(t testing.TB, dir string) *Outside {
	t.Helper()
	o := &Outside{Dir: dir}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = o.fill()
	}
	if err == nil {
		o.before, err = describe(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Path returns the path of a name in it.
func (o *Outside) Path(name string) string { return filepath.Join(o.Dir, name) }

func (o *Outside) differences() []string {
	now, err := describe(o.Dir)
	if err != nil {
		return []string{err.Error()}
	}
	all := maps.Clone(now)
	maps.Copy(all, o.before)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch {
		case o.before[name] == "":
			out = append(out, fmt.Sprintf("%s is new: %s", name, now[name]))
		case now[name] != o.before[name]:
			out = append(out, fmt.Sprintf("%s was %s, is %s", name, o.before[name], cmp.Or(now[name], "gone")))
		}
	}
	return out
}

// fill creates what a machine has: files with several modes, directories, and links of both kinds.
func (o *Outside) fill() error {
	for _, dir := range []string{"etc", "etc/empty", "etc/ssl"} {
		if err := os.Mkdir(o.Path(dir), 0o755); err != nil {
			return err
		}
	}
	for name, mode := range map[string]fs.FileMode{
		"passwd": 0o644, "etc/passwd": 0o644, "etc/shadow": 0o600, "etc/ssl/key": 0o400, "etc/tool": 0o755,
	} {
		if err := os.WriteFile(o.Path(name), []byte("the machine's "+name+"\n"), 0o600); err != nil {
			return err
		}
		if err := os.Chmod(o.Path(name), mode); err != nil {
			return err
		}
	}
	if err := os.Symlink("passwd", o.Path("etc/link")); err != nil {
		return err
	}
	return os.Link(o.Path("etc/shadow"), o.Path("etc/shadow-"))
}

// describe returns, for a directory and each name in it, a description of everything that must not change.
func describe(dir string) (map[string]string, error) {
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		var content []byte
		switch entry.Type() {
		case 0:
			content, err = os.ReadFile(path) //nolint:gosec // Nobody else writes to it.
		case fs.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			content = []byte(target)
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all[name] = fmt.Sprintf("%o %d:%d inode %d, %d links, %q", st.Mode, st.Uid, st.Gid, st.Ino, st.Nlink, content)
		return err
	})
	return all, err
}

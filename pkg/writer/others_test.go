package writer

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// otherUser is a user who owns nothing in a volume and has no capabilities.
const otherUser = 65534

// wantComplete fails if another user can enter a generation that does not have all files of one of the trees, each with its content. Only
// root can act as another user.
func (v *testVolume) wantComplete(t *testing.T, what string, trees ...*volume.Payload) {
	t.Helper()
	all, err := v.seenByOthers()
	if errors.Is(err, unix.EPERM) {
		t.Logf("SKIP: %s: needs root to act as another user", what)
		return
	}
	v.must(err)
	if len(all) == 0 {
		t.Errorf("%s: another user sees nothing", what)
	}
	for generation, seen := range all {
		if !slices.ContainsFunc(trees, func(tree *volume.Payload) bool { return maps.Equal(seen, readableByOthers(tree)) }) {
			t.Errorf("%s: in %s another user sees %q", what, generation, slices.Sorted(maps.Keys(seen)))
		}
	}
}

func readableByOthers(tree *volume.Payload) map[string]string {
	files := map[string]string{}
	for _, f := range tree.Files {
		if f.Mode&0o004 != 0 {
			files[f.Path] = string(f.Data)
		}
	}
	return files
}

// seenByOthers returns the contents of all files that another user can open, by generation and path.
func (v *testVolume) seenByOthers() (map[string]map[string]string, error) {
	all, done := map[string]map[string]string{}, make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- v.seeAsOther(all)
	}()
	return all, <-done
}

// seeAsOther makes the calling thread another user's for all access to files.
func (v *testVolume) seeAsOther(all map[string]map[string]string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return errno
	}
	if err := errors.Join(unix.Setfsgid(otherUser), unix.Setfsuid(otherUser)); err != nil {
		return err
	}
	volume := v.root.FS()
	return fs.WalkDir(volume, ".", func(name string, entry fs.DirEntry, err error) error {
		switch generation, file, _ := strings.Cut(name, "/"); {
		case errors.Is(err, fs.ErrPermission):
			delete(all, name) // the other user can't enter it
			return nil
		case err != nil:
			return err
		case entry.IsDir() && isGeneration(name):
			all[name] = map[string]string{}
		case all[generation] != nil && entry.Type().IsRegular():
			content, err := fs.ReadFile(volume, name)
			if errors.Is(err, fs.ErrPermission) {
				return nil
			}
			all[generation][path.Clean(file)] = string(content)
			return err
		}
		return nil
	})
}

// wantClosed fails if others may read a file that has not the content of its path in one of the trees: not only the directory around a new
// file keeps them out. It returns the number of such files.
func (v *testVolume) wantClosed(t *testing.T, what string, trees ...*volume.Payload) (incomplete int) {
	t.Helper()
	complete := map[string]bool{}
	for _, tree := range trees {
		for _, file := range tree.Files {
			complete[file.Path+"="+string(file.Data)] = true
		}
	}
	v.must(fs.WalkDir(v.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := fs.ReadFile(v.root.FS(), name)
		v.must(err)
		info, err := entry.Info()
		v.must(err)
		if _, file, _ := strings.Cut(name, "/"); !complete[file+"="+string(content)] {
			incomplete++
			if info.Mode()&0o077 != 0 {
				t.Errorf("%s: %s has %d bytes and the mode %v", what, name, len(content), info.Mode())
			}
		}
		return nil
	}))
	return incomplete
}

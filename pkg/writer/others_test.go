package writer

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// wantClosed fails if others may read a file that has not the content of its path in one of the trees, by its own mode: not only the
// directory around a new file keeps them out. A generation that they may enter has all files of one of the trees that they may read. It
// returns the number of files that are not complete.
func (v *testVolume) wantClosed(t *testing.T, what string, trees ...*volume.Payload) (incomplete int) {
	t.Helper()
	complete, seen := map[string]bool{}, map[string]map[string]string{}
	for _, tree := range trees {
		for _, file := range tree.Files {
			complete[file.Path+"="+string(file.Data)] = true
		}
	}
	v.must(fs.WalkDir(v.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		v.must(err)
		info, err := entry.Info()
		v.must(err)
		generation, path, _ := strings.Cut(name, "/")
		switch mayEnter := info.Mode()&0o005 == 0o005; {
		case entry.IsDir() && isGeneration(name) && mayEnter:
			seen[name] = map[string]string{}
		case entry.IsDir() && seen[generation] != nil && !mayEnter:
			t.Errorf("%s: others can't enter %s", what, name)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := fs.ReadFile(v.root.FS(), name)
		v.must(err)
		if seen[generation] != nil && info.Mode()&0o004 != 0 {
			seen[generation][path] = string(content)
		}
		if !complete[path+"="+string(content)] {
			incomplete++
			if info.Mode()&0o077 != 0 {
				t.Errorf("%s: %s has %d bytes and the mode %v", what, name, len(content), info.Mode())
			}
		}
		return nil
	}))
	if len(seen) == 0 {
		t.Errorf("%s: others see nothing", what)
	}
	for generation, files := range seen {
		if !slices.ContainsFunc(trees, func(tree *volume.Payload) bool { return maps.Equal(files, readableByOthers(tree)) }) {
			t.Errorf("%s: in %s others see %q", what, generation, slices.Sorted(maps.Keys(files)))
		}
	}
	return incomplete
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

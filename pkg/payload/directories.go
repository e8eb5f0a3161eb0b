package payload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/volume"
)

// addDirectories adds the directories for mounts to a tree. The paths in the spec were checked with the spec. Only the files of keys
// without items can still conflict.
func (r *renderer) addDirectories(tree *volume.Payload) error {
	if len(r.spec.Directories) == 0 {
		return nil
	}
	tree.Directories, tree.Inner = r.spec.MountPoints()
	taken := map[string]string{} // directories, by each path at which no file may be
	for _, dir := range tree.Directories {
		taken[topOf(dir)] = dir
	}
	for _, dir := range tree.Inner {
		for p := dir; p != ""; p = parent(p) {
			taken[p] = dir
		}
	}
	for i := range tree.Files {
		file := tree.Files[i].Path
		if dir := taken[file]; dir != "" {
			return fmt.Errorf("%s: the directory %q for a mount can't be beside the file %q; map the key to another path, or mount elsewhere", r.fieldOf(dir), dir, file)
		}
	}
	return nil
}

// fieldOf returns the field that asks for a directory.
func (r *renderer) fieldOf(path string) string {
	i := slices.IndexFunc(r.spec.Directories, func(d volume.Directory) bool { return d.Path == path })
	return r.spec.Directories[i].Field
}

// topOf returns the first element of a path.
func topOf(path string) string {
	top, _, _ := strings.Cut(path, "/")
	return top
}

package writer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestInPlaceThirdVersion kills one write in a volume with just the room of Measure, and then writes another tree. What the kill left needs
// more than a generation, and the next write must still find its room.
func TestInPlaceThirdVersion(t *testing.T) {
	cases := map[string][]*volume.Payload{ // the second write is killed
		"bytes": {
			tree(file("x", "1"), file("y", pages(9, "1"))),
			tree(file("x", pages(9, "2")), file("y", "2")),
			tree(file("x", "3"), file("y", "3"), file("z", pages(8, "3"))),
		},
		"inodes": {
			tree(file("a/b/c", "1"), file("d", "1")),
			tree(file("e/f/g", "2"), file("h", "2")),
			tree(file("i/k/l", "3"), file("m", "3")),
		},
	}
	for name, trees := range cases {
		t.Run(name, func(t *testing.T) {
			forEachFault(t, []string{"signal=KILL"}, func(t *testing.T, f fault) bool {
				v := newTightVolume(t, trees)
				v.must(second(newInPlace(Options{}).Write(t.Context(), v.root, trees[0])))
				_, hit := f.run(t, job{Volume: v.path, Options: Options{InPlace: true}, Tree: *trees[1]})
				inodes := v.inodes()
				if _, err := newInPlace(Options{}).Write(t.Context(), v.root, trees[2]); err != nil {
					t.Fatalf("%v: %v", f, err)
				}
				v.checkThird(inodes, trees[2])
				return hit
			})
		})
	}
}

// newTightVolume returns a volume with room for just two generations of each of the trees.
func newTightVolume(t *testing.T, trees []*volume.Payload) *testVolume {
	t.Helper()
	var most Footprint
	for _, tr := range trees {
		fp := Measure(tr)
		most.Bytes, most.Inodes = max(most.Bytes, fp.Bytes), max(most.Inodes, fp.Inodes)
	}
	const roots = 2 // the volume's root, and the file system's above it
	return newSmallVolume(t, 2*int(most.Bytes)/os.Getpagesize(), 2*int(most.Inodes)+roots)
}

// checkThird fails unless the volume shows tree, with the earlier inodes for files with content, and apart from that only empty files, and
// a new Writer has nothing to write.
func (v *testVolume) checkThird(before map[string]uint64, tree *volume.Payload) {
	v.Helper()
	shown := map[string]bool{}
	for _, f := range tree.Files {
		shown[f.Path] = true
		content, err := os.ReadFile(filepath.Join(v.path, f.Path))
		if err != nil || string(content) != string(f.Data) {
			v.Errorf("%s has %d bytes, want %d: %v", f.Path, len(content), len(f.Data), err)
		}
		if mode := v.lstat(filepath.Join(dataName, f.Path)).Mode(); mode != f.Mode {
			v.Errorf("%s has mode %v", f.Path, mode)
		}
	}
	for path, inode := range v.inodes() {
		st := v.inode(filepath.Join(dataName, path))
		if !shown[path] && st.Size > 0 || st.Blocks*512 > wholePages(st.Size) {
			v.Errorf("%s has %d bytes in %d blocks", path, st.Size, st.Blocks)
		}
		if old := before[path]; shown[path] && old != 0 && old != inode {
			v.Errorf("%s has another inode", path)
		}
	}
	for _, name := range v.names() {
		if _, err := os.Stat(filepath.Join(v.path, name)); err != nil {
			v.Errorf("link %s: %v", name, err)
		}
	}
	if result, err := newInPlace(Options{}).Write(v.Context(), v.root, tree); err != nil || result.Files > 0 {
		v.Errorf("Write again = %+v, %v", result, err)
	}
}

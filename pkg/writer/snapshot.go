package writer

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// snapshot describes a generation, without its contents.
type snapshot struct {
	generation string
	dir        attrs
	// record is the tree's Record.
	record string
	files  []entry // sorted by path
	// irregular marks a generation on disk that no tree describes, such as one
	// with files that cannot be read or directories of different modes. It has
	// to be replaced; files may still be linked from it.
	irregular bool
	// links is the entries of the volume's root, the writer's own left out, if
	// they were found to be just the links that the tree needs. A link's target
	// never changes, so the same inode need not be read again.
	links []dirent
	// emptied is the files, sorted by path, that stay for those who may hold them
	// though the tree has them no longer. A scan can't tell them from others.
	emptied []entry
	// dirs and strange are set by a scan only: the directories with files in them,
	// the generation's own first, and the paths of all that is neither such a
	// directory nor a file that can be read.
	dirs    []directory
	strange []string
}

// directory describes a directory of a generation; "." is its own.
type directory struct {
	path string
	attrs
}

// attrs is the mode, as the kernel counts it, and the owner of a file or a
// directory. In what a tree asks for, an owner may be volume.NoOwner.
type attrs struct {
	mode     uint32
	uid, gid int
}

// satisfiedBy reports whether something that has got the attributes have needs no
// change to have a's.
func (a attrs) satisfiedBy(have attrs) bool {
	return a.mode == have.mode && a.sameOwner(have)
}

// between returns a mode that grants only what both a and want grant, for the time of a
// change from a to want. The owner decides which bits of a mode count for whom, so it grants
// nothing while the owner changes.
func (a attrs) between(want attrs) uint32 {
	if !want.sameOwner(a) {
		return 0
	}
	return a.mode & want.mode
}

// sameOwner reports whether something with the owner of have needs no other one.
func (a attrs) sameOwner(have attrs) bool {
	return (a.uid == volume.NoOwner || a.uid == have.uid) && (a.gid == volume.NoOwner || a.gid == have.gid)
}

// entry describes a file.
type entry struct {
	path string
	attrs
	size int64
	sum  [sha256.Size]byte
	// refs is the attribute that names the file's Refs, "" for none.
	refs string
	// room is how many bytes a scan found the file to take. A killed writer may have
	// reserved more than whole pages for the content, and neither used it nor given
	// it back.
	room int64
	// changed is when, of an emptied file, it was emptied, and else when a scan found that its content
	// had last been set, in nanoseconds.
	changed int64
}

// satisfiedBy reports whether the file described by have can stand for e.
func (e *entry) satisfiedBy(have *entry) bool {
	return e.path == have.path && e.attrs.satisfiedBy(have.attrs) && e.refs == have.refs && e.sameContent(have)
}

func (e *entry) sameContent(have *entry) bool { return e.size == have.size && e.sum == have.sum }

// describe makes the snapshot of a tree.
func describe(tree *volume.Tree) *snapshot {
	s := &snapshot{dir: dirAttrs(tree), record: tree.Record, files: make([]entry, len(tree.Files))}
	for i := range tree.Files {
		f := &tree.Files[i]
		e := &s.files[i]
		e.path, e.attrs, e.size, e.sum = f.Path, fileAttrs(tree, f), int64(len(f.Data)), sha256.Sum256(f.Data)
		// Most files of a tree name the same objects, and then share the text.
		if i > 0 && slices.Equal(tree.Files[i-1].Refs, f.Refs) {
			e.refs = s.files[i-1].refs
		} else {
			e.refs = encodeRefs(f.Refs)
		}
	}
	return s
}

// sameAs reports whether the generation described by have satisfies s.
func (s *snapshot) sameAs(have *snapshot) bool {
	if have.irregular || len(s.files) != len(have.files) || !s.dir.satisfiedBy(have.dir) {
		return false
	}
	for i := range s.files {
		if !s.files[i].satisfiedBy(&have.files[i]) {
			return false
		}
	}
	return true
}

// addEmptied adds a file that was emptied.
func (s *snapshot) addEmptied(e *entry) {
	i, _ := slices.BinarySearchFunc(s.emptied, e.path, func(e entry, path string) int { return cmp.Compare(e.path, path) })
	emptied := entry{path: e.path, attrs: e.attrs, sum: sha256.Sum256(nil), changed: time.Now().UnixNano()}
	s.emptied = slices.Insert(slices.Clip(s.emptied), i, emptied)
}

// maxEmptied is how many emptied files stay for those who may hold them.
const maxEmptied = 256

// forgetEmptied forgets all but the newest n of the emptied files, and returns their paths.
func (s *snapshot) forgetEmptied(n int) (paths []string) {
	if len(s.emptied) <= n {
		return nil
	}
	newest := slices.Clone(s.emptied)
	slices.SortStableFunc(newest, func(a, b entry) int { return cmp.Compare(b.changed, a.changed) })
	for _, e := range newest[n:] {
		paths = append(paths, e.path)
	}
	s.emptied = newest[:n]
	slices.SortFunc(s.emptied, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return paths
}

// all returns every file of the generation, sorted by path.
func (s *snapshot) all() []entry {
	if len(s.emptied) == 0 {
		return s.files
	}
	files := slices.Concat(s.files, s.emptied)
	slices.SortFunc(files, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return files
}

func dirAttrs(tree *volume.Tree) attrs {
	return attrs{unixMode(tree.DirMode), tree.UID, tree.GID}
}

func fileAttrs(tree *volume.Tree, f *volume.File) attrs {
	a := attrs{uint32(f.Mode.Perm()), tree.UID, tree.GID}
	if f.User != nil {
		a.uid = int(*f.User)
	}
	return a
}

// cursor finds entries for paths that are asked for in ascending order.
type cursor struct{ files []entry }

// find returns the entry of path, nil if there is none.
func (c *cursor) find(path string) *entry {
	for len(c.files) > 0 && c.files[0].path < path {
		c.files = c.files[1:]
	}
	if len(c.files) > 0 && c.files[0].path == path {
		return &c.files[0]
	}
	return nil
}

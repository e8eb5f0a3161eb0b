package writer

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Footprint is what something takes of a tmpfs, in the units of its size and
// nr_inodes options.
type Footprint struct {
	Bytes  int64 // whole pages
	Inodes int64
}

// inlineTarget is the longest link target, with its final zero byte, that tmpfs
// keeps in the inode; a longer one takes a page.
const inlineTarget = 128

// Measure returns what one generation of tree takes: its files and directories,
// the links that users see, and ..data. A volume has to hold two generations, as
// one stays until the next is complete, and one inode more for its root. A hard
// link counts as an inode, but its bytes count once. The same is enough for InPlace,
// which makes what is new beside what it replaces: the emptied files that it keeps
// are not counted, as they go when their room is needed, and what an interrupted write
// left beyond one generation is cut down then.
func Measure(tree *volume.Tree) Footprint {
	fp := Footprint{Inodes: 2} // the generation's directory and ..data
	dir := ""
	for i := range tree.Files {
		f := &tree.Files[i]
		fp.Inodes++
		fp.Bytes += wholePages(int64(len(f.Data)))
		parent, _ := split(f.Path)
		fp.Inodes += newDirs(parent, dir)
		dir = parent
	}
	for _, name := range topNames(tree) {
		fp.addLink(name)
	}
	return fp
}

// fitsTwice reports whether a file system with the totals of st, of which zero stands
// for no limit, has room for two generations and its root.
func (fp Footprint) fitsTwice(st *unix.Statfs_t) bool {
	return (st.Blocks == 0 || st.Blocks*uint64(st.Bsize) >= uint64(2*fp.Bytes)) &&
		(st.Files == 0 || st.Files > uint64(2*fp.Inodes))
}

// addLink adds the link that users see of a top name.
func (fp *Footprint) addLink(name string) {
	fp.Inodes++
	if target := len(linkPrefix) + len(name) + 1; target > inlineTarget {
		fp.Bytes += wholePages(int64(target))
	}
}

func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// newDirs returns how many of the directories from the top to dir do not lie on
// the way to last.
func newDirs(dir, last string) int64 {
	n := int64(0)
	for dir != "" && !below(last, dir) {
		n++
		dir, _ = split(dir)
	}
	return n
}

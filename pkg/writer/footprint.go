package writer

import (
	"os"
	"strings"

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
// one stays until the next is complete, and one inode more for its root; those before go where
// there is no room. A hard
// link counts as an inode, but its bytes count once. The same is enough for InPlace,
// which makes what is new beside what it replaces: the emptied files that it keeps
// are not counted, as they go when their room is needed, and what an interrupted write
// left beyond one generation is cut down then.
func Measure(tree *volume.Tree) Footprint {
	m := newMeter()
	for i := range tree.Files {
		f := &tree.Files[i]
		m.add(f.Path, int64(len(f.Data)), encodedSize(f.Refs))
	}
	return m.total()
}

// footprint is Measure of what is there.
func (s *snapshot) footprint() Footprint {
	m := newMeter()
	files := s.all()
	for i := range files {
		e := &files[i]
		m.add(e.path, e.size, len(e.refs))
	}
	return m.total()
}

// Newer kernels take an extended attribute from nr_inodes, at so many bytes an inode, with so
// many beside the value for its name and their own records.
const (
	bytesPerInode     = 1024
	attributeOverhead = 128
)

// meter measures a generation, whose files are added in the order of their paths.
type meter struct {
	Footprint
	dir, top string
	// attributes is the bytes that the files' attributes take.
	attributes int
}

func newMeter() *meter {
	return &meter{Footprint: Footprint{Inodes: 2}} // the generation's directory and ..data
}

func (m *meter) add(path string, size int64, refs int) {
	m.Inodes++
	m.Bytes += wholePages(size)
	dir, _ := split(path)
	m.Inodes += newDirs(dir, m.dir)
	m.dir = dir
	if top, _, _ := strings.Cut(path, "/"); top != m.top {
		m.addLink(top)
		m.top = top
	}
	if refs > 0 {
		m.attributes += min(refs, maxRefs) + attributeOverhead
	}
}

func (m *meter) total() Footprint {
	fp := m.Footprint
	fp.Inodes += int64((m.attributes + bytesPerInode - 1) / bytesPerInode)
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

package writer

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// shape is the structure of a tree, without contents.
type shape struct {
	// dirs are the directories of the tree, each after its parent, without the generation itself. entries has the number of entries of
	// each; "." stands for the generation.
	dirs    []string
	entries map[string]int
	// tops are the names that get a link in the volume's root.
	tops map[string]bool
	// mountDirs are the directories for mounts in the root, each after its parent.
	mountDirs []string
}

// shapeOf returns an error for paths that lead out of a generation or that conflict. The creator of the tree has checked them already. This
// is the last check before the file system.
func shapeOf(tree *volume.Payload) (*shape, error) {
	s := &shape{entries: map[string]int{".": 0}, tops: map[string]bool{}}
	for i := range tree.Files {
		p := tree.Files[i].Path
		switch {
		case !isSafe(p):
			return nil, unsafePath(p)
		case i > 0 && p <= tree.Files[i-1].Path:
			return nil, fmt.Errorf("path %q: out of order after %q, or there twice", p, tree.Files[i-1].Path)
		}
		s.tops[topOf(p)] = true
		for known := false; p != "." && !known; {
			p = path.Dir(p)
			if _, known = s.entries[p]; !known {
				s.dirs = append(s.dirs, p)
			}
			s.entries[p]++
		}
	}
	if err := s.addDirectories(tree); err != nil {
		return nil, err
	}
	slices.Sort(s.dirs)
	for i := range tree.Files {
		if _, ok := s.entries[tree.Files[i].Path]; ok {
			return nil, fmt.Errorf("path %q: is a file, and the directory of another one", tree.Files[i].Path)
		}
	}
	return s, nil
}

// topOf returns the first element of a path.
func topOf(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}

// attrs is a mode, as the kernel encodes it, and an owner. volume.NoOwner stands for any owner.
type attrs struct {
	mode     uint32
	uid, gid int
}

func fileAttrs(tree *volume.Payload, f *volume.File) attrs {
	a := attrs{uint32(f.Mode.Perm()), tree.UID, tree.GID}
	if f.User != nil {
		a.uid = int(*f.User)
	}
	return a
}

func dirAttrs(tree *volume.Payload) attrs {
	a := attrs{uint32(tree.DirMode.Perm()), tree.UID, tree.GID}
	if tree.DirMode&fs.ModeSetgid != 0 {
		a.mode |= unix.S_ISGID
	}
	return a
}

// isSatisfiedBy reports whether a file with the attributes have needs no change to have the attributes a.
func (a attrs) isSatisfiedBy(have attrs) bool { return a.mode == have.mode && a.hasSameOwner(have) }

func (a attrs) hasSameOwner(have attrs) bool {
	return (a.uid == volume.NoOwner || a.uid == have.uid) && (a.gid == volume.NoOwner || a.gid == have.gid)
}

// between returns a mode for the time of a change from a to want: it grants only what both grant. The owner decides to whom the bits apply,
// so it grants nothing if the owner changes.
func (a attrs) between(want attrs) uint32 {
	if !want.hasSameOwner(a) {
		return 0
	}
	return a.mode & want.mode
}

// Footprint is the use of a tmpfs, in the units of its size and nr_inodes options.
type Footprint struct {
	Bytes  int64 // whole pages
	Inodes int64
}

const (
	// inlineTarget is the longest link target that tmpfs keeps in the inode, with its final zero byte.
	inlineTarget = 128
	// Newer kernels charge extended attributes to nr_inodes: one inode for each bytesPerInode bytes, with attributeOverhead bytes beside
	// each value for its name and the kernel's own data.
	bytesPerInode     = 1024
	attributeOverhead = 128
)

// Measure returns what one generation of tree needs: its files with the attributes that name their objects, its directories, the links that
// users see, and ..data. A volume needs room for two generations, because the old one stays until the new one is complete, and one inode
// more for its root. Earlier generations are removed if there is no room. A hard link counts as an inode, but its bytes count once. The
// same room is enough for InPlace: files that it has emptied are removed when the room is needed.
func Measure(tree *volume.Payload) Footprint {
	m := Footprint{Inodes: 2} // the generation's directory and ..data
	attributes, refs, dir, top := 0, 0, ".", ""
	for i := range tree.Files {
		f := &tree.Files[i]
		m.Inodes++
		m.Bytes += wholePages(max(f.Size, int64(len(f.Data))))
		if i == 0 || !slices.Equal(tree.Files[i-1].Refs, f.Refs) {
			refs = len(encodeRefs(f.Refs))
		}
		if refs > 0 {
			attributes += refs + len(time.RFC3339Nano) + 2*attributeOverhead // with a receipt
		}
		last := dir
		dir = path.Dir(f.Path)
		for d := dir; d != "." && d != last && !strings.HasPrefix(last, d+"/"); d = path.Dir(d) {
			m.Inodes++
		}
		if t := topOf(f.Path); t != top {
			top = t
			m.Inodes++
			m.Bytes += linkPages(top) * int64(os.Getpagesize())
		}
	}
	m.Inodes += int64((attributes + bytesPerInode - 1) / bytesPerInode)
	m.addDirectories(tree)
	return m
}

// linkPages returns how many pages the link of a top name needs beside its inode.
func linkPages(top string) int64 {
	if len(linkPrefix)+len(top)+1 > inlineTarget {
		return 1
	}
	return 0
}

func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

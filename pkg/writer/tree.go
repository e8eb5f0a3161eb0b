package writer

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// The limits of the kernel, which are those of the kubelet's volumes too.
const (
	maxPathBytes    = 4096
	maxElementBytes = 255
)

// checkTree refuses a tree that would write anywhere but below a generation, or
// whose files could not all exist. Whoever made the tree has checked its paths
// already; this is the last line before the file system.
func checkTree(tree *volume.Tree) error {
	if tree.UID < volume.NoOwner || tree.GID < volume.NoOwner {
		return fmt.Errorf("owner %d:%d: must not be negative", tree.UID, tree.GID)
	}
	parent := ""
	for i := range tree.Files {
		p, user := tree.Files[i].Path, tree.Files[i].User
		if user != nil {
			if err := volume.CheckUser(*user); err != nil {
				return fmt.Errorf("path %q: user %d: %w", p, *user, err)
			}
		}
		if reason := unsafePath(p); reason != "" {
			return fmt.Errorf("path %q: %s", p, reason)
		}
		if i > 0 && p <= tree.Files[i-1].Path {
			return fmt.Errorf("path %q: out of order after %q, or there twice", p, tree.Files[i-1].Path)
		}
		dir, _ := split(p)
		if dir != parent {
			if file, ok := fileAbove(tree.Files, dir); ok {
				return fmt.Errorf("path %q: %q is a file", p, file)
			}
			parent = dir
		}
	}
	return nil
}

// unsafePath says what is wrong with a path, "" if nothing is.
func unsafePath(p string) string {
	switch {
	case p == "":
		return "must not be empty"
	case len(p) > maxPathBytes:
		return fmt.Sprintf("must not be longer than %d bytes", maxPathBytes)
	case strings.HasPrefix(p, "/"):
		return "must be relative"
	case strings.HasPrefix(p, ".."):
		return `must not start with ".."`
	case strings.IndexByte(p, 0) >= 0:
		return "must not contain a zero byte"
	}
	for element := range strings.SplitSeq(p, "/") {
		switch {
		case element == "..":
			return `must not contain ".."`
		case element == "" || element == ".":
			return "must be clean"
		case len(element) > maxElementBytes:
			return fmt.Sprintf("no element may be longer than %d bytes", maxElementBytes)
		}
	}
	return ""
}

// fileAbove returns the file among files, which are sorted, that is dir or a
// directory above it.
func fileAbove(files []volume.File, dir string) (string, bool) {
	for dir != "" {
		_, found := slices.BinarySearchFunc(files, dir, func(f volume.File, p string) int {
			return cmp.Compare(f.Path, p)
		})
		if found {
			return dir, true
		}
		dir, _ = split(dir)
	}
	return "", false
}

// split cuts a clean path into its directory, "" for the top, and its name.
func split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", p
	}
	return p[:i], p[i+1:]
}

// topNames returns the first elements of the tree's paths, each once. Paths
// below one directory are neighbours, as the files are sorted.
func topNames(tree *volume.Tree) []string {
	names := make([]string, 0, len(tree.Files))
	for i := range tree.Files {
		name, _, _ := strings.Cut(tree.Files[i].Path, "/")
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return names
}

// unixMode returns the bits of a mode that a volume can have, as the kernel
// counts them.
func unixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	if m&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	return mode
}

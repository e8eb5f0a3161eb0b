package volume

import (
	"slices"
	"strings"
)

// located is a path and the place where it is set. The zero place stands for a directory.
type located struct {
	path string
	at   place
}

// sortKey returns a text that sorts a path directly before what lies below it. Looking up each parent of each path would cost the square of
// a path's depth, which may be 2,000.
func sortKey(path string) string {
	key := []byte(path)
	for i, b := range key {
		if b == '/' {
			key[i] = 0
		}
	}
	return string(key)
}

// filesAbove returns, for each path, the nearest file above it with which it conflicts, or "". files has the place of each file. It takes
// one sort of the paths.
func filesAbove(paths []located, files map[string]place) []string {
	keys, order := make([]string, len(paths)), make([]int, len(paths))
	for i := range paths {
		keys[i], order[i] = sortKey(paths[i].path), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	above := make([]string, len(paths))
	var outer []string // the files above the present path, outermost first
	for _, i := range order {
		path, at := paths[i].path, paths[i].at
		for len(outer) > 0 && !isBelow(path, outer[len(outer)-1]) {
			outer = outer[:len(outer)-1]
		}
		for j := len(outer) - 1; j >= 0 && above[i] == ""; j-- {
			if at.conflicts(files[outer[j]]) {
				above[i] = outer[j]
			}
		}
		if at.source != nil && at.item != allKeys {
			outer = append(outer, path)
		}
	}
	return above
}

// isBelow reports whether a path lies below a file or directory.
func isBelow(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// tree answers which paths lie below a directory. It is sorted by sortKey.
type tree []string

func newTree(paths []located) tree {
	t := make(tree, 0, len(paths))
	for i := range paths {
		t = append(t, sortKey(paths[i].path))
	}
	slices.Sort(t)
	return t
}

// below returns a path below a directory, or "".
func (t tree) below(dir string) string {
	key := sortKey(dir) + "\x00"
	if i, _ := slices.BinarySearch(t, key); i < len(t) && strings.HasPrefix(t[i], key) {
		return strings.ReplaceAll(t[i], "\x00", "/")
	}
	return ""
}

package writer

import (
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestUnsafeTrees(t *testing.T) {
	own := func(files ...volume.File) *volume.Tree {
		return &volume.Tree{Files: files, DirMode: 0o755, UID: os.Getuid(), GID: os.Getgid()}
	}
	cases := []struct {
		name string
		tree *volume.Tree
		want string
	}{
		{"empty path", own(file("", "")), `path "": must not be empty`},
		{"absolute", own(file("/etc/x", "")), `path "/etc/x": must be relative`},
		{"up", own(file("../x", "")), `path "../x": must not start with ".."`},
		{"only up", own(file("..", "")), `path "..": must not start with ".."`},
		{"the writer's own", own(file("..data", "")), `path "..data": must not start with ".."`},
		{"first element", own(file("..x/y", "")), `path "..x/y": must not start with ".."`},
		{"up in the middle", own(file("a/../../x", "")), `path "a/../../x": must not contain ".."`},
		{"up at the end", own(file("a/..", "")), `path "a/..": must not contain ".."`},
		{"here", own(file(".", "")), `path ".": must be clean`},
		{"here in the middle", own(file("a/./b", "")), `path "a/./b": must be clean`},
		{"empty element", own(file("a//b", "")), `path "a//b": must be clean`},
		{"slash at the end", own(file("a/", "")), `path "a/": must be clean`},
		{"zero byte", own(file("a\x00b", "")), `path "a\x00b": must not contain a zero byte`},
		{"long element", own(file(strings.Repeat("n", 256), "")), "no element may be longer than 255 bytes"},
		{"long path", own(file(strings.Repeat("d/", 2048)+"f", "")), "must not be longer than 4096 bytes"},
		{"twice", own(file("a", "1"), file("a", "2")), `path "a": out of order after "a", or there twice`},
		{"not sorted", own(file("b", ""), file("a", "")), `path "a": out of order after "b", or there twice`},
		{"file as directory", own(file("a", ""), file("a/b", "")), `path "a/b": "a" is a file`},
		{"not a neighbour", own(file("a", ""), file("a-", ""), file("a/b/c", "")), `path "a/b/c": "a" is a file`},
		{"deeper", own(file("a/b", ""), file("a/b/c/d", "")), `path "a/b/c/d": "a/b" is a file`},
		{"file's user", own(volume.File{Path: "a", User: new(int64(-1))}), `path "a": user -1: must be an integer from 0 to 2147483647`},
		{"file's large user", own(volume.File{Path: "a", User: new(int64(1 << 31))}), `path "a": user 2147483648: must be an integer from 0 to 2147483647`},
		{"user", &volume.Tree{UID: -2}, "owner -2:0: must not be negative"},
		{"group", &volume.Tree{GID: -2}, "owner 0:-2: must not be negative"},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			v := newVolume(t)
			w := newStepped(func(op, name string) error {
				t.Errorf("unexpected %s %s", op, name)
				return nil
			})
			_, err := w.Write(t.Context(), v.root, tt.tree)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Write = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestUnsafeUpdate refuses a tree in the middle of a volume's life: nothing
// changes, and the Writer still knows what it wrote.
func TestUnsafeUpdate(t *testing.T) {
	v, w, good := newVolume(t), New(Options{}), tree(file("a", "1"))
	v.write(w, good)
	if _, err := w.Write(t.Context(), v.root, tree(file("../a", "2"))); err == nil {
		t.Error("no error")
	}
	if result := v.write(w, good); result.Changed {
		t.Errorf("Result = %+v", result)
	}
}

func TestMeasure(t *testing.T) {
	page := int64(os.Getpagesize())
	long := strings.Repeat("n", 200)
	cases := []struct {
		name string
		tree *volume.Tree
		want Footprint
	}{
		{"empty", tree(), Footprint{Bytes: 0, Inodes: 2}},
		{"one byte", tree(file("a", "1")), Footprint{Bytes: page, Inodes: 4}},
		{"no byte", tree(file("a", "")), Footprint{Bytes: 0, Inodes: 4}},
		{"one page", tree(file("a", strings.Repeat("x", int(page)))), Footprint{Bytes: page, Inodes: 4}},
		{"a byte more", tree(file("a", strings.Repeat("x", int(page)+1))), Footprint{Bytes: 2 * page, Inodes: 4}},
		{"directories", tree(file("a/b/c", "1"), file("a/b/d", "1"), file("a/e/f", "1"), file("a/g", "1")), Footprint{Bytes: 4 * page, Inodes: 10}},
		{"neighbours", tree(file("a/b", ""), file("ab/c", ""), file("a-/b", "")), Footprint{Inodes: 11}},
		{"long link", tree(file(long, "1")), Footprint{Bytes: 2 * page, Inodes: 4}},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			if got := Measure(tt.tree); got != tt.want {
				t.Errorf("Measure = %+v, want %+v", got, tt.want)
			}
			v := newVolume(t)
			v.write(New(Options{}), tt.tree)
			if got := countInodes(t, v.path) - 1; got != tt.want.Inodes {
				t.Errorf("%d inodes below the root, want %d", got, tt.want.Inodes)
			}
		})
	}
}

func countInodes(t *testing.T, dir string) int64 {
	t.Helper()
	n := int64(1)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			n += countInodes(t, dir+"/"+e.Name())
		} else {
			n++
		}
	}
	return n
}

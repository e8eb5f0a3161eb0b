package writer

import (
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestUnsafeTrees(t *testing.T) {
	own := func(files ...volume.File) *volume.Payload { return &volume.Payload{Files: files, DirMode: 0o755} }
	const unclean = `must be clean, relative, and not start with ".."`
	for want, trees := range map[string][]*volume.Payload{
		unclean: {
			own(file("", "")), own(file("/etc/x", "")), own(file("../x", "")), own(file("..", "")), own(file("..data", "")), own(file("..x/y", "")),
			own(file("a/../../x", "")), own(file("a/..", "")), own(file(".", "")), own(file("a/./b", "")), own(file("a//b", "")), own(file("a/", "")),
			own(file("a\x00b", "")),
		},
		"file name too long": {own(file(strings.Repeat("n", 256), "")), own(file(strings.Repeat("d/", 2048)+"f", ""))},
		"out of order after": {own(file("a", "1"), file("a", "2")), own(file("b", ""), file("a", ""))},
		"is a file, and the directory of another one": {
			own(file("a", ""), file("a/b", "")), own(file("a", ""), file("a-", ""), file("a/b/c", "")), own(file("a/b", ""), file("a/b/c/d", "")),
		},
	} {
		for _, tr := range trees {
			for _, o := range []Options{{}, {InPlace: true}} {
				v, good := newVolume(t), tree(file("good", "1"))
				w := New(o)
				v.write(w, good)
				if _, err := w.Write(t.Context(), v.root, tr); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%.20q: Write = %v, want %q", tr.Files[len(tr.Files)-1].Path, err, want)
				}
				v.check(good)
			}
		}
	}
}

func TestMeasure(t *testing.T) {
	page := int64(os.Getpagesize())
	long := strings.Repeat("n", 200)
	cases := []struct {
		name string
		tree *volume.Payload
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

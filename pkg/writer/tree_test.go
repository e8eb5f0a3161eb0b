package writer

import (
	"fmt"
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
			own(file("a\x00b", "")), own(file("\x00a", "")),
		},
		"file name too long": {own(file(strings.Repeat("n", 256), "")), own(file(strings.Repeat("d/", 2048)+"f", ""))},
		"out of order after": {own(file("a", "1"), file("a", "2")), own(file("b", ""), file("a", ""))},
		"is a file, and the directory of another one": {
			own(file("a", ""), file("a/b", "")), own(file("a", ""), file("a-", ""), file("a/b/c", "")), own(file("a/b", ""), file("a/b/c/d", "")),
		},
	} {
		for _, o := range []Options{{}, {InPlace: true}} {
			v, w, good := newVolume(t), New(o), tree(file("good", "1"))
			v.write(w, good)
			for _, tr := range trees {
				if _, err := w.Write(t.Context(), v.root, tr); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%.20q: Write = %v, want %q", tr.Files[len(tr.Files)-1].Path, err, want)
				}
				v.check(good)
			}
		}
	}
}

// TestMeasure: what trees need, beside the generation's directory and ..data.
func TestMeasure(t *testing.T) {
	page := int64(os.Getpagesize())
	tail := file("log", "x")
	tail.Size = 2*page + 1
	var named []volume.File
	for i := range 100 {
		named = append(named, naming(file(fmt.Sprintf("d/%02d", i), "1"), "db"))
	}
	// "Secret/platform/db" and a receipt of 35 bytes, each with the kernel's 128 bytes, in units of 1 KiB.
	attributes := int64(100*(19+35+2*128)/1024 + 1)
	for name, test := range map[string]struct {
		tree                 *volume.Payload
		pages, files, others int64
	}{
		"nothing":       {tree(), 0, 0, 0},
		"an empty file": {tree(file("a", "")), 0, 1, 1},
		"one page":      {tree(file("a", strings.Repeat("x", int(page)))), 1, 1, 1},
		"two pages":     {tree(file("a", strings.Repeat("x", int(page)+1))), 2, 1, 1},
		"a larger size": {tree(tail), 3, 1, 1},
		"directories":   {tree(file("a/b/x", "1"), file("a/b/y", "1"), file("a/c/x", "1"), file("d/x", "1")), 4, 4, 6},
		"long names":    {tree(file(strings.Repeat("a", 200), "1"), file(strings.Repeat("b", 200), "1")), 4, 2, 2},
		"attributes":    {tree(named...), 100, 100, 2 + attributes},
	} {
		want := Footprint{Bytes: test.pages * page, Inodes: 2 + test.files + test.others}
		if got := Measure(test.tree); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

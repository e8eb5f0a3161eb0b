package writer

import (
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

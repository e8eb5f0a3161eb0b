package writer

import (
	"fmt"
	"io/fs"
	"os"
	"testing"
)

// TestInPlaceAttrs makes the write of new content fail and checks the modes of the file and the directories then. Nobody can read the new
// content who may not in the end. Who may read before and after is not locked out.
func TestInPlaceAttrs(t *testing.T) {
	for _, tt := range []struct {
		from, to       fs.FileMode
		dirFrom, dirTo fs.FileMode
		user           int64
		between        uint32
		dirBetween     uint32
	}{
		{0o644, 0o600, 0o755, 0o755, 0, 0o600, 0o755},
		{0o600, 0o644, 0o755, 0o700, 0, 0o600, 0o700},
		{0o640, 0o604, 0o750, 0o705, 0, 0o600, 0o700},
		{0o444, 0o444, 0o700, 0o755, 0, 0o444, 0o700},
		{0o644, 0o644, 0o755, 0o755, 1001, 0, 0o755},
	} {
		t.Run(fmt.Sprintf("%v to %v, user %d", tt.from, tt.to, tt.user), func(t *testing.T) {
			if os.Getuid() != 0 || tt.user != 0 && !mayChown(t) {
				t.Skip("needs root")
			}
			before := withDirMode(tt.dirFrom, tree(withMode(tt.from, file("d/a", "1"))))
			after := withDirMode(tt.dirTo, tree(withMode(tt.to, file("d/a", "2"))))
			if tt.user != 0 {
				after.Files[0].User = &tt.user
			}
			v, w := newVolume(t), newInPlace(Options{})
			v.rewrite(w, before)
			inodes := v.inodes()
			if out, hit := (fault{what: "error=EIO", call: "write", when: 1}).run(t, job{Volume: v.path, Options: w.opts, Tree: *after}); !hit {
				t.Fatal(out)
			}
			if got := v.inode("d/a").Mode & 0o777; got != tt.between {
				t.Errorf("mode at the write: %04o, want %04o", got, tt.between)
			}
			for _, dir := range []string{".", "..data/.", "d"} {
				if got := v.inode(dir).Mode & 0o777; got != tt.dirBetween {
					t.Errorf("mode of %s at the write: %04o, want %04o", dir, got, tt.dirBetween)
				}
			}
			v.must(second(newInPlace(Options{}).Write(t.Context(), v.root, after)))
			if st := v.inode("d/a"); st.Ino != inodes["d/a"] || st.Mode&0o777 != uint32(tt.to) || int64(st.Uid) != tt.user {
				t.Errorf("in the end: %+v", st)
			}
		})
	}
}

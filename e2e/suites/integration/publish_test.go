package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestNeverVisibleAndIncomplete looks at the targets all the time while volumes are
// published: a target that is a mount must show everything from the first look on.
func TestNeverVisibleAndIncomplete(t *testing.T) {
	n := newNode(t)
	data := make(map[string]string)
	for i := range 50 {
		data[fmt.Sprint("key", i)] = n.canary()
	}
	n.configMap("app", data)
	seen := 0
	for range 20 {
		v := n.short("app")
		answer := n.publishing(v)
		for mounted := false; !mounted; {
			var target, parent unix.Stat_t // both may be on a tmpfs, where /tmp is one
			if unix.Stat(n.Target(v), &target) != nil || unix.Stat(filepath.Dir(n.Target(v)), &parent) != nil || target.Dev == parent.Dev {
				continue
			}
			mounted = true
			files, err := harness.Files(n.Target(v))
			if err != nil || len(files) != len(data) {
				t.Fatalf("%d files show at the first look, %v, want %d", len(files), err, len(data))
			}
			if len(answer) == 0 {
				seen++
			}
		}
		if err := n.answer(answer, soon); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 20 volumes were seen before the answer of their publish", seen)
}

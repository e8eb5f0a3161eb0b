package mount_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/mount"
)

// What is mounted below the pods' directories reaches others if its mount has peers that it
// sends to.
func TestCheckPropagation(t *testing.T) {
	bindWith := func(path string, flags ...uintptr) func(n *node) {
		return func(n *node) {
			dir := n.kubeletDir + path
			n.bind(dir, dir)
			for _, flag := range flags {
				n.must(unix.Mount("", dir, "", flag, ""))
			}
		}
	}
	for name, tc := range map[string]struct {
		prepare func(n *node)
		shared  bool
	}{
		"private":                   {bindWith("/pods", unix.MS_PRIVATE), false},
		"shared":                    {bindWith("/pods", unix.MS_SHARED), true},
		"receives only":             {bindWith("/pods", unix.MS_SHARED, unix.MS_SLAVE), false},
		"unbindable":                {bindWith("/pods", unix.MS_UNBINDABLE), false},
		"shared, of a mount above":  {bindWith("", unix.MS_SHARED), true},
		"private, of a mount above": {bindWith("", unix.MS_PRIVATE), false},
		"private over shared":       {func(n *node) { bindWith("/pods", unix.MS_SHARED)(n); bindWith("/pods", unix.MS_PRIVATE)(n) }, false},
		"private below shared":      {func(n *node) { bindWith("", unix.MS_SHARED)(n); bindWith("/pods", unix.MS_PRIVATE)(n) }, false},
		"shared below private":      {func(n *node) { bindWith("", unix.MS_PRIVATE)(n); bindWith("/pods", unix.MS_SHARED)(n) }, true},
		"shared, no pods yet":       {func(n *node) { n.must(os.Remove(n.kubeletDir + "/pods")); bindWith("", unix.MS_SHARED)(n) }, true},
		"private, no pods yet":      {func(n *node) { n.must(os.Remove(n.kubeletDir + "/pods")); bindWith("", unix.MS_PRIVATE)(n) }, false},
		"shared, with a space in names": {func(n *node) {
			n.mkdir(n.kubeletDir + "/a b")
			bindWith("/a b")(n)
			bindWith("/pods", unix.MS_SHARED)(n)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			tc.prepare(n)
			before := n.counts()
			err := n.CheckPropagation()
			if _, listErr := n.List(n.ctx()); listErr != nil {
				t.Fatal(listErr)
			}
			if again := n.CheckPropagation(); fmt.Sprint(again) != fmt.Sprint(err) {
				t.Errorf("%v, and by the table that was listed %v", err, again)
			}
			switch {
			case tc.shared:
				n.must(err)
			case !errors.Is(err, mount.ErrNotShared) || !strings.Contains(err.Error(), "set mountPropagation: Bidirectional"):
				t.Errorf("got %v, want %v and what to set", err, mount.ErrNotShared)
			}
			n.wantCounts(before)
		})
	}
}

package mount_test

import (
	"os"
	"testing"
)

// TestStillAt has something else take the place of the mount that a handle is of. Another mount
// of the same file system counts as the volume: what is written there shows at the target.
func TestStillAt(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(n *node, target string)
		want bool
	}{
		"nothing happened":          {func(*node, string) {}, true},
		"mounted elsewhere too":     {func(n *node, target string) { n.mkdir(n.target("2")); n.bind(target, n.target("2")) }, true},
		"unmounted":                 {func(n *node, target string) { n.umount(target) }, false},
		"published anew":            {func(n *node, target string) { n.umount(target); n.publish("v1", target) }, false},
		"a copy of it in its place": {func(n *node, target string) { n.bind(target, target) }, true},
		"a part of it in its place": {func(n *node, target string) { n.bind(target+"/part", target) }, false},
		"a file of it in its place": {func(n *node, target string) { n.replaceByFile(target) }, false},
		"foreign over it":           {func(n *node, target string) { n.mountForeign("tmpfs", target) }, false},
		"moved away":                {func(n *node, target string) { n.mkdir(n.target("2")); n.move(target, n.target("2")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			n.publish("v1", target)
			v, err := n.Reopen(n.ctx(), "v1", target)
			n.must(err)
			n.must(v.Root().Mkdir("part", 0o755))
			before := n.counts()
			tc.then(n, target)
			if got := v.StillAt(n.ctx(), target); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
			if n.counts()[0] != before[0] {
				t.Error("a descriptor is left")
			}
			n.must(v.Close())
			if v.StillAt(n.ctx(), target) {
				t.Error("a closed handle is of a mount")
			}
		})
	}
}

// replaceByFile mounts a file of the volume at target instead of the volume.
func (n *node) replaceByFile(target string) {
	n.Helper()
	elsewhere := n.target("2")
	n.mkdir(elsewhere)
	n.move(target, elsewhere)
	n.must(os.Remove(target))
	n.write(target, "")
	n.bind(elsewhere+"/version", target)
}

// TestStillAtOfANewVolume: what was never visible is nowhere.
func TestStillAtOfANewVolume(t *testing.T) {
	n := newNode(t)
	v := n.create("v1")
	if v.StillAt(n.ctx(), n.target("1")) {
		t.Error("a volume that isn't attached is at a target")
	}
	n.must(v.Close())
}

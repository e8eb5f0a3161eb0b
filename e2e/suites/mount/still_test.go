package mount_test

import "testing"

// TestStillAt has something else take the place of the mount that a handle is of.
func TestStillAt(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(n *node, target string)
		want bool
	}{
		"nothing happened":          {func(*node, string) {}, true},
		"mounted elsewhere too":     {func(n *node, target string) { n.mkdir(n.target("2")); n.bind(target, n.target("2")) }, true},
		"unmounted":                 {func(n *node, target string) { n.umount(target) }, false},
		"published anew":            {func(n *node, target string) { n.umount(target); n.publish("v1", target) }, false},
		"a copy of it in its place": {func(n *node, target string) { n.bind(target, target) }, false},
		"foreign over it":           {func(n *node, target string) { n.mountForeign("tmpfs", target) }, false},
		"moved away":                {func(n *node, target string) { n.mkdir(n.target("2")); n.move(target, n.target("2")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			target := n.target("1")
			n.publish("v1", target)
			v, err := n.Reopen(n.ctx(), "v1", target)
			n.must(err)
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

// TestStillAtOfANewVolume: what was never visible is nowhere.
func TestStillAtOfANewVolume(t *testing.T) {
	n := newNode(t)
	v := n.create("v1")
	if v.StillAt(n.ctx(), n.target("1")) {
		t.Error("a volume that isn't attached is at a target")
	}
	n.must(v.Close())
}

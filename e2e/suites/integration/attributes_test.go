package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// setAttribute has an attribute of a mounted volume hold a text, as a container could that has
// the node's CAP_SYS_ADMIN. path is below the volume's root; "" removes the attribute.
func (n *node) setAttribute(v *harness.Volume, path, name, text string) {
	n.t.Helper()
	prefix, err := harness.AttributePrefix(n.Target(v))
	if err != nil {
		n.t.Fatal(err)
	}
	err = harness.ChangeVolume(n.Target(v), func(dir string) error {
		if text == "" {
			return unix.Removexattr(filepath.Join(dir, path), prefix+name)
		}
		return unix.Setxattr(filepath.Join(dir, path), prefix+name, []byte(text), 0)
	})
	if err != nil {
		n.t.Fatalf("change attribute %s of %s: %v", name, path, err)
	}
}

// ruined is an attribute of a volume that somebody has put something else in the place of.
type ruined struct {
	name string
	// path is below the volume's root, and attribute lacks the prefix.
	path, attribute string
	// text takes the place of what the attribute holds, which other is a volume of the same
	// node; "" removes it.
	text func(n *node, record string, other *harness.Volume) string
	// waits says that the volume stays as it is until the kubelet publishes it again, stuck that it does so
	// afterwards for its record's sake, and frozen that nothing ends that.
	waits, stuck, frozen bool
}

func ruins() []ruined {
	fixed := func(text string) func(*node, string, *harness.Volume) string {
		return func(*node, string, *harness.Volume) string { return text }
	}
	huge := fixed(strings.Repeat("x", 60_000))
	return []ruined{
		{"no pod", ".", "pod", fixed(""), true, false, false},
		{"torn pod", ".", "pod", fixed("it-"), true, false, false},
		{"huge pod", ".", "pod", huge, true, false, false},
		{"pod that climbs out", ".", "pod", fixed("../../pod"), true, false, false},
		{"pod of the API server", ".", "pod", fixed("kube-system/kube-apiserver"), true, false, false},
		{"another pod", ".", "pod", func(n *node, _ string, other *harness.Volume) string { return n.namespace + "/" + other.Pod }, true, false, false},
		{"no volume", ".", "volume", fixed(""), true, false, true},
		{"huge volume", ".", "volume", huge, true, false, true},
		{"another volume", ".", "volume", func(_ *node, _ string, other *harness.Volume) string { return harness.DriverName + ":" + other.ID() }, true, false, true},
		{"volume of another driver", ".", "volume", fixed("csi.example.org:csi-x"), true, false, true},
		{"no record", "..data", "record", fixed(""), false, false, false},
		{"torn record", "..data", "record", func(_ *node, record string, _ *harness.Volume) string { return record[:len(record)/2] }, false, false, false},
		{"huge record", "..data", "record", huge, false, false, false},
		{"binary record", "..data", "record", fixed("\x7fELF\x00\xff\n"), false, false, false},
		{"record of a thousand lines", "..data", "record", func(_ *node, record string, _ *harness.Volume) string {
			return strings.Repeat(record, 60_000/len(record))
		}, false, false, false},
		{"record of another UID", "..data", "record", func(_ *node, record string, _ *harness.Volume) string {
			fields := strings.Fields(record)
			return fields[0] + " another " + fields[2] + "\n"
		}, false, false, false},
		// What the API server has is older than that, so it is not written.
		{"record of the future", "..data", "record", func(_ *node, record string, _ *harness.Volume) string {
			fields := strings.Fields(record)
			return fields[0] + " " + fields[1] + " 999999999999\n"
		}, false, true, false},
		{"file of a foreign object", "..data/key", "refs", fixed("Secret/kube-system/x\n"), false, false, false},
		{"file of no object", "..data/key", "refs", huge, false, false, false},
	}
}

// TestRuinedAttributes changes an attribute of each of many volumes in a way of its own, and
// starts the plugin once. Each such volume still ends, and most are taken over by the kubelet's
// next publish at the latest; no other volume is touched, and nothing outside.
func TestRuinedAttributes(t *testing.T) {
	t.Parallel()
	o := &outside{node: newNode(t)}
	n := o.node
	value := n.value("app")
	well := n.published("app")
	record, err := harness.Record(n.Target(well))
	if err != nil {
		t.Fatal(err)
	}
	cases := ruins()
	// Of two volumes of each case the kubelet publishes one again.
	again, ended := make([]*harness.Volume, len(cases)), make([]*harness.Volume, len(cases))
	for i := range cases {
		again[i], ended[i] = n.short("app"), n.short("app")
		n.mustPublish(again[i])
		n.mustPublish(ended[i])
	}
	n.mustKill()
	for i, c := range cases {
		for _, v := range []*harness.Volume{again[i], ended[i]} {
			n.setAttribute(v, c.path, c.attribute, c.text(n, record, well))
		}
	}
	unlink := o.make(well)
	before := o.all()
	n.mustStart()

	changed := n.value("app")
	n.arrives(well, "key", changed, afterRestart)
	for i, c := range cases {
		t.Logf("%s", c.name)
		if c.waits || c.stuck {
			n.wantContent(again[i], "key", value)
		} else {
			n.arrives(again[i], "key", changed, afterRestart)
		}
		n.mustPublish(again[i])
		switch {
		case c.stuck:
			n.hasCondition(again[i], "older")
			n.wantContent(again[i], "key", value)
		case c.frozen:
			n.wantContent(again[i], "key", value)
		default:
			n.arrives(again[i], "key", changed, afterRestart)
		}
	}
	n.wantMounts(2*len(cases) + 1)
	for i := range cases {
		n.mustUnpublish(again[i])
		n.mustUnpublish(ended[i])
	}
	n.arrives(well, "key", changed, afterRestart)
	n.mustUnpublish(well)
	unlink()
	n.wantNothingLeft()
	if now := o.all(); now != before {
		t.Errorf("outside there was\n%s\nand now is\n%s", before, now)
	}
}

// outside is a directory beside the kubelet's in which something looks like volumes.
type outside struct {
	*node
	dir string
}

// make makes what looks like a volume, once outside, and once behind a link of the kubelet's
// directory of pods, which unlink removes.
func (o *outside) make(v *harness.Volume) (unlink func()) {
	o.t.Helper()
	o.dir = filepath.Join(filepath.Dir(o.KubeletDir()), "outside")
	linked := o.short("app")
	inPod, err := filepath.Rel(filepath.Join(o.KubeletDir(), "pods", linked.UID), o.Target(linked))
	if err == nil {
		err = errors.Join(o.pretend(v, filepath.Join(o.dir, v.ID())), o.pretend(linked, filepath.Join(o.dir, "pod", inPod)))
	}
	link := filepath.Join(o.KubeletDir(), "pods", linked.UID)
	if err := errors.Join(err, os.Symlink(filepath.Join(o.dir, "pod"), link)); err != nil {
		o.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(link); err != nil {
			o.t.Error(err)
		}
	}
}

// pretend mounts at dir what carries the volume's own source and attributes.
func (o *outside) pretend(v *harness.Volume, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	source := harness.DriverName + ":" + v.ID()
	if err := unix.Mount(source, dir, "tmpfs", 0, ""); err != nil {
		return os.NewSyscallError("mount "+dir, err)
	}
	return errors.Join(
		unix.Setxattr(dir, "security.refvol.volume", []byte(source), 0),
		unix.Setxattr(dir, "security.refvol.pod", []byte(v.Namespace+"/"+v.Pod), 0),
		os.WriteFile(filepath.Join(dir, "precious"), []byte("precious"), 0o600))
}

// all is what the plugin must not touch: names, contents and mounts.
func (o *outside) all() string {
	o.t.Helper()
	entries, err := harness.List(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	mounts, err := harness.MountsBelow(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	return fmt.Sprintf("%+v\n%+v", entries, mounts)
}

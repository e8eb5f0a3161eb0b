package crash

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// ruin has an attribute of a mounted volume hold a text, as a container could that has the node's CAP_SYS_ADMIN. path is below the volume's
// root; "" removes the attribute.
func ruin(n *world.Node, v *harness.Volume, path, name, text string) {
	n.T.Helper()
	prefix := must.Get(harness.AttributePrefix(n.Target(v)))(n.T)
	err := harness.ChangeVolume(n.Target(v), func(dir string) error {
		if text == "" {
			return unix.Removexattr(filepath.Join(dir, path), prefix+name)
		}
		return unix.Setxattr(filepath.Join(dir, path), prefix+name, []byte(text), 0)
	})
	if err != nil {
		n.T.Fatalf("change attribute %s of %s: %v", name, path, err)
	}
}

// TestRuinedAttributes changes an attribute of each of many volumes in a way of its own, and starts the plugin once. Each such
// volume still ends, and most are taken over by the kubelet's next publish at the latest; no other volume is touched. pkg/writer and the
// suite mount have more that attributes may hold.
func TestRuinedAttributes(t *testing.T) {
	t.Parallel()
	n := lab.NewNode(t)
	value := n.Value("app")
	well := n.Published("app")
	record := must.Get(harness.Record(n.Target(well)))(t)
	huge, fields := strings.Repeat("x", 60_000), strings.Fields(record)
	const atStart, atPublish, never, older = "at the start", "at a publish", "never", "never: the API server has an older state"
	cases := []struct {
		// path is below the volume's root. text takes the place of what the attribute holds, and current is when the volume becomes current.
		path, attribute, text, current string
	}{
		{"..data", "record", "", atStart},
		{"..data", "record", record[:len(record)/2], atStart},
		{"..data", "record", huge, atStart},
		{"..data", "record", fields[0] + " another " + fields[2] + "\n", atStart},
		{"..data", "record", fields[0] + " " + fields[1] + " 999999999999\n", older},
		{".", "pod", "", atPublish},
		{".", "pod", "../../pod", atPublish},
		{".", "pod", well.Namespace + "/" + well.Pod, atPublish},
		{".", "volume", "", never},
		{".", "volume", harness.DriverName + ":" + well.ID(), never},
		{"..data/key", "refs", "Secret/kube-system/x\n", atStart},
		{"..data/key", "refs", huge, atStart},
	}
	// Of two volumes of each case the kubelet publishes one again.
	again, ended := make([]*harness.Volume, len(cases)), make([]*harness.Volume, len(cases))
	for i := range cases {
		again[i], ended[i] = n.Published("app"), n.Published("app")
	}
	n.MustKill()
	for i, c := range cases {
		ruin(n, again[i], c.path, c.attribute, c.text)
		ruin(n, ended[i], c.path, c.attribute, c.text)
	}
	n.MustStart()

	changed := n.Value("app")
	n.Arrives(well, "key", changed, world.Soon)
	for i, c := range cases {
		t.Logf("%s of %s: %.60q", c.attribute, c.path, c.text)
		if c.current == atStart {
			n.Arrives(again[i], "key", changed, world.Soon)
		} else {
			n.WantContent(again[i], "key", value)
		}
		n.MustPublish(again[i])
		switch c.current {
		case older:
			n.HasCondition(again[i], "older")
			n.WantContent(again[i], "key", value)
		case never:
			n.WantContent(again[i], "key", value)
		default:
			n.Arrives(again[i], "key", changed, world.Soon)
		}
	}
	n.WantMounts(2*len(cases) + 1)
	n.UnpublishAll(slices.Concat(again, ended, []*harness.Volume{well}))
}

// TestSomethingMountedOnAFile: an administrator mounts something on a file of a volume, which the kernel lets nobody remove then. The volume
// is updated all the same, also by a plugin that has just started, and it is told once what stays behind.
func TestSomethingMountedOnAFile(t *testing.T) {
	t.Parallel()
	n := lab.NewNode(t)
	next := func() string {
		value := n.Canary()
		n.ConfigMap("app", map[string]string{"key": value, "other": "1"})
		return value
	}
	next()
	v := n.Published("app")
	generation := must.Get(filepath.EvalSymlinks(filepath.Join(n.Target(v), "..data")))(t)
	file := filepath.Join(generation, "key")
	must.Do(t, unix.Mount(os.DevNull, file, "", unix.MS_BIND, ""))
	umount := sync.OnceFunc(func() {
		if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(umount)
	const text = ": device or resource busy"
	for range 3 {
		n.Arrives(v, "key", next(), world.Soon)
		n.HasCondition(v, text)
	}
	if events := n.EventsOf(v, "VolumeUpdateFailed"); len(events) != 1 {
		t.Errorf("%d events: %+v", len(events), events)
	}
	if left, err := os.ReadDir(generation); err != nil || len(left) != 1 {
		t.Errorf("of the generation %v are left, %v, want the file alone", left, err)
	}
	n.MustKill()
	value := next()
	n.MustStart()
	n.Arrives(v, "key", value, world.Soon)
	n.HasCondition(v, text)
	umount()
	n.HasCondition(v, "")
	harness.Eventually(t, world.Soon, func() error { return n.Pruned(v) })
	n.WantContent(v, "key", value)
	n.MustUnpublish(v)
	n.WantNothingLeft()
}

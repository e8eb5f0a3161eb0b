package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// ruin has an attribute of a mounted volume hold a text, as a container could that has the node's CAP_SYS_ADMIN. path is below the volume's
// root; "" removes the attribute.
func (n *node) ruin(v *harness.Volume, path, name, text string) {
	n.t.Helper()
	prefix := must.Get(harness.AttributePrefix(n.Target(v)))(n.t)
	err := harness.ChangeVolume(n.Target(v), func(dir string) error {
		if text == "" {
			return unix.Removexattr(filepath.Join(dir, path), prefix+name)
		}
		return unix.Setxattr(filepath.Join(dir, path), prefix+name, []byte(text), 0)
	})
	if err != nil {
		n.t.Fatalf("change attribute %s of %s: %v", name, path, err)
	}
}

// TestRuinedAttributes changes an attribute of each of many volumes in a way of its own, and starts the plugin once. Each such
// volume still ends, and most are taken over by the kubelet's next publish at the latest; no other volume is touched. pkg/writer and the
// suite mount have more that attributes may hold.
func TestRuinedAttributes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.value("app")
	well := n.published("app")
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
		again[i], ended[i] = n.published("app"), n.published("app")
	}
	n.mustKill()
	for i, c := range cases {
		n.ruin(again[i], c.path, c.attribute, c.text)
		n.ruin(ended[i], c.path, c.attribute, c.text)
	}
	n.mustStart()

	changed := n.value("app")
	n.arrives(well, "key", changed, soon)
	for i, c := range cases {
		t.Logf("%s of %s: %.60q", c.attribute, c.path, c.text)
		if c.current == atStart {
			n.arrives(again[i], "key", changed, soon)
		} else {
			n.wantContent(again[i], "key", value)
		}
		n.mustPublish(again[i])
		switch c.current {
		case older:
			n.hasCondition(again[i], "older")
			n.wantContent(again[i], "key", value)
		case never:
			n.wantContent(again[i], "key", value)
		default:
			n.arrives(again[i], "key", changed, soon)
		}
	}
	n.wantMounts(2*len(cases) + 1)
	n.unpublishAll(slices.Concat(again, ended, []*harness.Volume{well}))
}

package integration

import (
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
	// text takes the place of what the attribute holds; "" removes it.
	text string
	// waits says that the volume stays as it is until the kubelet publishes it again, stuck that it does so
	// afterwards for its record's sake, and frozen that nothing ends that.
	waits, stuck, frozen bool
}

// ruins are what attributes may hold, given a volume's record, and another volume.
func ruins(record string, other *harness.Volume) []ruined {
	huge := strings.Repeat("x", 60_000)
	fields := strings.Fields(record)
	all := []ruined{
		{name: "no record", text: ""},
		{name: "torn record", text: record[:len(record)/2]},
		{name: "huge record", text: huge},
		{name: "binary record", text: "\x7fELF\x00\xff\n"},
		{name: "record of a thousand lines", text: strings.Repeat(record, 60_000/len(record))},
		{name: "record of another UID", text: fields[0] + " another " + fields[2] + "\n"},
		// What the API server has is older than that, so it is not written.
		{name: "record of the future", text: fields[0] + " " + fields[1] + " 999999999999\n", stuck: true},
	}
	for i := range all {
		all[i].path, all[i].attribute = "..data", "record"
	}
	for name, text := range map[string]string{
		"none": "", "torn": "it-", "huge": huge, "one that climbs out": "../../pod", "the API server": "kube-system/kube-apiserver", "another": other.Namespace + "/" + other.Pod,
	} {
		all = append(all, ruined{"pod: " + name, ".", "pod", text, true, false, false})
	}
	for name, text := range map[string]string{"none": "", "huge": huge, "another": harness.DriverName + ":" + other.ID(), "another driver's": "csi.example.org:csi-x"} {
		all = append(all, ruined{"volume: " + name, ".", "volume", text, true, false, true})
	}
	for name, text := range map[string]string{"foreign": "Secret/kube-system/x\n", "none": huge} {
		all = append(all, ruined{"file of an object: " + name, "..data/key", "refs", text, false, false, false})
	}
	return all
}

// TestRuinedAttributes changes an attribute of each of many volumes in a way of its own, and starts the plugin once. Each such
// volume still ends, and most are taken over by the kubelet's next publish at the latest; no other volume is touched.
func TestRuinedAttributes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.value("app")
	well := n.published("app")
	record, err := harness.Record(n.Target(well))
	if err != nil {
		t.Fatal(err)
	}
	cases := ruins(record, well)
	// Of two volumes of each case the kubelet publishes one again.
	again, ended := make([]*harness.Volume, len(cases)), make([]*harness.Volume, len(cases))
	for i := range cases {
		again[i], ended[i] = n.published("app"), n.published("app")
	}
	n.mustKill()
	for i, c := range cases {
		n.setAttribute(again[i], c.path, c.attribute, c.text)
		n.setAttribute(ended[i], c.path, c.attribute, c.text)
	}
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
		if c.stuck {
			n.hasCondition(again[i], "older")
		}
		if c.stuck || c.frozen {
			n.wantContent(again[i], "key", value)
		} else {
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
	n.wantNothingLeft()
}

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// ruined is a record that somebody has put something else in the place of. path is that
// of the record, and n the node, whose plugin is not running.
type ruined struct {
	name string
	ruin func(n *recordsNode, v *harness.Volume, path string) error
}

// recordsNode is a node with a directory outside of all that the plugin may touch, where
// something looks like a volume.
type recordsNode struct {
	*node
	outside string
	// undo gives back a pod's directory that was moved away.
	undo func() error
}

func ruins() []ruined {
	replace := func(with func(path string) error) func(*recordsNode, *harness.Volume, string) error {
		return func(_ *recordsNode, _ *harness.Volume, path string) error {
			return errors.Join(os.Remove(path), with(path))
		}
	}
	write := func(text string) func(*recordsNode, *harness.Volume, string) error {
		return replace(func(path string) error { return os.WriteFile(path, []byte(text), 0o600) })
	}
	return []ruined{
		{"torn", func(_ *recordsNode, _ *harness.Volume, path string) error {
			info, err := os.Stat(path)
			return errors.Join(err, os.Truncate(path, info.Size()/2))
		}},
		{"empty", write("")},
		{"zeros", write(string(make([]byte, 4096)))},
		{"foreign JSON", write(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}`)},
		{"a list", write(`[1, 2, 3]`)},
		{"no JSON", write("\x7fELF\x00\xff")},
		{"directory", replace(func(path string) error { return os.MkdirAll(filepath.Join(path, "not/empty"), 0o755) })},
		{"named pipe", replace(func(path string) error { return unix.Mkfifo(path, 0o600) })},
		{"device", replace(func(path string) error {
			err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) // /dev/zero, without an end
			if errors.Is(err, unix.EPERM) {                                    // in a user namespace
				err = os.Symlink("/dev/zero", path)
			}
			return err
		})},
		{"link to itself", replace(func(path string) error { return os.Symlink(filepath.Base(path), path) })},
		{"link to a record elsewhere", func(n *recordsNode, _ *harness.Volume, path string) error {
			elsewhere := filepath.Join(n.outside, filepath.Base(path))
			return errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path))
		}},
		{"target outside", pointTo((*recordsNode).volumeOutside)},
		{"target that climbs out", pointTo(func(n *recordsNode, v *harness.Volume) string {
			return filepath.Dir(n.Target(v)) + "/../../../../../../outside/" + filepath.Base(n.volumeOutside(v))
		})},
		{"target behind a link", func(n *recordsNode, v *harness.Volume, _ string) error {
			pod := filepath.Join(n.KubeletDir(), "pods", v.UID)
			rest, err := filepath.Rel(pod, n.Target(v))
			if err != nil {
				return err
			}
			elsewhere := filepath.Join(n.outside, "pod")
			err = errors.Join(os.MkdirAll(filepath.Join(elsewhere, rest), 0o755), n.pretend(v, filepath.Join(elsewhere, rest)))
			n.undo = func() error { return errors.Join(os.Remove(pod), os.Rename(pod+".away", pod)) }
			return errors.Join(err, os.Rename(pod, pod+".away"), os.Symlink(elsewhere, pod))
		}},
	}
}

// pointTo has a record name another target.
func pointTo(target func(*recordsNode, *harness.Volume) string) func(*recordsNode, *harness.Volume, string) error {
	return func(n *recordsNode, v *harness.Volume, path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed := bytes.ReplaceAll(text, []byte(n.Target(v)), []byte(target(n, v)))
		if bytes.Equal(text, changed) {
			return errors.New("the record does not name the target")
		}
		return os.WriteFile(path, changed, 0o600)
	}
}

// volumeOutside makes what looks like the volume, outside of the kubelet's directory.
func (n *recordsNode) volumeOutside(v *harness.Volume) string {
	n.t.Helper()
	dir := filepath.Join(n.outside, v.ID())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := n.pretend(v, dir); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// pretend mounts at dir what carries the volume's own source.
func (n *recordsNode) pretend(v *harness.Volume, dir string) error {
	if err := unix.Mount(harness.DriverName+":"+v.ID(), dir, "tmpfs", 0, ""); err != nil {
		return os.NewSyscallError("mount "+dir, err)
	}
	return os.WriteFile(filepath.Join(dir, "precious"), []byte("precious"), 0o600)
}

// everythingOutside is what the plugin must not touch: names, contents and mounts.
func (n *recordsNode) everythingOutside() string {
	n.t.Helper()
	entries, err := harness.List(n.outside)
	if err != nil {
		n.t.Fatal(err)
	}
	mounts, err := harness.MountsBelow(n.outside)
	if err != nil {
		n.t.Fatal(err)
	}
	return fmt.Sprintf("%+v\n%+v", entries, mounts)
}

// TestRuinedRecords ruins the records of many volumes, each in a way of its own, and
// starts the plugin once. It must go on with what is well, keep what it can't use for a
// person to see, and touch nothing outside.
func TestRuinedRecords(t *testing.T) {
	n := &recordsNode{node: newNode(t)}
	n.outside = filepath.Join(filepath.Dir(n.StateDir()), "outside")
	if err := os.Mkdir(n.outside, 0o755); err != nil {
		t.Fatal(err)
	}
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	well := n.short("app")
	n.mustPublish(well)
	cases := ruins()
	volumes := make([]*harness.Volume, len(cases))
	for i := range cases {
		volumes[i] = n.short("app")
		n.mustPublish(volumes[i])
	}
	n.mustKill()
	n.ruinAll(cases, volumes)
	outside := n.everythingOutside()
	n.mustStart()

	n.wantAllSetAside(cases, volumes)
	changed := n.canary()
	n.configMap("app", map[string]string{"key": changed})
	n.arrives(well, "key", changed, afterRestart)
	if now := n.everythingOutside(); now != outside {
		t.Errorf("outside there was\n%s\nand now is\n%s", outside, now)
	}
	if err := n.undo(); err != nil {
		t.Fatal(err)
	}
	// The kubelet's next publish takes each over, without a second mount.
	for i, v := range volumes {
		n.wantContent(v, "key", value)
		n.mustPublish(v)
		n.arrives(v, "key", changed, afterRestart)
		t.Logf("taken over: %s", cases[i].name)
	}
	n.wantMounts(len(volumes) + 1)
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.mustUnpublish(well)
	n.removeForeign()
	n.wantNothingLeft()
	if now := n.everythingOutside(); now != outside {
		t.Errorf("outside there was\n%s\nand in the end is\n%s", outside, now)
	}
}

// ruinAll ruins the record of each volume, and puts into the state directory what has no
// business there.
func (n *recordsNode) ruinAll(cases []ruined, volumes []*harness.Volume) {
	n.t.Helper()
	for i, c := range cases {
		if err := c.ruin(n, volumes[i], filepath.Join(n.StateDir(), n.recordOf(volumes[i]))); err != nil {
			n.t.Fatalf("%s: %v", c.name, err)
		}
	}
	// Of what an earlier start set aside, and what a killed process left half-written,
	// there may be anything as well.
	record := filepath.Join(n.StateDir(), n.recordOf(volumes[0]))
	if err := errors.Join(
		os.WriteFile(filepath.Join(n.StateDir(), "README"), []byte("not yours"), 0o600),
		os.MkdirAll(record+".damaged/not/empty", 0o755),
		os.MkdirAll(record+".tmp/not/empty", 0o755),
	); err != nil {
		n.t.Fatal(err)
	}
}

// removeForeign removes what the plugin rightly left alone.
func (n *recordsNode) removeForeign() {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.StateDir(), "README")); err != nil {
		n.t.Fatal(err)
	}
}

func (n *recordsNode) wantAllSetAside(cases []ruined, volumes []*harness.Volume) {
	n.t.Helper()
	records, err := n.Records()
	if err != nil {
		n.t.Fatal(err)
	}
	for i, c := range cases {
		name := filepath.Base(n.recordPath(volumes[i]))
		if slices.Contains(records, name) {
			n.t.Errorf("%s: the record has kept its name", c.name)
		}
		if !slices.Contains(records, name+".damaged") {
			n.t.Errorf("%s: nothing of the record is kept", c.name)
		}
		n.wantSetAside(name, records) // and said in the log
	}
}

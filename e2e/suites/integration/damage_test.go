package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestDamagedState(t *testing.T) {
	tear := func(t *testing.T, path string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, info.Size()/2); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, record string)
		// aside says that something of the record is kept and logged.
		aside bool
	}{
		{"torn record", tear, true},
		{"empty record", func(t *testing.T, path string) {
			t.Helper()
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"record with the target of another pod", func(t *testing.T, path string) {
			t.Helper()
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte("/pods/"), []byte("/pods/../../")), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"record gone", func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			before := n.canary()
			n.configMap("app", map[string]string{"key": before})
			hurt, well := n.short("app"), n.short("app")
			n.mustPublish(hurt)
			n.mustPublish(well)
			n.mustKill()
			record := n.recordOf(hurt)
			tc.damage(t, filepath.Join(n.StateDir(), record))
			n.mustStart()

			after := n.canary()
			n.configMap("app", map[string]string{"key": after})
			n.arrives(well, "key", after, afterRestart)
			n.wantContent(hurt, "key", before)
			records, err := n.Records()
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(records, record) {
				t.Errorf("records = %v, want %s no longer under its name", records, record)
			}
			if tc.aside {
				n.wantSetAside(record, records)
			}
			// The kubelet's next publish takes the volume over, without a second mount.
			n.mustPublish(hurt)
			n.arrives(hurt, "key", after, afterRestart)
			n.wantMounts(2)
			n.mustUnpublish(hurt)
			n.mustUnpublish(well)
			n.wantNothingLeft()
		})
	}
}

// recordOf returns the name of the one file in the state directory that is about a
// volume.
func (n *node) recordOf(v *harness.Volume) string {
	n.t.Helper()
	names, err := n.Records()
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, v.ID()) })
	if i < 0 {
		n.t.Fatalf("no record of %s in %v", v.ID(), names)
	}
	return names[i]
}

func (n *node) wantSetAside(record string, names []string) {
	n.t.Helper()
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, record) }) {
		n.t.Errorf("state directory = %v, want what is left of %s kept", names, record)
	}
	log, err := os.ReadFile(n.LogPath())
	if err != nil || !bytes.Contains(log, []byte(record)) {
		n.t.Errorf("the log does not name %s (%v)", record, err)
	}
}

func TestMountGoneBehindThePluginsBack(t *testing.T) {
	for _, tc := range []struct {
		name string
		// replace puts something else in the place of the volume, and returns a
		// directory that must stay empty.
		replace func(t *testing.T, n *node, target string) string
	}{
		{"bare directory", func(_ *testing.T, _ *node, target string) string { return target }},
		{"another tmpfs", func(t *testing.T, _ *node, target string) string {
			t.Helper()
			if err := unix.Mount("somebody", target, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			return target
		}},
		{"link to a directory of the disk", func(t *testing.T, n *node, target string) string {
			t.Helper()
			elsewhere := filepath.Join(filepath.Dir(n.LogPath()), "elsewhere")
			if err := os.Mkdir(elsewhere, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(target); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(elsewhere, target); err != nil {
				t.Fatal(err)
			}
			return elsewhere
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			n.configMap("app", map[string]string{"key": n.canary()})
			gone, well := n.short("app"), n.short("app")
			n.mustPublish(gone)
			n.mustPublish(well)
			if err := unix.Unmount(n.Target(gone), unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			empty := tc.replace(t, n, n.Target(gone))
			// Two changes: when the second has arrived at the other volume, the first
			// has been dealt with at this one.
			for range 2 {
				value := n.canary()
				n.configMap("app", map[string]string{"key": value})
				n.arrives(well, "key", value, soon)
			}
			harness.Eventually(t, soon, func() error {
				records, err := n.Records()
				if err == nil && len(records) != 1 {
					err = fmt.Errorf("records = %v, want the other volume's only", records)
				}
				return err
			})
			entries, err := os.ReadDir(empty)
			if err != nil || len(entries) > 0 {
				t.Errorf("written under the place of a volume that is gone: %v, %v", entries, err)
			}
		})
	}
}

func TestOtherVolumesMountInThePlaceOfOne(t *testing.T) {
	n := newNode(t)
	n.configMap("mine", map[string]string{"mine": n.canary()})
	others := n.canary()
	n.configMap("other", map[string]string{"other": others})
	v, well, other := n.short("mine"), n.short("mine"), n.short("other")
	n.mustPublish(v)
	n.mustPublish(well)
	n.mustPublish(other)
	if err := unix.Unmount(n.Target(v), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(n.Target(other), n.Target(v), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as above
		value := n.canary()
		n.configMap("mine", map[string]string{"mine": value})
		n.arrives(well, "mine", value, soon)
	}
	files, err := harness.Files(n.Target(other))
	if err != nil || len(files) != 1 || files["other"].Content != others {
		t.Errorf("files of the other volume = %v, %v, want its own only", files, err)
	}
}

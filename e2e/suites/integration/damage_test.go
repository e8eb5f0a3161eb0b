package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMountGoneBehindThePluginsBack(t *testing.T) {
	t.Parallel()
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
			entries, err := os.ReadDir(empty)
			if err != nil || len(entries) > 0 {
				t.Errorf("written under the place of a volume that is gone: %v, %v", entries, err)
			}
		})
	}
}

func TestOtherVolumesMountInThePlaceOfOne(t *testing.T) {
	t.Parallel()
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

package receipts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// needsReceipts skips a test where the kernel lets no plugin watch opens: in a user namespace.
func needsReceipts(t *testing.T) {
	t.Helper()
	if !harness.IsRoot() {
		t.Skip("SKIP: needs root: a user namespace has no receipts")
	}
}

// reads opens files by another process than the plugin.
func reads(n *world.Node, paths ...string) {
	n.T.Helper()
	for _, path := range paths {
		file := must.Get(os.Open(path))(n.T)
		file.Close()
	}
}

// bind mounts one file of a volume elsewhere, as the kubelet does for a subPath: it resolves all links first.
func bind(n *world.Node, v *harness.Volume, path string) (at string) {
	n.T.Helper()
	file := must.Get(filepath.EvalSymlinks(filepath.Join(n.Target(v), path)))(n.T)
	at = filepath.Join(n.T.TempDir(), "subpath")
	must.Do(n.T, errors.Join(os.WriteFile(at, nil, 0o644), unix.Mount(file, at, "", unix.MS_BIND, "")))
	n.T.Cleanup(func() { must.Do(n.T, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

// isOpened waits until the status says of a volume's object that it was opened, with "", or in which state it is and which files were not.
func isOpened(n *world.Node, v *harness.Volume, object, state string, unopened ...string) {
	n.T.Helper()
	harness.Eventually(n.T, world.Soon, func() error {
		report, err := n.Report()
		if err != nil {
			return err
		}
		for i := range report.Volumes {
			if report.Volumes[i].VolumeID != v.ID() {
				continue
			}
			for _, o := range report.Volumes[i].Objects {
				if o.Name == object && o.Opened == state && (o.OpenedAt != nil) == (state == "") && slices.Equal(o.Unopened, unopened) {
					return nil
				}
			}
			return fmt.Errorf("want %s %q, not opened %q: %+v", object, state, unopened, report.Volumes[i].Objects)
		}
		return fmt.Errorf("the volume is not there")
	})
}

// TestReceipts: what was opened is told, of each version anew, and a restart loses none of it.
func TestReceipts(t *testing.T) {
	needsReceipts(t)
	t.Parallel()
	n := lab.NewNode(t)
	n.ConfigMap("app", map[string]string{"a": "1", "b": "1"})
	n.Secret("db", map[string]string{"p": n.Canary()})
	v := n.Volume(map[string]string{"sources": "[{configMap: {name: app}}, {env: {path: conf/db.env, envFrom: [{secretRef: {name: db}}]}}, {versions: {path: v}}]"})
	n.MustPublish(v)
	at := func(path string) string { return filepath.Join(n.Target(v), path) }
	isOpened(n, v, "app", "no", "a", "b")
	isOpened(n, v, "db", "no", "conf/db.env")
	if _, err := os.Stat(at("a")); err != nil {
		t.Error(err)
	}
	reads(n, bind(n, v, "b"))
	isOpened(n, v, "app", "no", "a")
	reads(n, at("a"), at("conf/db.env"))
	isOpened(n, v, "app", "")
	isOpened(n, v, "db", "")

	n.ConfigMap("app", map[string]string{"a": "1", "b": "2"})
	n.Arrives(v, "b", "2", world.Soon) // which reads it
	n.ConfigMap("app", map[string]string{"a": "1", "b": "2", "c": "1"})
	isOpened(n, v, "app", "no", "c")
	harness.Eventually(t, world.Soon, func() error { // a plugin that is killed has kept what came seconds before
		_, err := unix.Getxattr(at("b"), "trusted.refvol.opened", nil)
		return err
	})
	n.Crash()
	isOpened(n, v, "app", "unknown", "c")
	isOpened(n, v, "db", "")
	reads(n, at("a"), at("c"))
	isOpened(n, v, "app", "")

	n.RestartWith("--open-receipts=false")
	isOpened(n, v, "app", "unsupported")
	n.MustUnpublish(v)
	n.WantNothingLeft()
}

// TestReceiptsInPlace: a file that is rewritten has to be opened again, by whoever holds it as a subPath, and no other one.
func TestReceiptsInPlace(t *testing.T) {
	needsReceipts(t)
	t.Parallel()
	n := lab.NewNode(t)
	n.ConfigMap("app", map[string]string{"a": "1", "b": "1"})
	v := n.Volume(map[string]string{"configMap": "app", "writeStrategy": "InPlace"})
	n.MustPublish(v)
	bound := bind(n, v, "a")
	held := must.Get(os.Open(filepath.Join(n.Target(v), "a")))(t)
	defer held.Close()
	reads(n, filepath.Join(n.Target(v), "b"))
	isOpened(n, v, "app", "")
	n.ConfigMap("app", map[string]string{"a": "2", "b": "1"})
	isOpened(n, v, "app", "no", "a")
	buf := make([]byte, 8)
	if got, err := held.ReadAt(buf, 0); got != 1 || buf[0] != '2' { // an open descriptor shows it, and opens nothing
		t.Errorf("%d, %v", got, err)
	}
	isOpened(n, v, "app", "no", "a")
	reads(n, bound)
	isOpened(n, v, "app", "")
	n.MustUnpublish(v)
}

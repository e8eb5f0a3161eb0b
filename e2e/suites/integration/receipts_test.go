package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
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
func (n *node) reads(paths ...string) {
	n.t.Helper()
	for _, path := range paths {
		file := must.Get(os.Open(path))(n.t)
		file.Close()
	}
}

// bind mounts one file of a volume elsewhere, as the kubelet does for a subPath: it resolves all links first.
func (n *node) bind(v *harness.Volume, path string) (at string) {
	n.t.Helper()
	file := must.Get(filepath.EvalSymlinks(filepath.Join(n.Target(v), path)))(n.t)
	at = filepath.Join(n.t.TempDir(), "subpath")
	must.Do(n.t, errors.Join(os.WriteFile(at, nil, 0o644), unix.Mount(file, at, "", unix.MS_BIND, "")))
	n.t.Cleanup(func() { must.Do(n.t, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

// isOpened waits until the status says of a volume's object that it was opened, with "", or in which state it is and which
// files were not.
func (n *node) isOpened(v *harness.Volume, object, state string, unopened ...string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		report, err := n.report()
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
	n := newNode(t)
	n.configMap("app", map[string]string{"a": "1", "b": "1"})
	n.secret("db", map[string]string{"p": n.canary()})
	v := n.volume(map[string]string{"sources": "[{configMap: {name: app}}, {env: {path: conf/db.env, envFrom: [{secretRef: {name: db}}]}}, {versions: {path: v}}]"})
	n.mustPublish(v)
	at := func(path string) string { return filepath.Join(n.Target(v), path) }
	n.isOpened(v, "app", "no", "a", "b")
	n.isOpened(v, "db", "no", "conf/db.env")
	if _, err := os.Stat(at("a")); err != nil {
		t.Error(err)
	}
	n.reads(n.bind(v, "b"))
	n.isOpened(v, "app", "no", "a")
	n.reads(at("a"), at("conf/db.env"))
	n.isOpened(v, "app", "")
	n.isOpened(v, "db", "")

	n.configMap("app", map[string]string{"a": "1", "b": "2"})
	n.arrives(v, "b", "2", soon) // which reads it
	n.configMap("app", map[string]string{"a": "1", "b": "2", "c": "1"})
	n.isOpened(v, "app", "no", "c")
	harness.Eventually(t, soon, func() error { // a plugin that is killed has kept what came seconds before
		_, err := unix.Getxattr(at("b"), "trusted.refvol.opened", nil)
		return err
	})
	n.crash()
	n.isOpened(v, "app", "unknown", "c")
	n.isOpened(v, "db", "")
	n.reads(at("a"), at("c"))
	n.isOpened(v, "app", "")

	n.restartWith("--open-receipts=false")
	n.isOpened(v, "app", "unsupported")
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// TestReceiptsInPlace: a file that is rewritten has to be opened again, by whoever holds it as a subPath, and no other one.
func TestReceiptsInPlace(t *testing.T) {
	needsReceipts(t)
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"a": "1", "b": "1"})
	v := n.volume(map[string]string{"configMap": "app", "writeStrategy": "InPlace"})
	n.mustPublish(v)
	bound := n.bind(v, "a")
	held := must.Get(os.Open(filepath.Join(n.Target(v), "a")))(t)
	defer held.Close()
	n.reads(filepath.Join(n.Target(v), "b"))
	n.isOpened(v, "app", "")
	n.configMap("app", map[string]string{"a": "2", "b": "1"})
	n.isOpened(v, "app", "no", "a")
	buf := make([]byte, 8)
	if got, err := held.ReadAt(buf, 0); got != 1 || buf[0] != '2' { // an open descriptor shows it, and opens nothing
		t.Errorf("%d, %v", got, err)
	}
	n.isOpened(v, "app", "no", "a")
	n.reads(bound)
	n.isOpened(v, "app", "")
	n.mustUnpublish(v)
}

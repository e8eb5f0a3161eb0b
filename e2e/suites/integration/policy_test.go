package integration

import (
	"io/fs"
	"os"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// A volume with an owner has exact modes, with an fsGroup too, at the first write
// and at every later one.
func TestOwnerMakesModesExact(t *testing.T) {
	n := newNode(t)
	first, second := n.canary(), n.canary()
	n.secret("db", map[string]string{"key": first})
	gid, err := harness.MappedGID()
	if err != nil {
		t.Fatal(err)
	}
	uid := gid // both are mapped alike
	v := n.volume(map[string]string{"secret": "db", "defaultMode": "0400", "uid": strconv.Itoa(uid)})
	v.MountGroup = strconv.Itoa(gid)
	n.mustPublish(v)
	check := func() {
		t.Helper()
		files, err := harness.Files(n.Target(v))
		if err != nil {
			t.Fatal(err)
		}
		if f := files["key"]; f.UID != uid || f.GID != gid || f.Mode != 0o400 {
			t.Errorf("key is %v of %d:%d, want 0400 of %d:%d", f.Mode, f.UID, f.GID, uid, gid)
		}
		if info, err := os.Stat(n.Target(v)); err != nil || info.Mode() != fs.ModeDir|0o755 {
			t.Errorf("the volume's root is %v, %v", info.Mode(), err)
		}
	}
	check()
	n.secret("db", map[string]string{"key": second})
	n.arrives(v, "key", second, soon)
	check()
	n.mustUnpublish(v)
}

// A pinned volume keeps what it showed first, and nothing is watched for it.
func TestPinnedVolumeIsNeverRewritten(t *testing.T) {
	n := newNode(t, "--resync-interval=1s")
	watched := watches(t.Context(), t, "configmaps")
	first, second := n.canary(), n.canary()
	n.configMap("app", map[string]string{"key": first})
	pinned := n.volume(map[string]string{"configMap": "app", "updatePolicy": "Pinned"})
	n.mustPublish(pinned)
	wantWatches(t, "configmaps", watched)
	live := n.short("app")
	n.mustPublish(live)
	n.configMap("app", map[string]string{"key": second})
	n.arrives(live, "key", second, soon)
	n.wantContent(pinned, "key", first)
	n.mustKill()
	n.mustStart()
	third := n.canary()
	n.configMap("app", map[string]string{"key": third})
	n.arrives(live, "key", third, soon)
	n.wantContent(pinned, "key", first)
	n.mustUnpublish(live)
	wantWatches(t, "configmaps", watched)
	n.mustUnpublish(pinned)
}

// With onDelete: Remove the files go with their object and come back with it.
func TestOnDeleteRemove(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v := n.volume(map[string]string{"configMap": "app", "onDelete": "Remove"})
	n.mustPublish(v)
	n.wantContent(v, "key", value)
	if err := shared.Client().CoreV1().ConfigMaps(n.namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.vanishes(v, "key", soon)
	n.wantMounts(1)
	n.configMap("app", map[string]string{"key": value})
	n.arrives(v, "key", value, soon)
	n.mustUnpublish(v)
}

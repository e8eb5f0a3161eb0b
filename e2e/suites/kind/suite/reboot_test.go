package suite

import (
	"context"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/internal/must"
)

// A node reboots: its mounts are gone, and what the kubelet and the plugin keep on disk
// is not. Its pods come back with complete and current volumes; pods that are deleted
// while it is down leave nothing.
func TestNodeReboot(t *testing.T) {
	n := newNamespace(t)
	node := n.workers(t)[0]
	n.setConfigMap("settings", object{"key": canary("old"), "goes": "x"})
	n.setSecret("login", object{"user": canary("old")})
	inspector := n.startOnNode("inspector", node)
	spec := func(name string) *corev1.Pod {
		return onNode(newPod(name,
			refvol("settings", attributes{"configMap": "settings"}),
			refvol("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace"}),
			refvol("login", attributes{"secret": "login"})), node)
	}
	stays, deleted, forced := n.start(spec("stays")), n.start(spec("deleted")), n.start(spec("forced"))
	var left []leftovers
	for _, p := range []*pod{deleted, forced} {
		left = append(left, leftovers{inspector: inspector, of: p})
		left[len(left)-1].there(t)
	}
	plugin := &pod{n, n.awaitPlugin(t, pluginNamespace, node)}

	func() {
		defer n.undo(func(ctx context.Context) error { return docker(ctx, "start", node) })
		mustDocker(t, "stop", node)
		n.setConfigMap("settings", object{"key": canary("new"), "comes": "y"})
		n.setSecret("login", object{"user": canary("new")})
		deleted.beginDelete()
		forced.beginDelete(0)
	}()
	for _, p := range []*pod{plugin, inspector, stays} {
		p.awaitNextRun(t)
	}

	settings := object{"key": canary("new"), "comes": "y"}
	shown := stays.snapshots(t)
	for volume, want := range map[string]object{"settings": settings, "in-place": settings, "login": {"user": canary("new")}} {
		if !maps.Equal(shown[volume], snapshotOf(want)) {
			t.Errorf("%s shows %q, want %q", volume, shown[volume], want)
		}
	}
	n.setConfigMap("settings", object{"key": canary("newest")})
	n.setSecret("login", object{"user": canary("newest")})
	for _, file := range []string{"settings/key", "in-place/key", "login/user"} {
		stays.awaitText(mountDir+file, canary("newest"), podTimeout)
	}
	for _, id := range stays.volumeIDs() {
		onlyOneMount(t, inspector, id)
	}
	deleted.awaitGone()
	for _, l := range left {
		l.awaitNone(t)
	}
	last := leftovers{inspector: inspector, of: stays}
	last.there(t)
	stays.delete()
	last.awaitNone(t)
}

// awaitNextRun waits until other containers of the same pod than the last ones that were
// seen are ready.
func (p *pod) awaitNextRun(t *testing.T) {
	t.Helper()
	last := must.Get(runOf(p.Pod))(t)
	eventually(t, 3*podTimeout, "pod "+p.Name+" running again", func(ctx context.Context) error {
		now, err := p.now(ctx)
		if err != nil {
			return err
		}
		next, err := runOf(now)
		if err != nil {
			return err
		}
		if next == last || now.UID != p.UID {
			return fmt.Errorf("it runs as %v, and did so before as %v", next, last)
		}
		p.Pod = now
		return nil
	})
}

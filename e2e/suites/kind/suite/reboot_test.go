package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	paths := pluginPaths(t, n.mustPlugin(t, pluginNamespace, node))
	var left []leftovers
	for _, p := range []*pod{deleted, forced} {
		left = append(left, leftovers{inspector: inspector, paths: paths, of: p})
		left[len(left)-1].there(t)
	}
	plugin := &pod{n, n.mustPlugin(t, pluginNamespace, node)}

	n.whileDown(t, node, func() {
		n.setConfigMap("settings", object{"key": canary("new"), "comes": "y"})
		n.setSecret("login", object{"user": canary("new")})
		pods := n.client.CoreV1().Pods(n.name)
		if err := pods.Delete(t.Context(), deleted.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := pods.Delete(t.Context(), forced.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Fatal(err)
		}
	})
	began := time.Now()
	for _, p := range []*pod{plugin, inspector, stays} {
		p.awaitNextRun(t)
	}
	t.Logf("all pods run again %.0f s after the node was switched on", time.Since(began).Seconds())

	stays.shows(map[string]map[string]string{
		"settings": {"key": canary("new"), "comes": "y"},
		"in-place": {"key": canary("new"), "comes": "y"},
		"login":    {"user": canary("new")},
	})
	n.setConfigMap("settings", object{"key": canary("newest")})
	n.setSecret("login", object{"user": canary("newest")})
	for _, file := range []string{"settings/key", "in-place/key", "login/user"} {
		stays.probe("await", mountDir+file, canary("newest"), podTimeout.String())
	}
	for _, id := range stays.volumeIDs() {
		onlyOneMount(t, inspector, id)
	}
	deleted.awaitGone(t)
	for _, l := range left {
		l.awaitNone(t)
	}
	last := leftovers{inspector: inspector, paths: paths, of: stays}
	last.there(t)
	stays.delete()
	last.awaitNone(t)
}

// whileDown switches a node off, calls do, and switches it on again, also if do fails
// the test.
func (n *namespace) whileDown(t *testing.T, node string, do func()) {
	t.Helper()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := docker(ctx, "start", node); err != nil {
			t.Error(err)
		}
	}()
	mustDocker(t, "stop", node)
	do()
}

// awaitNextRun waits until other containers of the same pod than the last ones that were
// seen are ready.
func (p *pod) awaitNextRun(t *testing.T) {
	t.Helper()
	last, err := runOf(p.Pod)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*podTimeout, "pod "+p.Name+" running again", func(ctx context.Context) error {
		now, err := p.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		next, err := runOf(now)
		if err != nil {
			return err
		}
		if next == last || next.uid != last.uid {
			return fmt.Errorf("it runs as %v, and did so before as %v", next, last)
		}
		p.Pod = now
		return nil
	})
}

// shows checks at once that the volumes have exactly these files with these texts.
func (p *pod) shows(volumes map[string]map[string]string) {
	p.t.Helper()
	for volume, want := range volumes {
		dir := mountDir + volume
		links := map[string]bool{}
		for _, e := range p.tree(dir) {
			// The layout's own names begin with two dots, and what is below them too.
			if len(e.Path) > 0 && e.Path[0] != '.' {
				links[e.Path] = true
			}
		}
		if len(links) != len(want) {
			p.t.Errorf("%s has %v, want %v", volume, links, want)
		}
		for key, text := range want {
			if err := p.hasText(p.t.Context(), "probe", dir+"/"+key, text); err != nil {
				p.t.Error(err)
			}
		}
	}
}

package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

const (
	upgradeDriver    = "upgrade.refvol.dev"
	upgradeNamespace = "refvol-upgrade"
	// rollTimeout is how long a DaemonSet may take from one version to another on all nodes.
	rollTimeout = 10 * time.Minute
	pinnedFile  = mountDir + "pinned/secret"
)

// TestUpgradeAndRollback installs the plugin of an older commit, starts pods with a volume of every kind, and rolls to
// this commit and back while the objects change. No read fails or gives an older state, every change arrives where
// it should, and pods that are created on a node while it has no plugin start once it has one.
func TestUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("REFVOL_UPGRADES") // with the manifests of two versions
	other, newest := filepath.Join(dir, "other.yaml"), filepath.Join(dir, "newest.yaml")
	u := newUpgrade(t, other, newest)
	for _, node := range u.workers(t) {
		u.inspectors[node] = u.startOnNode("inspector-"+node, node)
		u.starts(u.createReader("reader", node))
	}
	u.awaitAll(textOf(0, -1))
	u.roll(newest, "upgrade")
	u.roll(other, "rollback")
	for _, p := range u.readers {
		p.judge(p.awaitHistory("the last text", func(h history) bool { return h.has(textOf(u.rolls, -1), files()...) }))
		onlyOneMount(t, u.inspectors[p.Spec.NodeName], p.volumeID("both"))
		p.delete()
	}
	for _, plugin := range u.plugins() {
		u.searchBefore(plugin)
	}
}

// upgrade is a plugin of its own that goes from one version to another.
type upgrade struct {
	*namespace
	// source is a namespace whose Secret the pods show, too.
	source *namespace
	// inspectors look at the mounts of each worker.
	inspectors map[string]*pod
	// rolls counts the times that the plugin was brought to another version.
	rolls   int
	readers []*pod
	// pinned is what the pinned volume of each reader showed first, by the pod's name.
	pinned map[string]string
}

func newUpgrade(t *testing.T, older, newest string) *upgrade {
	t.Helper()
	u := &upgrade{source: newNamespace(t), inspectors: map[string]*pod{}, pinned: map[string]string{}}
	// It goes after all volumes.
	t.Cleanup(func() {
		u.source.undo(func(ctx context.Context) error {
			return kubectl(ctx, "delete", "--ignore-not-found", "--filename", older, "--filename", newest)
		})
	})
	u.namespace = newNamespace(t)
	u.change(textOf(0, -1))
	u.source.grant("secrets", "theirs", u.name, "default")
	must.Do(t, errors.Join(kubectl(t.Context(), "apply", "--filename", older), rolledOut(t.Context())))
	return u
}

// rolledOut waits until the newest template's pods are ready on all nodes.
func rolledOut(ctx context.Context) error {
	return kubectl(ctx, "--namespace", upgradeNamespace, "rollout", "status", "daemonset/refvol-plugin", "--timeout="+rollTimeout.String())
}

// textOf is the text of all keys at a step of a roll. It grows in byte order and keeps its length; that of no step is the
// last of a roll.
func textOf(roll, step int) string {
	if step < 0 {
		return canary(fmt.Sprintf("%d-last..", roll))
	}
	return canary(fmt.Sprintf("%d-%06d", roll, step))
}

// change brings all objects to the text.
func (u *upgrade) change(text string) {
	u.t.Helper()
	u.setConfigMap("settings", object{"number": text})
	u.setSecret("login", object{"secret": text})
	u.source.setSecret("theirs", object{"theirs": text})
}

// createReader creates a pod on the node that shows all objects, in a volume of every kind, and tells of what it reads.
func (u *upgrade) createReader(name, node string) *pod {
	u.t.Helper()
	ours := func(name string, a attributes) corev1.Volume { return ofDriver(upgradeDriver, name, a) }
	spec := onNode(newPod(name+"-"+node,
		ours("both", attributes{"sources": fmt.Sprintf(
			"[{configMap: {name: settings}}, {secret: {name: login}}, {secret: {name: theirs, namespace: %s}}]", u.source.name)}),
		ours("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace"}),
		ours("pinned", attributes{"secret": "login", "updatePolicy": "Pinned"}),
		ours("env", attributes{"sources": "[{env: {path: app.env, envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: login}}]}}]"}),
	), node)
	spec.Spec.Containers[0].Args = append([]string{"follow"}, files()...)
	return u.create(spec)
}

// starts waits until a reader runs.
func (u *upgrade) starts(p *pod) {
	u.t.Helper()
	p.awaitReady()
	u.pinned[p.Name] = p.probe("read", pinnedFile)
	u.readers = append(u.readers, p)
}

// awaitAll waits until all volumes of the readers show the text, but for the pinned ones, which never change.
func (u *upgrade) awaitAll(text string) {
	u.t.Helper()
	for _, p := range u.readers {
		for _, file := range append(files(), mountDir+"in-place/number") {
			p.awaitText(file, text, podTimeout)
		}
		p.awaitText(mountDir+"env/app.env", "number="+text+"\nsecret="+text+"\n", podTimeout)
		p.wantText(pinnedFile, u.pinned[p.Name])
	}
}

// files are those of a reader that are replaced at once.
func files() []string {
	return []string{mountDir + "both/number", mountDir + "both/secret", mountDir + "both/theirs"}
}

// roll brings the plugin to what the manifests say, node by node, under the readers. On each worker a pod is created, once, when the
// worker's plugin goes and the next one is not ready.
func (u *upgrade) roll(manifests, name string) {
	u.t.Helper()
	u.rolls++
	before := u.plugins()
	for _, plugin := range before {
		u.searchBefore(plugin)
	}
	must.Do(u.t, kubectl(u.t.Context(), "apply", "--filename", manifests))
	done := make(chan error, 1)
	go func() { done <- rolledOut(u.t.Context()) }()
	var late []*pod
	for rolled, steps := false, 0; !rolled; steps++ {
		select {
		case err := <-done:
			must.Do(u.t, err)
			rolled = true
		default:
			now := u.plugins()
			for node := range u.inspectors {
				created := slices.ContainsFunc(late, func(p *pod) bool { return p.Spec.NodeName == node })
				plugin := now[node]
				if !created && (plugin == nil || plugin.UID != before[node].UID && !ready(plugin)) {
					late = append(late, u.createReader(name, node))
				}
			}
			u.change(textOf(u.rolls, steps))
		}
	}
	now := u.plugins()
	for node, old := range before {
		if now[node] == nil || image(old) == image(now[node]) {
			u.t.Errorf("the plugin on %s is still %s, or there is none", node, image(old))
		}
	}
	if len(late) != len(u.inspectors) {
		u.t.Errorf("on %d of %d nodes a pod was created while there was no plugin", len(late), len(u.inspectors))
	}
	for _, p := range late {
		u.starts(p)
		u.t.Logf("%s started; attempts that failed before: %q", p.Name, p.failedMounts())
	}
	u.change(textOf(u.rolls, -1))
	u.awaitAll(textOf(u.rolls, -1))
}

// plugins returns the plugin's pods that are not going, by node.
func (u *upgrade) plugins() map[string]*corev1.Pod {
	u.t.Helper()
	pods := must.Get(u.client.CoreV1().Pods(upgradeNamespace).List(u.t.Context(), metav1.ListOptions{LabelSelector: pluginLabels}))(u.t)
	found := map[string]*corev1.Pod{}
	for i, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			found[p.Spec.NodeName] = &pods.Items[i]
		}
	}
	return found
}

func image(plugin *corev1.Pod) string { return plugin.Spec.Containers[0].Image }

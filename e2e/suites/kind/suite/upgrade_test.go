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
)

const (
	upgradeDriver    = "upgrade.refvol.dev"
	upgradeNamespace = "refvol-upgrade"
	// rollTimeout is how long a DaemonSet may take from one version to another on all nodes.
	rollTimeout = 10 * time.Minute
)

// TestUpgradeAndRollback installs the plugin of an older commit, starts pods with a volume of every kind, and rolls to
// this commit and back while the objects change. No read fails or gives an older state, every change arrives where
// it should, and pods that are created on a node while it has no plugin start once it has one.
func TestUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	useAllNodes(t)
	dir := os.Getenv("REFVOL_UPGRADES")
	if dir == "" {
		t.Fatal("REFVOL_UPGRADES names no directory with the manifests of two versions")
	}
	other, newest := filepath.Join(dir, "other.yaml"), filepath.Join(dir, "newest.yaml")
	u := newUpgrade(t, other, newest)
	readers := u.readers()
	u.roll(newest, "upgrade", readers)
	readers = append(readers, u.late...)
	u.roll(other, "rollback", readers)
	readers = append(readers, u.late...)
	for _, p := range readers {
		u.judge(p.awaitHistory("the last text", func(h history) bool { return h.has(textOf(u.rolls, -1), files()...) }))
		onlyOneMount(t, u.inspectors[p.Spec.NodeName], p.volumeID("both"))
		p.delete()
	}
	for _, plugin := range u.plugins() {
		u.searchBefore(t, plugin)
	}
}

// upgrade is a plugin of its own that goes from one version to another.
type upgrade struct {
	*namespace
	// source is a namespace whose Secret the pods show, too.
	source *namespace
	nodes  []string
	// inspectors look at the mounts of each node.
	inspectors map[string]*pod
	// rolls counts the times that the plugin was brought to another version.
	rolls int
	// pinned is what the pinned volume of each pod shows, by the pod's name.
	pinned map[string]string
	// late are the pods that were created in the last roll while their node had no plugin.
	late []*pod
}

func newUpgrade(t *testing.T, older, newest string) *upgrade {
	t.Helper()
	u := &upgrade{inspectors: map[string]*pod{}, pinned: map[string]string{}}
	// It goes last, after all volumes.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := kubectl(ctx, "delete", "--ignore-not-found", "--filename", older, "--filename", newest); err != nil {
			t.Error(err)
		}
	})
	u.namespace, u.source = newNamespace(t), newNamespace(t)
	u.setConfigMap("settings", object{"number": textOf(0, -1)})
	u.setSecret("login", object{"secret": textOf(0, -1)})
	u.source.setSecret("theirs", object{"theirs": textOf(0, -1)})
	u.source.grant("secrets", "theirs", u.name, "default")
	if err := errors.Join(kubectl(t.Context(), "apply", "--filename", older), rolledOut(t.Context())); err != nil {
		t.Fatal(err)
	}
	u.nodes = u.workers(t)
	for _, node := range u.nodes {
		u.inspectors[node] = u.startOnNode("inspector-"+node, node)
	}
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

// reader describes a pod on the node that shows all objects, in a volume of every kind, and tells of what it reads.
func (u *upgrade) reader(name, node string) *corev1.Pod {
	ours := func(name string, a attributes) corev1.Volume {
		v := refvol(name, a)
		v.CSI.Driver = upgradeDriver
		return v
	}
	spec := onNode(newPod(name,
		ours("both", attributes{"sources": fmt.Sprintf(
			"[{configMap: {name: settings}}, {secret: {name: login}}, {secret: {name: theirs, namespace: %s}}]", u.source.name)}),
		ours("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace"}),
		ours("pinned", attributes{"secret": "login", "updatePolicy": "Pinned"}),
		ours("env", attributes{"sources": "[{env: {path: app.env, envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: login}}]}}]"}),
	), node)
	spec.Spec.Containers[0].Args = append([]string{"follow"}, files()...)
	return spec
}

const pinnedFile = mountDir + "pinned/secret"

// keepPinned notes what the pod's pinned volume shows: what it showed first.
func (u *upgrade) keepPinned(p *pod) { u.pinned[p.Name] = p.probe("read", pinnedFile) }

// awaitAll waits until all volumes of the pods show the text, but for the pinned ones, which never change.
func (u *upgrade) awaitAll(pods []*pod, text string) {
	u.t.Helper()
	for _, p := range pods {
		for _, file := range append(files(), mountDir+"in-place/number") {
			p.awaitText(file, text, podTimeout)
		}
		p.awaitText(mountDir+"env/app.env", "number="+text+"\nsecret="+text+"\n", podTimeout)
		if err := p.hasText(u.t.Context(), "probe", pinnedFile, u.pinned[p.Name]); err != nil {
			u.t.Errorf("%s, a pinned volume: %v", p.Name, err)
		}
	}
}

// files are those of a reader that are replaced at once.
func files() []string {
	return []string{mountDir + "both/number", mountDir + "both/secret", mountDir + "both/theirs"}
}

// readers starts a reader on each worker.
func (u *upgrade) readers() []*pod {
	u.t.Helper()
	var readers []*pod
	for _, node := range u.nodes {
		p := u.start(u.reader("reader-"+node, node))
		u.keepPinned(p)
		readers = append(readers, p)
	}
	u.awaitAll(readers, textOf(0, -1))
	return readers
}

// wantChanged wants each plugin to be of another version than before.
func (u *upgrade) wantChanged(before map[string]*corev1.Pod) {
	u.t.Helper()
	now := u.plugins()
	for node, old := range before {
		if now[node] == nil || image(old) == image(now[node]) {
			u.t.Errorf("the plugin on %s is still %s, or there is none", node, image(old))
		}
	}
}

// roll brings the plugin to what the manifests say, node by node, under the readers.
func (u *upgrade) roll(manifests, name string, readers []*pod) {
	u.t.Helper()
	u.rolls++
	before := u.plugins()
	for _, plugin := range before {
		u.searchBefore(u.t, plugin)
	}
	began, steps := time.Now(), 0
	if err := kubectl(u.t.Context(), "apply", "--filename", manifests); err != nil {
		u.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- rolledOut(u.t.Context()) }()
	u.late = nil
	for rolled := false; !rolled; {
		select {
		case err := <-done:
			if err != nil {
				u.t.Fatal(err)
			}
			rolled = true
		default:
			u.publishInGaps(name, before)
			u.change(textOf(u.rolls, steps))
			steps++
		}
	}
	u.wantChanged(before)
	if len(u.late) != len(u.nodes) {
		u.t.Errorf("on %d of %d nodes a pod was created while there was no plugin", len(u.late), len(u.nodes))
	}
	u.t.Logf("%s: %d nodes in %s, %d changes of 3 objects meanwhile", name, len(before), time.Since(began).Round(time.Second), steps)
	for _, p := range u.late {
		p.awaitReady()
		u.keepPinned(p)
		u.t.Logf("%s started; attempts that failed before: %q", p.Name, p.failedMounts())
	}
	u.change(textOf(u.rolls, -1))
	u.awaitAll(append(readers, u.late...), textOf(u.rolls, -1))
}

// plugins returns the plugin's pods that are not going, by node.
func (u *upgrade) plugins() map[string]*corev1.Pod {
	u.t.Helper()
	pods, err := u.client.CoreV1().Pods(upgradeNamespace).List(u.t.Context(), metav1.ListOptions{LabelSelector: pluginLabels})
	if err != nil {
		u.t.Fatal(err)
	}
	found := map[string]*corev1.Pod{}
	for i, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			found[p.Spec.NodeName] = &pods.Items[i]
		}
	}
	return found
}

func image(plugin *corev1.Pod) string { return plugin.Spec.Containers[0].Image }

// publishInGaps creates a pod on each worker, once, when the worker's plugin goes and the next one
// is not ready.
func (u *upgrade) publishInGaps(name string, before map[string]*corev1.Pod) {
	u.t.Helper()
	now := u.plugins()
	for _, node := range u.nodes {
		started := slices.ContainsFunc(u.late, func(p *pod) bool { return p.Spec.NodeName == node })
		plugin := now[node]
		if !started && (plugin == nil || plugin.UID != before[node].UID && !ready(plugin)) {
			u.late = append(u.late, u.create(u.reader(name+"-"+node, node)))
		}
	}
}

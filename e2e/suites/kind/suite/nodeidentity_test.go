package suite

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// nodeIdentityDriver is that of the third plugin that the runner installs, which reads
	// objects with its node's rights.
	nodeIdentityDriver    = "node-identity.refvol.dev"
	nodeIdentityNamespace = "refvol-node-identity"
)

// asNode describes a volume of the driver that reads as the node, which shows what the pod's own
// volume shown names.
func asNode(name, shown string) corev1.Volume {
	v := refvol(name, attributes{"volume": shown})
	v.CSI.Driver = nodeIdentityDriver
	return v
}

// withUnmounted adds volumes to a pod that no container mounts.
func withUnmounted(spec *corev1.Pod, volumes ...corev1.Volume) *corev1.Pod {
	spec.Spec.Volumes = append(spec.Spec.Volumes, volumes...)
	return spec
}

// one is the view of one object, which must be there or not.
func one(s corev1.VolumeProjection) view { return view{sources: []corev1.VolumeProjection{s}} }

// nodePlugin returns the pod of the third plugin on a node.
func (n *namespace) nodePlugin(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	plugins, err := n.client.CoreV1().Pods(nodeIdentityNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: pluginLabels,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil || len(plugins.Items) != 1 {
		t.Fatalf("plugin of %s: %v, %v", node, plugins, err)
	}
	return &plugins.Items[0]
}

// A plugin without a right to any object shows a pod what the pod's own volumes name, whether or not
// a container mounts them. Of what is optional and missing nothing is shown, nothing waits for
// it, and it comes when it is created. When the pod goes it leaves nothing.
func TestNodeIdentity(t *testing.T) {
	t.Parallel()
	needsNodes(t, "looks at a node's files and mounts")
	n := newNamespace(t)
	n.createConfigMap("settings", object{"app.yaml": "first"})
	n.createSecret("db", object{"password": canary("first")})
	everything := view{projected: true, sources: []corev1.VolumeProjection{
		source(kindConfigMap, "settings", item("app.yaml", "conf/app.yaml")), source(kindSecret, "db"), optional(source(kindSecret, "late")),
	}}
	spec := newPod("reader",
		asNode("settings", "of-configmap"), asNode("db", "of-secret"), asNode("everything", "of-both"), asNode("later", "of-none"),
		asNode("twice", "mounted"), one(source(kindConfigMap, "settings")).native("mounted"))
	p := n.start(withUnmounted(spec,
		one(source(kindConfigMap, "settings")).native("of-configmap"), one(source(kindSecret, "db")).native("of-secret"),
		everything.native("of-both"), one(optional(source(kindConfigMap, "none"))).native("of-none"),
		// Nobody shows this one, and the kubelet doesn't ask for it.
		one(source(kindSecret, "never")).native("of-nobody")))
	files := func(text string) map[string]string {
		return map[string]string{
			"settings/app.yaml": text, "twice/app.yaml": text, "everything/conf/app.yaml": text,
			"db/password": canary(text), "everything/password": canary(text),
		}
	}
	for file, text := range files("first") {
		p.awaitText(mountDir+file, text, podTimeout)
	}
	n.updateConfigMap("settings", object{"app.yaml": "second"})
	n.updateSecret("db", object{"password": canary("second")})
	n.createSecret("late", object{"token": canary("late")})
	n.createConfigMap("none", object{"key": "here"})
	for file, text := range files("second") {
		p.awaitText(mountDir+file, text, podTimeout)
	}
	p.awaitText(mountDir+"everything/token", canary("late"), podTimeout)
	p.awaitText(mountDir+"later/key", "here", podTimeout)

	inspector := n.startOnNode("inspector", p.Spec.NodeName)
	left := leftovers{inspector: inspector, paths: pluginPaths(t, n.nodePlugin(t, p.Spec.NodeName)), of: p}
	left.there(t)
	p.delete()
	left.awaitNone(t)
}

// A required object that is missing holds the pod until it is created. An object that the pod's
// spec does not name is refused, also where a neighbour names it.
func TestNodeIdentityHoldsPods(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	waiting := n.create(withUnmounted(newPod("waiting", asNode("db", "of-secret")), one(source(kindSecret, "db")).native("of-secret")))
	waiting.awaitWarning("RefNotFound", `spec.volumes[1].secret: Secret "`+n.name+`/db" not found`)
	if got := waiting.phase(t); got != corev1.PodPending {
		t.Errorf("the pod is %s without its Secret", got)
	}
	n.createSecret("db", object{"password": canary("here")})
	waiting.awaitReady()
	waiting.awaitText(mountDir+"db/password", canary("here"), podTimeout)

	direct := asNode("db", "")
	// The policy sees no field name with an escape.
	direct.CSI.VolumeAttributes = attributes{"sources": `[{"s\u0065cret": {"name": "db"}}]`}
	refused := n.create(newPod("refused", direct))
	refused.awaitWarning("FailedMount", `the pod's spec does not name Secret "`+n.name+`/db" itself`)
	direct.CSI.VolumeAttributes = attributes{"secret": "db"}
	_, err := n.client.CoreV1().Pods(n.name).Create(t.Context(), newPod("denied", direct), metav1.CreateOptions{})
	if err == nil || !containsAll(err.Error(), []string{"refvol-node-identity", `does not name Secret "` + n.name + `/db" itself`}) {
		t.Errorf("got %v, want the policy to refuse what the spec does not name", err)
	}
}

// Each of ten changes is visible in the container under 250 ms in the median, as with the plugin's
// own rights: see TestChangeIsVisibleAtOnce.
func TestNodeIdentityShowsChangesAtOnce(t *testing.T) {
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "change 0"})
	p := n.start(withUnmounted(newPod("reader", asNode("live", "settings")), native("settings", "settings")))
	bare, err := harness.WatchBare(t.Context(), n.client, n.name, "settings")
	if err != nil {
		t.Fatal(err)
	}
	var all, bareAll []time.Duration
	for i := 1; i <= 10; i++ {
		text := fmt.Sprintf("change %d", i)
		w := p.await(mountDir+"live/key", text, podTimeout)
		before := time.Now()
		version := n.updateConfigMap("settings", object{"key": text}).ResourceVersion
		got := w.arrive()
		at, err := bare.Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		all, bareAll = append(all, got.at.Sub(before)), append(bareAll, at.Sub(before))
	}
	t.Logf("in the container after %s (median), at a watch after %s", milliseconds(harness.Median(all)), milliseconds(harness.Median(bareAll)))
	if median, limit := harness.Median(all), medianLimit(bareAll); median >= limit {
		t.Errorf("a change took %s, want %s at most", milliseconds(median), milliseconds(limit))
	}
}

// After a restart the plugin brings the changes that were made meanwhile without the kubelet, as it
// needs no token of the pod. A kubelet that restarts changes nothing.
func TestNodeIdentityAfterRestarts(t *testing.T) {
	t.Parallel()
	node := takeQuietNode(t)
	n := newNamespace(t)
	n.createSecret("db", object{"password": canary("first")})
	spec := withUnmounted(newPod("reader", asNode("db", "of-secret")), one(source(kindSecret, "db")).native("of-secret"))
	p := n.start(onNode(spec, node))
	file := mountDir + "db/password"
	w := p.await(file, canary("second"), 2*podTimeout)
	deletePlugin(t, n, p, n.nodePlugin(t, node))
	n.updateSecret("db", object{"password": canary("second")})
	var back time.Time
	eventually(t, podTimeout, "plugin ready again", func(ctx context.Context) error {
		plugins, err := n.client.CoreV1().Pods(nodeIdentityNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: pluginLabels, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		if err == nil && !slices.ContainsFunc(plugins.Items, func(p corev1.Pod) bool { return ready(&p) }) {
			err = fmt.Errorf("of %d plugins none is", len(plugins.Items))
		}
		back = time.Now()
		return err
	})
	got := w.arrive()
	t.Logf("current %s after the plugin was seen ready; %d of %d reads failed meanwhile", milliseconds(got.at.Sub(back)), got.Failed, got.Reads)
	if got.Failed > 0 {
		t.Errorf("a read failed: %s", got.Error)
	}
	plugin := n.nodePlugin(t, node)
	id := p.volumeID("db")
	if published, err := n.publishes(t.Context(), plugin, metav1.NewTime(p.CreationTimestamp.Time), []string{id}); err != nil || published[0] > 0 {
		t.Errorf("the kubelet has published the volume again %v times (%v): that is no restart of the plugin alone", published, err)
	}
	if late := got.at.Sub(back); late > busyLimit {
		t.Errorf("the change came %s after the plugin was ready", late)
	}

	mustDocker(t, "exec", node, "systemctl", "restart", "kubelet")
	eventually(t, podTimeout, "publish by the kubelet that was restarted", func(ctx context.Context) error {
		published, err := n.publishes(ctx, plugin, metav1.NewTime(p.CreationTimestamp.Time), []string{id})
		if err == nil && published[0] == 0 {
			err = fmt.Errorf("volume %s was not published again", id)
		}
		return err
	})
	n.updateSecret("db", object{"password": canary("third")})
	p.awaitText(file, canary("third"), podTimeout)
	p.delete()
}

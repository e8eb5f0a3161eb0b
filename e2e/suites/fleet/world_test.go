package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/kubelet"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/fleet"
)

// world is the nodes of one test, and a namespace with the Secret db.
type world struct {
	t         *testing.T
	kubelets  *kubelet.Server
	namespace string
	// caller is the kubeconfig with whose rights the command runs.
	caller string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, kubelets: kubelet.Start(), namespace: newNamespace(t), caller: shared.caller}
	t.Cleanup(w.kubelets.Close)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"password": leak.Value}}
	must(shared.Client().CoreV1().Secrets(w.namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	return w
}

// cleanUp calls f when the test has ended, with a context that has not.
func (w *world) cleanUp(f func(context.Context) error) {
	w.t.Cleanup(func() {
		if err := f(context.WithoutCancel(w.t.Context())); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) putPod(pod *corev1.Pod) {
	w.t.Helper()
	fatal(w.t, shared.PutPod(w.t.Context(), pod))
	w.cleanUp(func(ctx context.Context) error { return shared.DeletePod(ctx, pod.Namespace, pod.Name) })
}

func (w *world) register(node *corev1.Node) {
	w.t.Helper()
	created := must(shared.Client().CoreV1().Nodes().Create(w.t.Context(), node, metav1.CreateOptions{}))(w.t)
	created.Status = node.Status
	must(shared.Client().CoreV1().Nodes().UpdateStatus(w.t.Context(), created, metav1.UpdateOptions{}))(w.t)
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: harness.DriverName, NodeID: node.Name}}
	must(shared.Client().StorageV1().CSINodes().Create(w.t.Context(), csiNode, metav1.CreateOptions{}))(w.t)
	w.cleanUp(func(ctx context.Context) error {
		return errors.Join(shared.Client().CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}),
			shared.Client().StorageV1().CSINodes().Delete(ctx, node.Name, metav1.DeleteOptions{}))
	})
}

func (w *world) registerHere(name string) {
	w.t.Helper()
	node := must(w.kubelets.Node(name))(w.t)
	w.register(node)
}

// pluginPod stores the plugin's pod of a node, whose ports lead to an address.
func (w *world) pluginPod(node, address string) {
	w.t.Helper()
	pod := runningPod(pluginNamespace, "plugin-"+node, node)
	pod.Labels = map[string]string{"app.kubernetes.io/name": "refvol-plugin"}
	w.putPod(pod)
	w.kubelets.Forward(pod.Namespace, pod.Name, address)
}

func runningPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

type node struct {
	*harness.Plugin
	w    *world
	name string
}

func (w *world) node(name string) *node {
	w.t.Helper()
	w.registerHere(name)
	dir := must(os.MkdirTemp("", "refvol-node-"))(w.t)
	w.cleanUp(func(context.Context) error { return os.RemoveAll(dir) })
	plugin := must(harness.StartPlugin(w.t.Context(), harness.PluginOptions{
		Binary: shared.plugin, Kubeconfig: shared.kubeconfig, Dir: dir, Pods: shared.ControlPlane, NodeName: name,
		Args: []string{"--status-address=127.0.0.1:0", "-v=0"},
	}))(w.t)
	n := &node{plugin, w, name}
	w.cleanUp(func(context.Context) error { return n.Close() })
	address, err := n.StatusAddress()
	if err != nil || address == "" {
		w.t.Fatalf("where the plugin serves its status: %q, %v", address, err)
	}
	w.pluginPod(name, address)
	return n
}

func (n *node) publish(pod string) *harness.Volume {
	n.w.t.Helper()
	v := harness.NewVolume(n.w.namespace, pod, map[string]string{"secret": "db"})
	fatal(n.w.t, n.Publish(n.w.t.Context(), v))
	stored, err := shared.Pod(n.w.t.Context(), n.w.namespace, pod)
	if err != nil || stored.UID != types.UID(v.UID) {
		n.w.t.Fatalf("the pod of the volume: %v, %v", stored, err)
	}
	stored.Status = runningPod("", "", "").Status
	n.w.putPod(stored)
	return v
}

type result struct {
	stdout, stderr string
	status         int
	took           time.Duration
}

func (w *world) run(args ...string) result {
	w.t.Helper()
	began := time.Now()
	stdout, stderr, status := harness.Run(w.t, shared.command, append(args, "--kubeconfig="+w.caller)...)
	took := time.Since(began)
	w.t.Logf("%q: status %d after %s", args, status, took.Round(time.Millisecond))
	return result{stdout, stderr, status, took}
}

func (w *world) converged(args ...string) (fleet.Result, result) {
	w.t.Helper()
	r := w.run(append([]string{"converged", "secret/db", "-n", w.namespace, "-o", "json"}, args...)...)
	var v fleet.Result
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		w.t.Fatalf("status %d, %v\n%s\n%s", r.status, err, r.stdout, r.stderr)
	}
	return v, r
}

// must returns a value, or ends the test because of the error: must(f())(t).
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		fatal(t, err)
		return value
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

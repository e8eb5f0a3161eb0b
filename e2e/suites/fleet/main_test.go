// Package fleet tests kubectl-refvol with many plugins: real processes with real mounts, a real API server,
// and Kubernetes' own server of port-forwards for the nodes' kubelets.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/kubelet"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/fleet"
)

const pluginNamespace = "refvol-system"

// suite is what all tests share. The tests run one after the other: the commands look at all nodes.
type suite struct {
	*harness.Lab
	// command is the program under test, caller the kubeconfig of an account with the rights of deploy/kubectl-refvol.
	command, caller string
}

// shared is set by TestMain before any test runs, and constant from then on.
var shared *suite

// neverReplied is where the kubelet's server waits for ever to close a stream of a client that went
// away before the reply to it was sent. A command that has given up does that.
const neverReplied = "github.com/moby/spdystream.(*Stream).waitWriteReply"

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		lab, err := harness.StartLab(ctx, false, os.Stderr)
		if err != nil {
			return nil, err
		}
		shared = &suite{Lab: lab, caller: filepath.Join(lab.Dir, "caller.kubeconfig")}
		if shared.command, err = harness.BuildKubectlRefvol(ctx, lab.Dir, os.Stderr); err == nil {
			err = shared.grant(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, lab.Stop())
		}
		return lab.Stop, nil
	}, goleak.IgnoreAnyFunction(neverReplied)))
}

const callerAccount = "operator"

// grant gives the caller what deploy/kubectl-refvol does, and nothing else.
func (s *suite) grant(ctx context.Context) error {
	repo, err := harness.Repository()
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(repo, "deploy", "kubectl-refvol", "rbac.yaml"))
	if err != nil {
		return err
	}
	defer f.Close()
	clusterRole, role := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	documents := yaml.NewYAMLOrJSONDecoder(f, 4096)
	if err := errors.Join(documents.Decode(clusterRole), documents.Decode(role)); err != nil {
		return err
	}
	return errors.Join(harness.GrantRules(ctx, s.ControlPlane, callerAccount, s.caller, clusterRole.Rules), s.grantIn(ctx, role.Namespace, role))
}

func (s *suite) grantIn(ctx context.Context, namespace string, role *rbacv1.Role) error {
	_, err := s.Client().RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{})
	_, bindErr := s.Client().RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: callerAccount},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: pluginNamespace, Name: callerAccount}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}, metav1.CreateOptions{})
	return errors.Join(err, bindErr)
}

// newNamespace makes a namespace in which the caller may get Secrets.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := must.Get(shared.Client().CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "fl-"}}, metav1.CreateOptions{}))(t)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "read"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
	}}
	must.Do(t, shared.grantIn(t.Context(), ns.Name, role))
	return ns.Name
}

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
	must.Get(shared.Client().CoreV1().Secrets(w.namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
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
	must.Do(w.t, shared.PutPod(w.t.Context(), pod))
	w.cleanUp(func(ctx context.Context) error { return shared.DeletePod(ctx, pod.Namespace, pod.Name) })
}

// register makes a node whose kubelet is the test's.
func (w *world) register(name string) {
	w.t.Helper()
	node := must.Get(w.kubelets.Node(name))(w.t)
	created := must.Get(shared.Client().CoreV1().Nodes().Create(w.t.Context(), node, metav1.CreateOptions{}))(w.t)
	created.Status = node.Status
	must.Get(shared.Client().CoreV1().Nodes().UpdateStatus(w.t.Context(), created, metav1.UpdateOptions{}))(w.t)
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: harness.DriverName, NodeID: name}}
	must.Get(shared.Client().StorageV1().CSINodes().Create(w.t.Context(), csiNode, metav1.CreateOptions{}))(w.t)
	w.cleanUp(func(ctx context.Context) error {
		return errors.Join(shared.Client().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
			shared.Client().StorageV1().CSINodes().Delete(ctx, name, metav1.DeleteOptions{}))
	})
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
	w *world
}

func (w *world) node(name string) *node {
	w.t.Helper()
	w.register(name)
	dir := must.Get(os.MkdirTemp("", "refvol-node-"))(w.t)
	w.cleanUp(func(context.Context) error { return os.RemoveAll(dir) })
	plugin := must.Get(harness.StartPlugin(w.t.Context(), harness.PluginOptions{
		Binary: shared.Plugin, Kubeconfig: shared.Kubeconfig, Dir: dir, Pods: shared.ControlPlane, NodeName: name,
		Args: []string{"--status-address=127.0.0.1:0", "-v=0"},
	}))(w.t)
	n := &node{plugin, w}
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
	must.Do(n.w.t, n.Publish(n.w.t.Context(), v))
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

func (w *world) converged() (fleet.Result, result) {
	w.t.Helper()
	r := w.run("converged", "secret/db", "-n", w.namespace, "-o", "json")
	var v fleet.Result
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		w.t.Fatalf("status %d, %v\n%s\n%s", r.status, err, r.stdout, r.stderr)
	}
	return v, r
}

package integration

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// pluginNamespace is where the accounts are.
const pluginNamespace = "refvol-system"

// newAccount makes a service account with the rights that the base has with components, waits until they hold, and returns its name and
// kubeconfig.
func newAccount(t *testing.T, components ...string) (name, kubeconfig string) {
	t.Helper()
	name, kubeconfig = "plugin-"+rand.String(8), filepath.Join(t.TempDir(), "kubeconfig")
	rules := must.Get(harness.Rules(t.Context(), components...))(t)
	must.Do(t, harness.GrantRules(t.Context(), shared.ControlPlane, name, kubeconfig, rules))
	// The API server hears of the account and the rules by watches of its own.
	first := &authorizationv1.ResourceAttributes{Group: rules[0].APIGroups[0], Resource: rules[0].Resources[0], Verb: rules[0].Verbs[0]}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: first}}
	reviews := clientOf(t, kubeconfig, "").AuthorizationV1().SelfSubjectAccessReviews()
	harness.Eventually(t, soon, func() error {
		answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("not allowed: %v", first)
		}
		return err
	})
	return name, kubeconfig
}

// clientOf returns a client of a kubeconfig that impersonates a user, empty for nobody. Its connections end with the test.
func clientOf(t *testing.T, kubeconfig, user string) kubernetes.Interface {
	t.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	config.Impersonate.UserName = user
	return harness.ClientFor(t, config)
}

// otherNode is a node that no plugin of these tests is on.
const otherNode = "node-2"

// pluginPod makes an account for plugins that read as their node, a pod of it on a node, and a kubeconfig with a token that
// is bound to the pod.
func pluginPod(t *testing.T, nodeName string) (pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	name, kubeconfig := newAccount(t, "node-identity")
	pod = schedule(t, pluginNamespace, corev1.PodSpec{ServiceAccountName: name, NodeName: nodeName})
	must.Do(t, shared.WriteKubeconfig(kubeconfig, must.Get(shared.PodToken(t.Context(), pod, time.Hour))(t)))
	return pod, kubeconfig
}

// schedule makes a pod as one that was scheduled, by default to the plugins' node and of the
// account "default", and makes the account if there is none.
func schedule(t *testing.T, namespace string, spec corev1.PodSpec) (pod *corev1.Pod) {
	t.Helper()
	spec.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	spec.NodeName = cmp.Or(spec.NodeName, harness.NodeName)
	spec.AutomountServiceAccountToken = new(false)
	if len(spec.Containers) == 0 {
		spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: spec.ServiceAccountName}}
	core := shared.Client().CoreV1()
	if _, err := core.ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	harness.Eventually(t, soon, func() (err error) { // the API server hears of the account by a watch
		pod, err = core.Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
	return pod
}

// nodeUser is whom the plugins of these tests impersonate.
func nodeUser(name string) string { return "system:node:" + name }

// newAcrossNode starts a plugin that shows objects of other namespaces, with the rights of its component.
func newAcrossNode(t *testing.T, args ...string) *node {
	t.Helper()
	return newNodeOf(t, "cross-namespace", args...)
}

// newPodNode starts a plugin that reads objects with the pods' own tokens, and itself may read none.
func newPodNode(t *testing.T, args ...string) *node {
	t.Helper()
	return newNodeOf(t, "pod-identity", append(args, "--identity=pod")...)
}

func newNodeOf(t *testing.T, component string, args ...string) *node {
	t.Helper()
	_, kubeconfig := newAccount(t, component)
	n := newNodeAs(t, kubeconfig, append([]string{"--cross-namespace", "--resync-interval=1s"}, args...)...)
	n.source = newNamespace(t)
	return n
}

// putTheirs creates or replaces the Secret db of the source namespace.
func (n *node) putTheirs(value string) {
	n.t.Helper()
	theirs := *n
	theirs.namespace = n.source
	theirs.secret("db", map[string]string{"key": value})
}

// allow makes a Role of one rule in a namespace and binds subjects to it there; what it
// returns takes the binding away.
func allow(t *testing.T, namespace string, rule rbacv1.PolicyRule, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{rule}}
	role = must.Get(shared.Client().RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}))(t)
	return bind(t, namespace, "Role", role.Name, subjects...)
}

func bind(t *testing.T, namespace, kind, role string, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	bindings := shared.Client().RbacV1().RoleBindings(namespace)
	binding := must.Get(bindings.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   subjects,
	}, metav1.CreateOptions{}))(t)
	return func() {
		t.Helper()
		must.Do(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
	}
}

func rule(kind, verb string, names ...string) rbacv1.PolicyRule {
	resource := strings.ToLower(kind) + "s"
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: names}
}

func account(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

// consented publishes a volume, with a write strategy, of a file a of the source namespace, to which the account web has a right until
// revoke, and a file b that needs none.
func (n *node) consented(strategy string) (v *harness.Volume, revoke func()) {
	n.t.Helper()
	n.putTheirs(n.canary())
	revoke = allow(n.t, n.source, readers("secret", "db"), account(n.namespace, "web"))
	v = n.volume(map[string]string{"writeStrategy": strategy, "sources": fmt.Sprintf(
		"[{secret: {name: db, namespace: %s, items: [{key: key, path: a}]}}, {env: {path: b, env: [{name: OWN, value: x}]}}]", n.source)})
	v.ServiceAccount = "web"
	n.publishes(n.pod(v), soon)
	return v, revoke
}

// pod makes the volume's pod at the API server, as one that was scheduled, and gives the
// volume its UID and a token of its own.
func (n *node) pod(v *harness.Volume) *harness.Volume {
	n.t.Helper()
	pod := schedule(n.t, v.Namespace, corev1.PodSpec{ServiceAccountName: v.ServiceAccount})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	v.Token = must.Get(shared.PodToken(n.t.Context(), pod, time.Hour))(n.t)
	return v
}

// own is a volume of the Secret db of the pod's own namespace.
func (n *node) own(serviceAccount string) *harness.Volume {
	v := n.volume(map[string]string{"secret": "db"})
	v.ServiceAccount = serviceAccount
	return n.pod(v)
}

// readers is a rule to read objects of a kind as a pod must be able to.
func readers(kind string, names ...string) rbacv1.PolicyRule {
	r := rule(kind, "get", names...)
	r.Verbs = []string{"get", "list", "watch"}
	return r
}

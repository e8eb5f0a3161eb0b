package world

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

// NewAccount makes a service account with the rights that the base has with components, waits until they hold, and returns its name and
// kubeconfig.
func (l *Lab) NewAccount(t *testing.T, components ...string) (name, kubeconfig string) {
	t.Helper()
	name, kubeconfig = "plugin-"+rand.String(8), filepath.Join(t.TempDir(), "kubeconfig")
	rules := must.Get(harness.Rules(t.Context(), components...))(t)
	must.Do(t, harness.GrantRules(t.Context(), l.ControlPlane, name, kubeconfig, rules))
	// The API server hears of the account and the rules by watches of its own.
	first := &authorizationv1.ResourceAttributes{Group: rules[0].APIGroups[0], Resource: rules[0].Resources[0], Verb: rules[0].Verbs[0]}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: first}}
	reviews := ClientOf(t, kubeconfig, "").AuthorizationV1().SelfSubjectAccessReviews()
	harness.Eventually(t, Soon, func() error {
		answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("not allowed: %v", first)
		}
		return err
	})
	return name, kubeconfig
}

// ClientOf returns a client of a kubeconfig that impersonates a user, empty for nobody. Its connections end with the test.
func ClientOf(t *testing.T, kubeconfig, user string) kubernetes.Interface {
	t.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	config.Impersonate.UserName = user
	return harness.ClientFor(t, config)
}

// Schedule makes a pod as one that was scheduled, by default to the plugins' node and of the account "default", and makes the account if
// there is none.
func (l *Lab) Schedule(t *testing.T, namespace string, spec corev1.PodSpec) (pod *corev1.Pod) {
	t.Helper()
	spec.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	spec.NodeName = cmp.Or(spec.NodeName, harness.NodeName)
	spec.AutomountServiceAccountToken = new(false)
	if len(spec.Containers) == 0 {
		spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: spec.ServiceAccountName}}
	core := l.Client().CoreV1()
	if _, err := core.ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	harness.Eventually(t, Soon, func() (err error) { // the API server hears of the account by a watch
		pod, err = core.Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
	return pod
}

// NewAcrossNode starts a plugin that shows objects of other namespaces, with the rights of its component.
func (l *Lab) NewAcrossNode(t *testing.T, args ...string) *Node {
	t.Helper()
	return l.newNodeOf(t, "cross-namespace", args...)
}

// NewPodNode starts a plugin that reads objects with the pods' own tokens, and itself may read none.
func (l *Lab) NewPodNode(t *testing.T, args ...string) *Node {
	t.Helper()
	return l.newNodeOf(t, "pod-identity", append(args, "--identity=pod")...)
}

func (l *Lab) newNodeOf(t *testing.T, component string, args ...string) *Node {
	t.Helper()
	_, kubeconfig := l.NewAccount(t, component)
	n := l.NewNodeAs(t, kubeconfig, append([]string{"--cross-namespace", "--resync-interval=1s"}, args...)...)
	n.Source = l.NewNamespace(t)
	return n
}

// PutTheirs creates or replaces the Secret db of the source namespace.
func (n *Node) PutTheirs(value string) {
	n.T.Helper()
	theirs := *n
	theirs.Namespace = n.Source
	theirs.Secret("db", map[string]string{"key": value})
}

// Allow makes a Role of one rule in a namespace and binds subjects to it there; what it returns takes the binding away.
func (l *Lab) Allow(t *testing.T, namespace string, rule rbacv1.PolicyRule, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{rule}}
	role = must.Get(l.Client().RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}))(t)
	return l.Bind(t, namespace, "Role", role.Name, subjects...)
}

// Bind binds subjects to a role in a namespace, as Allow does.
func (l *Lab) Bind(t *testing.T, namespace, kind, role string, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	bindings := l.Client().RbacV1().RoleBindings(namespace)
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

// Account is a service account as the subject of a binding.
func Account(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}

// Consented publishes a volume, with a write strategy, of a file a of the source namespace, to which the account web has a right until
// revoke, and a file b that needs none.
func (n *Node) Consented(strategy string) (v *harness.Volume, revoke func()) {
	n.T.Helper()
	n.PutTheirs(n.Canary())
	revoke = n.lab.Allow(n.T, n.Source, Readers("secret", "db"), Account(n.Namespace, "web"))
	v = n.Volume(map[string]string{"writeStrategy": strategy, "sources": fmt.Sprintf(
		"[{secret: {name: db, namespace: %s, items: [{key: key, path: a}]}}, {env: {path: b, env: [{name: OWN, value: x}]}}]", n.Source)})
	v.ServiceAccount = "web"
	n.Publishes(n.Pod(v), Soon)
	return v, revoke
}

// Pod makes the volume's pod at the API server, as one that was scheduled, and gives the volume its UID and a token of its own.
func (n *Node) Pod(v *harness.Volume) *harness.Volume {
	n.T.Helper()
	pod := n.lab.Schedule(n.T, v.Namespace, corev1.PodSpec{ServiceAccountName: v.ServiceAccount})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	v.Token = must.Get(n.lab.PodToken(n.T.Context(), pod, time.Hour))(n.T)
	return v
}

// Own is a volume of the Secret db of the pod's own namespace.
func (n *Node) Own(serviceAccount string) *harness.Volume {
	v := n.Volume(map[string]string{"secret": "db"})
	v.ServiceAccount = serviceAccount
	return n.Pod(v)
}

// Readers is a rule to read objects of a kind as a pod must be able to: all of them without names.
func Readers(kind string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{strings.ToLower(kind) + "s"}, Verbs: []string{"get", "list", "watch"}, ResourceNames: names,
	}
}

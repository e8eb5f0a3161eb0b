package integration

import (
	"cmp"
	"context"
	"errors"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// pluginNamespace is where the accounts are.
const pluginNamespace = "refvol-system"

// componentAccount returns a kubeconfig of an account with the rights that the base has with
// a component.
func componentAccount(t *testing.T, component string) (kubeconfig string) {
	t.Helper()
	return newAccount(t, uniqueName("plugin-"+component), rulesOf(t, component))
}

// rulesOf returns the rights that the base has with a component. kubectl renders them once, which takes it a while.
func rulesOf(t *testing.T, component string) []rbacv1.PolicyRule {
	t.Helper()
	if known, ok := shared.rules.Load(component); ok {
		return known.([]rbacv1.PolicyRule) //nolint:forcetypeassert // Nothing else is stored.
	}
	rules, err := harness.Rules(t.Context(), component)
	if err != nil {
		t.Fatal(err)
	}
	shared.rules.Store(component, rules)
	return rules
}

// uniqueName returns a name of an account that no other test has, nor this one when it
// runs again.
func uniqueName(prefix string) string { return prefix + "-" + rand.String(8) }

// newAccount makes a service account with the rules, waits until they hold, and returns its
// kubeconfig.
func newAccount(t *testing.T, name string, rules []rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := harness.GrantRules(t.Context(), shared.ControlPlane, name, kubeconfig, rules); err != nil {
		t.Fatal(err)
	}
	awaitRights(t, kubeconfig, rules)
	return kubeconfig
}

// awaitRights waits until the API server knows the account of a kubeconfig and the rules, of which it hears by watches of its own.
func awaitRights(t *testing.T, kubeconfig string, rules []rbacv1.PolicyRule) {
	t.Helper()
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
}

// clientOf returns a client of a kubeconfig that impersonates a user, empty for nobody. Its connections end with the test.
func clientOf(t *testing.T, kubeconfig, user string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = user
	return harness.ClientFor(t, config)
}

// otherNode is a node that no plugin of these tests is on.
const otherNode = "node-2"

// pluginPod makes an account for plugins that read as their node, a pod of it on a node, and a kubeconfig with a token that
// is bound to the pod.
func pluginPod(t *testing.T, nodeName string) (pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	name := uniqueName("plugin")
	newAccount(t, name, rulesOf(t, "node-identity"))
	pod = schedule(t, pluginNamespace, corev1.PodSpec{ServiceAccountName: name, NodeName: nodeName})
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	token, err := shared.PodToken(t.Context(), pod, time.Hour)
	if err := errors.Join(err, shared.WriteKubeconfig(kubeconfig, token)); err != nil {
		t.Fatal(err)
	}
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
func nodeUser(name string) string { return fmt.Sprintf("system:node:%s", name) }

// newAcrossNode starts a plugin that shows objects of other namespaces, with the rights of its component.
func newAcrossNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := newNodeAs(t, componentAccount(t, "cross-namespace"), append([]string{"--cross-namespace", "--resync-interval=1s"}, args...)...)
	n.source = newNamespace(t)
	return n
}

// put creates an object of the source namespace with one value.
func (n *node) put(kind, name, value string) {
	n.t.Helper()
	theirs := *n
	theirs.namespace = n.source
	theirs.putObject(kind, name, map[string]string{"key": value})
}

// allow makes a Role of one rule in a namespace and binds subjects to it there; what it
// returns takes the binding away.
func allow(t *testing.T, namespace string, rule rbacv1.PolicyRule, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	role, err := shared.Client().RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{rule},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return bind(t, namespace, "Role", role.Name, subjects...)
}

func bind(t *testing.T, namespace, kind, role string, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	rbac := shared.Client().RbacV1()
	binding, err := rbac.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   subjects,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := rbac.RoleBindings(namespace).Delete(context.WithoutCancel(t.Context()), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
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

// across is a volume of one object of the source namespace and one of the pod's own.
func (n *node) across(kind, name string) *harness.Volume {
	return n.volume(map[string]string{"sources": fmt.Sprintf(
		"[{configMap: {name: own}}, {%[1]s: {name: %[2]s, namespace: %[3]s, items: [{key: key, path: across}]}}]",
		kind, name, n.source)})
}

// consented publishes a volume of a Secret to which the account web has a right, and which loses it by revoke.
func (n *node) consented() (v *harness.Volume, revoke func()) {
	n.t.Helper()
	n.put("secret", "db", n.canary())
	revoke = allow(n.t, n.source, readers("secret", "db"), account(n.namespace, "web"))
	n.value("own")
	v = n.across("secret", "db")
	v.ServiceAccount = "web"
	n.publishes(v, soon)
	return v, revoke
}

// newPodNode starts a plugin that reads objects with the pods' own tokens, and itself may read none.
func newPodNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := newNodeAs(t, componentAccount(t, "pod-identity"), append([]string{"--identity=pod", "--cross-namespace", "--resync-interval=1s"}, args...)...)
	n.source = newNamespace(t)
	return n
}

// pod makes the volume's pod at the API server, as one that was scheduled, and gives the
// volume its UID and a token of its own.
func (n *node) pod(v *harness.Volume) *harness.Volume {
	n.t.Helper()
	pod := schedule(n.t, v.Namespace, corev1.PodSpec{ServiceAccountName: v.ServiceAccount})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	n.renewToken(v, time.Hour)
	return v
}

// renewToken gives the volume another token, as the kubelet does, that is good for some time.
func (n *node) renewToken(v *harness.Volume, life time.Duration) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.Pod, UID: types.UID(v.UID)}}
	pod.Spec.ServiceAccountName = v.ServiceAccount
	token, err := shared.PodToken(n.t.Context(), pod, life)
	if err != nil {
		n.t.Fatal(err)
	}
	v.Token, v.TokenExpires = token, time.Now().Add(life)
}

// own is a volume of one object of the pod's own namespace.
func (n *node) own(kind, name, serviceAccount string) *harness.Volume {
	v := n.volume(map[string]string{kind: name})
	v.ServiceAccount = serviceAccount
	return n.pod(v)
}

// readers is a rule to read objects of a kind as a pod must be able to.
func readers(kind string, names ...string) rbacv1.PolicyRule {
	r := rule(kind, "get", names...)
	r.Verbs = []string{"get", "list", "watch"}
	return r
}

// forgetPod has the API server not know the pod of a volume, as that of a static pod, whose
// mirror has another UID: only a publish tells what was asked for.
func (n *node) forgetPod(v *harness.Volume) {
	n.t.Helper()
	if err := shared.DeletePod(n.t.Context(), v.Namespace, v.Pod); err != nil {
		n.t.Fatal(err)
	}
}

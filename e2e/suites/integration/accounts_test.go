package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
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
// a component. The account lasts as long as the test.
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
	t.Cleanup(func() { removeAccount(t, name) })
	kubeconfig = filepath.Join(shared.dir, name+".kubeconfig")
	if _, err := harness.MakeAccount(t.Context(), shared.ControlPlane, name, kubeconfig); err != nil {
		t.Fatal(err)
	}
	rbac := shared.Client().RbacV1()
	meta := metav1.ObjectMeta{Name: name}
	if _, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{account(pluginNamespace, name)},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}
	if _, err := rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRights(t, kubeconfig, rules)
	return kubeconfig
}

// removeAccount undoes newAccount.
func removeAccount(t *testing.T, name string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	rbac := shared.Client().RbacV1()
	if err := errors.Join(
		rbac.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}),
		rbac.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}),
		shared.Client().CoreV1().ServiceAccounts(pluginNamespace).Delete(ctx, name, metav1.DeleteOptions{}),
		os.Remove(filepath.Join(shared.dir, name+".kubeconfig")),
	); err != nil {
		t.Error(err)
	}
}

// awaitRights waits until the API server knows the account of a kubeconfig and allows it
// what the rules say: it hears of both by watches of its own.
func awaitRights(t *testing.T, kubeconfig string, rules []rbacv1.PolicyRule) {
	t.Helper()
	client := clientOf(t, kubeconfig, "")
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				asked := &authorizationv1.ResourceAttributes{Group: rule.APIGroups[0], Resource: resource, Verb: verb}
				review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}
				harness.Eventually(t, soon, func() error {
					answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
					if err == nil && !answer.Status.Allowed {
						err = fmt.Errorf("not allowed: %s of %s", verb, resource)
					}
					return err
				})
			}
		}
	}
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

// newAsNode starts a plugin that reads with the rights of its node.
func newAsNode(t *testing.T, args ...string) *node {
	t.Helper()
	_, kubeconfig := pluginPod(t, harness.NodeName)
	return newNodeAs(t, kubeconfig, append([]string{"--identity=node"}, args...)...)
}

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
// account "default". It ends with the test.
func schedule(t *testing.T, namespace string, spec corev1.PodSpec) *corev1.Pod {
	t.Helper()
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = "default"
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := shared.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	if spec.NodeName == "" {
		spec.NodeName = harness.NodeName
	}
	if len(spec.Containers) == 0 {
		spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	}
	automount := false
	spec.AutomountServiceAccountToken = &automount
	pods := shared.Client().CoreV1().Pods(namespace)
	var pod *corev1.Pod
	harness.Eventually(t, soon, func() (err error) { // the API server hears of the account by a watch
		pod, err = pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if err := deletePod(context.WithoutCancel(t.Context()), pod); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return pod
}

// deletePod removes a pod at once, as the kubelet does at its end.
func deletePod(ctx context.Context, pod *corev1.Pod) error {
	now := int64(0)
	return shared.Client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// native returns a spec with one volume "native" that nobody mounts.
func native(source corev1.VolumeSource) corev1.PodSpec {
	return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "native", VolumeSource: source}}}
}

// nativeBoth names a ConfigMap and a Secret by an unmounted projected volume.
func nativeBoth(configMap, secret string) corev1.PodSpec {
	return native(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}},
	}}})
}

// directly shows an object of a kind by its name.
func directly(kind, name string) map[string]string {
	return map[string]string{map[string]string{"secret": "secret", "configmap": "configMap"}[kind]: name}
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
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{kind + "s"}, Verbs: []string{verb}, ResourceNames: names}
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
		map[string]string{"secret": "secret", "configmap": "configMap"}[kind], name, n.source)})
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

// account makes a service account, unless there is one.
func (n *node) account(namespace, name string) {
	n.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := shared.Client().CoreV1().ServiceAccounts(namespace).Create(n.t.Context(), sa, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		n.t.Fatal(err)
	}
}

// pod makes the volume's pod at the API server, as one that was scheduled, and gives the
// volume its UID and a token of its own.
func (n *node) pod(v *harness.Volume) *harness.Volume {
	n.t.Helper()
	n.account(v.Namespace, v.ServiceAccount)
	pod := schedule(n.t, v.Namespace, corev1.PodSpec{ServiceAccountName: v.ServiceAccount})
	v.Pod, v.UID = pod.Name, string(pod.UID)
	n.renewToken(v, time.Hour)
	return v
}

// renewToken gives the volume another token, as the kubelet does, that is good for some time.
func (n *node) renewToken(v *harness.Volume, life time.Duration) {
	n.t.Helper()
	seconds := int64(life.Seconds())
	request, err := shared.Client().CoreV1().ServiceAccounts(v.Namespace).CreateToken(n.t.Context(), v.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: v.Pod, UID: types.UID(v.UID)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	v.Token, v.TokenExpires = request.Status.Token, request.Status.ExpirationTimestamp.Time
}

// own is a volume of one object of the pod's own namespace.
func (n *node) own(kind, name, serviceAccount string) *harness.Volume {
	v := n.volume(map[string]string{map[string]string{"secret": "secret", "configmap": "configMap"}[kind]: name})
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

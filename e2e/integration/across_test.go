package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/harness"
)

// acrossNode is a plugin that shows objects of other namespaces, with the rights of its
// overlay, and a namespace that pods of others want objects of.
type acrossNode struct {
	*node
	source string
}

func newAcrossNode(t *testing.T, args ...string) *acrossNode {
	t.Helper()
	kubeconfig := overlayAccount(t, "cross-namespace")
	n := newNodeAs(t, kubeconfig, append([]string{"--cross-namespace", "--resync-interval=1s"}, args...)...)
	return &acrossNode{node: n, source: newNamespace(t)}
}

// put creates an object of the source namespace with one value.
func (n *acrossNode) put(kind, name, value string) {
	n.t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	data := map[string]string{"key": value}
	var err error
	switch core := shared.Client().CoreV1(); kind {
	case "secret":
		_, err = core.Secrets(n.source).Create(n.t.Context(), &corev1.Secret{ObjectMeta: meta, StringData: data}, metav1.CreateOptions{})
	default:
		_, err = core.ConfigMaps(n.source).Create(n.t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: data}, metav1.CreateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// allow makes a Role of one rule in a namespace and binds subjects to it there; what it
// returns takes the binding away.
func allow(t *testing.T, namespace string, rule rbacv1.PolicyRule, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	rbac := shared.Client().RbacV1()
	role, err := rbac.Roles(namespace).Create(t.Context(), &rbacv1.Role{
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
func (n *acrossNode) across(kind, name string) *harness.Volume {
	return n.volume(map[string]string{"sources": fmt.Sprintf(
		"[{configMap: {name: own}}, {%[1]s: {name: %[2]s, namespace: %[3]s, items: [{key: key, path: across}]}}]",
		map[string]string{"secret": "secret", "configmap": "configMap"}[kind], name, n.source)})
}

// TestAcrossNamespaces grants, revokes and grants again.
func TestAcrossNamespaces(t *testing.T) {
	n := newAcrossNode(t)
	own, first, second := n.canary(), n.canary(), n.canary()
	n.configMap("own", map[string]string{"own": own})
	n.put("secret", "db", first)
	v := n.across("secret", "db")
	v.ServiceAccount = "web"

	refusal := fmt.Sprintf(`sources[1].secret.namespace: Forbidden: service account "web" of the pod may not get Secret "%s/db"`, n.source)
	refused := n.across("secret", "db")
	refused.ServiceAccount = "web"
	wantStatus(t, n.Publish(t.Context(), refused), codes.PermissionDenied, refusal)
	n.hasEvent(refused, "RefForbidden", refusal)
	n.wantNothingLeft()
	revoke := allow(t, n.source, rule("secret", "get", "db"), account(n.namespace, "web"))
	harness.Eventually(t, 5*time.Second, func() error { return n.Publish(t.Context(), v) })
	n.wantContent(v, "across", first)
	secrets := shared.Client().CoreV1().Secrets(n.source)
	update := func(value string) {
		t.Helper()
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"key": value}}
		if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(second)
	n.arrives(v, "across", second, 2*time.Second)

	revoke()
	n.vanishes(v, "across", 20*time.Second)
	n.wantContent(v, "own", own)
	own = n.canary()
	n.configMap("own", map[string]string{"own": own})
	n.arrives(v, "own", own, 2*time.Second)
	n.hasCondition(v, refusal)
	n.mustPublish(v) // as the kubelet does: the pod runs, and what it has left stays
	n.mustKill()
	n.mustStart()
	third := n.canary()
	update(third)
	own = n.canary()
	n.configMap("own", map[string]string{"own": own})
	n.arrives(v, "own", own, afterRestart)
	if got, err := n.content(v, "across"); err == nil {
		t.Errorf("after a restart the refused file is back, with %d bytes", len(got))
	}
	defer allow(t, n.source, rule("secret", "get", "db"), account(n.namespace, "web"))()
	n.arrives(v, "across", third, 10*time.Second)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// settles waits until the API server has taken in a change of the roles: its authorizer
// reads them by a watch.
func (n *acrossNode) settles(v *harness.Volume, kind, object string, want bool) {
	n.t.Helper()
	n.settlesVerb(v, kind, object, "get", want)
}

func (n *acrossNode) settlesVerb(v *harness.Volume, kind, object, verb string, want bool) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		review, err := shared.Client().AuthorizationV1().SubjectAccessReviews().Create(n.t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + v.Namespace + ":" + v.ServiceAccount,
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + v.Namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: n.source, Verb: verb, Resource: kind + "s", Name: object},
			},
		}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed != want {
			err = fmt.Errorf("%s of %s by %s: the API server allows it: %t, want %t", verb, kind, v.ServiceAccount, review.Status.Allowed, want)
		}
		return err
	})
}

// TestConsent holds each kind of grant against the outcome for each consumer, also where
// the object does not exist and where it is optional.
func TestConsent(t *testing.T) {
	n := newAcrossNode(t, "--publish-wait=1s")
	other := newNamespace(t)
	for _, namespace := range []string{n.namespace, other} {
		if _, err := shared.Client().CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "own"}, Data: map[string]string{"own": "x"},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	clusterRole, err := shared.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{rule("secret", "get"), rule("configmap", "get")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	web, everyone := account(n.namespace, "web"), []string{"web", "default", "other"}
	consumers := map[string][2]string{
		"web": {n.namespace, "web"}, "default": {n.namespace, "default"}, "other": {other, "web"},
	}
	for _, grant := range []struct {
		name string
		make func(kind, object string) (revoke func())
		// to is who may have the object then.
		to []string
	}{
		{"none", func(string, string) func() { return func() {} }, nil},
		{"Role by name", func(kind, object string) func() { return allow(t, n.source, rule(kind, "get", object), web) }, []string{"web"}},
		{"Role by another name", func(kind, _ string) func() { return allow(t, n.source, rule(kind, "get", "another"), web) }, nil},
		{"Role for all", func(kind, _ string) func() { return allow(t, n.source, rule(kind, "get"), web) }, []string{"web"}},
		{"ClusterRole, bound in the source", func(string, string) func() { return bind(t, n.source, "ClusterRole", clusterRole.Name, web) }, []string{"web"}},
		{"ClusterRole, bound elsewhere", func(string, string) func() { return bind(t, n.namespace, "ClusterRole", clusterRole.Name, web) }, nil},
		{"group of the namespace", func(kind, object string) func() {
			return allow(t, n.source, rule(kind, "get", object), group("system:serviceaccounts:"+n.namespace))
		}, []string{"web", "default"}},
		{"group of all accounts", func(kind, object string) func() {
			return allow(t, n.source, rule(kind, "get", object), group("system:serviceaccounts"))
		}, everyone},
		{"all who are authenticated", func(kind, object string) func() {
			return allow(t, n.source, rule(kind, "get", object), group("system:authenticated"))
		}, everyone},
		{"in the consumer's namespace", func(kind, object string) func() { return allow(t, n.namespace, rule(kind, "get", object), web) }, nil},
		{"wrong verb", func(kind, object string) func() { return allow(t, n.source, rule(kind, "list", object), web) }, nil},
		{"wrong kind", func(kind, object string) func() {
			return allow(t, n.source, rule(map[string]string{"secret": "configmap", "configmap": "secret"}[kind], "get", object), web)
		}, nil},
		{"revoked", func(kind, object string) func() {
			allow(t, n.source, rule(kind, "get", object), web)()
			return func() {}
		}, nil},
	} {
		for _, kind := range []string{"secret", "configmap"} {
			for _, exists := range []bool{true, false} {
				// A name of its own, so that no answer is one to an earlier question.
				object := fmt.Sprintf("o-%d", time.Now().UnixNano())
				if exists {
					n.put(kind, object, "value of "+object)
				}
				revoke := grant.make(kind, object)
				for name, consumer := range consumers {
					v := n.across(kind, object)
					v.Namespace, v.ServiceAccount = consumer[0], consumer[1]
					n.settles(v, kind, object, slices.Contains(grant.to, name))
					got := n.Publish(t.Context(), v)
					want := codes.PermissionDenied
					if slices.Contains(grant.to, name) {
						want = map[bool]codes.Code{true: codes.OK, false: codes.NotFound}[exists]
					}
					if status.Code(got) != want {
						t.Errorf("%s of %s, exists %t, for %s: got %v, want %s", grant.name, kind, exists, name, got, want)
					}
					if got == nil {
						n.wantContent(v, "across", "value of "+object)
						n.mustUnpublish(v)
					}
				}
				revoke()
			}
		}
	}
	n.wantNothingLeft()
}

// TestARefusalTellsNothing: whether the object exists shows neither in the answer nor in
// what optional makes of it.
func TestARefusalTellsNothing(t *testing.T) {
	n := newAcrossNode(t)
	n.configMap("own", map[string]string{"own": "x"})
	n.put("secret", "there", n.canary())
	for _, optional := range []string{"false", "true"} {
		var texts []string
		for _, name := range []string{"there", "none"} {
			v := n.volume(map[string]string{"secret": name, "namespace": n.source, "optional": optional})
			v.Pod = "same"
			err := n.Publish(t.Context(), v)
			if status.Code(err) != codes.PermissionDenied {
				t.Fatalf("%s, optional %s: %v", name, optional, err)
			}
			texts = append(texts, status.Convert(err).Message()[:40])
		}
		if texts[0] != texts[1] {
			t.Errorf("optional %s: %q for an object that exists, %q for one that doesn't", optional, texts[0], texts[1])
		}
	}
	n.wantNothingLeft()
}

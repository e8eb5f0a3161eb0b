package integration

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

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
	return allowRules(t, namespace, []rbacv1.PolicyRule{rule}, subjects...)
}

func allowRules(t *testing.T, namespace string, rules []rbacv1.PolicyRule, subjects ...rbacv1.Subject) (revoke func()) {
	t.Helper()
	role, err := shared.Client().RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: rules,
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

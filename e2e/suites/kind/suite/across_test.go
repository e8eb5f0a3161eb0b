package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// revoked is how soon files go when their namespace no longer consents: the plugin asks
// at each resync, once a minute, and is believed for as long.
const revoked = 2*time.Minute + 30*time.Second

// A pod shows a Secret of another namespace once that has a Role and a RoleBinding for
// the pod's service account, and not before. When the binding goes, so does the file, and
// what is of the pod's own namespace stays.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	n, source := newNamespace(t), newNamespace(t)
	n.createConfigMap("settings", object{"key": "own"})
	source.createSecret("login", object{"password": "of another", "user": "admin"})
	p := n.create(newPod("reader", refvol("both", attributes{"sources": fmt.Sprintf(
		"[{configMap: {name: settings}}, {secret: {name: login, namespace: %s, items: [{key: password, path: password}]}}]", source.name)})))
	refusal := fmt.Sprintf(`sources[1].secret.namespace: Forbidden: service account "default" of the pod may not get Secret "%s/login"`, source.name)
	p.awaitWarning("RefForbidden", refusal)
	if got := p.phase(t); got != corev1.PodPending {
		t.Fatalf("without consent the pod is %s", got)
	}

	revoke := source.allowGet("login", n.name)
	p.awaitReady()
	own, theirs := mountDir+"both/key", mountDir+"both/password"
	for file, text := range map[string]string{own: "own", theirs: "of another"} {
		if err := p.hasText(t.Context(), "probe", file, text); err != nil {
			t.Error(err)
		}
	}
	w := p.await(theirs, "changed", podTimeout)
	source.updateSecret("login", object{"password": "changed"})
	w.arrive()

	revoke()
	began := time.Now()
	eventually(t, revoked, "end of what another namespace no longer shows", func(ctx context.Context) error {
		err := p.hasText(ctx, "probe", theirs, "changed")
		if isAbsent(err) {
			return nil
		}
		return fmt.Errorf("%s is there still: %w", theirs, err)
	})
	t.Logf("gone %.0f s after the binding", time.Since(began).Seconds())
	source.updateSecret("login", object{"password": "nobody's"})
	w = p.await(own, "changed", podTimeout, own)
	n.updateConfigMap("settings", object{"key": "changed"})
	w.arrive()
	for _, e := range p.tree(mountDir + "both") {
		if e.Path == "password" || string(e.Content) == "nobody's" {
			t.Errorf("there is still %s", describe(e))
		}
	}
}

// allowGet lets the default service account of another namespace get a Secret of this
// one, until the function that it returns is called.
func (n *namespace) allowGet(name, other string) (revoke func()) {
	n.t.Helper()
	rbac, meta := n.client.RbacV1(), metav1.ObjectMeta{Name: "consent"}
	_, err := rbac.Roles(n.name).Create(n.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = rbac.RoleBindings(n.name).Create(n.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: other, Name: "default"}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return func() {
		n.t.Helper()
		if err := rbac.RoleBindings(n.name).Delete(n.t.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
}

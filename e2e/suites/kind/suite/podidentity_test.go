package suite

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// podIdentityDriver is that of the second plugin that the runner installs, which reads
	// objects with the pods' own tokens.
	podIdentityDriver    = "pod-identity.refvol.dev"
	podIdentityNamespace = "refvol-pod-identity"
	// republishTime is how long a kubelet may take to publish a volume again.
	republishTime = 3 * time.Minute
)

// asPod describes a volume of the driver that reads as the pod.
func asPod(name string, a attributes) corev1.Volume {
	v := refvol(name, a)
	v.CSI.Driver = podIdentityDriver
	return v
}

// grant lets service accounts of a namespace read some objects of this one, as the
// examples do; what it returns takes that back.
func (n *namespace) grant(kind, name, from string, accounts ...string) (revoke func()) {
	n.t.Helper()
	rbac := n.client.RbacV1()
	role, err := rbac.Roles(n.name).Create(n.t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "readers-"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{kind}, ResourceNames: []string{name}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "readers-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: from, Name: account})
	}
	if binding, err = rbac.RoleBindings(n.name).Create(n.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		n.t.Helper()
		if err := rbac.RoleBindings(n.name).Delete(n.t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// serviceAccount makes a service account.
func (n *namespace) serviceAccount(name string) {
	n.t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := n.client.CoreV1().ServiceAccounts(n.name).Create(n.t.Context(), sa, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// awaitText waits until a file of the pod's volume has a text, and awaitNoFile until there
// is no such file.
func (p *pod) awaitText(file, text string, timeout time.Duration) {
	p.t.Helper()
	eventually(p.t, timeout, file+" has the text", func(ctx context.Context) error {
		return p.hasText(ctx, "probe", file, text)
	})
}

func (p *pod) awaitNoFile(file string, timeout time.Duration) {
	p.t.Helper()
	eventually(p.t, timeout, file+" is gone", func(ctx context.Context) error {
		if _, err := p.ask(ctx, "probe", "read", file); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// A plugin without a right to any object shows a pod what the pod's own service account may
// read, of its namespace and of another, with the tokens that the kubelet hands over; a
// revocation takes it away.
func TestPodIdentity(t *testing.T) {
	t.Parallel()
	n, source := newNamespace(t), newNamespace(t)
	n.serviceAccount("web")
	n.setSecret("db", object{"password": canary("first")})
	source.setSecret("shared", object{"token": canary("theirs")})
	volume := asPod("settings", attributes{"sources": fmt.Sprintf(
		"[{secret: {name: db}}, {secret: {name: shared, namespace: %s}}]", source.name)})
	source.grant("secrets", "shared", n.name, "web")

	refused := n.create(newPod("refused", volume)) // as the account default
	refused.awaitWarning("RefForbidden", `service account "default" of the pod may not get, list and watch Secret "`+n.name+`/db"`)
	if got := refused.phase(t); got != corev1.PodPending {
		t.Errorf("the pod without a right is %s", got)
	}

	revoke := n.grant("secrets", "db", n.name, "web")
	spec := newPod("reader", volume)
	spec.Spec.ServiceAccountName = "web"
	p := n.start(spec)
	p.awaitText(mountDir+"settings/password", canary("first"), podTimeout)
	p.awaitText(mountDir+"settings/token", canary("theirs"), podTimeout)
	n.setSecret("db", object{"password": canary("second")})
	p.awaitText(mountDir+"settings/password", canary("second"), podTimeout)

	revoke()
	p.awaitNoFile(mountDir+"settings/password", podTimeout)
	if err := p.hasText(t.Context(), "probe", mountDir+"settings/token", canary("theirs")); err != nil {
		t.Errorf("what was not revoked: %v", err)
	}
	n.grant("secrets", "db", n.name, "web")
	p.awaitText(mountDir+"settings/password", canary("second"), podTimeout)
	refused.delete()
	p.delete()
}

// After a restart the plugin has no token, and goes on once the kubelet has published again.
func TestPodIdentityAfterADaemonSetRestart(t *testing.T) {
	t.Parallel()
	node := takeNode(t) // other tests' pods would wait for their tokens, too
	n := newNamespace(t)
	n.serviceAccount("web")
	n.setSecret("db", object{"password": canary("first")})
	n.grant("secrets", "db", n.name, "web")
	spec := onNode(newPod("reader", asPod("settings", attributes{"secret": "db"})), node)
	spec.Spec.ServiceAccountName = "web"
	p := n.start(spec)
	deletePlugin(t, n, n.mustPlugin(t, podIdentityNamespace, node))
	n.setSecret("db", object{"password": canary("second")})
	begin := time.Now()
	p.awaitText(mountDir+"settings/password", canary("second"), republishTime)
	t.Logf("updated %.0f s after the plugin's pod had gone", time.Since(begin).Seconds())
	p.delete()
}

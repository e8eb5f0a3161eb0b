package integration

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// grant is one way to give the account "web" of a node's namespace rights on the Secrets of another namespace.
type grant struct {
	name string
	rule rbacv1.PolicyRule
	to   rbacv1.Subject
	// isMisplaced means that the role is in the pods' namespace, ofCluster that it is a ClusterRole, and isRevoked that the binding is
	// taken away before anybody asks.
	isMisplaced, ofCluster, isRevoked bool
	// allows are the identities with which a pod gets the Secrets.
	allows []string
}

// grants returns what TestConsent tries. The last one allows.
func grants(namespace, elsewhere string) []grant {
	read, web, both := readers("secret"), account(namespace, "web"), []string{"plugin", "pod"}
	byName, getAlone, withoutGet := readers("secret", "there", "absent"), rule("secret", "get"), rule("secret", "list")
	withoutGet.Verbs = []string{"list", "watch", "update", "delete", "create"}
	return []grant{
		{name: "none", rule: readers("configMap"), to: web},
		{name: "another account", rule: read, to: account(namespace, "other")},
		{name: "account of this name elsewhere", rule: read, to: account(elsewhere, "web")},
		{name: "group of another namespace", rule: read, to: group("system:serviceaccounts:" + elsewhere)},
		{name: "wrong namespace", rule: read, to: web, isMisplaced: true},
		{name: "wrong verbs", rule: withoutGet, to: web},
		{name: "another name", rule: readers("secret", "another"), to: web},
		{name: "revoked", rule: read, to: web, isRevoked: true},
		{name: "get alone", rule: getAlone, to: web, allows: []string{"plugin"}},
		{name: "cluster role", rule: read, to: web, ofCluster: true, allows: both},
		{name: "group of the namespace", rule: read, to: group("system:serviceaccounts:" + namespace), allows: both},
		{name: "by name", rule: byName, to: web, allows: both},
	}
}

// make makes the role and its binding, and a Secret, in a namespace of the grant's own, which it returns.
func (g *grant) make(n *node) (source string) {
	n.t.Helper()
	theirs := *n
	theirs.namespace = newNamespace(n.t)
	theirs.secret("there", map[string]string{"key": n.canary()})
	in := theirs.namespace
	if g.isMisplaced {
		in = n.namespace
	}
	var revoke func()
	if g.ofCluster {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: []rbacv1.PolicyRule{g.rule}}
		role, err := shared.Client().RbacV1().ClusterRoles().Create(n.t.Context(), role, metav1.CreateOptions{})
		if err != nil {
			n.t.Fatal(err)
		}
		revoke = bind(n.t, in, "ClusterRole", role.Name, g.to)
	} else {
		revoke = allow(n.t, in, g.rule, g.to)
	}
	if g.isRevoked {
		revoke()
	}
	return theirs.namespace
}

// TestConsent: a pod gets objects of another namespace by a grant for its account, with the verbs that the identity needs. A refusal
// does not tell whether the object exists.
func TestConsent(t *testing.T) {
	t.Parallel()
	for identity, start := range map[string]func(*testing.T, ...string) *node{"plugin": newAcrossNode, "pod": newPodNode} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			n := start(t, "--publish-wait=2s")
			all := grants(n.namespace, newNamespace(t))
			sources := make([]string, len(all))
			for i := range all {
				sources[i] = all[i].make(n)
			}
			// Once the API server knows the last grant, which allows, it knows those before it too.
			for i := range slices.Backward(all) {
				t.Log(all[i].name)
				n.asks(sources[i], slices.Contains(all[i].allows, identity))
			}
			n.wantNothingLeft()
		})
	}
}

// asks publishes a volume of a Secret that exists, and one of a Secret that does not.
func (n *node) asks(source string, isAllowed bool) {
	n.t.Helper()
	wants := func(name string) *harness.Volume {
		v := n.volume(map[string]string{"secret": name, "namespace": source})
		v.ServiceAccount = "web"
		return n.pod(v)
	}
	there, absent := wants("there"), wants("absent")
	if isAllowed {
		n.publishes(there, soon)
		if got, err := n.content(there, "key"); got == "" {
			n.t.Errorf("nothing is shown: %v", err)
		}
		n.mustUnpublish(there)
		wantStatus(n.t, n.finalAnswer(absent), codes.NotFound)
		return
	}
	refusals := map[string]bool{}
	for name, v := range map[string]*harness.Volume{"there": there, "absent": absent} {
		err := n.finalAnswer(v)
		wantStatus(n.t, err, codes.PermissionDenied, `service account "web" of the pod may not `)
		refusals[strings.ReplaceAll(status.Convert(err).Message(), "/"+name+`"`, `/NAME"`)] = true
	}
	if len(refusals) != 1 {
		n.t.Errorf("refusals tell whether the object exists: %v", refusals)
	}
}

package fleet

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestRights takes one right after the other from the caller. All commands have worked with them before,
// and say afterwards which one is missing. get of pods is for people, who look at a pod that was named.
func TestRights(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live", nil)
	commands := map[string][]string{
		"status":    {"status"},
		"converged": {"converged", "secret/db", "-n", w.namespace, "--timeout=10s"},
	}
	for name, args := range commands {
		if r := w.run(shared.command, args...); r.status != 0 {
			t.Fatalf("%s with all rights: status %d: %s%s", name, r.status, r.stdout, r.stderr)
		}
	}
	for _, test := range []struct {
		resource, verb string
		// only is the command that needs it; empty for both.
		only string
		want string
	}{
		{"pods", "list", "", `cannot list resource "pods" in API group ""`},
		{"csinodes", "list", "", `cannot list resource "csinodes" in API group "storage.k8s.io"`},
		{"pods/portforward", "get", "", `cannot get resource "pods/portforward" in API group "" in the namespace "refvol-system"`},
		{"pods/portforward", "create", "", "this takes get and create of pods/portforward in namespace refvol-system"},
		{"secrets", "get", "converged", `cannot get resource "secrets"`},
	} {
		restore := w.revoke(test.resource, test.verb)
		for name, args := range commands {
			if test.only != "" && name != test.only {
				continue
			}
			harness.Eventually(t, soon, func() error {
				r := w.run(shared.command, args...)
				if r.status == 2 && strings.Contains(r.stderr, test.want) && r.stdout == "" {
					return nil
				}
				return &unexpected{r, test.want}
			})
		}
		restore()
	}
	harness.Eventually(t, soon, func() error {
		if r := w.run(shared.command, commands["converged"]...); r.status != 0 {
			return &unexpected{r, "success, with all rights again"}
		}
		return nil
	})
}

// unexpected is that a command ended in another way.
type unexpected struct {
	result
	want string
}

func (u *unexpected) Error() string {
	return "want " + u.want + ", got:\n" + u.stdout + u.stderr
}

// revoke takes a verb from every role of the caller, and returns what gives it back.
func (w *world) revoke(resource, verb string) (restore func()) {
	w.t.Helper()
	clusterRoles, plugins, own := shared.Client().RbacV1().ClusterRoles(), shared.Client().RbacV1().Roles(pluginNamespace), shared.Client().RbacV1().Roles(w.namespace)
	const name = "kubectl-refvol"
	clusterRole, err := clusterRoles.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	role, err := plugins.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	read, err := own.Get(w.t.Context(), "read", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	before := [][]rbacv1.PolicyRule{clusterRole.Rules, role.Rules, read.Rules}
	update := func(rules func(i int) []rbacv1.PolicyRule) {
		w.t.Helper()
		clusterRole.Rules, role.Rules, read.Rules = rules(0), rules(1), rules(2)
		clusterRole.ResourceVersion, role.ResourceVersion, read.ResourceVersion = "", "", ""
		_, err := clusterRoles.Update(w.t.Context(), clusterRole, metav1.UpdateOptions{})
		if err == nil {
			_, err = plugins.Update(w.t.Context(), role, metav1.UpdateOptions{})
		}
		if err == nil {
			_, err = own.Update(w.t.Context(), read, metav1.UpdateOptions{})
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	revoked := false
	update(func(i int) []rbacv1.PolicyRule {
		var left []rbacv1.PolicyRule
		for _, rule := range before[i] {
			if slices.Contains(rule.Resources, resource) {
				verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb })
				revoked = revoked || len(verbs) < len(rule.Verbs)
				rule.Verbs = verbs
			}
			if len(rule.Verbs) > 0 {
				left = append(left, rule)
			}
		}
		return left
	})
	if !revoked {
		w.t.Errorf("the roles have no %s of %s", verb, resource)
	}
	return func() { update(func(i int) []rbacv1.PolicyRule { return before[i] }) }
}

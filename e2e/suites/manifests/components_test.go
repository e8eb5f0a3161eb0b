package manifests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// kinds are those of the objects that the base and the components have, but the namespace and
// the service account, which the suite makes.
const kinds = "clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,csidrivers,networkpolicies," +
	"flowschemas,prioritylevelconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings," +
	"mutatingadmissionpolicies,mutatingadmissionpolicybindings"

// kustomization returns the directory of one that puts components on the base.
func kustomization(t *testing.T, components ...string) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp(shared.dir, "kustomization-"))(t)
	must.Do(t, harness.Kustomization(dir, components...))
	return dir
}

// install applies the base with components until the end of the test, and waits until none of their
// policies is in force any more: the next test would take it for its own.
func install(t *testing.T, components ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := shared.kubectl(ctx, "delete", "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin", kinds)
		must.Do(t, errors.Join(err, harness.Poll(ctx, soon, 50*time.Millisecond, func() error { return untouched(ctx) })))
	})
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
}

// untouched returns an error if a policy refuses or changes a pod that each of the components' would
// refuse or change.
func untouched(ctx context.Context) error {
	pod, err := createdIn(ctx, consumer, podWith("sentinel", writable(nil)))
	if err != nil {
		return fmt.Errorf("a policy is in force still: %w", err)
	}
	if pod.Spec.Volumes[0].CSI.ReadOnly != nil {
		return errors.New("the policy that sets readOnly is in force still")
	}
	return nil
}

// TestEveryComponentIsAccepted: the API server takes all objects of sets that together have every
// component.
func TestEveryComponentIsAccepted(t *testing.T) {
	entries := must.Get(os.ReadDir(filepath.Join(shared.deploy, "components")))(t)
	common := []string{"admission", "admission-read-only", "flow-schema", "live", "live-node-selector", "metrics", "network-policy", "restart", "restart-metrics", "staged", "startup-taint"}
	sets := [][]string{
		append(slices.Clone(common), "node-identity", "cache"),
		append([]string{"pod-identity", "cross-namespace", "get"}, common...),
		{"pod-identity-before-1.35"},
	}
	for _, entry := range entries {
		if !slices.Contains(slices.Concat(sets...), entry.Name()) {
			t.Errorf("no set has the component %s", entry.Name())
		}
	}
	havePrometheusKinds(t)
	for _, set := range sets {
		t.Run(strings.Join(set, "+"), func(t *testing.T) {
			applied := mustKubectl(t, "apply", "--dry-run=server", "--validate=strict", "--output=name", "--kustomize="+kustomization(t, set...))
			if !strings.Contains(applied, "daemonset.apps/refvol-plugin") {
				t.Errorf("it has %q", applied)
			}
		})
	}
}

// havePrometheusKinds defines the kinds of the Prometheus operator until the end of the test. Their fields are compared with the operator's own
// types in the tests of deploy.
func havePrometheusKinds(t *testing.T) {
	t.Helper()
	have(t, harness.PrometheusKinds)
	mustKubectl(t, "wait", "--for=condition=Established", "--timeout=1m", "customresourcedefinitions", "--all")
}

// soon is how long the API server may take to hear of what it was told.
const soon = time.Minute

// update writes the golden files anew, for who has read the difference (CONTRIBUTING.md says how).
var update = flag.Bool("update", false, "write testdata/ anew")

// sets are those whose rights have a golden file: each component that changes them alone, and
// those that change them together.
func sets() [][]string {
	return [][]string{
		{},
		{"cache"},
		{"get"},
		{"cross-namespace"},
		{"startup-taint"},
		{"pod-identity"},
		{"pod-identity-before-1.35"},
		{"pod-identity", "cross-namespace"},
		{"pod-identity", "cache"},
		{"node-identity"},
		{"node-identity", "cache"},
		{"node-identity", "get"},
	}
}

func golden(set []string) string {
	if len(set) == 0 {
		set = []string{"base"}
	}
	return filepath.Join("testdata", "rights-"+strings.Join(set, "+")+".txt")
}

// TestComponentRights gives the account the rights of each set, and compares all that it may do then, as the API server tells it, in
// its own namespace and in another, with a golden file. All rights are in one ClusterRole, as TestComponents of deploy says.
func TestComponentRights(t *testing.T) {
	install(t)
	roles := shared.Client().RbacV1().ClusterRoles()
	for _, set := range sets() {
		t.Run(strings.Join(append([]string{"base"}, set...), "+"), func(t *testing.T) {
			rules := must.Get(harness.Rules(t.Context(), set...))(t)
			role := must.Get(roles.Get(t.Context(), "refvol-plugin", metav1.GetOptions{}))(t)
			role.Rules = rules
			must.Get(roles.Update(t.Context(), role, metav1.UpdateOptions{}))(t)
			settle(t)
			got := rights(t)
			wantNothingBroad(t, got)
			if *update {
				must.Do(t, os.WriteFile(golden(set), []byte(got), 0o600))
			}
			want := must.Get(os.ReadFile(golden(set)))(t)
			if got != string(want) {
				t.Errorf("the account's rights are not those of %s:\n got:\n%s\nwant:\n%s", golden(set), got, want)
			}
		})
	}
}

// wantNothingBroad holds what must not be in a golden file, however it came there.
func wantNothingBroad(t *testing.T, rights string) {
	t.Helper()
	for _, never := range []string{`\*`, "update", "delete", "deletecollection", "bind", "escalate", "impersonate"} {
		if line := regexp.MustCompile(`(?m)^.*[\[ ]` + never + `[\] ].*$`).FindString(rights + "\n"); line != "" {
			t.Errorf("the account may %s: %s", never, line)
		}
	}
}

// settle waits until the API server's authorizer, which hears of roles and bindings of the cluster by a watch each, has heard of all
// that was made before the call: each watch keeps the order, so it waits for an object of each kind that is made now.
func settle(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("settled-%d", time.Now().UnixNano())
	rbac, meta, create := shared.Client().RbacV1(), metav1.ObjectMeta{Name: name}, metav1.CreateOptions{}
	t.Cleanup(func() {
		ctx, remove := context.WithoutCancel(t.Context()), metav1.DeleteOptions{}
		must.Do(t, errors.Join(rbac.ClusterRoles().Delete(ctx, name, remove), rbac.ClusterRoleBindings().Delete(ctx, name, remove)))
	})
	_, role := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{name}},
	}}, create)
	_, binding := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, create)
	must.Do(t, errors.Join(role, binding))
	asked := authorizationv1.ResourceAttributes{Namespace: pluginNamespace, Verb: "get", Resource: "pods", Name: name}
	harness.Eventually(t, soon, func() error { return allowed(t.Context(), name, nil, asked) })
}

func allowed(ctx context.Context, user string, groups []string, asked authorizationv1.ResourceAttributes) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups, ResourceAttributes: &asked,
	}}
	answer, err := shared.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err == nil && !answer.Status.Allowed {
		err = fmt.Errorf("%s may not %s %s %q", user, asked.Verb, asked.Resource, asked.Name)
	}
	return err
}

// pluginUser is the plugin's account as the API server knows it.
const pluginUser = "system:serviceaccount:" + pluginNamespace + ":" + pluginAccount

// pluginGroups are the groups that the API server puts that account in.
func pluginGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + pluginNamespace, "system:authenticated"}
}

func rights(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, namespace := range []string{pluginNamespace, "default"} {
		fmt.Fprintf(&text, "# in the namespace %s\n", namespace)
		args := []string{"auth", "can-i", "--list", "--namespace=" + namespace, "--as=" + pluginUser}
		for _, group := range pluginGroups() {
			args = append(args, "--as-group="+group)
		}
		for line := range strings.Lines(mustKubectl(t, args...)) {
			text.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
	}
	return text.String()
}

package deploy

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/doclines"
)

// TestPolicies holds what the components' policies are beside what they do, which e2e/suites/manifests
// tests: each is for few operations on few resources, and refuses what it can't judge. Live
// namespaces leave a pod that can't be judged as it is.
func TestPolicies(t *testing.T) {
	create, update := []admissionv1.OperationType{admissionv1.Create}, []admissionv1.OperationType{admissionv1.Update}
	for _, test := range []struct {
		component, policy string
		operations        []admissionv1.OperationType
		resources         string
		failure           admissionv1.FailurePolicyType
	}{
		{"admission", "ValidatingAdmissionPolicy refvol-volumes", create, "pods", admissionv1.Fail},
		{"node-identity", "ValidatingAdmissionPolicy refvol-node-identity", create, "pods", admissionv1.Fail},
		{"startup-taint", "ValidatingAdmissionPolicy refvol-startup-taint", update, "nodes", admissionv1.Fail},
		{"admission-read-only", "MutatingAdmissionPolicy refvol-read-only", create, "pods", admissionv1.Fail},
		{"live", "MutatingAdmissionPolicy refvol-live", create, "pods", admissionv1.Ignore},
		{"live", "MutatingAdmissionPolicy refvol-live-update", update, "pods", admissionv1.Ignore},
		{"restart", "MutatingAdmissionPolicy refvol-restart", create, "pods", admissionv1.Ignore},
		{"live-node-selector", "MutatingAdmissionPolicy refvol-live-node-selector", append(create, update...), "pods", admissionv1.Ignore},
		{"staged", "ValidatingAdmissionPolicy refvol-staged", append(create, update...), "configmaps secrets", admissionv1.Fail},
	} {
		want := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: test.operations,
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: strings.Fields(test.resources)},
			},
		}}}
		if test.component == "staged" {
			want.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"refvol.dev/staged": "true"}}
		}
		var constraints *admissionv1.MatchResources
		var failure *admissionv1.FailurePolicyType
		switch policy := byName(t, renderWith(t, []string{test.component}))[test.policy].(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			constraints, failure = policy.Spec.MatchConstraints, policy.Spec.FailurePolicy
		case *admissionv1.MutatingAdmissionPolicy:
			constraints, failure = policy.Spec.MatchConstraints, policy.Spec.FailurePolicy
			if policy.Spec.ReinvocationPolicy != admissionv1.IfNeededReinvocationPolicy {
				t.Errorf("%s: reinvocation policy is %q: what is added later would be missed", test.policy, policy.Spec.ReinvocationPolicy)
			}
		default:
			t.Errorf("%s has no %s", test.component, test.policy)
			continue
		}
		if !reflect.DeepEqual(constraints, want) {
			t.Errorf("%s is for %s, want %s", test.policy, asJSON(t, constraints), asJSON(t, want))
		}
		if !reflect.DeepEqual(failure, &test.failure) {
			t.Errorf("%s: failure policy %s, want %s", test.policy, asJSON(t, failure), test.failure)
		}
	}
}

// TestChartRestartValues: values replace the first variables of the policy, and the sidecar's usual resources.
func TestChartRestartValues(t *testing.T) {
	manifests, _ := chartTexts(t, newest, values{"restart": values{
		"enabled": true, "resources": values{"requests": values{"memory": "64Mi"}}, "user": 2000000000, "podMonitor": true,
		"image": values{"pullPolicy": "Always", "pullSecrets": []any{"one", "two"}},
	}})
	policy, ok := byName(t, decode(t, chart, manifests))["MutatingAdmissionPolicy refvol-restart"].(*admissionv1.MutatingAdmissionPolicy)
	if !ok {
		t.Fatal("there is no policy")
	}
	got := map[string]string{}
	for _, v := range policy.Spec.Variables {
		got[v.Name] = v.Expression
	}
	for name, want := range map[string]string{
		"usualResources": `{"requests":{"memory":"64Mi"}}`, "user": "2000000000", "port": "9811", "pullPolicy": "'Always'", "pullSecrets": `["one","two"]`,
	} {
		if got[name] != want {
			t.Errorf("the variable %s is %s, want %s", name, got[name], want)
		}
	}
	for _, wrong := range []values{{"port": 65536}, {"user": -1}, {"image": values{"pullPolicy": "always"}}, {"image": values{"pullSecrets": []any{"it's"}}}} {
		wrong["enabled"] = true
		if _, _, err := renderChart(newest, values{"restart": wrong}); err == nil {
			t.Errorf("%v is accepted", wrong)
		}
	}
	if _, _, err := renderChart(newest, values{"restart": values{"enabled": true, "resources": values{"requests": values{"cpu": 1}}}}); err == nil {
		t.Error("a number is no quantity of the policy's language")
	}
}

// TestStartupTaintHasOneKey: the flag names the taint that the policy lets go, also with the
// change that docs/operations.md shows.
func TestStartupTaintHasOneKey(t *testing.T) {
	blocks := doclines.Blocks(documents(t)["docs/operations.md"], "yaml")
	recipe := slices.IndexFunc(blocks, func(block string) bool { return strings.HasPrefix(block, "patches:\n") })
	if recipe < 0 {
		t.Fatal("docs/operations.md has no patches")
	}
	for key, lines := range map[string]string{
		driverName + "/agent-not-ready": "",
		"example.com/not-ready":         blocks[recipe],
	} {
		objects := render(t, kustomization(t, []string{"startup-taint"}, lines))
		all := pluginContainer(t, only[*appsv1.DaemonSet](t, objects)).Args
		if !slices.Contains(all, "--startup-taint="+key) || !strings.Contains(strings.Join(all, " "), " --registration-dir=/") {
			t.Errorf("flags %q, want the taint %s, and --registration-dir, which tells when it may go", all, key)
		}
		variable := only[*admissionv1.ValidatingAdmissionPolicy](t, objects).Spec.Variables[0]
		if variable.Name != "key" || variable.Expression != "'"+key+"'" {
			t.Errorf("the policy has %+v, want the key %s", variable, key)
		}
	}
}

package deploy

import (
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
)

// TestPolicies holds what the components' policies are beside their rules, which
// e2e/suites/manifests tests: each is for one operation on one resource, refuses what it can't
// judge, and holds up no request but those of its condition.
func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		component string
		operation admissionv1.OperationType
		resource  string
		condition string
	}{
		{"admission", admissionv1.Create, "pods", "'" + driverName + "'"},
		{"node-identity", admissionv1.Create, "pods", "'" + driverName + "'"},
		{"startup-taint", admissionv1.Update, "nodes", "':" + name + "'"},
	} {
		t.Run(test.component, func(t *testing.T) {
			objects := renderWith(t, []string{test.component})
			policy := only[*admissionv1.ValidatingAdmissionPolicy](t, objects)
			binding := only[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects)
			if want := constraints(test.operation, test.resource); !reflect.DeepEqual(policy.Spec.MatchConstraints, want) {
				t.Errorf("it is for %s, want %s", asJSON(t, policy.Spec.MatchConstraints), asJSON(t, want))
			}
			if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
				t.Error("what can't be judged must be refused")
			}
			if conditions := policy.Spec.MatchConditions; len(conditions) != 1 || !strings.Contains(conditions[0].Expression, test.condition) {
				t.Errorf("match conditions %s, want one with %s", asJSON(t, conditions), test.condition)
			}
			want := admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			}
			if !reflect.DeepEqual(binding.Spec, want) {
				t.Errorf("binding %s, want %s", asJSON(t, binding.Spec), asJSON(t, want))
			}
		})
	}
}

// constraints are those of a policy for one operation on one resource.
func constraints(operation admissionv1.OperationType, resource string) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{operation},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
		},
	}}}
}

// TestReadOnlyComponent holds what the policy is beside what it does to pods, which
// e2e/suites/manifests tests.
func TestReadOnlyComponent(t *testing.T) {
	objects := renderWith(t, []string{"admission-read-only"})
	policy := only[*admissionv1.MutatingAdmissionPolicy](t, objects)
	binding := only[*admissionv1.MutatingAdmissionPolicyBinding](t, objects)
	if want := constraints(admissionv1.Create, "pods"); !reflect.DeepEqual(policy.Spec.MatchConstraints, want) {
		t.Errorf("it is for %s, want %s", asJSON(t, policy.Spec.MatchConstraints), asJSON(t, want))
	}
	if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("a pod that can't be changed must be refused")
	}
	if policy.Spec.ReinvocationPolicy != admissionv1.IfNeededReinvocationPolicy {
		t.Errorf("reinvocation policy is %q: what is added later would be missed", policy.Spec.ReinvocationPolicy)
	}
	if want := (admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name}); !reflect.DeepEqual(binding.Spec, want) {
		t.Errorf("binding %s, want %s", asJSON(t, binding.Spec), asJSON(t, want))
	}
}

// TestStartupTaintHasOneKey: the flag names the taint that the policy lets go, also with the
// change that docs/startup-taint.md shows.
func TestStartupTaintHasOneKey(t *testing.T) {
	_, recipe, ok := strings.Cut(documents(t)["docs/startup-taint.md"], "\n    patches:\n")
	if !ok {
		t.Fatal("docs/startup-taint.md has no patches")
	}
	for key, lines := range map[string]string{
		driverName + "/agent-not-ready": "",
		"example.com/not-ready":         "patches:\n" + strings.ReplaceAll(recipe, "\n    ", "\n")[len("    "):],
	} {
		objects := render(t, kustomization(t, []string{"startup-taint"}, lines))
		all := flags(t, pluginContainer(t, only[*appsv1.DaemonSet](t, objects)))
		if all["startup-taint"] != key || all["registration-dir"] == "" {
			t.Errorf("flags %q, want the taint %s, and --registration-dir, which tells when it may go", all, key)
		}
		variable := only[*admissionv1.ValidatingAdmissionPolicy](t, objects).Spec.Variables[0]
		if variable.Name != "key" || variable.Expression != "'"+key+"'" {
			t.Errorf("the policy has %+v, want the key %s", variable, key)
		}
	}
}

package deploy

import (
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// TestAdmissionOverlays holds what the overlays with the policy are beside its rules,
// which e2e/suites/manifests tests: two objects, for the creation of pods with the driver.
func TestAdmissionOverlays(t *testing.T) {
	var rules []int
	for _, name := range []string{"admission", "admission-cross-namespace"} {
		objects := render(t, "overlays/"+name)
		if len(objects) != 2 {
			t.Errorf("%s: %d objects, want the policy and its binding: it goes beside other overlays", name, len(objects))
		}
		policy := only[*admissionv1.ValidatingAdmissionPolicy](t, objects)
		binding := only[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects)
		rules = append(rules, len(policy.Spec.Validations))

		constraints := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			},
		}}}
		if !reflect.DeepEqual(policy.Spec.MatchConstraints, constraints) {
			t.Errorf("%s: it is for %s, want %s", name, asJSON(t, policy.Spec.MatchConstraints), asJSON(t, constraints))
		}
		if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Fail {
			t.Errorf("%s: what can't be judged must be refused", name)
		}
		if conditions := policy.Spec.MatchConditions; len(conditions) != 1 || !strings.Contains(conditions[0].Expression, "'"+driverName+"'") {
			t.Errorf("%s: match conditions %s, want one for the driver", name, asJSON(t, conditions))
		}
		want := admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}
		if !reflect.DeepEqual(binding.Spec, want) {
			t.Errorf("%s: binding %s, want %s", name, asJSON(t, binding.Spec), asJSON(t, want))
		}
	}
	if rules[0] != rules[1]+2 {
		t.Errorf("%d rules, of which %d hold with --cross-namespace: want two less", rules[0], rules[1])
	}
}

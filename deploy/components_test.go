package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// components are those that there are, each with the kinds that it brings.
func components() map[string][]string {
	return map[string][]string{
		"admission-read-only": {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"},
		"flow-schema":         {"FlowSchema", "PriorityLevelConfiguration"},
	}
}

// TestComponents puts each component, and all of them, on the base and on each overlay: they add
// their objects and change no other.
func TestComponents(t *testing.T) {
	entries, err := os.ReadDir("components")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	if len(all) != len(components()) {
		t.Errorf("components are %q, want %d", all, len(components()))
	}
	below := []string{"base"}
	for _, name := range overlays(t) {
		below = append(below, filepath.Join("overlays", name))
	}
	for _, dir := range below {
		want := render(t, dir)
		for _, names := range append([][]string{all}, single(all)...) {
			t.Run(dir+" with "+strings.Join(names, " and "), func(t *testing.T) {
				got, added := without(renderWith(t, dir, names))
				wantSame(t, got, want)
				var wantAdded []string
				for _, name := range names {
					wantAdded = append(wantAdded, components()[name]...)
				}
				if slices.Sort(wantAdded); !slices.Equal(added, wantAdded) {
					t.Errorf("they bring %q, want %q", added, wantAdded)
				}
			})
		}
	}
}

// single returns lists of one.
func single(names []string) [][]string {
	var lists [][]string
	for _, name := range names {
		lists = append(lists, []string{name})
	}
	return lists
}

// without takes the components' objects out, and returns their kinds.
func without(objects []runtime.Object) (others []runtime.Object, kinds []string) {
	ours := slices.Concat(slices.Collect(maps.Values(components()))...)
	for _, object := range objects {
		if kind := object.GetObjectKind().GroupVersionKind().Kind; slices.Contains(ours, kind) {
			kinds = append(kinds, kind)
		} else {
			others = append(others, object)
		}
	}
	slices.Sort(kinds)
	return others, kinds
}

// TestReadOnlyComponent holds what the policy is beside what it does to pods, which
// e2e/suites/manifests tests.
func TestReadOnlyComponent(t *testing.T) {
	objects := renderWith(t, "base", []string{"admission-read-only"})
	policy := only[*admissionv1.MutatingAdmissionPolicy](t, objects)
	binding := only[*admissionv1.MutatingAdmissionPolicyBinding](t, objects)
	constraints := &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		},
	}}}
	if !reflect.DeepEqual(policy.Spec.MatchConstraints, constraints) {
		t.Errorf("it is for %s, want %s", asJSON(t, policy.Spec.MatchConstraints), asJSON(t, constraints))
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

// TestFlowSchemaCoversEveryRight: each right that the base or an overlay gives to the plugin's
// account is in the schema, and no other.
func TestFlowSchemaCoversEveryRight(t *testing.T) {
	schema := only[*flowcontrolv1.FlowSchema](t, renderWith(t, "base", []string{"flow-schema"}))
	level := only[*flowcontrolv1.PriorityLevelConfiguration](t, renderWith(t, "base", []string{"flow-schema"}))
	if schema.Spec.PriorityLevelConfiguration.Name != level.Name {
		t.Errorf("level %q, want %q", schema.Spec.PriorityLevelConfiguration.Name, level.Name)
	}
	if len(schema.Spec.Rules) != 1 {
		t.Fatalf("%d rules, want 1", len(schema.Spec.Rules))
	}
	subjects := []flowcontrolv1.Subject{{
		Kind:           flowcontrolv1.SubjectKindServiceAccount,
		ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name},
	}}
	if got := schema.Spec.Rules[0].Subjects; !reflect.DeepEqual(got, subjects) {
		t.Errorf("subjects %s, want %s", asJSON(t, got), asJSON(t, subjects))
	}
	covered := map[string]bool{}
	for _, rule := range schema.Spec.Rules[0].ResourceRules {
		addRights(covered, rule.APIGroups, rule.Resources, rule.Verbs)
	}
	given := map[string]bool{}
	for _, dir := range append([]string{"base"}, overlays(t)...) {
		if dir != "base" {
			dir = filepath.Join("overlays", dir)
		}
		for _, object := range render(t, dir) {
			if role, ok := object.(*rbacv1.ClusterRole); ok {
				for _, rule := range role.Rules {
					addRights(given, rule.APIGroups, rule.Resources, rule.Verbs)
				}
			}
		}
	}
	if !reflect.DeepEqual(covered, given) {
		t.Errorf("covered are %v\n         want %v", covered, given)
	}
}

func addRights(to map[string]bool, groups, resources, verbs []string) {
	for _, group := range groups {
		for _, resource := range resources {
			for _, verb := range verbs {
				to[strings.Join([]string{verb, resource, group}, " ")] = true
			}
		}
	}
}

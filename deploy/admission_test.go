package deploy

import (
	"reflect"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// TestLiveComponent holds what the policies are beside what they do to pods, which e2e/suites/manifests tests.
func TestLiveComponent(t *testing.T) {
	objects := byName(t, renderWith(t, []string{"live"}))
	for name, operation := range map[string]admissionv1.OperationType{"refvol-live": admissionv1.Create, "refvol-live-update": admissionv1.Update} {
		policy, ok := objects["MutatingAdmissionPolicy "+name].(*admissionv1.MutatingAdmissionPolicy)
		if !ok {
			t.Fatalf("there is no policy %s", name)
		}
		if want := constraints(operation, "pods"); !reflect.DeepEqual(policy.Spec.MatchConstraints, want) {
			t.Errorf("%s is for %s, want %s", name, asJSON(t, policy.Spec.MatchConstraints), asJSON(t, want))
		}
		if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionv1.Ignore {
			t.Errorf("%s: a pod that can't be judged must stay as it is", name)
		}
		if policy.Spec.ReinvocationPolicy != admissionv1.IfNeededReinvocationPolicy {
			t.Errorf("%s: reinvocation policy is %q: what is added later would be missed", name, policy.Spec.ReinvocationPolicy)
		}
		kind := &admissionv1.ParamKind{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"}
		if operation == admissionv1.Update {
			kind = nil
		}
		if !reflect.DeepEqual(policy.Spec.ParamKind, kind) {
			t.Errorf("%s has parameters %+v, want %+v", name, policy.Spec.ParamKind, kind)
		}
	}
	wantLiveBindings(t, objects, namespace)
}

// wantLiveBindings wants two bindings for the labels, which leave out a namespace of the plugin, and one for updates of any pod.
// Helm must leave what concerns updates.
func wantLiveBindings(t *testing.T, objects map[string]runtime.Object, own string) {
	t.Helper()
	elsewhere := metav1.LabelSelectorRequirement{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", own},
	}
	labelled := metav1.LabelSelectorRequirement{Key: "refvol.dev/live", Operator: metav1.LabelSelectorOpIn, Values: []string{"true"}}
	driver := &admissionv1.ParamRef{Name: driverName, ParameterNotFoundAction: ptr(admissionv1.AllowAction)}
	for name, want := range map[string]admissionv1.MutatingAdmissionPolicyBindingSpec{
		"refvol-live-namespaces": {PolicyName: "refvol-live", ParamRef: driver, MatchResources: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{labelled, elsewhere}},
		}},
		"refvol-live-pods": {PolicyName: "refvol-live", ParamRef: driver, MatchResources: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{elsewhere}},
			ObjectSelector:    &metav1.LabelSelector{MatchLabels: map[string]string{"refvol.dev/live": "true"}},
		}},
		"refvol-live-update": {PolicyName: "refvol-live-update"},
	} {
		binding, ok := objects["MutatingAdmissionPolicyBinding "+name].(*admissionv1.MutatingAdmissionPolicyBinding)
		if !ok {
			t.Fatalf("there is no binding %s", name)
		}
		if !reflect.DeepEqual(binding.Spec, want) {
			t.Errorf("binding %s: %s, want %s", name, asJSON(t, binding.Spec), asJSON(t, want))
		}
	}
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		for name, want := range map[string]string{"refvol-live-update": "keep", "refvol-live": "", "refvol-live-pods": ""} {
			accessor, err := meta.Accessor(objects[kind+" "+name])
			if err == nil && accessor.GetAnnotations()["helm.sh/resource-policy"] != want {
				t.Errorf("%s %s has the annotations %v, want the resource policy %q", kind, name, accessor.GetAnnotations(), want)
			}
		}
	}
}

// TestChartLiveElsewhere: the bindings leave out the release's namespace.
func TestChartLiveElsewhere(t *testing.T) {
	loaded, err := loader.LoadDir(chart)
	if err != nil {
		t.Fatal(err)
	}
	manifests, _, err := renderIn(loaded, "platform", newest, values{"live": values{"enabled": true}})
	if err != nil {
		t.Fatal(err)
	}
	wantLiveBindings(t, byName(t, decode(t, chart, manifests)), "platform")
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

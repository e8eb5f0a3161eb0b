package deploy

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

type rights map[string]bool

func (r rights) add(groups, resources, verbs []string) {
	for _, group := range groups {
		for _, resource := range resources {
			for _, verb := range verbs {
				r[strings.TrimSpace(verb+" "+resource+" "+group)] = true
			}
		}
	}
}

func rightsOf(role *rbacv1.ClusterRole) rights {
	given := rights{}
	for _, rule := range role.Rules {
		given.add(rule.APIGroups, rule.Resources, rule.Verbs)
	}
	return given
}

// TestFlowSchemaCoversEveryRight: each right that a set gives to the plugin's account is in the
// schema, and no other. What the plugin asks for as its node is sorted as the node's.
func TestFlowSchemaCoversEveryRight(t *testing.T) {
	objects := renderWith(t, []string{"flow-schema"})
	schema, level := only[*flowcontrolv1.FlowSchema](t, objects), only[*flowcontrolv1.PriorityLevelConfiguration](t, objects)
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
	covered, given := rights{}, rights{}
	for _, rule := range schema.Spec.Rules[0].ResourceRules {
		covered.add(rule.APIGroups, rule.Resources, rule.Verbs)
	}
	for _, set := range append([][]string{nil, {"startup-taint", "cross-namespace"}}, single(components(t))...) {
		maps.Copy(given, rightsOf(only[*rbacv1.ClusterRole](t, renderWith(t, set))))
	}
	maps.DeleteFunc(given, func(right string, _ bool) bool { return strings.HasPrefix(right, "impersonate") })
	if !reflect.DeepEqual(covered, given) {
		t.Errorf("covered are %v\n         want %v", covered, given)
	}
}

func single(names []string) [][]string {
	var lists [][]string
	for _, name := range names {
		lists = append(lists, []string{name})
	}
	return lists
}

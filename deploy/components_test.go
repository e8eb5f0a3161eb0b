package deploy

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/refvol/refvol/internal/must"
)

func components(t *testing.T) []string {
	t.Helper()
	entries := must.Get(os.ReadDir("components"))(t)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func flagsOf() map[string]string {
	return map[string]string{
		"pod-identity":             "--identity=pod",
		"pod-identity-before-1.35": "--identity=pod",
		"node-identity":            "--identity=node",
		"cross-namespace":          "--cross-namespace",
		"cache":                    "--change-detection=Cache",
		"get":                      "--change-detection=Get",
		"startup-taint":            "--startup-taint=" + driverName + "/agent-not-ready",
	}
}

// TestComponents renders the base with each component, and with sets of them in any order: the set's
// flags are added to the plugin's pod, and nothing else of that is changed. The order is of no
// matter, and the chart's objects are the same. What the rights come to, an API server says in e2e/suites/manifests.
func TestComponents(t *testing.T) {
	var others []string
	for _, name := range components(t) {
		if _, ok := flagsOf()[name]; !ok || name == "startup-taint" { // it excludes nothing
			others = append(others, name)
		}
	}
	older := slices.DeleteFunc(slices.Clone(others), func(name string) bool { return needed(t, name) == "1.36" })
	reversed := append([]string{"pod-identity", "get", "cross-namespace"}, others...)
	slices.Reverse(reversed)
	// This one alone must be listed after another.
	reversed = slices.DeleteFunc(reversed, func(name string) bool { return name == "restart-metrics" })
	sets := append([][]string{nil, reversed}, single(components(t))...)
	sets = append(sets, append([]string{"node-identity", "cache"}, others...), append(older, "pod-identity-before-1.35", "cache", "cross-namespace"))
	for _, set := range sets {
		t.Run(strings.Join(set, " "), func(t *testing.T) {
			objects := renderWith(t, set)
			want := only[*appsv1.DaemonSet](t, renderWith(t, nil))
			container := pluginContainer(t, want)
			for _, name := range set {
				if flag := flagsOf()[name]; flag != "" {
					container.Args = append(container.Args, flag)
				}
			}
			got := only[*appsv1.DaemonSet](t, objects)
			for _, d := range []*appsv1.DaemonSet{got, want} {
				slices.Sort(pluginContainer(t, d).Args[1:])
			}
			if got, want := unfolded(t, got), unfolded(t, want); got != want {
				t.Errorf("the DaemonSet:\n got %s\nwant %s", got, want)
			}
			// TestComponentRights of e2e/suites/manifests takes the rights of the one ClusterRole.
			bound := only[*rbacv1.ClusterRoleBinding](t, objects)
			rbac := slices.DeleteFunc(slices.Clone(objects), func(object runtime.Object) bool {
				return object.GetObjectKind().GroupVersionKind().Group != rbacv1.GroupName
			})
			if len(rbac) != 2 || !reflect.DeepEqual(bound, only[*rbacv1.ClusterRoleBinding](t, renderWith(t, nil))) {
				t.Errorf("%d objects give rights, the binding is %s", len(rbac), asJSON(t, bound))
			}
			wantObjects(t, objects, renderWith(t, slices.Sorted(slices.Values(set))))
			version, overrides := valuesOf(t, set)
			wantObjects(t, chartObjects(t, version, overrides), objects)
		})
	}
}

// unfolded returns an object as JSON. Kustomize folds long texts its own way: lines count as one.
func unfolded(t *testing.T, object runtime.Object) string {
	t.Helper()
	return regexp.MustCompile(`(\\n| )+`).ReplaceAllString(string(asJSON(t, object)), " ")
}

// byName returns objects by kind and name. No two have the same.
func byName(t *testing.T, objects []runtime.Object) map[string]runtime.Object {
	t.Helper()
	named := map[string]runtime.Object{}
	for _, object := range objects {
		accessor := must.Get(meta.Accessor(object))(t)
		key := object.GetObjectKind().GroupVersionKind().Kind + " " + accessor.GetName()
		if named[key] != nil {
			t.Errorf("two objects are %s", key)
		}
		named[key] = object
	}
	return named
}

// TestComponentsThatExcludeEachOther fail to render, in either order, and say why.
func TestComponentsThatExcludeEachOther(t *testing.T) {
	for _, test := range []struct{ first, second, says string }{
		{"pod-identity", "node-identity", "can't be combined with another identity: choose one of the components pod-identity and node-identity"},
		{"pod-identity-before-1.35", "node-identity", "can't be combined with another identity: choose one of the components pod-identity and node-identity"},
		{"pod-identity", "pod-identity-before-1.35", "can't be combined with another identity: choose one of the components pod-identity and node-identity"},
		{"cache", "get", "can't be combined with another change detection: choose one of the components cache and get"},
		{"node-identity", "cross-namespace", "node-identity can't be combined with cross-namespace: a node may read only what its own pods name"},
	} {
		for _, set := range [][]string{{test.first, test.second}, {test.second, test.first}} {
			if _, err := build(kustomization(t, set, "")); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q: got %v, want %q", set, err, test.says)
			}
		}
	}
}

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

// TestUserRights: the roles of kubectl refvol give these rights, and no other. The suite fleet shows that they
// are enough.
func TestUserRights(t *testing.T) {
	objects, given := render(t, "kubectl-refvol"), rights{}
	role := only[*rbacv1.Role](t, objects)
	if role.Namespace != namespace {
		t.Errorf("the role is of namespace %q, want %q", role.Namespace, namespace)
	}
	for _, rule := range append(only[*rbacv1.ClusterRole](t, objects).Rules, role.Rules...) {
		given.add(rule.APIGroups, rule.Resources, rule.Verbs)
	}
	want := rights{
		"get pods": true, "list pods": true, "watch pods": true, "list csinodes storage.k8s.io": true, "get nodes": true,
		"get pods/portforward": true, "create pods/portforward": true,
	}
	if !maps.Equal(given, want) {
		t.Errorf("given are %v\n     want %v", given, want)
	}
}

// TestNetworkPolicy: only Prometheus may connect to the plugin, and the plugin only to the ports of an API server.
func TestNetworkPolicy(t *testing.T) {
	port := func(number int32) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(number))}
	}
	objects := renderWith(t, []string{"network-policy", "metrics"})
	policy, daemonSet := only[*networkingv1.NetworkPolicy](t, objects), only[*appsv1.DaemonSet](t, objects)
	want := networkingv1.NetworkPolicySpec{
		PodSelector: *daemonSet.Spec.Selector,
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: "monitoring"},
			}}},
			Ports: []networkingv1.NetworkPolicyPort{port(9810)},
		}},
		Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{port(443), port(6443)}}},
	}
	if !reflect.DeepEqual(policy.Spec, want) {
		t.Errorf("the policy is\n%s\nwant\n%s", asJSON(t, policy.Spec), asJSON(t, want))
	}
	alone := only[*networkingv1.NetworkPolicy](t, renderWith(t, []string{"network-policy"})).Spec
	if want.Ingress = []networkingv1.NetworkPolicyIngressRule{}; !reflect.DeepEqual(alone, want) {
		t.Errorf("without metrics the policy is\n%s\nwant\n%s", asJSON(t, alone), asJSON(t, want))
	}
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
	if by := schema.Spec.DistinguisherMethod; by == nil || by.Type != flowcontrolv1.FlowDistinguisherMethodByNamespaceType {
		t.Errorf("flows are told apart by %s: a large namespace would hold up the others", asJSON(t, by))
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
		for _, rule := range only[*rbacv1.ClusterRole](t, renderWith(t, set)).Rules {
			given.add(rule.APIGroups, rule.Resources, rule.Verbs)
		}
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

package deploy

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// alternatives are groups of components: a set has at most one of each.
func alternatives() [][]string {
	return [][]string{{"pod-identity", "pod-identity-before-1.35", "node-identity"}, {"cache", "get"}}
}

// components returns the names of all of them.
func components(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("components")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// flagsOf returns what each component adds to the plugin's arguments.
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

// TestComponents renders the base with each component, and with sets of them in any order: what
// comes out follows from the set.
func TestComponents(t *testing.T) {
	wantSet(t, nil)
	for _, name := range components(t) {
		wantSet(t, []string{name})
	}
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { wantSet(t, randomSet(t, seed)) })
	}
}

// randomSet returns a set of components that don't exclude each other, in some order.
func randomSet(t *testing.T, seed uint64) []string {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	var set []string
	for _, group := range alternatives() {
		if i := random.IntN(len(group) + 1); i < len(group) {
			set = append(set, group[i])
		}
	}
	for _, name := range components(t) {
		if slices.Contains(slices.Concat(alternatives()...), name) ||
			name == "cross-namespace" && slices.Contains(set, "node-identity") {
			continue
		}
		if random.IntN(2) == 0 {
			set = append(set, name)
		}
	}
	random.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
	return set
}

// wantSet renders the base with a set of components and compares all objects with what the set
// should bring about.
func wantSet(t *testing.T, set []string) {
	t.Helper()
	t.Run(strings.Join(append([]string{"base"}, set...), " "), func(t *testing.T) {
		got, want := byName(t, renderWith(t, set)), byName(t, wanted(t, set))
		for name, object := range want {
			if role, ok := got[name].(*rbacv1.ClusterRole); ok {
				if rights, wantRights := rightsOf(role), wantedRights(set); !reflect.DeepEqual(rights, wantRights) {
					t.Errorf("rights %v\n  want %v", rights, wantRights)
				}
				role.Rules = nil
			}
			if got, want := unfolded(t, got[name]), unfolded(t, object); got != want {
				t.Errorf("%s:\n got %s\nwant %s", name, got, want)
			}
		}
		for name := range got {
			if want[name] == nil {
				t.Errorf("nobody asked for %s", name)
			}
		}
	})
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
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		key := object.GetObjectKind().GroupVersionKind().Kind + " " + accessor.GetName()
		if named[key] != nil {
			t.Errorf("two objects are %s", key)
		}
		named[key] = object
	}
	return named
}

// wanted returns the base's objects as the set changes them, the role without its rules, and
// those that the set's components bring.
func wanted(t *testing.T, set []string) []runtime.Object {
	t.Helper()
	objects := render(t, "base")
	container := pluginContainer(t, only[*appsv1.DaemonSet](t, objects))
	role := only[*rbacv1.ClusterRole](t, objects)
	driver := only[*storagev1.CSIDriver](t, objects)
	role.Rules = nil
	for _, name := range set {
		if flag := flagsOf()[name]; flag != "" {
			container.Args = append(container.Args, flag)
		}
		switch name {
		case "pod-identity", "pod-identity-before-1.35":
			driver.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: ""}}
			driver.Spec.RequiresRepublish = ptr(true)
			if name == "pod-identity" {
				driver.Spec.ServiceAccountTokenInSecrets = ptr(true)
			}
			role.Labels["refvol.dev/identity"] = "pod"
		case "node-identity":
			role.Labels["refvol.dev/identity"] = "node"
		case "cache":
			role.Labels["refvol.dev/change-detection"] = "Cache"
		case "get":
			role.Labels["refvol.dev/change-detection"] = "Get"
		case "cross-namespace", "startup-taint", "metrics":
			role.Labels["refvol.dev/"+name] = "true"
		}
		objects = append(objects, brought(t, name, slices.Contains(set, "cross-namespace"))...)
	}
	if slices.Contains(set, "metrics") && slices.Contains(set, "network-policy") {
		admitPrometheus(only[*networkingv1.NetworkPolicy](t, objects))
	}
	return objects
}

// admitPrometheus has a policy admit pods of the namespace monitoring to the port of the metrics.
func admitPrometheus(policy *networkingv1.NetworkPolicy) {
	policy.Labels["refvol.dev/metrics"] = "true"
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "monitoring"}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: ptr(corev1.ProtocolTCP), Port: ptr(intstr.FromInt32(9810))}},
	}}
}

// brought returns the objects in a component's own files.
func brought(t *testing.T, component string, across bool) []runtime.Object {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("components", component, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nkind: ") || filepath.Base(file) == "kustomization.yaml" {
			continue // a patch
		}
		objects = append(objects, decode(t, file, text)...)
	}
	for _, object := range objects {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok && across {
			for i := range policy.Spec.Variables {
				if policy.Spec.Variables[i].Name == "crossNamespace" {
					policy.Spec.Variables[i].Expression = "true"
				}
			}
		}
	}
	return objects
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
		for _, set := range [][]string{{test.first, test.second}, {test.second, test.first}, {test.first, "admission", test.second}} {
			if _, err := build(kustomization(t, set, "")); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q: got %v, want %q", set, err, test.says)
			}
		}
	}
}

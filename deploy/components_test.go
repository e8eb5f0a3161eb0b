package deploy

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/refvol/refvol/internal/dice"
)

// alternatives are groups of components: a set has at most one of each.
func alternatives() [][]string {
	return [][]string{{"pod-identity", "pod-identity-before-1.35", "node-identity"}, {"cache", "get"}}
}

func components(t *testing.T) []string {
	t.Helper()
	entries := must(os.ReadDir("components"))(t)
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
	sets := append([][]string{nil}, single(components(t))...)
	for _, seed := range dice.Seeds(t, 4) {
		sets = append(sets, randomSet(t, seed))
	}
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

// randomSet returns a set of components that don't exclude each other, in some order.
func randomSet(t *testing.T, seed uint64) []string {
	t.Helper()
	random := dice.New(seed)
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
	if slices.Contains(set, "pod-identity-before-1.35") {
		set = slices.DeleteFunc(set, func(name string) bool { return needed(t, name) == "1.36" })
	}
	random.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
	return set
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
		accessor := must(meta.Accessor(object))(t)
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

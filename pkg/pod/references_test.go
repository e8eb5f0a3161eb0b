package pod

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func parseSpec(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	var spec corev1.PodSpec
	must.Do(t, yaml.UnmarshalStrict([]byte(text), &spec))
	return &spec
}

const everySort = `
imagePullSecrets: [{name: registry}, {name: ""}, {}]
ephemeralContainers:
- name: debug
  env: [{name: E, valueFrom: {secretKeyRef: {name: debug, key: e, optional: true}}}]
containers:
- name: app
  envFrom:
  - configMapRef: {name: app}
  - prefix: DB_
    secretRef: {name: db, optional: true}
  env:
  - {name: PLAIN, value: x}
  - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: LEVEL, valueFrom: {configMapKeyRef: {name: app, key: level}}}
  - {name: NAMELESS, valueFrom: {configMapKeyRef: {key: level}}}
  - {name: BOTH, value: wins, valueFrom: {secretKeyRef: {name: both, key: k}}}
initContainers:
- name: init
  envFrom: [{secretRef: {name: init}}]
volumes:
- name: none
  emptyDir: {}
- name: cm
  configMap: {name: app, optional: true, items: [{key: a, path: x/a}, {key: b, path: b}]}
- name: secret
  secret: {secretName: db}
- name: nameless
  secret: {}
- name: both
  projected:
    sources:
    - serviceAccountToken: {path: token}
    - configMap: {name: p, optional: false}
    - secret: {name: p, items: [{key: c, path: c}]}
`

// TestVisit has what TestVisitIsComplete can't judge: keys, optional references, and names that count for nothing.
func TestVisit(t *testing.T) {
	want := []Reference{
		{Kind: volume.Secret, Name: "registry", Optional: true, Field: "spec.imagePullSecrets[0].name"},
		{Kind: volume.Secret, Name: "init", Env: true, Field: "spec.initContainers[0].envFrom[0].secretRef.name"},
		{Kind: volume.ConfigMap, Name: "app", Env: true, Field: "spec.containers[0].envFrom[0].configMapRef.name"},
		{Kind: volume.Secret, Name: "db", Optional: true, Env: true, Field: "spec.containers[0].envFrom[1].secretRef.name"},
		{Kind: volume.ConfigMap, Name: "app", Keys: []string{"level"}, Env: true, Field: "spec.containers[0].env[2].valueFrom.configMapKeyRef.name"},
		{Kind: volume.Secret, Name: "both", Keys: []string{"k"}, Env: true, Field: "spec.containers[0].env[4].valueFrom.secretKeyRef.name"},
		{Kind: volume.Secret, Name: "debug", Keys: []string{"e"}, Optional: true, Env: true, Field: "spec.ephemeralContainers[0].env[0].valueFrom.secretKeyRef.name"},
		{Kind: volume.ConfigMap, Name: "app", Keys: []string{"a", "b"}, Optional: true, Field: "spec.volumes[1].configMap.name"},
		{Kind: volume.Secret, Name: "db", Field: "spec.volumes[2].secret.secretName"},
		{Kind: volume.ConfigMap, Name: "p", Field: "spec.volumes[4].projected.sources[1].configMap.name"},
		{Kind: volume.Secret, Name: "p", Keys: []string{"c"}, Field: "spec.volumes[4].projected.sources[2].secret.name"},
	}
	var got []Reference
	VisitObjectRefs(parseSpec(t, everySort), field.NewPath("spec"), func(r Reference) { got = append(got, r) })
	expect.Equal(t, "what is visited", got, want)
	var refs []volume.Ref // each once
	for _, r := range want {
		if ref := (volume.Ref{Kind: r.Kind, Namespace: "ns", Name: r.Name}); !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	expect.Equal(t, "references", Refs(parseSpec(t, everySort), "ns"), refs)
	if got := Refs(&corev1.PodSpec{}, "ns"); len(got) != 0 {
		t.Errorf("an empty spec references %v", got)
	}
}

// leaf is one string that a pod's spec can hold.
type leaf struct {
	path string
	// owner is the struct that declares it.
	owner reflect.Type
	// set puts a string there into a spec that has nothing else, and whatever must be above it.
	set func(spec *corev1.PodSpec, value string)
}

// leaves returns every string below a type. reach returns the value of that type in a spec, and creates it if necessary.
func leaves(t reflect.Type, owner reflect.Type, at *field.Path, reach func(reflect.Value) reflect.Value) []leaf {
	switch t.Kind() {
	case reflect.String:
		return []leaf{{at.String(), owner, func(spec *corev1.PodSpec, value string) {
			reach(reflect.ValueOf(spec).Elem()).SetString(value)
		}}}
	case reflect.Pointer:
		return leaves(t.Elem(), owner, at, func(root reflect.Value) reflect.Value {
			v := reach(root)
			if v.IsNil() {
				v.Set(reflect.New(t.Elem()))
			}
			return v.Elem()
		})
	case reflect.Slice:
		return leaves(t.Elem(), owner, at.Index(0), func(root reflect.Value) reflect.Value {
			v := reach(root)
			v.Set(reflect.MakeSlice(t, 1, 1))
			return v.Index(0)
		})
	case reflect.Struct:
		var all []leaf
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			at := at
			if name, options, _ := strings.Cut(f.Tag.Get("json"), ","); !strings.Contains(options, "inline") && name != "" {
				at = at.Child(name)
			}
			all = append(all, leaves(f.Type, t, at, func(root reflect.Value) reflect.Value { return reach(root).Field(i) })...)
		}
		return all
	}
	return nil // no map of a pod's spec names an object
}

// exceptions returns the strings that look to isSuspicious like the name of a Secret or a ConfigMap, but are not.
func exceptions() []string {
	const claim = "spec.volumes[0].ephemeral.volumeClaimTemplate.spec."
	return []string{
		"spec.volumes[0].cephfs.secretFile", // a file of the node
		// the source from which a volume of the claim is filled
		claim + "dataSource.name", claim + "dataSource.kind", claim + "dataSource.apiGroup",
		claim + "dataSourceRef.name", claim + "dataSourceRef.kind", claim + "dataSourceRef.apiGroup", claim + "dataSourceRef.namespace",
	}
}

// isSuspicious reports whether a string may be the name of a Secret or a ConfigMap, by its own name, the fields above it, or its type.
func isSuspicious(l leaf) bool {
	ownType := regexp.MustCompile(`Secret|ConfigMap|ObjectReference`).MatchString(l.owner.Name())
	inPath := regexp.MustCompile(`(?i)secret|config_?map`).MatchString(l.path)
	// Other fields of a reference.
	beside := regexp.MustCompile(`(\.key|\.items\[0\]\.(key|path))$`).MatchString(l.path)
	return (ownType || inPath) && !beside && !slices.Contains(exceptions(), l.path)
}

// Every field of the API that can name a Secret or a ConfigMap is visited, and nothing else is. This test fails when a new version of
// Kubernetes has a new field.
func TestVisitIsComplete(t *testing.T) {
	all := leaves(reflect.TypeFor[corev1.PodSpec](), nil, field.NewPath("spec"), func(root reflect.Value) reflect.Value { return root })
	found := 0
	for _, l := range all {
		var spec corev1.PodSpec
		l.set(&spec, "object")
		var got []Reference
		VisitObjectRefs(&spec, field.NewPath("spec"), func(r Reference) { got = append(got, r) })
		switch {
		case !isSuspicious(l):
			if len(got) != 0 {
				t.Errorf("%s names no object; got %+v", l.path, got)
			}
		case len(got) != 1 || got[0].Field != l.path || got[0].Name != "object":
			t.Errorf("%s may name an object; got %+v, want one reference at that path (or make it an exception)", l.path, got)
		default:
			found++
			wantKind := "Secret"
			if strings.Contains(strings.ToLower(l.path), "configmap") {
				wantKind = "ConfigMap"
			}
			expect.Equal(t, "the kind of "+l.path, string(got[0].Kind), wantKind)
		}
	}
	// The walk itself must have found the known fields: a pull secret, four fields of each sort of container, four of volumes that show
	// files, nine of storage.
	expect.Equal(t, "strings that name an object", found, 1+3*4+4+9)
	for _, path := range exceptions() {
		if !slices.ContainsFunc(all, func(l leaf) bool { return l.path == path }) {
			t.Errorf("%s is an exception, and does not exist", path)
		}
	}
}

package pod

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/pkg/volume"
)

// parseSpec parses a pod's spec in YAML.
func parseSpec(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	var spec corev1.PodSpec
	must(t, yaml.UnmarshalStrict([]byte(text), &spec))
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
- name: share
  azureFile: {secretName: share, shareName: s}
- name: disk
  iscsi: {targetPortal: p, iqn: i, lun: 0, secretRef: {name: chap}}
- name: other
  csi: {driver: example.com, nodePublishSecretRef: {name: csi}}
- name: unsecured
  csi: {driver: example.com}
`

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
		{Kind: volume.Secret, Name: "share", Field: "spec.volumes[5].azureFile.secretName"},
		{Kind: volume.Secret, Name: "chap", Field: "spec.volumes[6].iscsi.secretRef.name"},
		{Kind: volume.Secret, Name: "csi", Field: "spec.volumes[7].csi.nodePublishSecretRef.name"},
	}
	var got []Reference
	VisitObjectRefs(parseSpec(t, everySort), field.NewPath("spec"), func(r Reference) { got = append(got, r) })
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("not visited: %+v", want[i])
		case i >= len(want):
			t.Errorf("visited: %+v", got[i])
		case !reflect.DeepEqual(got[i], want[i]):
			t.Errorf("visit %d:\ngot  %+v\nwant %+v", i, got[i], want[i])
		}
	}
}

func TestRefs(t *testing.T) {
	ref := func(kind volume.Kind, name string) volume.Ref {
		return volume.Ref{Kind: kind, Namespace: "ns", Name: name}
	}
	want := []volume.Ref{
		ref(volume.Secret, "registry"), ref(volume.Secret, "init"), ref(volume.ConfigMap, "app"), ref(volume.Secret, "db"),
		ref(volume.Secret, "both"), ref(volume.Secret, "debug"), ref(volume.ConfigMap, "p"), ref(volume.Secret, "p"),
		ref(volume.Secret, "share"), ref(volume.Secret, "chap"), ref(volume.Secret, "csi"),
	}
	if got := Refs(parseSpec(t, everySort), "ns"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := Refs(&corev1.PodSpec{}, "ns"); len(got) != 0 {
		t.Errorf("an empty spec references %v", got)
	}
}

// indent makes a text of several lines one element of a YAML list.
func indent(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "\n"), "\n", "\n  ")
}

// describe prints a value, including what its pointers point to.
func describe(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// must fails the test at once with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

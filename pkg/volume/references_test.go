package volume

import (
	"slices"
	"testing"
)

// usesAttributes names one object in every way there is.
const usesAttributes = `
- configMap: {name: a}
- secret: {name: b, optional: true, items: [{key: k, path: p}, {key: l, path: q}]}
- env:
    path: app.env
    envFrom: [{configMapRef: {name: a}}, {prefix: X_, secretRef: {name: c, optional: true}}]
    env:
    - {name: PLAIN, value: v}
    - {name: EMPTY}
    - {name: FIELD, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
    - {name: KEY, valueFrom: {secretKeyRef: {name: b, key: k, optional: true}}}
    - {name: BEATEN, value: v, valueFrom: {configMapKeyRef: {name: unused, key: k}}}
    - {name: CONFIG, valueFrom: {configMapKeyRef: {name: d, key: m}}}
- podEnv: {path: pod.env, container: main}
- join: {path: ca.pem, sources: [{configMap: {name: a, key: k}}, {secret: {name: e, key: l, optional: true}}]}
`

func TestReferences(t *testing.T) {
	spec, err := Parse(map[string]string{"sources": usesAttributes}, testPod())
	if err != nil {
		t.Fatal(err)
	}
	cm := func(name string) Ref { return Ref{Kind: ConfigMap, Namespace: "ns", Name: name} }
	secret := func(name string) Ref { return Ref{Kind: Secret, Namespace: "ns", Name: name} }
	want := []Reference{
		{Ref: cm("a"), Field: "sources[0].configMap"},
		{Ref: secret("b"), Optional: true, Field: "sources[1].secret"},
		{Ref: cm("a"), Field: "sources[2].env.envFrom[0].configMapRef"},
		{Ref: secret("c"), Optional: true, Field: "sources[2].env.envFrom[1].secretRef"},
		{Ref: secret("b"), Key: "k", Optional: true, Field: "sources[2].env.env[3].valueFrom.secretKeyRef"},
		{Ref: cm("d"), Key: "m", Field: "sources[2].env.env[5].valueFrom.configMapKeyRef"},
		{Ref: cm("a"), Key: "k", Field: "sources[4].join.sources[0].configMap"},
		{Ref: secret("e"), Key: "l", Optional: true, Field: "sources[4].join.sources[1].secret"},
	}
	var got []Reference
	for i := range spec.Sources {
		got = append(got, spec.Sources[i].References()...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	if got, want := spec.Refs(), []Ref{cm("a"), secret("b"), secret("c"), cm("d"), secret("e")}; !slices.Equal(got, want) {
		t.Errorf("refs are %v, want %v", got, want)
	}
	if got := (&Spec{}).Refs(); len(got) != 0 {
		t.Errorf("a spec of nothing refers to %v", got)
	}
}

const acrossAttributes = `
- configMap: {name: a, namespace: ns}
- secret: {name: b, namespace: platform, items: [{key: k, path: p}, {key: l, path: q}]}
- secret: {name: b}
- env:
    path: app.env
    envFrom: [{configMapRef: {name: a, namespace: platform}}, {secretRef: {name: b, namespace: platform}}]
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: c, namespace: other, key: k, optional: true}}}]
`

func TestCrossNamespaceRefs(t *testing.T) {
	attributes := map[string]string{"sources": acrossAttributes}
	spec, err := Parse(attributes, testPod(), AcrossNamespaces())
	if err != nil {
		t.Fatal(err)
	}
	want := []Reference{
		{Ref: Ref{Kind: Secret, Namespace: "platform", Name: "b"}, Field: "sources[1].secret.namespace"},
		{Ref: Ref{Kind: ConfigMap, Namespace: "platform", Name: "a"}, Field: "sources[3].env.envFrom[0].configMapRef.namespace"},
		{Ref: Ref{Kind: Secret, Namespace: "other", Name: "c"}, Field: "sources[3].env.env[0].valueFrom.secretKeyRef.namespace"},
	}
	if got := spec.CrossNamespaceRefs(testPod()); !slices.Equal(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	if _, err := Parse(attributes, testPod()); err == nil {
		t.Error("other namespaces are accepted without AcrossNamespaces")
	}
	short, err := Parse(map[string]string{"secret": "b", "namespace": "platform"}, testPod(), AcrossNamespaces())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := short.CrossNamespaceRefs(testPod()), []Reference{{Ref: Ref{Kind: Secret, Namespace: "platform", Name: "b"}, Field: "namespace"}}; !slices.Equal(got, want) {
		t.Errorf("short form: got %+v, want %+v", got, want)
	}
	_, err = Parse(map[string]string{"secret": "b", "namespace": "Platform"}, testPod(), AcrossNamespaces())
	checkError(t, err, `namespace: Invalid value: "Platform": `+badNamespace)
}

func TestNeedsPod(t *testing.T) {
	for want, attributes := range map[string]map[string]string{
		"":                            {"secret": "s"},
		"volume":                      {"volume": "v"},
		"sources[1].volume.name":      {"sources": "[{secret: {name: s}}, {volume: {name: v}}]"},
		"sources[0].podEnv.container": {"sources": "[{podEnv: {path: e, container: c}}, {volume: {name: v}}]"},
	} {
		spec, err := Parse(attributes, testPod())
		if err != nil {
			t.Fatal(err)
		}
		if got := spec.NeedsPod(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

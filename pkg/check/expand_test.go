package check

import (
	"bytes"
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/refvol/refvol/pkg/volume"
)

// textCluster is a fakeCluster with the texts of keys.
type textCluster struct {
	fakeCluster
	texts map[string]string // by Ref and key
}

func (c *textCluster) Text(_ context.Context, ref volume.Ref, key string) ([]byte, error) {
	text, ok := c.texts[ref.String()+" "+key]
	if !ok {
		return nil, nil
	}
	return []byte(text), nil
}

func (c *fakeCluster) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }

// expanding is a pod whose volume expands the key t of the ConfigMap app.
const expanding = `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c}]
  volumes:
  - name: v
    csi:
      driver: csi.refvol.dev
      readOnly: true
      volumeAttributes:
        sources: |
          - expand:
              path: app.yaml
              configMap: {name: app, key: t}
              envFrom: [{prefix: DB_, secretRef: {name: db}}]
              env:
              - {name: A, value: x}
              - {name: B, value: "$(A)", escape: json}
              - {name: C, valueFrom: {secretKeyRef: {name: db, key: c}}}
`

func TestLiveTexts(t *testing.T) {
	const at = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes.sources[0].expand"
	const unusedC = at + ".env[2].name: the text doesn't use variable C: write $(C) where its value belongs, or remove the variable"
	for text, want := range map[string][]string{
		"$(B)$(C)":             nil, // A is in the value of B; keys of a whole object need not be used
		"$(B)$$(C)":            {unusedC},
		"$(B)$$$(C)(C)":        {unusedC},
		"$$(C)$(C)$(B)":        nil,
		"$(B)${C}":             {at + ".env[2].name: the text has ${C}, which stays as it is: write $(C)"},
		"$(B)${C}$(C)":         nil,
		"$(B)$(C)${DB_c}":      {at + ".envFrom[0].secretRef: the text has ${DB_c}, which stays as it is: write $(DB_c)"},
		"$(B)$(C)${c}${other}": nil,
	} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: having("t"), `Secret "ns/db"`: having("c", "d")}}, map[string]string{`ConfigMap "ns/app" t`: text}}
		r := add(t, cluster, expanding)
		lines(t, text, texts(r.Warnings), want)
		lines(t, "problems of "+text, texts(r.Problems), nil)
	}
}

// A text that doesn't exist, or cannot be read, causes no warning. A missing object is a problem itself.
func TestLiveTextsThatAreMissing(t *testing.T) {
	for _, object := range []Object{{Exists: No}, {Exists: Unknown}, having("other"), having("t")} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: object, `Secret "ns/db"`: having("c")}}, nil}
		lines(t, "warnings", texts(add(t, cluster, expanding).Warnings), nil)
	}
}

// Mounts with subPath are checked with directories of sources, and with a text that may be missing.
func TestSubPathsOfNewSources(t *testing.T) {
	const (
		at      = "f.yaml, document 1: Pod ns/p: spec.containers[0].volumeMounts[0].subPath: "
		sources = `{writeStrategy: %s, sources: "[{configMap: {name: app, path: rules.d, optional: true}}, {expand: {path: app.yaml, configMap: {name: app, key: t, optional: true}, env: [{name: A}]}}]"}`
	)
	for _, test := range []struct {
		part, strategy string
		object         Object
		want           []string
	}{
		{"rules.d", "Atomic", having("t"), []string{at + dirEmpties}},
		{"rules.d/a", "Atomic", having("a", "t"), []string{at + fileStays}},
		{"rules.d/a", "InPlace", having("a", "t"), nil},
		{"rules.d/a", "InPlace", having("rules.d/a", "t"), []string{at + mayBeAbsent}},
		{"app.yaml", "InPlace", having("t"), nil},
		{"app.yaml", "InPlace", having(), []string{at + mayBeAbsent}},
	} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: test.object}}, map[string]string{`ConfigMap "ns/app" t`: "$(A)"}}
		r := add(t, cluster, podWith(strings.Replace(sources, "%s", test.strategy, 1), "[{name: c, volumeMounts: [{name: v, mountPath: /v, subPath: "+test.part+"}]}]"))
		lines(t, test.strategy+" "+test.part, texts(r.Warnings), test.want)
	}
}

// A text is a key of data or binaryData. A missing or unreadable one is nil.
func TestTextOfAnAPIServer(t *testing.T) {
	client := fake.NewClientset(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app"}, Data: map[string]string{"text": "a", "empty": ""}, BinaryData: map[string][]byte{"raw": {0xff}}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}, Data: map[string][]byte{"text": []byte("b")}})
	client.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName() //nolint:forcetypeassert // It is a get.
		return name == "forbidden", nil, apierrors.NewForbidden(corev1.Resource("secrets"), name, nil)
	})
	server := &APIServer{
		ConfigMaps: func(namespace string) ConfigMaps { return client.CoreV1().ConfigMaps(namespace) },
		Secrets:    func(namespace string) Secrets { return client.CoreV1().Secrets(namespace) },
	}
	for _, test := range []struct {
		kind      volume.Kind
		name, key string
		want      []byte
	}{
		{volume.ConfigMap, "app", "text", []byte("a")},
		{volume.ConfigMap, "app", "empty", []byte{}},
		{volume.ConfigMap, "app", "raw", []byte{0xff}},
		{volume.ConfigMap, "app", "none", nil},
		{volume.ConfigMap, "none", "text", nil},
		{volume.Secret, "db", "text", []byte("b")},
		{volume.Secret, "db", "none", nil},
		{volume.Secret, "forbidden", "text", nil},
	} {
		got, err := server.Text(t.Context(), volume.Ref{Kind: test.kind, Namespace: "ns", Name: test.name}, test.key)
		if err != nil || !bytes.Equal(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s %s %s: got %q, %v", test.kind, test.name, test.key, got, err)
		}
	}
}

package check

import (
	"bytes"
	"context"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/refvol/refvol/internal/must"
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

// expanding are attributes that expand the key t of the ConfigMap app.
const expanding = `{sources: "[{expand: {path: app.yaml, configMap: {name: app, key: t}, envFrom: [{prefix: DB_, secretRef: {name: db}}],
  env: [{name: A, value: x}, {name: B, value: '$(A)', escape: json}, {name: C, valueFrom: {secretKeyRef: {name: db, key: c}}}]}}]"}`

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
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: having("t"), `Secret "ns/db"`: having("c", "d"), `Secret "ns/i"`: having("k")}}, map[string]string{`ConfigMap "ns/app" t`: text}}
		r := add(t, cluster, podWith(expanding, "[{name: c}]"))
		lines(t, text, texts(r.Warnings), want)
		lines(t, "problems of "+text, texts(r.Problems), nil)
	}
	// A text that doesn't exist, or cannot be read, causes no warning. A missing object is a problem itself.
	for _, object := range []Object{{Exists: No}, {Exists: Unknown}, having("other"), having("t")} {
		cluster := &textCluster{fakeCluster{objects: map[string]Object{`ConfigMap "ns/app"`: object, `Secret "ns/db"`: having("c"), `Secret "ns/i"`: having("k")}}, nil}
		lines(t, "warnings", texts(add(t, cluster, podWith(expanding, "[{name: c}]")).Warnings), nil)
	}
}

// A text is a key of data or binaryData. A missing or unreadable one is nil.
func TestTextOfAnAPIServer(t *testing.T) {
	server, client := newServer(t,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app"}, Data: map[string]string{"text": "a", "empty": ""}, BinaryData: map[string][]byte{"raw": {0xff}}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}, Data: map[string][]byte{"text": []byte("b")}})
	client.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.GetAction).GetName() //nolint:forcetypeassert // It is a get.
		return name == "forbidden", nil, apierrors.NewForbidden(corev1.Resource("secrets"), name, nil)
	})
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

// TestDecimalModes: a mode without its leading zero is another mode. One in octal, as text or as a number in YAML, is valid, even if its value
// equals a suspicious decimal one.
func TestDecimalModes(t *testing.T) {
	const v = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes."
	text := podWith(`{sources: "[{secret: {name: s, items: [{key: k, path: p, mode: 400}, {key: l, path: q, mode: 0400}, {key: m, path: r, mode: 256}]}}, {join: {path: j, mode: 444, sources: [{secret: {name: s, key: k}}]}}]"}`, "[{name: c}]") +
		"  - {name: a, configMap: {name: a, defaultMode: 644, items: [{key: k, path: p, mode: 440}]}}\n" +
		"  - {name: b, secret: {secretName: b, defaultMode: 0644}}\n" +
		"  - {name: c, projected: {defaultMode: 600, sources: [{secret: {name: s, items: [{key: k, path: p, mode: 755}]}}, {configMap: {name: s, items: [{key: k, path: p, mode: 420}]}}]}}\n"
	const own = "f.yaml, document 1: Pod ns/p: spec.volumes["
	lines(t, "warnings", texts(add(t, nil, text).Warnings), []string{
		v + "sources[0].secret.items[0].mode: 400 is decimal: the file gets mode 0620; write 0400 in YAML, with the zero",
		v + "sources[1].join.mode: 444 is decimal: the file gets mode 0674; write 0444 in YAML, with the zero",
		own + "1].configMap.defaultMode: 644 is decimal and not a mode: the API server refuses it; write 0644 in YAML, with the zero",
		own + "1].configMap.items[0].mode: 440 is decimal: the file gets mode 0670; write 0440 in YAML, with the zero",
		own + "3].projected.defaultMode: 600 is decimal and not a mode: the API server refuses it; write 0600 in YAML, with the zero",
		own + "3].projected.sources[0].secret.items[0].mode: 755 is decimal and not a mode: the API server refuses it; write 0755 in YAML, with the zero",
	})
	text = podWith(`{sources: '[{secret: {name: s, items: [{key: k, path: p, mode: "0620"}, {key: l, path: q, mode: 0620}]}}, {join: {path: j, mode: "0674", sources: [{secret: {name: s, key: k}}]}}]'}`, "[{name: c}]") +
		"  - {name: b, secret: {secretName: b, defaultMode: 0620, items: [{key: k, path: p, mode: 0670}]}}\n"
	lines(t, "warnings of octal modes", texts(add(t, nil, text).Warnings), nil)
}

// TestWithoutIdentity: what one mode would refuse is a warning that names the mode.
func TestWithoutIdentity(t *testing.T) {
	for attributes, want := range map[string]string{
		"{secret: i}": "",
		"{secret: s}": "the pod's spec does not name Secret \"ns/s\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source (no --identity was given: the chart installs node)",
		`{sources: "[{configMap: {name: c, canary: true}}]"}`: "the pod's spec does not name ConfigMap \"ns/c\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it and that nothing mounts or shows (no --identity was given: the chart installs node)",
		"{secret: s, namespace: another}":                     "an object of another namespace: no volume shows it with --identity=node of the plugin (no --identity was given: the chart installs node)",
	} {
		r := checkedBy(t, Options{AnyIdentity: true}, podWith(attributes, "[{name: c}]"))
		last := ""
		if warnings := r.Warnings; len(warnings) > 0 {
			last = warnings[len(warnings)-1].Message
		}
		if last != want || len(r.Problems) > 0 {
			t.Errorf("%s: got %q, want %q; problems %v", attributes, last, want, r.Problems)
		}
	}
}

// TestChild: what is not in a mapping or a sequence has no node.
func TestChild(t *testing.T) {
	var document yamlv3.Node
	must.Do(t, yamlv3.Unmarshal([]byte("{a: [x, y]}"), &document))
	mapping := document.Content[0]
	if list := child(mapping, "a"); list == nil || child(list, "1").Value != "y" || child(list, "2") != nil || child(list, "a") != nil {
		t.Errorf("the list is %+v", list)
	}
	if got := child(mapping, "b"); got != nil {
		t.Errorf("b is %+v", got)
	}
}

// TestLiveSets: check --live says whether the objects of a set belong together now.
func TestLiveSets(t *testing.T) {
	manifests := []string{
		podWith(`{sameRevision: "true", sources: "[{configMap: {name: app}}, {secret: {name: db}}, {secret: {name: late, optional: true}}]"}`, "[{name: c}]"),
		podWith(`{sameRevision: "true", sources: "[{configMap: {name: app}}, {podEnv: {path: env, container: c}}]"}`, "[{name: c, envFrom: [{secretRef: {name: db}}]}]"),
	}
	const at = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes.sameRevision: " +
		"no new pod starts now, because the objects must carry the same refvol.dev/revision: "
	for name, test := range map[string]struct {
		app, db volume.Revision
		want    []string
	}{
		"the same":  {"r1", "r1", nil},
		"different": {"r1", "r2", []string{at + `ConfigMap "ns/app" carries r1, Secret "ns/db" carries r2`}},
		"none":      {"", "r 2", []string{at + `ConfigMap "ns/app" carries none that counts, Secret "ns/db" carries none that counts`}},
	} {
		cluster := &fakeCluster{objects: map[string]Object{
			`ConfigMap "ns/app"`: {Exists: Yes, Revision: test.app}, `Secret "ns/db"`: {Exists: Yes, Revision: test.db}, `Secret "ns/i"`: having("k"),
		}}
		for _, manifest := range manifests {
			lines(t, name, texts(add(t, cluster, manifest).Problems), test.want)
		}
	}
}

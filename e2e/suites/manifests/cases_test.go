package manifests

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/volume"
)

type refusal struct {
	name string
	attributes
	// writable is what the volume has for readOnly.
	writable *bool
	// forbidsAcross says that a plugin with --cross-namespace takes it.
	forbidsAcross bool
	// hidden says that what is wrong is inside the YAML of sources.
	hidden bool
}

func (r refusal) volume() corev1.Volume {
	v := inline(r.attributes)
	if r.writable != nil {
		v.CSI.ReadOnly = new(!*r.writable)
		if !*r.writable {
			v.CSI.ReadOnly = nil
		}
	}
	return v
}

// refused are the volumes for which the plugin and the policy must have the same words.
func refused() []refusal {
	const source = "[{configMap: {name: app}}]"
	all := []refusal{
		{name: "readOnly false", attributes: attributes{"configMap": "app"}, writable: new(true)},
		{name: "readOnly left out", attributes: attributes{"configMap": "app"}, writable: new(false)},
		{name: "unknown attribute", attributes: attributes{"configMap": "app", "configmap": "app"}},
		{name: "two unknown attributes", attributes: attributes{"configMap": "app", "mode": "0400", "owner": "x"}},
		{name: "no attribute"},
		{name: "no object", attributes: attributes{"optional": "true"}},
		{name: "two objects", attributes: attributes{"configMap": "app", "secret": "app"}},
		{name: "an object and a volume", attributes: attributes{"secret": "app", "volume": "own"}},
		{name: "two objects and a volume", attributes: attributes{"configMap": "app", "secret": "app", "volume": "own"}},
		{name: "namespace of a volume", attributes: attributes{"volume": "own", "namespace": consumer}},
		{name: "optional volume with items", attributes: attributes{"volume": "own", "optional": "true", "items": "[]"}},
		{name: "all beside sources", attributes: attributes{
			"sources": source, "configMap": "app", "secret": "app", "volume": "own", "namespace": consumer, "optional": "true", "items": "[]",
		}},
		{name: "namespace", attributes: attributes{"secret": "db", "namespace": "platform"}, forbidsAcross: true},
		{name: "no such update policy", attributes: attributes{"secret": "db", "updatePolicy": "pinned"}},
		{name: "no such values", attributes: attributes{"secret": "db", "writeStrategy": "", "onDelete": "remove", "optional": "yes", "sameRevision": "True"}},
		{name: "decimal mode", attributes: attributes{"secret": "db", "defaultMode": "420"}},
		{name: "mode of five digits", attributes: attributes{"secret": "db", "defaultMode": "01777"}},
	}
	for _, name := range []string{"configMap", "secret", "volume", "namespace", "optional", "items"} {
		all = append(all, refusal{name: name + " beside sources", attributes: attributes{"sources": source, name: "x"}})
	}
	for name, sources := range map[string]string{
		"namespace in sources":          "- secret: {name: db, namespace: platform}",
		"namespace in JSON":             `[{"secret":{"name":"db","namespace":"platform"}}]`,
		"namespace of a key ref":        "[{env: {path: e, env: [{name: A, valueFrom: {secretKeyRef: {name: db, key: k, namespace: platform}}}]}}]",
		"namespace escaped in JSON":     `[{"secret":{"name":"db","n\u0061mespace":"platform"}}]`,
		"namespace escaped in YAML":     `- secret: {name: db, "\x6eamespace": platform}`,
		"namespace over two lines":      "- secret:\n    name: db\n    ? \"name\\\n      space\"\n    : platform",
		"namespace behind a slash":      `[{"secret":{"name":"db","items":[{"key":"k","path":"a\/b"}],"\u006eamespace":"platform"}}]`,
		"namespace in long escapes":     `- secret: {name: db, "\U0000006eamespace": platform}`,
		"namespace beside a field path": "- secret: {name: db, namespace: platform} # metadata.namespace",
	} {
		all = append(all, refusal{name: name, attributes: attributes{"sources": sources}, forbidsAcross: true, hidden: true})
	}
	return all
}

// accepted are the pods that the plugin, with or without --cross-namespace, and the
// policy must take.
func accepted(across bool) map[string]*corev1.Pod {
	foreign := inline(attributes{"bogus": "x"})
	foreign.CSI.Driver, foreign.CSI.ReadOnly = "csi.example.com", nil
	bare := podWith("app")
	bare.Spec.AutomountServiceAccountToken = new(false)
	all := map[string]*corev1.Pod{
		"no volume at all":         bare,
		"only the account's token": podWith("app"),
		"another driver":           podWith("app", foreign),
		"another driver beside":    podWith("app", foreign, inline(attributes{"configMap": "app"})),
		"short form, all attributes": podWith("app", inline(attributes{
			"configMap": "app", "namespace": consumer, "optional": "true", "items": "[{key: a, path: b}]",
			"defaultMode": "0400", "uid": "1", "gid": "2", "updatePolicy": "Pinned", "writeStrategy": "InPlace", "onDelete": "Remove", "directories": "[tls]",
		})),
		"secret": podWith("app", inline(attributes{"secret": "db"})),
		"volume": podWith("app", inline(attributes{"volume": "own-1", "defaultMode": "0400"}), empty("own")),
		"modes":  podWith("app", inline(attributes{"secret": "db", "defaultMode": "00"}), inline(attributes{"secret": "db", "defaultMode": "00777"})),
		"sources of every kind": podWith("app", inline(attributes{
			"sources": `
- configMap: {name: app, items: [{key: a, path: b, mode: 0440}]}
- secret: {name: db, optional: true}
- env:
    path: app.env
    envFrom: [{prefix: APP_, configMapRef: {name: app}}]
    env:
    - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: DB_PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
- podEnv: {path: pod.env, container: c}
- volume: {name: own}
`, "defaultMode": "0440",
		})),
		// As PHP and Python write JSON.
		"escaped slash and surrogate pair": podWith("app", inline(attributes{
			"sources": `[{"env":{"path":"a\/b","env":[{"name":"A","value":"\u20ac\ud83d\ude00\/"}]}}]`,
		})),
		"sources of the largest size": podWith("app", inline(largest())),
	}
	if across || harness.Scaled(false, true) { // the policy with more rules is the more expensive one
		all["twenty of the largest"] = podWith("app", repeat(20, largest())...)
	}
	if across {
		all["namespace"] = podWith("app", inline(attributes{"secret": "db", "namespace": "platform"}))
		all["namespace in sources"] = podWith("app", inline(attributes{"sources": "[{secret: {name: db, namespace: platform}}]"}))
		all["backslash"] = podWith("app", inline(attributes{"sources": `[{"secret": {"name": "d\u0062"}}]`}))
	}
	return all
}

// largest are attributes of as many bytes and sources as a volume may have.
func largest() attributes {
	const name = "sources"
	text := strings.Builder{}
	for i := range volume.MaxReferences {
		fmt.Fprintf(&text, "- configMap: {name: some-configuration, items: [")
		for j := range 6 {
			fmt.Fprintf(&text, "{key: some-key, path: p%d-%d}, ", i, j)
		}
		text.WriteString("]}\n")
	}
	text.WriteString("#" + strings.Repeat("x", volume.MaxAttributesSize-len(name)-text.Len()-1))
	return attributes{name: text.String()}
}

func repeat(n int, a attributes) []corev1.Volume {
	var all []corev1.Volume
	for range n {
		all = append(all, inline(a))
	}
	return all
}

func each(err error) []error {
	var several utilerrors.Aggregate
	if errors.As(err, &several) {
		return several.Errors()
	}
	return []error{err}
}

const policyName = "refvol-volumes"

// beyond are volumes that the policy refuses and the plugin does not; name is the text.
func beyond() map[string]refusal {
	const notHere = "this node's plugin shows no objects of others (--cross-namespace)"
	const kubelets = "volumeAttributes: Forbidden: attributes under csi.storage.k8s.io/ are the kubelet's own"
	return map[string]refusal{
		"a token of the author's own": {name: kubelets, attributes: attributes{
			"configMap": "app", "csi.storage.k8s.io/serviceAccount.tokens": "{}",
		}},
		"a volume that the pod lacks": {name: `volume: the pod has no volume "none"`, attributes: attributes{"volume": "none"}},
		"another pod's name":          {name: kubelets, attributes: attributes{"configMap": "app", "csi.storage.k8s.io/pod.name": "other"}},
		"the pod's own namespace":     {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: db, namespace: " + consumer + "}}]"}},
		"the word in a value":         {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: namespace}}]"}},
		"a backslash in a value":      {name: notHere, forbidsAcross: true, attributes: attributes{"sources": `[{"secret": {"name": "d\u0062"}}]`}},
		"a lookalike of a field path": {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: nmetadata.namespaceamespace}}]"}},
	}
}

// refusesMoreThanThePlugin: what the kubelet sets is not the author's to set, and where
// the policy can't tell what YAML says it is strict.
func refusesMoreThanThePlugin(t *testing.T, v variant) {
	for name, test := range beyond() {
		t.Run(name, func(t *testing.T) {
			inline := test.volume()
			wantParsed(t, &inline, v)
			err := try(t.Context(), podWith("app", inline))
			if test.forbidsAcross && v.across() {
				wantRefusal(t, err)
			} else {
				wantRefusal(t, err, "volume settings: ", test.name)
			}
		})
	}
}

// namesEveryVolume: a refusal tells which of a pod's volumes it is about.
func namesEveryVolume(t *testing.T, v variant) {
	good := inline(attributes{"configMap": "app"})
	for _, bad := range append(v.refused()[:3], refusal{attributes: attributes{"secret": "s", "csi.storage.k8s.io/x": "y"}}) {
		pod := podWith("app", good, bad.volume(), good, bad.volume())
		wantRefusal(t, try(t.Context(), pod), "settings-1", "settings-3")
	}
	wantRefusal(t, try(t.Context(), podWith("app", good, good)))
}

// hasAMessageForOddNames: where a name would make the text too long or of several lines,
// the API server takes the plain one.
func hasAMessageForOddNames(t *testing.T) {
	many := attributes{"configMap": "app"}
	for i := range 200 {
		many[fmt.Sprintf("unknown-%d", i)] = "x"
	}
	for _, odd := range []attributes{many, {"configMap": "app", "a\nb": "x"}} {
		wantRefusal(t, try(t.Context(), podWith("app", inline(odd))), "denied request: unknown attribute")
	}
}

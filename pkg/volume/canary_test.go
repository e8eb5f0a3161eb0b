package volume

import (
	"strings"
	"testing"
)

func TestCanaryShare(t *testing.T) {
	for _, test := range []struct {
		annotation  string
		isImmutable bool
		percent     int
		problem     string
	}{
		{"", false, 0, ""},
		{"", true, 0, ""},
		{"0%", false, 0, ""},
		{"10%", false, 10, ""},
		{"100%", false, 100, ""},
		{"10", false, 0, `"10", which is not a percentage such as 10%`},
		{"ten", false, 0, `"ten", which is not`},
		{"-1%", false, 0, "which is not"},
		{"101%", false, 0, "which is not"},
		{"010%", false, 0, "which is not"},
		{"10%", true, 0, "immutable"},
	} {
		o := Object{Canary: test.annotation, Immutable: test.isImmutable}
		percent, problem := o.CanaryShare()
		if percent != test.percent || (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
			t.Errorf("%q, immutable %t: %d %q", test.annotation, test.isImmutable, percent, problem)
		}
	}
}

// TestCanaries: the sources of canaries follow all others, are optional, and may repeat their paths.
func TestCanaries(t *testing.T) {
	spec, err := Parse(map[string]string{"sources": `
- secret: {name: canary, canary: true, items: [{key: k, path: d/k}]}
- configMap: {name: app, items: [{key: k, path: d/k}, {key: l, path: l}]}
- configMap: {name: other-canary, canary: true, optional: true}
- env: {path: e, envFrom: [{secretRef: {name: canary, canary: true}}, {configMapRef: {name: app}}], env: [{name: A, valueFrom: {configMapKeyRef: {name: other-canary, key: k, canary: true}}}]}
`}, Pod{Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for i := range spec.Sources {
		order = append(order, spec.Sources[i].Field)
		for _, use := range spec.Sources[i].References() {
			if isCanary := use.Ref.Name != "app"; use.Canary != isCanary || use.Optional != isCanary {
				t.Errorf("%+v", use)
			}
		}
	}
	if got, want := strings.Join(order, " "), "sources[1].configMap sources[3].env sources[0].secret sources[2].configMap"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	if got := spec.Canaries(); len(got) != 2 || got[Ref{ConfigMap, "ns", "app"}] {
		t.Errorf("canaries %v", got)
	}
}

// TestRefusedCanaries: each refusal names its field.
func TestRefusedCanaries(t *testing.T) {
	const app = "{configMap: {name: app}}, "
	for _, test := range []struct{ sources, more, want string }{
		{app + "{configMap: {name: c, canary: true, optional: false}}", "", "sources[1].configMap.optional: Forbidden: must not be false beside canary: pods that don't see the canary start without it"},
		{app + "{configMap: {name: c, canary: \"yes\"}}", "", "sources[1].configMap.canary: Invalid value: \"string\": must be true or false"},
		{"{join: {path: j, sources: [{configMap: {name: c, key: k, canary: true}}]}}", "", "sources[0].join.sources[0].configMap.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: c, key: k, canary: true}, env: [{name: A, value: a}]}}", "", "sources[0].expand.configMap.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: app, key: k}, env: [{name: A, valueFrom: {secretKeyRef: {name: c, key: k, canary: true}}}]}}", "", "sources[0].expand.env[0].valueFrom.secretKeyRef.canary: Forbidden: must not be set in join and expand"},
		{"{expand: {path: x, configMap: {name: app, key: k}, envFrom: [{secretRef: {name: c, canary: true}}]}}", "", "sources[0].expand.envFrom[0].secretRef.canary: Forbidden: must not be set in join and expand"},
		{app + "{configMap: {name: c, canary: true}}", "updatePolicy=Pinned", "sources[1].configMap.canary: Forbidden: must not be true beside updatePolicy Pinned: such a volume never changes"},
		{app + "{configMap: {name: c, canary: true}}", "sameRevision=true", "sources[1].configMap.canary: Forbidden: must not be true beside sameRevision"},
		{app + "{env: {path: e, envFrom: [{secretRef: {name: c, canary: true}}]}}", "writeStrategy=InPlace", "sources[1].env.envFrom[0].secretRef.canary: Forbidden: must not be true beside writeStrategy InPlace"},
		{app + "{configMap: {name: app, canary: true, path: d}}", "", `sources[0].configMap: Forbidden: must not name ConfigMap "ns/app", which is named with canary elsewhere in the volume`},
		{"{configMap: {name: c, canary: true, items: [{key: k, path: p}]}}, {configMap: {name: d, canary: true, items: [{key: k, path: p}]}}", "", "conflicting duplicate paths"},
		{"{configMap: {name: app, items: [{key: k, path: p}]}}, {configMap: {name: c, canary: true, items: [{key: k, path: p/q}]}}", "", `must not lie below "p"`},
		{"{versions: {path: v}}, {configMap: {name: c, canary: true, items: [{key: k, path: v}]}}", "", "conflicting duplicate paths"},
		{"{volume: {name: native, canary: true}}", "", "sources[0].volume.canary: Forbidden: unknown field; known are name, path"},
		{"{podEnv: {path: e, container: c, canary: true}}", "", "sources[0].podEnv.canary: Forbidden: unknown field"},
	} {
		attributes := map[string]string{"sources": "[" + test.sources + "]"}
		if name, value, ok := strings.Cut(test.more, "="); ok {
			attributes[name] = value
		}
		if _, err := Parse(attributes, Pod{Namespace: "ns"}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %s: %v, want %s", test.sources, test.more, err, test.want)
		}
	}
}

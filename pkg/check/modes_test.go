package check

import (
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
)

// TestDecimalModes: a mode without its leading zero is another mode.
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
}

// TestWithoutIdentity: what one mode would refuse is a warning that names the mode.
func TestWithoutIdentity(t *testing.T) {
	for attributes, want := range map[string]string{
		"{secret: i}": "",
		"{secret: s}": "the pod's spec does not name Secret \"ns/s\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it, and show that by a volume source (no --identity was given: the chart installs node)",
		`{sources: "[{configMap: {name: c, canary: true}}]"}`: "the pod's spec does not name ConfigMap \"ns/c\" itself, which --identity=node of the plugin needs: add a volume of the pod that names it and that nothing mounts or shows (no --identity was given: the chart installs node)",
		"{secret: s, namespace: another}":                     "an object of another namespace: no volume shows it with --identity=node of the plugin (no --identity was given: the chart installs node)",
	} {
		c, err := New(Options{Driver: driver, Namespace: "ns", AnyIdentity: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(t.Context(), "f.yaml", strings.NewReader(podWith(attributes, "[{name: c}]"))); err != nil {
			t.Fatal(err)
		}
		last := ""
		if warnings := c.Report().Warnings; len(warnings) > 0 {
			last = warnings[len(warnings)-1].Message
		}
		if last != want || len(c.Report().Problems) > 0 {
			t.Errorf("%s: got %q, want %q; problems %v", attributes, last, want, c.Report().Problems)
		}
	}
}

// TestOctalModes: a mode in octal, as text or as a number in YAML, is valid, even if its value equals a suspicious decimal one.
func TestOctalModes(t *testing.T) {
	text := podWith(`{sources: '[{secret: {name: s, items: [{key: k, path: p, mode: "0620"}, {key: l, path: q, mode: 0620}]}}, {join: {path: j, mode: "0674", sources: [{secret: {name: s, key: k}}]}}]'}`, "[{name: c}]") +
		"  - {name: b, secret: {secretName: b, defaultMode: 0620, items: [{key: k, path: p, mode: 0670}]}}\n"
	lines(t, "warnings", texts(add(t, nil, text).Warnings), nil)
}

// TestChild: what is not in a mapping or a sequence has no node.
func TestChild(t *testing.T) {
	var document yamlv3.Node
	if err := yamlv3.Unmarshal([]byte("{a: [x, y]}"), &document); err != nil {
		t.Fatal(err)
	}
	mapping := document.Content[0]
	if list := child(mapping, "a"); list == nil || child(list, "1").Value != "y" || child(list, "2") != nil || child(list, "a") != nil {
		t.Errorf("the list is %+v", list)
	}
	if got := child(mapping, "b"); got != nil {
		t.Errorf("b is %+v", got)
	}
}

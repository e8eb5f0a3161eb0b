package volume

import (
	"strings"
	"testing"
)

// TestAnyJSON tests JSON that YAML's parser refuses or reads differently.
func TestAnyJSON(t *testing.T) {
	value := func(s string) string {
		return `[{"env":{"path":"e","env":[{"name":"A","value":` + s + `}]}}]`
	}
	for name, test := range map[string]struct{ text, want string }{
		"escaped slash, as PHP writes it":          {`"a\/b"`, "a/b"},
		"surrogate pair, as Python writes it":      {`"\ud83d\ude00"`, "\U0001f600"},
		"surrogate pair in capitals":               {`"\uD83D\uDE00"`, "\U0001f600"},
		"pair after an escaped backslash":          {`"\\\ud83d\ude00\\"`, "\\\U0001f600\\"},
		"what looks like half of a pair":           {`"\\ud83d"`, `\ud83d`},
		"every other escape":                       {`"\"\\\b\f\n\r\t\u0041\u00e9\u20ac"`, "\"\\\b\f\n\r\tA\u00e9\u20ac"},
		"characters that YAML doesn't allow":       {"\"\x7f\ufeff\ufffe\"", "\x7f\ufeff\ufffe"},
		"line ends of YAML that JSON doesn't know": {"\"a\u0085b\u2028c\u2029d\"", "a\u0085b\u2028c\u2029d"},
		"halves of surrogate pairs":                {`"a\ud83db\ude00"`, "a\ufffdb\ufffd"},
		"empty":                                    {`""`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := Parse(map[string]string{"sources": value(test.text)}, testPod())
			if err != nil {
				t.Fatal(err)
			}
			if got := spec.Sources[0].Env.Vars[0].Value; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestRefusedJSON: JSON is refused as YAML is, with the field's path.
func TestRefusedJSON(t *testing.T) {
	for _, test := range []struct{ name, sources, want string }{
		{"unknown field", `[{"secret":{"name":"a\/b","nam\u0065s":1}}]`, `sources[0].secret.names: Forbidden: unknown field; known are canary, items, name, namespace, optional, path`},
		{"field twice", "[\n{\"secret\":{\"name\":\"s\",\n\"items\":[{\"key\":\"a\",\"path\":\"a\\/b\"}],\n\"name\":\"t\"}}]", `sources[0].secret.name: Forbidden: must not be set twice`},
		{"field twice, once escaped", `[{"secret":{"name":"s","n\u0061me":"s"}}]`, `sources[0].secret.name: Forbidden: must not be set twice`},
		{"null and a value", `[{"secret":{"name":null,"name":"s"}}]`, `sources[0].secret.name: Forbidden: must not be set twice`},
		{"bad path", `[{"secret":{"name":"s","items":[{"key":"k","path":"..\/x"}]}}]`, `sources[0].secret.items[0].path: Invalid value: "../x": must not contain ".."`},
		{"number for a name", `[{"secret":{"name":7}}]`, `sources[0].secret.name: Invalid value: "number": must be a string (quote it)`},
		{"number too large for one", `[{"secret":{"name":1e999}}]`, `sources[0].secret.name: Invalid value: "number": must be a string (quote it)`},
		{"fraction for a mode", `[{"secret":{"name":"s","items":[{"key":"k","path":"k","mode":2.5}]}}]`, `sources[0].secret.items[0].mode: Invalid value: "number": must be an integer`},
		{"huge mode", `[{"secret":{"name":"s","items":[{"key":"k","path":"k","mode":99999999999999999999}]}}]`, `sources[0].secret.items[0].mode: Invalid value: "number": must be an integer`},
		{"negative mode", `[{"secret":{"name":"s","items":[{"key":"k","path":"k","mode":-1}]}}]`, `sources[0].secret.items[0].mode: Invalid value: -1: must be an integer`},
		{"string for a boolean", `[{"secret":{"name":"s","optional":"true"}}]`, `sources[0].secret.optional: Invalid value: "string": must be true or false`},
		{"null for a source", `[null]`, "sources[0]: Required value: must have one of configMap"},
		{"mapping for the list", `{"secret":{"name":"s"}}`, `sources: Invalid value: "object": must be a list`},
		{"nested beyond reason", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), `sources: Invalid value: "a string of 40000 bytes": must be YAML or JSON`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse(map[string]string{"sources": test.sources}, testPod())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
		})
	}
}

package volume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// TestAnyJSON has what JSON allows and YAML's parser refuses or reads as something else.
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

// TestRefusedJSON has what is refused of JSON, as it is of YAML: with the field's path.
func TestRefusedJSON(t *testing.T) {
	for _, test := range []struct{ name, sources, want string }{
		{"unknown field", `[{"secret":{"name":"a\/b","nam\u0065s":1}}]`, `sources[0].secret.names: Forbidden: unknown field; known are items, name, namespace, optional`},
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

// TestEveryCharacterInJSON writes every character of the basic plane and the borders of the others
// as JSON and YAML.
func TestEveryCharacterInJSON(t *testing.T) {
	const chunk = 0x400
	for first := rune(0); first <= utf8.MaxRune; first += chunk {
		if first > 0xffff && first&0xffff != 0 && (first+chunk)&0xffff != 0 {
			continue
		}
		var value strings.Builder
		for r := first; r < first+chunk; r++ {
			if utf8.ValidRune(r) {
				value.WriteRune(r)
			}
		}
		wantOneMeaning(t, sourcesOf("s", "k", "p/"+string(first), value.String(), "P_", 0o440, true))
	}
}

// FuzzJSON wants JSON, however it is written, to mean what the same sources mean in YAML.
func FuzzJSON(f *testing.F) {
	for _, value := range []string{"", "a/b", "<&>", "\U0001f600", `\ud83d`, "\\\"\x00\n\u2028\u0085\x7f\ufeff", "null", "~", "0440", "1e3", "<<", "*a", " x ", "# x"} {
		f.Add("s", "k", "p/"+value, value, value, 0o440, true)
		f.Add(value, value, value, "v", "P_", -1, false)
	}
	f.Fuzz(func(t *testing.T, name, key, path, value, prefix string, mode int, optional bool) {
		for _, s := range []string{name, key, path, value, prefix} {
			if !utf8.ValidString(s) {
				t.Skip("JSON has no way to write it")
			}
		}
		wantOneMeaning(t, sourcesOf(name, key, path, value, prefix, mode, optional))
	})
}

// sourcesOf returns sources with these values, which need not be good ones.
func sourcesOf(name, key, path, value, prefix string, mode int, optional bool) []any {
	type object = map[string]any
	return []any{
		object{"secret": object{"name": name, "optional": optional, "items": []any{object{"key": key, "path": path, "mode": mode}}}},
		object{"env": object{
			"path":    "app.env",
			"envFrom": []any{object{"prefix": prefix, "configMapRef": object{"name": name, "namespace": nil}}},
			"env": []any{
				object{"name": "A", "value": value},
				object{"name": "B", "valueFrom": object{"secretKeyRef": object{"name": name, "key": key}}},
			},
		}},
	}
}

// wantOneMeaning wants every way to write sources to give one Spec, or one error.
func wantOneMeaning(t *testing.T, sources []any) {
	t.Helper()
	want, wantErr := Parse(map[string]string{"sources": yamlForm(sources)}, testPod())
	for form, text := range jsonForms(t, sources) {
		got, err := Parse(map[string]string{"sources": text}, testPod())
		if !reflect.DeepEqual(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%s: %+q:\n got %+v, %v\nwant %+v, %v", form, text, got, err, want, wantErr)
		}
	}
}

// yamlForm returns a value as YAML in its flow style, with what isn't plain ASCII as YAML's own
// escapes.
func yamlForm(value any) string {
	var parts []string
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) { // as encoding/json has them
			parts = append(parts, name+": "+yamlForm(value[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, element := range value {
			parts = append(parts, yamlForm(element))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		var text strings.Builder
		for _, r := range value {
			if r >= ' ' && r <= '~' && r != '"' && r != '\\' {
				text.WriteRune(r)
			} else {
				fmt.Fprintf(&text, `\U%08x`, r)
			}
		}
		return `"` + text.String() + `"`
	case nil:
		return "~"
	default:
		return fmt.Sprint(value)
	}
}

// jsonForms returns how encoding/json, and the encoders of other languages, write a value.
func jsonForms(t *testing.T, value any) map[string]string {
	t.Helper()
	forms := map[string]string{}
	for _, escape := range []bool{true, false} {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(escape)
		if err := encoder.Encode(value); err != nil {
			t.Fatal(err)
		}
		forms[fmt.Sprintf("encoding/json, HTML %t", escape)] = text.String()
	}
	plain := forms["encoding/json, HTML false"]
	forms["ASCII with escaped slashes"] = strings.ReplaceAll(ascii(plain), "/", `\/`)
	return forms
}

// ascii writes what is not ASCII as escapes, as Python and PHP do.
func ascii(text string) string {
	var out strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

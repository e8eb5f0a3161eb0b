package payload

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// variable is a variable of a text: its name, the escape of its value, and the value.
type variable struct{ name, escape, value string }

// expanding returns a spec with a text and variables, and the objects with their values: each value is a key of one Secret.
func expanding(text string, variables ...variable) (*volume.Spec, Objects) {
	expand := &volume.Expand{Text: volume.Reference{Ref: ref(volume.ConfigMap, "c"), Key: "text", Field: "text"}}
	secret := object(volume.Secret, "s")
	for i, v := range variables {
		key := fmt.Sprint("k", i)
		secret.Data[key] = []byte(v.value)
		one := fromKey(v.name, volume.Secret, "s", key)
		one.Escape = volume.Escape(v.escape)
		expand.Env.Vars = append(expand.Env.Vars, one)
	}
	return spec(volume.Source{Path: "d/app.yaml", Field: "sources[0].expand", Expand: expand}), objects(values(volume.ConfigMap, "c", "text", text), secret)
}

func expanded(t *testing.T, text string, variables ...variable) string {
	t.Helper()
	s, state := expanding(text, variables...)
	got := must.Get(Render(s, state, Options{}))(t)
	if len(got.Files) != 1 || len(got.Files[0].Refs) != 2 || got.Files[0].Path != "d/app.yaml" || got.Files[0].Mode != volume.DefaultMode {
		t.Fatalf("got %v of %v", got.Files, got.Files[0].Refs)
	}
	return string(got.Files[0].Data)
}

// hard is a value with characters that some reader treats as syntax.
const hard = "$(A)$$(A)$$ ${A}\"'\\\r\n\t\x00\x7f\u0085\u2028\ufeffé😀@:/%?#&+ a"

func TestExpand(t *testing.T) {
	for _, test := range []struct {
		text, want string
		variables  []variable
	}{
		{"$(a.b-c) $(1)", "y z", []variable{{"a.b-c", "", "y"}, {"1", "", "z"}}},
		// A value is not expanded again, nor together with the text around it.
		{"$(A)(B)$(B)", "$(B)", []variable{{"A", "", "$"}, {"B", "", ""}}},
		{"$(A)(B)", "$(B)", []variable{{"A", "", "$"}, {"B", "", "y"}}},
		{"$(A)B)", "$(B)", []variable{{"A", "", "$("}, {"B", "", "y"}}},
		{"[$(A)]", "[" + hard + "]", []variable{{"A", "", hard}}},
		{"[$(A)]", "[" + hard + "]", []variable{{"A", "none", hard}}},
		{"[$(A)]", "[\xff\xfe]", []variable{{"A", "", "\xff\xfe"}}},
		{`"$(A)"`, `"$(A)$$(A)$$ ${A}\"'\\\r\n\t\u0000\u007f\u0085\u2028\ufeffé😀@:/%?#&+ a"`, []variable{{"A", "json", hard}}},
		{`"$(A)"`, `"\u0001\u0008\u000c\u001f\u0080\u009f` + "\u00a0" + `\u2029\ufffe\uffff` + "\ufffd</\"", []variable{{"A", "json", "\x01\b\f\x1f\u0080\u009f\u00a0\u2029\ufffe\uffff\ufffd</"}}},
		{
			"$(A)", "%24%28A%29%24%24%28A%29%24%24%20%24%7BA%7D%22%27%5C%0D%0A%09%00%7F%C2%85%E2%80%A8%EF%BB%BF%C3%A9%F0%9F%98%80%40%3A%2F%25%3F%23%26%2B%20a",
			[]variable{{"A", "url", hard}},
		},
		{"$(A)", "azAZ09-._~%FF%2A", []variable{{"A", "url", "azAZ09-._~\xff*"}}},
		{`$(A) $(B) $$(B)`, `" %22 $(B)`, []variable{{"A", "none", `"`}, {"B", "url", `"`}}},
		// The last variable of a name wins, with its own escape.
		{"$(A)", "%2F", []variable{{"A", "json", "\xff"}, {"A", "url", "/"}}},
		{"$(A)", "/", []variable{{"A", "url", "/"}, {"A", "", "/"}}},
	} {
		expect.Equal(t, fmt.Sprintf("%q with %q", test.text, test.variables), expanded(t, test.text, test.variables...), test.want)
	}
}

// TestEscapesAreRead reads the escaped values, for each character of the first plane and some others.
func TestEscapesAreRead(t *testing.T) {
	var all strings.Builder
	for r := range rune(0x10000) {
		if r < 0xd800 || r > 0xdfff {
			all.WriteRune(r)
		}
	}
	all.WriteString("😀\U0010ffff\U0001fffe")
	value := all.String()
	document := expanded(t, `{"a": "$(A)"}`, variable{"A", "json", value})
	var fromJSON, fromYAML struct{ A string }
	if err := json.Unmarshal([]byte(document), &fromJSON); err != nil || fromJSON.A != value {
		t.Errorf("JSON: %v, the same: %t", err, fromJSON.A == value)
	}
	if err := yaml.Unmarshal([]byte(document), &fromYAML); err != nil || fromYAML.A != value {
		t.Errorf("YAML: %v, the same: %t", err, fromYAML.A == value)
	}
	address := must.Get(url.Parse(expanded(t, "db://u:$(A)@h/$(A)?q=$(A)&r=$(A)#$(A)", variable{"A", "url", value})))(t)
	password, _ := address.User.Password()
	for _, got := range []string{password, address.Path[1:], address.Query().Get("q"), address.Query().Get("r"), address.Fragment} {
		if got != value {
			t.Errorf("a part of the URL has %d bytes, want %d", len(got), len(value))
		}
	}
}

// model implements the rules for a text, with a pattern for each run of dollars before a name.
func model(text string, variables map[string]string) string {
	return regexp.MustCompile(`(\$+)\(([^$()]*)\)`).ReplaceAllStringFunc(text, func(found string) string {
		dollars, name := strings.Count(found, "$"), strings.Trim(found, "$()")
		value, known := variables[name]
		switch {
		case !known:
			return found
		case dollars == 1:
			return value
		}
		return found[1:]
	})
}

func FuzzExpand(f *testing.F) {
	for _, text := range []string{
		"", "no reference\r\n\x00\xff", "$(A)", "$(A)$(A) $(A)\n", "$$(A)", "$$$(A)$(b.c)", "$$$$(A)", "$(A)$$(A)$(A)", "$$ $$$ $", "$$(no)$$", "$(no) $()",
		"${A} $A $( A) $(A ) $(a)", "$(A", "$(A$(A))", "$(no$(A))", "$($(A))", "$($$(A)", "$(A$$(A)", "((A)) $ (A)", "$(A)(A)",
	} {
		f.Add(text, "$(A)", hard)
	}
	f.Fuzz(func(t *testing.T, text, first, second string) {
		for _, escape := range []string{"", "none", "url"} {
			want := map[string]string{"A": first, "b.c": second}
			if escape == "url" {
				for name, value := range want {
					want[name] = strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
				}
			}
			got := expanded(t, text, variable{"A", escape, first}, variable{"b.c", escape, second})
			expect.Equal(t, fmt.Sprintf("%s: %q", escape, text), got, model(text, want))
		}
	})
}

// A value that isn't UTF-8 is not written into JSON, neither partly nor with replaced characters.
func TestExpandOfNoText(t *testing.T) {
	s, state := expanding("a: \"$(A)\"\nb: $(B)\n", variable{"B", "json", "x"}, variable{"A", "json", canary + "\xff"})
	_, err := Render(s, state, Options{})
	const want = "sources[0].expand: the value of variable A is not UTF-8, which escape: json needs: store a text, or set escape: url or none"
	if !errors.As(err, new(*UnfitError)) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	must.Do(t, leak.Check("the error", fmt.Sprint(err)))
	for _, text := range []string{"$$(A)", "${A}", ""} { // it isn't written
		if got := expanded(t, text, variable{"A", "json", "\xff"}); got != strings.TrimPrefix(text, "$$") && got != "$(A)" {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Variables are set as in an env file, and missing ones are named as there.
func TestExpandMissing(t *testing.T) {
	s, state := expanding("$(A)$(B)", variable{"A", "", "x"})
	expand := s.Sources[0].Expand
	state[expand.Text.Ref].BinaryData = map[string][]byte{"raw": []byte("$(A)\xff$(POD)$(U)$(P_k0)$(L)$(E)")}
	render := func(opts Options) string {
		got, err := Render(s, state, opts)
		if err != nil {
			return err.Error()
		}
		var files []string
		for _, file := range got.Files {
			files = append(files, fmt.Sprintf("%s: %q of %d", file.Path, file.Data, len(file.Refs)))
		}
		return strings.Join(files, ", ")
	}
	check := func(opts Options, want string) {
		t.Helper()
		expect.Equal(t, "what is rendered", render(opts), want)
	}
	expand.Env.Vars = append(expand.Env.Vars, fromKey("B", volume.Secret, "s", "lost"), fromKey("C", volume.Secret, "gone", "k"))
	expand.Text.Key = "none"
	check(Options{}, `value of B: couldn't find key lost in Secret ns/s (it has k0); value of C: Secret "ns/gone" not found`+
		`; text: ConfigMap "ns/c": configmap references non-existent config key: none (it has text)`)

	optional := fromKey("A", volume.Secret, "s", "lost") // a missing optional key changes nothing
	optional.Key.Optional, optional.Escape = true, volume.EscapeURL
	unset := fromKey("U", volume.Secret, "gone", "k")
	unset.Key.Optional = true
	expand.Env.From = []volume.EnvFrom{envFrom(volume.Secret, "s", "P_")}
	expand.Env.Vars = []volume.EnvVar{plain("A", "/"), optional, unset, {Name: "POD", FieldRef: volume.PodName}, plain("L", "$(A)$(P_k0)$$(A)"), {Name: "E"}}
	expand.Text.Key = "raw"
	check(Options{Pod: volume.Pod{Name: "web-0"}}, `d/app.yaml: "/\xffweb-0$(U)x/x$(A)" of 2`)

	// A text that may be missing makes no file, and keeps an earlier source's file.
	expand.Text.Key, expand.Text.Optional = "none", true
	s.Sources = []volume.Source{{Projection: &volume.Projection{Ref: expand.Text.Ref, Items: []volume.Item{{Key: "text", Path: "d/app.yaml"}}}}, s.Sources[0]}
	check(Options{}, `d/app.yaml: "$(A)$(B)" of 1`)
}

// A file without one of its objects would mean something else, so there is none, also not one of an earlier source.
func TestExpandWithdrawn(t *testing.T) {
	s, state := expanding("$(A)", variable{"A", "", "x"})
	expand := s.Sources[0].Expand
	s.Sources = []volume.Source{{Projection: &volume.Projection{Ref: expand.Text.Ref, Items: []volume.Item{{Key: "text", Path: "d/app.yaml"}}}}, s.Sources[0]}
	secret := ref(volume.Secret, "s")
	gone := objects(state[expand.Text.Ref])
	for name, test := range map[string]struct {
		objects    Objects
		opts       Options
		isOptional bool
		files      int
	}{
		"all there":              {state, Options{}, false, 1},
		"deleted and forgiven":   {gone, Options{ForgiveDeleted: true}, false, 0},
		"a refused Secret":       {state, Options{Refused: map[volume.Ref]bool{secret: true}}, false, 0},
		"refused and optional":   {state, Options{Refused: map[volume.Ref]bool{secret: true}}, true, 0},
		"a refused text":         {state, Options{Refused: map[volume.Ref]bool{expand.Text.Ref: true}}, false, 0},
		"both, and one is there": {gone, Options{Refused: map[volume.Ref]bool{secret: true}}, false, 0},
	} {
		t.Log(name)
		expand.Env.Vars[0].Key.Optional = test.isOptional
		expect.Equal(t, "files of "+name, len(must.Get(Render(s, test.objects, test.opts))(t).Files), test.files)
	}
}

// All files of a source are in its directory, with or without items.
func TestDirectoryOfASource(t *testing.T) {
	dir := volume.Directory{Path: "a/rules.d", Field: "f"}
	whole, items := source(0, volume.ConfigMap, "c").In(dir), source(1, volume.Secret, "s", "k:x/y").In(dir)
	again := source(2, volume.Secret, "s").In(dir)
	got := must.Get(Render(spec(whole, items, again), objects(object(volume.ConfigMap, "c", "k", "l"), object(volume.Secret, "s", "k")), Options{}))(t)
	var paths []string
	for _, file := range got.Files {
		paths = append(paths, fmt.Sprint(file.Path, " ", file.Refs[0].Kind))
	}
	expect.Equal(t, "paths", paths, []string{"a/rules.d/k Secret", "a/rules.d/l ConfigMap", "a/rules.d/x/y Secret"})
}

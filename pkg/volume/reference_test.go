package volume

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// attributesPage is the document that is made of the reference.
const attributesPage = "../../docs/attributes.md"

// update writes the page anew: go test ./pkg/volume -run TestAttributesPage -args -update
var update = flag.Bool("update", false, "write docs/attributes.md anew")

// TestAttributesPage has docs/attributes.md end with the reference.
func TestAttributesPage(t *testing.T) {
	const begin = "<!-- made by make attributes-table: begin -->\n"
	text, err := os.ReadFile(attributesPage)
	if err != nil {
		t.Fatal(err)
	}
	before, got, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatal("the page has no place for the tables")
	}
	want := referenceTables()
	if *update {
		if err := os.WriteFile(attributesPage, []byte(before+begin+want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("docs/attributes.md is out of date: run make attributes-table")
	}
}

// referenceTables returns the reference in Markdown.
func referenceTables() string {
	var b strings.Builder
	for _, table := range Reference() {
		heading := "The attributes"
		if table.At[0] != "" {
			heading = "`" + strings.Join(table.At, "`, `") + "`"
		}
		fmt.Fprintf(&b, "\n## %s\n\n| field | value | default | |\n|---|---|---|---|\n", heading)
		for _, f := range table.Fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Value, f.Default, f.Meaning)
		}
	}
	return strings.NewReplacer("|  |", "| |", "|  |", "| |").Replace(b.String())
}

// TestReferenceIsWhatParseTakes gives each object a field that doesn't exist, for the parser to say
// which do.
func TestReferenceIsWhatParseTakes(t *testing.T) {
	known := regexp.MustCompile(`unknown (?:field|attribute); known are (\w+(?:, \w+)*)(?:[,\]]|$)`)
	tables := 0
	for _, table := range Reference() {
		var want []string
		for _, f := range table.Fields {
			want = append(want, f.Name)
		}
		slices.Sort(want)
		for _, at := range table.At {
			_, err := Parse(attributesWith(at, "{nonsense: x}"), Pod{Namespace: "shop"})
			found := known.FindStringSubmatch(fmt.Sprint(err))
			if found == nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			got := strings.Split(found[1], ", ")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q takes %q, and the reference has %q", at, got, want)
			}
			tables++
		}
	}
	if tables < 15 {
		t.Errorf("only %d objects", tables)
	}
}

// attributesWith returns attributes that have a text at a place of the reference.
func attributesWith(at, text string) map[string]string {
	if at == "" {
		return map[string]string{"nonsense": "x"}
	}
	steps := strings.Split(at, ".")
	for i, step := range slices.Backward(steps) {
		name, isList := strings.CutSuffix(step, "[]")
		if isList {
			text = "[" + text + "]"
		}
		if i > 0 {
			text = "{" + name + ": " + text + "}"
			continue
		}
		if name == attrItems {
			return map[string]string{attrConfigMap: "settings", attrItems: text}
		}
		return map[string]string{name: text}
	}
	return nil
}

// TestReferenceDefaults has an attribute with its default in the reference mean the same as none.
func TestReferenceDefaults(t *testing.T) {
	pod, tried := Pod{Namespace: "shop"}, 0
	none, err := Parse(map[string]string{attrConfigMap: "settings"}, pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range attributeFields() {
		literal, ok := strings.CutPrefix(f.Default, "`")
		// The mode of a spec without one is for pkg/payload to say.
		if !ok || f.Name == attrDefaultMode {
			continue
		}
		value := strings.Trim(literal, "`\"")
		given, err := Parse(map[string]string{attrConfigMap: "settings", f.Name: value}, pod)
		if err != nil || !reflect.DeepEqual(given, none) {
			t.Errorf("%s=%s is %+v, %v; without it the spec is %+v", f.Name, value, given, err, none)
		}
		if !strings.Contains(f.Value, value) {
			t.Errorf("the values of %s lack its default %s: %s", f.Name, value, f.Value)
		}
		tried++
	}
	if tried != 4 {
		t.Errorf("%d attributes have a default", tried)
	}
}

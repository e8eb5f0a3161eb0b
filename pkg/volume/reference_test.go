package volume

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// table has the documented fields of some objects, from a table or a list of docs/attributes.md.
type table struct {
	// at is the place of these objects, with [] for each element of a list. "" stands for the attributes themselves.
	at     []string
	fields []documented
}

type documented struct{ name, value, byDefault string }

// documentedTables returns the tables and lists of docs/attributes.md.
func documentedTables(t *testing.T) []table {
	t.Helper()
	text, err := os.ReadFile("../../docs/attributes.md")
	if err != nil {
		t.Fatal(err)
	}
	var tables []table
	for line := range strings.Lines(string(text)) {
		heading, isHeading := strings.CutPrefix(strings.TrimSpace(line), "## ")
		switch cells := strings.Split(line, "|"); {
		case heading == "The attributes":
			tables = append(tables, table{at: []string{""}})
		case isHeading:
			tables = append(tables, table{at: strings.Split(strings.ReplaceAll(heading, "`", ""), ", ")})
		case strings.HasPrefix(line, "- `"):
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "- `"), "`")
			last := &tables[len(tables)-1]
			last.fields = append(last.fields, documented{name: name})
		case len(cells) == 6 && strings.HasPrefix(cells[1], " `"):
			last := &tables[len(tables)-1]
			last.fields = append(last.fields, documented{strings.Trim(cells[1], " `"), cells[2], strings.TrimSpace(cells[3])})
		}
	}
	return tables
}

// TestDocumentedFields compares the tables with the tags of the structs. It sets a field that doesn't exist in each object, because the
// parser's error lists those that do.
func TestDocumentedFields(t *testing.T) {
	known := regexp.MustCompile(`unknown (?:field|attribute); known are (\w+(?:, \w+)*)(?:[,\]]|$)`)
	objects := 0
	for _, table := range documentedTables(t) {
		var want []string
		for _, f := range table.fields {
			want = append(want, f.name)
		}
		slices.Sort(want)
		for _, at := range table.at {
			_, err := Parse(attributesWith(at, "{nonsense: x}"), testPod())
			found := known.FindStringSubmatch(fmt.Sprint(err))
			if found == nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			got := strings.Split(found[1], ", ")
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q takes %q, and docs/attributes.md has %q", at, got, want)
			}
			objects++
		}
	}
	if objects != 34 {
		t.Errorf("%d objects are documented", objects)
	}
}

// attributesWith returns attributes with a text at a place of the tables.
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
			return map[string]string{"configMap": "settings", attrItems: text}
		}
		return map[string]string{name: text}
	}
	return nil
}

// TestDocumentedDefaults: an attribute with its documented default means the same as none.
func TestDocumentedDefaults(t *testing.T) {
	none, err := Parse(map[string]string{"configMap": "settings"}, testPod())
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, f := range documentedTables(t)[0].fields {
		// Package payload decides the mode of a spec without one.
		if !strings.HasPrefix(f.byDefault, "`") || f.name == "defaultMode" {
			continue
		}
		value := strings.Trim(f.byDefault, "`\"")
		given, err := Parse(map[string]string{"configMap": "settings", f.name: value}, testPod())
		if err != nil || !reflect.DeepEqual(given, none) {
			t.Errorf("%s=%s is %+v, %v; without it the spec is %+v", f.name, value, given, err, none)
		}
		if !strings.Contains(f.value, value) {
			t.Errorf("the values of %s lack its default %s: %s", f.name, value, f.value)
		}
		tried++
	}
	if tried != 5 {
		t.Errorf("%d attributes have a default", tried)
	}
}

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
)

// TestDocumentedJSON: each JSON that a document shows is valid. What the plugin or kubectl refvol prints matches the schema of its kind, also
// as YAML. Blocks are complete: an example may have short lists, but leaves out no required field.
func TestDocumentedJSON(t *testing.T) {
	files := must.Get(filepath.Glob("../schemas/*.json"))(t)
	schemas := map[string]*jsonschema.Schema{}
	for _, file := range files {
		schemas[strings.TrimSuffix(filepath.Base(file), ".json")] = closedSchema(t, file)
	}
	found := 0
	for document, text := range documents(t) {
		for _, part := range doclines.Parts(text) {
			shown := []string{part.Text}
			switch {
			case part.Language == "yaml":
				shown = strings.Split(part.Text, "\n---\n")
			case part.Language == "text" && strings.HasPrefix(part.Text, "{"):
				t.Errorf("%s:%d: the language of JSON is json", document, part.Line)
				continue
			case part.Language != "json":
				continue
			}
			for _, one := range shown {
				isOurs, err := validate(one, part.Language == "yaml", schemas)
				if err != nil {
					t.Errorf("%s:%d: %v", document, part.Line, err)
				}
				if isOurs {
					found++
				}
			}
		}
	}
	if found == 0 {
		t.Error("the documents show nothing that has a schema")
	}
}

// validate validates one object. It reports whether the object has a schema.
func validate(text string, isYAML bool, schemas map[string]*jsonschema.Schema) (isOurs bool, err error) {
	if isYAML {
		asJSON, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return false, err
		}
		text = string(asJSON)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return false, err
	}
	fields, _ := value.(map[string]any)
	kind, _ := fields["kind"].(string)
	if schema := schemas[kind]; schema != nil {
		return true, schema.Validate(value)
	}
	return false, nil
}

// closedSchema returns a schema that refuses fields that it does not name: in the documents they are mistakes.
func closedSchema(t *testing.T, file string) *jsonschema.Schema {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	definition, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	closeObjects(definition)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource(file, definition); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return must.Get(compiler.Compile(file))(t)
}

func closeObjects(definition any) {
	fields, _ := definition.(map[string]any)
	for name, value := range fields {
		if name == "properties" {
			for _, property := range value.(map[string]any) {
				closeObjects(property)
			}
			continue
		}
		closeObjects(value)
	}
	if fields["type"] == "object" {
		fields["additionalProperties"] = false
	}
}

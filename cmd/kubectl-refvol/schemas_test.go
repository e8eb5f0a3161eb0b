package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// kinds are what a plugin and the commands print as JSON.
func kinds() map[reflect.Type]string {
	return map[reflect.Type]string{
		reflect.TypeFor[status.Report]():     status.Kind,
		reflect.TypeFor[clusterStatus]():     clusterStatusKind,
		reflect.TypeFor[fleet.Result]():      fleet.ResultKind,
		reflect.TypeFor[resultList]():        resultListKind,
		reflect.TypeFor[rolloutList]():       rolloutListKind,
		reflect.TypeFor[check.Report]():      "CheckReport",
		reflect.TypeFor[check.LabelReport](): "LabelReport",
	}
}

// TestSchemas: schemas/ has the JSON schema of each kind, made from its Go type. With -update it is written anew.
func TestSchemas(t *testing.T) {
	want := map[string][]byte{}
	for root, kind := range kinds() {
		s := schemaMaker{t, map[string]any{}, map[string]reflect.Type{}}
		schema := s.object(root)
		schema["$schema"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", kind
		if len(s.definitions) > 0 {
			schema["$defs"] = s.definitions
		}
		text, err := json.MarshalIndent(schema, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		want[filepath.Join("../../schemas", kind+".json")] = append(text, '\n')
	}
	for path, text := range want {
		if *update {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s is out of date: run make schemas (%v)", path, err)
		}
	}
	files, err := filepath.Glob("../../schemas/*")
	if err != nil || len(files) != len(want) {
		t.Errorf("%q are there, want %d: %v", files, len(want), err)
	}
}

// schemaMaker makes a schema from Go types. Fields that a program does not know are allowed, because later releases may add some.
type schemaMaker struct {
	t           *testing.T
	definitions map[string]any
	types       map[string]reflect.Type
}

func (s *schemaMaker) schema(of reflect.Type) map[string]any {
	switch of.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Pointer:
		return s.schema(of.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.schema(of.Elem())}
	case reflect.Struct:
		if of == reflect.TypeFor[time.Time]() {
			return map[string]any{"type": "string", "format": "date-time"}
		}
		return map[string]any{"$ref": "#/$defs/" + s.define(of)}
	default:
		s.t.Fatalf("a field has the type %s", of)
		return nil
	}
}

// define makes the definition of a struct, and returns its name.
func (s *schemaMaker) define(of reflect.Type) string {
	name := strings.ToUpper(of.Name()[:1]) + of.Name()[1:]
	if other := s.types[name]; other == nil {
		s.types[name] = of
		s.definitions[name] = s.object(of)
	} else if other != of {
		s.t.Fatalf("two types have the name %s", name)
	}
	return name
}

func (s *schemaMaker) object(of reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	s.addFields(of, properties, &required)
	if kind, ok := kinds()[of]; ok {
		properties["apiVersion"] = map[string]any{"const": status.APIVersion}
		properties["kind"] = map[string]any{"const": kind}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func (s *schemaMaker) addFields(of reflect.Type, properties map[string]any, required *[]string) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case field.Anonymous && name == "":
			s.addFields(field.Type, properties, required)
		case name == "":
			s.t.Fatalf("%s.%s has no name in JSON", of, field.Name)
		default:
			properties[name] = s.schema(field.Type)
			if options != "omitempty" {
				*required = append(*required, name)
			}
		}
	}
}

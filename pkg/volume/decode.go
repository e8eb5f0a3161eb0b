package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxErrors limits the errors in one refusal. Attributes of the largest size can cause ten thousand errors, and the text ends up in an
// event and in logs.
const maxErrors = 32

var (
	leadingZero   = regexp.MustCompile(`^[-+]?0[0-9_]`)
	repeatedField = regexp.MustCompile(`line \d+: key "[-.\w]{1,64}" already set in map`)
)

// decoder collects errors, because a pod's author wants to see all of them at once.
type decoder struct {
	errs field.ErrorList
	// more is the number of errors that are not in errs.
	more int
}

func (d *decoder) add(err *field.Error) {
	if len(d.errs) == maxErrors {
		d.more++
		return
	}
	d.errs = append(d.errs, err)
}

// err returns the collected errors as one, or nil if there are none.
func (d *decoder) err() error {
	var errs []error
	for _, err := range d.errs {
		errs = append(errs, err)
	}
	if d.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", d.more))
	}
	return utilerrors.NewAggregate(errs)
}

// list returns the elements of a YAML or JSON list. ok is false if the text is not a list.
func (d *decoder) list(at *field.Path, text string) (elements []json.RawMessage, ok bool) {
	document, err := toJSON(text)
	switch {
	case errors.Is(err, io.EOF):
		d.add(field.Required(at, "must be YAML or JSON"))
	case err != nil:
		d.add(field.Invalid(at, fmt.Sprintf("a string of %d bytes", len(text)), err.Error()))
	default:
		ok = d.decode(at, document, &elements)
	}
	return elements, ok
}

// toJSON converts YAML or JSON to JSON. JSON text is not read as YAML, which has no \/ and no surrogate pairs. It first refuses what
// YAMLToJSONStrict ignores or expands: further documents, and aliases, of which 64 KiB may expand to gigabytes. The error is io.EOF if
// there is no document, and it repeats no value.
func toJSON(text string) ([]byte, error) {
	if json.Valid([]byte(text)) {
		return []byte(text), nil
	}
	var document, rest yamlv3.Node
	decode := yamlv3.NewDecoder(strings.NewReader(text))
	switch err := decode.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		// A word that starts with * is an alias, but may be meant as a value.
		problem, _, unknown := strings.Cut(err.Error(), " anchor '")
		if unknown {
			problem += " anchor; quote what begins with * or &"
		}
		return nil, errors.New("must be YAML or JSON: " + problem)
	case !errors.Is(decode.Decode(&rest), io.EOF):
		return nil, errors.New("must be one YAML or JSON document with nothing after it")
	}
	if err := checkNodes(&document); err != nil {
		return nil, err
	}
	asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
	if err == nil {
		return asJSON, nil
	}
	if again := repeatedField.FindString(err.Error()); again != "" {
		return nil, errors.New("must be YAML or JSON: yaml: " + again)
	}
	return nil, errors.New("must be YAML that can be written as JSON: names of fields must be strings, and numbers and tags must be those of JSON")
}

// checkNodes refuses aliases, numbers such as 0480, which would be decimal, and binary texts. The admission policy searches the text for
// namespaces, so they must not be hidden.
func checkNodes(node *yamlv3.Node) error {
	switch {
	case node.Kind == yamlv3.AliasNode:
		return fmt.Errorf("must be written out: line %d has an alias; quote what begins with *", node.Line)
	case node.ShortTag() == "!!binary":
		return fmt.Errorf("must be without binary texts: line %d has one; write the text itself", node.Line)
	case node.ShortTag() == "!!float" && leadingZero.MatchString(node.Value):
		return fmt.Errorf("must have octal numbers where they begin with 0: line %d has another one; put quotes around what is not a number", node.Line)
	}
	for _, child := range node.Content {
		if err := checkNodes(child); err != nil {
			return err
		}
	}
	return nil
}

// decode decodes a JSON value strictly. It reports whether all fields had the right types.
func (d *decoder) decode(at *field.Path, value []byte, into any) bool {
	strict, err := kjson.UnmarshalStrict(value, into)
	if err != nil {
		d.add(wrongType(at, err))
		return false
	}
	for _, err := range strict {
		var bad kjson.FieldError
		if errors.As(err, &bad) {
			d.add(wrongField(at, bad.FieldPath(), reflect.TypeOf(into).Elem()))
		}
	}
	return true
}

// each decodes the elements of a list, and calls read for those with the right types.
func each[T any](d *decoder, at *field.Path, elements []json.RawMessage, read func(at *field.Path, from *T)) {
	for i, element := range elements {
		var from T
		if d.decode(at.Index(i), element, &from) {
			read(at.Index(i), &from)
		}
	}
}

// wrongField returns the error for a field that the object's type does not have, or that is set twice.
func wrongField(at *field.Path, name string, object reflect.Type) *field.Error {
	known := fieldNames(object)
	for i, outer := range known {
		inner, below := strings.CutPrefix(name, outer+".")
		if t := object.Field(i).Type; below && t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
			return wrongField(at.Child(outer), inner, t.Elem())
		}
	}
	what := "unknown attribute"
	if at != nil {
		slices.Sort(known)
		what = "unknown field"
	}
	text := what + "; known are " + strings.Join(known, ", ")
	like := slices.IndexFunc(known, func(other string) bool { return strings.EqualFold(name, other) })
	switch {
	case slices.Contains(known, name):
		text = "must not be set twice"
	case like >= 0:
		text = what + "; did you mean " + known[like] + "?"
	}
	return field.Forbidden(at.Child(fieldName(name)), text)
}

// wrongType returns the error for a value of the wrong type. It names only the type of the value.
func wrongType(at *field.Path, err error) *field.Error {
	var bad *json.UnmarshalTypeError
	if !errors.As(err, &bad) {
		return field.Invalid(at, "a value", "must be YAML or JSON")
	}
	if bad.Field != "" {
		at = at.Child(bad.Field)
	}
	want := map[reflect.Kind]string{
		reflect.String: "a string (quote it)",
		reflect.Bool:   "true or false",
		reflect.Int32:  "an integer from 0 to 511 (octal 0777) or an octal string",
		reflect.Int64:  "an integer",
		reflect.Slice:  "a list",
		reflect.Struct: "a mapping",
		reflect.Map:    "a mapping",
	}[bad.Type.Kind()]
	shape, _, _ := strings.Cut(bad.Value, " ") // the rest is the value
	return field.TypeInvalid(at, shape, "must be "+want)
}

// oneOf checks that exactly one of the pointers to structs in an object is set, and returns its name.
func (d *decoder) oneOf(at *field.Path, object any) (given string, ok bool) {
	v := reflect.ValueOf(object).Elem()
	n := 0
	var choices []string
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer {
			choices = append(choices, v.Type().Field(i).Tag.Get("json"))
			if !f.IsNil() {
				given, n = choices[len(choices)-1], n+1
			}
		}
	}
	if n == 1 {
		return given, true
	}
	slices.Sort(choices)
	what := "must have one of " + strings.Join(choices, ", ")
	below := at.String() + "."
	switch {
	case n > 1:
		d.add(field.TypeInvalid(at, "object", what+", not several"))
	case !slices.ContainsFunc(d.errs, func(err *field.Error) bool { return strings.HasPrefix(err.Field, below) }):
		d.add(field.Required(at, what)) // otherwise an unknown field may be the intended one
	}
	return "", false
}

// fieldNames returns the names of a struct's fields, in their order.
func fieldNames(object reflect.Type) []string {
	var names []string
	for i := range object.NumField() {
		names = append(names, object.Field(i).Tag.Get("json"))
	}
	return names
}

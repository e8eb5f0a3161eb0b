package volume

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// decoder walks a decoded YAML or JSON value, so that every error carries the path
// of the field it is about: a decoder into structs would know but the name of an
// unknown field, not where it stands. Errors are collected, not returned one by
// one: a pod's author wants to see all of them at once.
type decoder struct {
	errs field.ErrorList
}

// visit reads one value at a path.
type visit func(at *field.Path, value any)

func (d *decoder) add(err *field.Error) { d.errs = append(d.errs, err) }

// document decodes text, YAML or JSON, and visits its value. Duplicate keys are
// refused.
func (d *decoder) document(at *field.Path, text string, then visit) {
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		// The parser's message names the line; it repeats field names, never values.
		d.add(field.Invalid(at, shape(text), "must be YAML or JSON: "+yamlMessage(err)))
		return
	}
	decode := json.NewDecoder(strings.NewReader(string(raw)))
	decode.UseNumber() // a mode must not pass through a float
	var value any
	if err := decode.Decode(&value); err != nil {
		d.add(field.Invalid(at, shape(text), "must be YAML or JSON"))
		return
	}
	then(at, value)
}

// yamlMessage keeps the part of a YAML error that says where and why.
func yamlMessage(err error) string {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) > 2 {
		lines = lines[:2]
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return shortenTo(strings.Join(lines, " "), 200)
}

// object visits the fields of a mapping; a field that has no visit is refused. A
// null field counts as not given, as everywhere in Kubernetes.
func (d *decoder) object(at *field.Path, value any, fields map[string]visit) {
	mapping, ok := value.(map[string]any)
	if !ok {
		d.wrongType(at, value, "a mapping")
		return
	}
	for _, name := range sortedKeys(mapping) {
		then, known := fields[name]
		switch {
		case !known:
			d.add(field.Forbidden(at.Child(shorten(name)), "unknown field; known are "+strings.Join(sortedKeys(fields), ", ")))
		case mapping[name] != nil:
			then(at.Child(name), mapping[name])
		}
	}
}

// list visits the elements of a list.
func (d *decoder) list(then visit) visit {
	return func(at *field.Path, value any) {
		elements, ok := value.([]any)
		if !ok {
			d.wrongType(at, value, "a list")
			return
		}
		for i, element := range elements {
			then(at.Index(i), element)
		}
	}
}

// text reads a string.
func (d *decoder) text(into *string) visit {
	return func(at *field.Path, value any) {
		s, ok := value.(string)
		if !ok {
			d.wrongType(at, value, "a string (quote it)")
			return
		}
		*into = s
	}
}

// boolean reads a boolean.
func (d *decoder) boolean(into *bool) visit {
	return func(at *field.Path, value any) {
		b, ok := value.(bool)
		if !ok {
			d.wrongType(at, value, "true or false")
			return
		}
		*into = b
	}
}

// mode reads a mode: an integer as in Kubernetes, or an octal string.
func (d *decoder) mode(into **fs.FileMode) visit {
	return func(at *field.Path, value any) {
		switch v := value.(type) {
		case json.Number:
			n, err := strconv.ParseInt(v.String(), 10, 32)
			if err != nil || n < 0 || n > 0o777 {
				d.add(field.Invalid(at, field.OmitValueType{}, fmt.Sprintf(
					"%s must be an integer from 0 to 511 (0777 octal)", shorten(v.String()))))
				return
			}
			mode := fs.FileMode(n)
			*into = &mode
		case string:
			mode, err := ParseMode(v)
			if err != nil {
				d.add(field.Invalid(at, shorten(v), err.Error()))
				return
			}
			*into = &mode
		default:
			d.wrongType(at, value, "an integer or an octal string")
		}
	}
}

// unsupported refuses a field that the contract knows and this version does not.
func (d *decoder) unsupported(at *field.Path, _ any) { d.add(notSupportedYet(at)) }

func (d *decoder) wrongType(at *field.Path, value any, want string) {
	d.add(field.Invalid(at, shape(value), "must be "+want))
}

// ParseMode reads the octal string form of a file mode: a leading zero and at most
// 0777.
func ParseMode(s string) (fs.FileMode, error) {
	if len(s) < 2 || len(s) > 5 || s[0] != '0' {
		return 0, fmt.Errorf("must be an octal number with a leading zero, from %q to %q", "0000", "0777")
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("must be an octal number with a leading zero, from %q to %q", "0000", "0777")
	}
	return fs.FileMode(n), nil
}

// shape describes a value that is not to be repeated: what it is and how large.
func shape(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("a string of %d bytes", len(v))
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	case []any:
		return fmt.Sprintf("a list of %d", len(v))
	case map[string]any:
		return fmt.Sprintf("a mapping of %d", len(v))
	default:
		return "null"
	}
}

func notSupportedYet(at *field.Path) *field.Error {
	return field.Forbidden(at, "not supported yet by this version of refvol")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

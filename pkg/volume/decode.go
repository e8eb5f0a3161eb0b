package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxErrors is how many errors a refusal lists. Attributes of the largest size can
// hold ten thousands of them, and the text ends up in an event and in logs.
const maxErrors = 32

// YAML's short tags, which say what a node holds.
const (
	tagMapping   = "!!map"
	tagList      = "!!seq"
	tagString    = "!!str"
	tagTimestamp = "!!timestamp"
	tagInteger   = "!!int"
	tagFloat     = "!!float"
	tagBoolean   = "!!bool"
	tagNull      = "!!null"
)

// decoder walks the nodes of a YAML or JSON document, so that every error
// carries the path of the field it is about: a decoder into structs would know but
// the name of an unknown field, not where it stands. Aliases are not followed, so
// the walk is no longer than the text. Errors are collected, not returned one by
// one: a pod's author wants to see all of them at once.
type decoder struct {
	errs field.ErrorList
	// more counts the errors beyond maxErrors.
	more int
}

// visit reads one node at a path.
type visit func(at *field.Path, node *yaml.Node)

func (d *decoder) add(err *field.Error) {
	if len(d.errs) == maxErrors {
		d.more++
		return
	}
	d.errs = append(d.errs, err)
}

// err returns the collected errors as one, nil if there are none.
func (d *decoder) err() error {
	errs := make([]error, 0, len(d.errs)+1)
	for _, err := range d.errs {
		errs = append(errs, err)
	}
	if d.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", d.more))
	}
	return utilerrors.NewAggregate(errs)
}

// document parses text, YAML or JSON, and visits its root.
func (d *decoder) document(at *field.Path, text string, then visit) {
	size := fmt.Sprintf("a string of %d bytes", len(text))
	if isJSON(text) {
		root, err := parseJSON(text)
		if err != nil {
			d.add(field.Invalid(at, size, err.Error()))
			return
		}
		then(at, root)
		return
	}
	var document, rest yaml.Node
	decode := yaml.NewDecoder(strings.NewReader(text))
	switch err := decode.Decode(&document); {
	case errors.Is(err, io.EOF):
		d.add(field.Required(at, "must be YAML or JSON"))
		return
	case err != nil:
		d.add(field.Invalid(at, size, "must be YAML or JSON: "+shortenTo(yamlProblem(err), 200)))
		return
	}
	// The parser stops at the end of the root, whatever may follow it.
	if err := decode.Decode(&rest); !errors.Is(err, io.EOF) {
		d.add(field.Invalid(at, size, "must be one YAML or JSON document with nothing after it"))
		return
	}
	then(at, document.Content[0])
}

// yamlProblem returns the text of an error of the YAML parser, which says where and why.
// Of the text that it parsed it repeats only names of anchors; they are cut off, for a
// value that begins with a * is taken for one.
func yamlProblem(err error) string {
	text, _, found := strings.Cut(err.Error(), " anchor '")
	if found {
		text += " anchor; quote what begins with * or &"
	}
	return text
}

// object visits the fields of a mapping in the order of the text; a field that has
// no visit is refused, and so is one that repeats. A null field counts as not
// given, as everywhere in Kubernetes. A required field that is not given is
// visited as an empty string, for its visit to say what it must be.
func (d *decoder) object(at *field.Path, node *yaml.Node, fields map[string]visit, required ...string) {
	if node.Kind != yaml.MappingNode || node.ShortTag() != tagMapping {
		d.wrongType(at, node, "a mapping")
		return
	}
	// given has the fields that are there: whether they are more than null.
	given := make(map[string]bool, len(fields))
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.wrongType(at, key, "a mapping of field names to values")
			continue
		}
		name := key.Value
		then, known := fields[name]
		_, again := given[name]
		switch {
		case !known:
			d.add(field.Forbidden(at.Child(fieldName(name)), "unknown field; known are "+strings.Join(sortedKeys(fields), ", ")))
		case again:
			d.add(field.Forbidden(at.Child(name), fmt.Sprintf("must not be set twice: again in line %d", key.Line)))
		case isNull(value):
			given[name] = false
		default:
			given[name] = true
			then(at.Child(name), value)
		}
	}
	for _, name := range required {
		if !given[name] {
			fields[name](at.Child(name), &yaml.Node{Kind: yaml.ScalarNode, Tag: tagString})
		}
	}
}

// oneOf visits the fields of a mapping that has just one of some choices, beside
// others, and says whether it does.
func (d *decoder) oneOf(at *field.Path, node *yaml.Node, choices, others map[string]visit) bool {
	chosen := 0
	fields := maps.Clone(others)
	if fields == nil {
		fields = map[string]visit{}
	}
	for name, then := range choices {
		fields[name] = func(at *field.Path, node *yaml.Node) {
			chosen++
			then(at, node)
		}
	}
	before := len(d.errs) + d.more
	d.object(at, node, fields)
	what := "must have one of " + strings.Join(sortedKeys(choices), ", ")
	switch {
	case chosen > 1:
		d.add(field.Invalid(at, shape(node), what+", not several"))
	case chosen == 0 && len(d.errs)+d.more == before:
		d.add(field.Required(at, what))
	}
	return chosen == 1
}

// list visits the elements of a list.
func (d *decoder) list(then visit) visit {
	return func(at *field.Path, node *yaml.Node) {
		if node.Kind != yaml.SequenceNode || node.ShortTag() != tagList {
			d.wrongType(at, node, "a list")
			return
		}
		for i, element := range node.Content {
			then(at.Index(i), element)
		}
	}
}

// text reads a string.
func (d *decoder) text(then func(at *field.Path, s string)) visit {
	return func(at *field.Path, node *yaml.Node) {
		// What looks like a date is a name like any other.
		if node.Kind != yaml.ScalarNode || node.ShortTag() != tagString && node.ShortTag() != tagTimestamp {
			d.wrongType(at, node, "a string (quote it)")
			return
		}
		then(at, node.Value)
	}
}

// boolean reads a boolean.
func (d *decoder) boolean(into *bool) visit {
	return func(at *field.Path, node *yaml.Node) {
		if node.Kind != yaml.ScalarNode || node.ShortTag() != tagBoolean || node.Decode(into) != nil {
			d.wrongType(at, node, "true or false")
		}
	}
}

// mode reads a mode: an integer as in Kubernetes, or an octal string.
func (d *decoder) mode(into **fs.FileMode) visit {
	return func(at *field.Path, node *yaml.Node) {
		var mode fs.FileMode
		var n int64
		switch {
		case node.Kind == yaml.ScalarNode && node.ShortTag() == tagString:
			var err error
			if mode, err = ParseMode(node.Value); err != nil {
				d.add(field.Invalid(at, shorten(node.Value), err.Error()))
				return
			}
		case node.Kind != yaml.ScalarNode || node.ShortTag() != tagInteger || node.Decode(&n) != nil:
			d.wrongType(at, node, "an integer from 0 to 511 (octal 0777) or an octal string")
			return
		case n < 0 || n > 0o777:
			d.add(field.Invalid(at, n, "must be an integer from 0 to 511 (octal 0777)"))
			return
		default:
			mode = fs.FileMode(n)
		}
		*into = &mode
	}
}

// user reads a user id.
func (d *decoder) user(into **int64) visit {
	return func(at *field.Path, node *yaml.Node) {
		var n int64
		if node.Kind != yaml.ScalarNode || node.ShortTag() != tagInteger || node.Decode(&n) != nil {
			d.wrongType(at, node, fmt.Sprintf("an integer from 0 to %d", maxID))
		} else if err := CheckUser(n); err != nil {
			d.add(field.Invalid(at, n, err.Error()))
		} else {
			*into = &n
		}
	}
}

// CheckUser returns why n can't be a user's id, nil if it can.
func CheckUser(n int64) error {
	if n < 0 || n > maxID {
		return fmt.Errorf("must be an integer from 0 to %d", maxID)
	}
	return nil
}

func (d *decoder) wrongType(at *field.Path, node *yaml.Node, want string) {
	if node.Kind == yaml.AliasNode {
		d.add(field.Invalid(at, shape(node), "must be written out: aliases are not supported"))
		return
	}
	d.add(field.Invalid(at, shape(node), "must be "+want))
}

// ParseMode reads the octal string form of a file mode: a leading zero and at most
// 0777.
func ParseMode(s string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || len(s) < 2 || len(s) > 5 || s[0] != '0' {
		return 0, fmt.Errorf("must be an octal number with a leading zero, from %q to %q", "0000", "0777")
	}
	return fs.FileMode(n), nil
}

// shape describes a value that is not to be repeated: what it is and how large.
func shape(node *yaml.Node) string {
	if node.Kind == yaml.AliasNode {
		return "an alias"
	}
	switch tag := node.ShortTag(); tag {
	case tagMapping:
		return fmt.Sprintf("a mapping of %d", len(node.Content)/2)
	case tagList:
		return fmt.Sprintf("a list of %d", len(node.Content))
	case tagString, tagTimestamp:
		return fmt.Sprintf("a string of %d bytes", len(node.Value))
	case tagInteger:
		return "an integer"
	case tagFloat:
		return "a floating-point number"
	case tagBoolean:
		return "a boolean"
	case tagNull:
		return "null"
	default:
		return "a value with the tag " + shorten(tag)
	}
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == tagNull
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

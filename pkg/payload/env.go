package payload

import (
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// addEnv adds an env file.
func (r *renderer) addEnv(file *volume.EnvFile, at string) error {
	e := environment{renderer: r, values: map[string][]byte{}, unknown: map[string]unknown{}}
	for i := range file.From {
		e.addAll(&file.From[i])
	}
	for i := range file.Vars {
		e.add(&file.Vars[i])
	}
	if err := r.check(at); err != nil {
		return err
	}
	data, invalid := envfile.Encode(file.Format, e.sorted())
	r.addFile(volume.File{Path: file.Path, Data: data, Refs: e.refs}, file.Mode, r.spec.DefaultMode)
	if s := (Skipped{Path: file.Path, Format: file.Format, Invalid: invalid, Dependent: e.dependent()}); len(s.Invalid)+len(s.Dependent) > 0 {
		r.skipped = append(r.skipped, s)
	}
	return nil
}

// environment is what the variables of one env file are set to, by the rules by which
// the kubelet sets those of a container.
type environment struct {
	*renderer
	// values shares the objects' byte slices.
	values map[string][]byte
	// unknown holds the variables that have a value which a volume can't know.
	unknown map[string]unknown
	// refs is the file's Refs.
	refs []volume.Ref
}

// unknown is why the value of a variable can't be known.
type unknown int

const (
	// ofItself: the pod's spec takes it from what a publish isn't told.
	ofItself unknown = iota + 1
	// byReference: it refers to a variable that is unknown.
	byReference
)

// set sets a variable, whatever it was before, unless there is no room: then the file is refused.
func (e *environment) set(name string, value []byte) {
	if e.envBytes += len(name) + len(value) + variableBytes; e.envBytes > MaxEnvBytes {
		return
	}
	delete(e.unknown, name)
	e.values[name] = value
}

// forget takes a variable out whose value can't be known.
func (e *environment) forget(name string, why unknown) {
	delete(e.values, name)
	e.unknown[name] = why
}

// dependent returns the variables that refer to unknown ones, sorted.
func (e *environment) dependent() []string {
	var names []string
	for name, why := range e.unknown {
		if why == byReference {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// object returns an object, or nil if it does not exist, and has the file name it: also
// where no value of it is left in the end.
func (e *environment) object(ref volume.Ref, optional bool, at string) *volume.Object {
	object := e.renderer.object(ref, optional, at)
	if object != nil {
		e.refs = insertRef(e.refs, ref)
	}
	return object
}

// addAll sets a variable for each key of an object's data; binaryData is not for
// variables.
func (e *environment) addAll(from *volume.EnvFrom) {
	object := e.object(from.Ref, from.Optional, from.Field)
	if object == nil {
		return
	}
	for key, value := range object.Data {
		if e.envBytes > MaxEnvBytes {
			return
		}
		e.set(from.Prefix+key, value)
	}
}

// add sets one variable, unless it is what an optional key does not tell.
func (e *environment) add(v *volume.EnvVar) {
	switch {
	case v.Value != "":
		if value, known := e.expand(v.Value); known {
			e.set(v.Name, value)
		} else {
			e.forget(v.Name, byReference)
		}
	case v.Key != nil:
		e.addKey(v.Name, v.Key)
	case v.Unknown:
		e.forget(v.Name, ofItself)
	case v.FieldRef != "":
		e.set(v.Name, []byte(e.podField(v.FieldRef)))
	default:
		e.set(v.Name, nil)
	}
}

func (e *environment) addKey(name string, from *volume.Reference) {
	object := e.object(from.Ref, from.Optional, from.Field)
	if object == nil {
		return
	}
	value, ok := object.Data[from.Key]
	switch {
	case ok:
		e.set(name, value)
	case !from.Optional:
		e.missing.addKey(Missing{Ref: from.Ref, Key: from.Key, Field: from.Field, Env: true}, object)
	}
}

func (e *environment) podField(f volume.PodField) string {
	switch f {
	case volume.PodName:
		return e.opts.Pod.Name
	case volume.PodNamespace:
		return e.opts.Pod.Namespace
	case volume.PodUID:
		return string(e.opts.Pod.UID)
	case volume.PodNodeName:
		return e.opts.NodeName
	case volume.PodServiceAccount:
		return e.opts.Pod.ServiceAccount
	}
	return ""
}

// expand replaces each $(NAME) by the value that the variable has by now, and each $$
// by $. What is no reference, or one to a variable that is not set, stays as it is. The
// result is not known if a variable that it refers to isn't. It is made once its length is
// known: values may double each other.
func (e *environment) expand(text string) (value []byte, known bool) {
	n := 0
	if !e.walk(text, func(literal string, value []byte) { n += len(literal) + len(value) }) {
		return nil, false
	}
	if e.envBytes+n > MaxEnvBytes {
		e.envBytes = MaxEnvBytes + 1
		return nil, true // the file is refused
	}
	value = make([]byte, 0, n)
	e.walk(text, func(literal string, referred []byte) { value = append(append(value, literal...), referred...) })
	return value, true
}

// walk calls emit with each part of what text stands for, of which one argument is empty. It
// returns false if a part is not known.
func (e *environment) walk(text string, emit func(literal string, value []byte)) (known bool) {
	// The text is looked at once: an author may write a million characters that begin a reference.
	for unclosed := false; ; {
		before, after, found := strings.Cut(text, "$")
		emit(before, nil)
		if !found {
			return true
		}
		reference, begins := strings.CutPrefix(after, "(")
		name, rest := "", ""
		if begins && !unclosed {
			name, rest, begins = strings.Cut(reference, ")")
			unclosed = !begins
		}
		switch {
		case strings.HasPrefix(after, "$"):
			emit("$", nil)
			text = after[1:]
		case !begins || unclosed:
			emit("$", nil)
			text = after
		default:
			if e.unknown[name] != 0 {
				return false
			}
			if value, set := e.values[name]; set {
				emit("", value)
			} else {
				emit(text[len(before):len(text)-len(rest)], nil)
			}
			text = rest
		}
	}
}

// sorted returns the variables by name.
func (e *environment) sorted() []envfile.Variable {
	variables := make([]envfile.Variable, 0, len(e.values))
	for name, value := range e.values {
		variables = append(variables, envfile.Variable{Name: name, Value: string(value)})
	}
	slices.SortFunc(variables, func(a, b envfile.Variable) int { return strings.Compare(a.Name, b.Name) })
	return variables
}

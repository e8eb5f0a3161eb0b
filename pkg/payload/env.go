package payload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// maxEnvBytes bounds the values of all env files of a volume together. Values may repeat
// each other by $(NAME), and many files the same object, so without a bound a few lines
// could ask for any amount of memory. It is more than the kernel passes to a new process
// (2 MiB in all).
const maxEnvBytes = 4 << 20

// addEnv adds an env file.
func (r *renderer) addEnv(file *volume.EnvFile, at string) error {
	e := environment{renderer: r, values: map[string]string{}, unknown: map[string]unknown{}}
	for i := 0; i < len(file.From) && r.envBytes <= maxEnvBytes; i++ {
		e.addAll(&file.From[i])
	}
	for i := 0; i < len(file.Vars) && r.envBytes <= maxEnvBytes; i++ {
		e.add(&file.Vars[i])
	}
	if r.envBytes > maxEnvBytes {
		return fmt.Errorf("%s: Too long: the variables of all env files of a volume may have values of %d bytes together", at, maxEnvBytes)
	}
	data, unfit := envfile.Encode(file.Format, e.sorted())
	r.addFile(file.Path, file.Mode, data, e.refs)
	if s := (Skipped{Path: file.Path, Format: file.Format, Unfit: unfit, Dependent: e.dependent()}); len(s.Unfit)+len(s.Dependent) > 0 {
		r.skipped = append(r.skipped, s)
	}
	return nil
}

// environment is what the variables of one env file are set to, by the rules by which
// the kubelet sets those of a container.
type environment struct {
	*renderer
	values map[string]string
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

// set sets a variable, whatever it was before. The work counts, not what is left of it:
// a variable that is set a thousand times costs a thousand times as much.
func (e *environment) set(name, value string) {
	delete(e.unknown, name)
	if e.envBytes += len(value); e.envBytes <= maxEnvBytes {
		e.values[name] = value
	}
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
	if object == nil || !e.opts.Consent[ref] {
		return object
	}
	if i, found := slices.BinarySearchFunc(e.refs, ref, volume.CompareRefs); !found {
		e.refs = slices.Insert(e.refs, i, ref)
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
		name := from.Prefix + key
		e.envBytes -= len(e.values[name]) // objects may hold the same large keys
		e.set(name, string(value))
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
		e.set(v.Name, e.podField(v.FieldRef))
	default:
		e.set(v.Name, "")
	}
}

func (e *environment) addKey(name string, from *volume.EnvKey) {
	object := e.object(from.Ref, from.Optional, from.Field)
	if object == nil {
		return
	}
	value, ok := object.Data[from.Key]
	switch {
	case ok:
		e.set(name, string(value))
	case !from.Optional:
		e.missing = append(e.missing, Missing{Ref: from.Ref, Key: from.Key, Field: from.Field, Env: true})
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
// result is not known if a variable that it refers to isn't.
func (e *environment) expand(text string) (value string, known bool) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found || b.Len() > maxEnvBytes {
			return b.String(), true
		}
		name, rest, closed := strings.Cut(after, ")")
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case closed && strings.HasPrefix(name, "("):
			if e.unknown[name[1:]] != 0 {
				return "", false
			}
			b.WriteString(e.reference(name[1:]))
			text = rest
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

func (e *environment) reference(name string) string {
	if value, ok := e.values[name]; ok {
		return value
	}
	return "$(" + name + ")"
}

// sorted returns the variables by name.
func (e *environment) sorted() []envfile.Variable {
	variables := make([]envfile.Variable, 0, len(e.values))
	for name, value := range e.values {
		variables = append(variables, envfile.Variable{Name: name, Value: value})
	}
	slices.SortFunc(variables, func(a, b envfile.Variable) int { return strings.Compare(a.Name, b.Name) })
	return variables
}

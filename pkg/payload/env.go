package payload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// maxEnvBytes bounds the values of one env file together. Values may repeat each other
// by $(NAME), so without a bound a few lines could ask for any amount of memory. It is
// more than the kernel passes to a new process (2 MiB in all).
const maxEnvBytes = 4 << 20

// addEnv adds an env file.
func (r *renderer) addEnv(file *volume.EnvFile, at string) error {
	e := environment{renderer: r, values: map[string]string{}, room: maxEnvBytes}
	for _, from := range file.From {
		e.addAll(from)
	}
	for i := 0; i < len(file.Vars) && e.room >= 0; i++ {
		e.add(&file.Vars[i])
	}
	if e.room < 0 {
		return fmt.Errorf("%s: Too long: the values of its variables may have %d bytes together", at, maxEnvBytes)
	}
	data, skipped := envfile.Encode(file.Format, e.sorted())
	r.addFile(file.Path, file.Mode, data)
	if len(skipped) > 0 {
		r.skipped = append(r.skipped, Skipped{Path: file.Path, Format: file.Format, Names: skipped})
	}
	return nil
}

// environment is what the variables of one env file are set to, by the rules by which
// the kubelet sets those of a container.
type environment struct {
	*renderer
	values map[string]string
	// room is what is left of maxEnvBytes; less than zero once it was exceeded.
	room int
}

// set sets a variable, whatever it was before.
func (e *environment) set(name, value string) {
	if e.room -= len(value); e.room >= 0 {
		e.values[name] = value
	}
}

// addAll sets a variable for each key of an object's data; binaryData is not for
// variables.
func (e *environment) addAll(from volume.EnvFrom) {
	object := e.object(from.Ref, from.Optional, from.Field)
	if object == nil {
		return
	}
	for key, value := range object.Data {
		e.set(from.Prefix+key, string(value))
	}
}

// add sets one variable, unless it is what an optional key does not tell.
func (e *environment) add(v *volume.EnvVar) {
	switch {
	case v.Value != "":
		e.set(v.Name, e.expand(v.Value))
	case v.Key != nil:
		e.addKey(v.Name, v.Key)
	case v.Unknown:
		delete(e.values, v.Name)
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
// by $. What is no reference, or one to a variable that is not set, stays as it is.
func (e *environment) expand(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found || b.Len() > maxEnvBytes {
			return b.String()
		}
		name, rest, closed := strings.Cut(after, ")")
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case closed && strings.HasPrefix(name, "("):
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

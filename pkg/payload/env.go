package payload

import (
	"maps"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// addEnv adds an env file.
func (r *renderer) addEnv(source *volume.Source) error {
	e := r.environment(source.Path, source.Env)
	if err := r.check(source.Field); err != nil {
		return err
	}
	variables := make([]envfile.Variable, 0, len(e.values))
	for _, name := range slices.Sorted(maps.Keys(e.values)) {
		variables = append(variables, envfile.Variable{Name: name, Value: string(e.values[name])})
	}
	var invalid []string
	e.file.Data, invalid = envfile.Encode(source.Format, variables)
	r.addFile(e.file, source.Mode, r.spec.DefaultMode)
	maps.DeleteFunc(e.unknown, func(_ string, dependent bool) bool { return !dependent })
	if len(invalid)+len(e.unknown) > 0 {
		r.skipped = append(r.skipped, Skipped{Path: source.Path, Format: source.Format, Invalid: invalid, Dependent: slices.Sorted(maps.Keys(e.unknown))})
	}
	return nil
}

// environment sets the variables of one file.
func (r *renderer) environment(file string, from *volume.Env) *environment {
	e := &environment{
		renderer: r, file: volume.File{Path: file},
		values: map[string][]byte{}, unknown: map[string]bool{}, escapes: map[string]volume.Escape{}, canaries: map[string]bool{},
	}
	for i := range from.From {
		e.isCanary = from.From[i].Canary
		e.addAll(&from.From[i])
	}
	for i := range from.Vars {
		e.escape = from.Vars[i].Escape
		e.isCanary = from.Vars[i].Key != nil && from.Vars[i].Key.Canary
		e.add(&from.Vars[i])
	}
	return e
}

// environment holds the variables of one env file or text. They are set by the rules with which the kubelet sets those of a container.
type environment struct {
	*renderer
	// values shares the objects' byte slices.
	values map[string][]byte
	// unknown has the variables whose values a volume cannot know. The value is true if the cause is another variable that they refer to.
	// The others are marked in the spec itself.
	unknown map[string]bool
	// escapes says how each value is written into a text. escape is that of the variable that is being set.
	escapes map[string]volume.Escape
	escape  volume.Escape
	// canaries are the variables that come from canaries: the others don't replace them. isCanary is that of the variable that is being set.
	canaries map[string]bool
	isCanary bool
	file     volume.File
}

// set sets a variable and replaces an earlier value. If there is no room, the file is refused later.
func (e *environment) set(name string, value []byte) {
	if e.envBytes += len(name) + len(value) + variableBytes; e.envBytes > MaxEnvBytes {
		return
	}
	if e.canaries[name] && !e.isCanary {
		return
	}
	delete(e.unknown, name)
	e.values[name], e.escapes[name], e.canaries[name] = value, e.escape, e.isCanary
}

// forget removes a variable whose value cannot be known.
func (e *environment) forget(name string, dependent bool) {
	if !e.canaries[name] {
		delete(e.values, name)
		e.unknown[name] = dependent
	}
}

// addAll sets a variable for each key of an object's data. Variables cannot come from binaryData.
func (e *environment) addAll(from *volume.EnvFrom) {
	object := e.objectOf(&e.file, from.Ref, from.Optional, from.Field)
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

// add sets one variable. If an optional key is missing, it leaves the variable as it was.
func (e *environment) add(v *volume.EnvVar) {
	switch {
	case e.envBytes > MaxEnvBytes: // the file is refused
	case v.Value != "":
		if value, known := e.expand(v.Value); known {
			e.set(v.Name, value)
		} else {
			e.forget(v.Name, true)
		}
	case v.Key != nil:
		e.addKey(v.Name, v.Key)
	case v.Unknown:
		e.forget(v.Name, false)
	case v.FieldRef != "":
		e.set(v.Name, []byte(e.podField(v.FieldRef)))
	default:
		e.set(v.Name, nil)
	}
}

func (e *environment) addKey(name string, from *volume.Reference) {
	object := e.objectOf(&e.file, from.Ref, from.Optional, from.Field)
	if object == nil {
		return
	}
	value, ok := object.Data[from.Key]
	switch {
	case ok:
		e.set(name, value)
	case !from.Optional:
		e.missing.add(Missing{Ref: from.Ref, Key: from.Key, Field: from.Field, Env: true}, object)
	}
}

func (e *environment) podField(f volume.PodField) string {
	pod := &e.opts.Pod
	return map[volume.PodField]string{
		volume.PodName:           pod.Name,
		volume.PodNamespace:      pod.Namespace,
		volume.PodUID:            string(pod.UID),
		volume.PodNodeName:       e.opts.NodeName,
		volume.PodServiceAccount: pod.ServiceAccount,
	}[f]
}

// expand replaces each $(NAME) by the variable's present value, and each $$ by $. Anything else stays, and so does a reference to a
// variable that is not set. known is false if a referenced variable is unknown. It stops when there is no room left, because values may
// double each other.
func (e *environment) expand(text string) (value []byte, known bool) {
	read := len(text)
	// The text is scanned once, because an author may write a million characters that start a reference.
	for unclosed := false; ; {
		before, after, found := strings.Cut(text, "$")
		value = append(value, before...)
		if !found {
			e.envBytes += max(0, read-len(value)) // the caller counts the value
			return value, true
		}
		name, rest, closed := "", "", false
		if strings.HasPrefix(after, "(") && !unclosed {
			name, rest, closed = strings.Cut(after[1:], ")")
			unclosed = !closed
		}
		referred, set := e.values[name]
		_, unknown := e.unknown[name]
		switch {
		case strings.HasPrefix(after, "$"):
			value, text = append(value, '$'), after[1:]
		case !closed:
			value, text = append(value, '$'), after
		case unknown:
			e.envBytes += max(read, len(value)) // nobody else counts it
			return nil, false
		case set:
			value, text = append(value, referred...), rest
		default:
			value, text = append(value, text[len(before):len(text)-len(rest)]...), rest
		}
		if e.envBytes+len(value) > MaxEnvBytes {
			e.envBytes = MaxEnvBytes + 1
			return nil, true // the file is refused
		}
	}
}

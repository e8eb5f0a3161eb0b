package payload

import (
	"fmt"
	"strings"

	"github.com/refvol/refvol/pkg/volume"
)

// The bounds of one render. A pod's author can name one large object many times, so what
// counts is the work, not what is left of it: a key that a later source replaces counts too.
// All of it is known before anything is made, but for the references in variables.
//
// MaxEntries is more than the keys of the largest object (see docs/limits.md); MaxEnvBytes,
// as volume.MaxVariables, is more than the kernel passes to a new process.
const (
	// MaxEntries is how many keys, items and env files the sources of a volume may have
	// together.
	MaxEntries = 1 << 18
	// MaxEnvBytes is how many bytes may be made for the env files of a volume: the files
	// themselves, names with their prefixes, and values with what they refer to.
	MaxEnvBytes = 4 << 20
	// MaxHeap is more memory, in bytes, than any render takes beside the objects.
	MaxHeap = 64 << 20
)

// What parts of a render take of memory at most, in bytes.
const (
	entryCost    = 184 // its place among all, and the file in the tree
	itemCost     = 100 // where there are many, MissingError grows to a bound
	variableCost = 500 // its place in a map and in the sorted list, and to say that it is missing
	fieldCost    = 512 // a field of the pod: names have 253 bytes
	baseCost     = 8 << 10
)

// TooLargeError says that a spec asks for more than a volume can show.
type TooLargeError struct{ text string }

// Error returns a text with the field, what the spec asks for, and the limit.
func (e *TooLargeError) Error() string { return e.text }

func tooLong(at string, size int) error {
	return &TooLargeError{fmt.Sprintf("%s: Too long: %d bytes: the env files of a volume, with the prefixes of names and the references in values, may take %d bytes together", at, size, MaxEnvBytes)}
}

// demand is what a spec asks for, before anything of it is made.
type demand struct {
	entries, items, variables int
	// names is the length of all names that are made with a prefix, text that of all names
	// and values that are not made, and values bounds what is made of those with references.
	// Beyond MaxEnvBytes it is just that.
	names, text, values int
	// at is the first source that goes beyond a limit.
	at string
}

// demandOf adds up what spec asks for of objects. It looks at each key of envFrom
// once, and stops where there are too many.
func demandOf(spec *volume.Spec, objects Objects) demand {
	var d demand
	for i := range spec.Sources {
		s := &spec.Sources[i]
		switch {
		case s.Projection != nil:
			d.addProjection(s.Projection, objects)
		case s.Env != nil:
			d.entries++
			d.addEnv(s.Env, objects)
		}
		if d.at == "" && d.exceeds() {
			d.at = s.Field
		}
	}
	return d
}

func (d *demand) addProjection(p *volume.Projection, objects Objects) {
	switch object := objects[p.Ref]; {
	case len(p.Items) > 0:
		d.entries += len(p.Items)
		d.items += len(p.Items)
	case object != nil:
		d.entries += len(object.Data) + len(object.BinaryData)
	}
}

func (d *demand) addEnv(file *volume.EnvFile, objects Objects) {
	d.variables += len(file.Vars)
	longest := 0
	for i := range file.From {
		if object := objects[file.From[i].Ref]; object != nil {
			d.variables += len(object.Data)
			longest = max(longest, d.addNames(object, file.From[i].Prefix))
		}
	}
	for i := range file.Vars {
		longest = max(longest, d.addVariable(&file.Vars[i], longest, objects))
	}
}

// addNames adds the variables that are named after an object's keys, and returns the length
// of the longest value.
func (d *demand) addNames(object *volume.Object, prefix string) (longest int) {
	if d.variables > volume.MaxVariables {
		return 0
	}
	for key, value := range object.Data {
		longest = max(longest, len(value))
		d.text += len(prefix) + len(key) + len(value)
		if prefix != "" {
			d.names += len(prefix) + len(key)
		}
	}
	return longest
}

// addVariable adds a variable that may refer to values of some length, and returns a bound
// of its own.
func (d *demand) addVariable(v *volume.EnvVar, longest int, objects Objects) int {
	d.text += len(v.Name)
	switch {
	case v.Value != "":
		length := min(len(v.Value)+strings.Count(v.Value, "$(")*longest, MaxEnvBytes)
		d.values = min(d.values+length, MaxEnvBytes)
		return length
	case v.Key != nil && objects[v.Key.Ref] != nil:
		length := len(objects[v.Key.Ref].Data[v.Key.Key])
		d.text += length
		return length
	case v.FieldRef != "":
		d.text += fieldCost
		return fieldCost
	}
	return 0
}

func (d *demand) exceeds() bool {
	return d.entries > MaxEntries || d.variables > volume.MaxVariables || d.names > MaxEnvBytes
}

// check refuses what is beyond a limit.
func (d *demand) check() error {
	const each = "each counted as often as it is named"
	switch {
	case d.entries > MaxEntries:
		return &TooLargeError{fmt.Sprintf("%s: Too many: %d: the keys, items and env files of a volume's sources must be at most %d together, %s", d.at, d.entries, MaxEntries, each)}
	case d.variables > volume.MaxVariables:
		return &TooLargeError{fmt.Sprintf("%s: Too many: %d: the variables of a volume's env files must be at most %d together, %s", d.at, d.variables, volume.MaxVariables, each)}
	case d.names > MaxEnvBytes:
		return tooLong(d.at, d.names)
	}
	return nil
}

// heap returns a bound of the memory that the demand takes.
func (d *demand) heap() int64 {
	const quoted = 4 // a shell's file has four bytes for a quote
	text := min(d.text+d.values, MaxEnvBytes)
	bytes := min(d.names+d.values, MaxEnvBytes) + text + min(quoted*text, MaxEnvBytes)
	return min(baseCost+entryCost*int64(d.entries)+itemCost*int64(d.items)+variableCost*int64(d.variables)+int64(bytes)*9/8, MaxHeap)
}

// Heap returns a bound of the memory, in bytes, that Render takes for the same spec and
// objects beside them, and what it returns holds. It is at most MaxHeap, and costs little.
func Heap(spec *volume.Spec, objects Objects) int64 {
	d := demandOf(spec, objects)
	if d.check() != nil {
		return baseCost
	}
	return d.heap()
}

package payload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/refvol/refvol/pkg/volume"
)

// maxMissing limits the missing objects and keys that an error names. A spec may ask for thousands of keys, and the text ends up in an
// event and in logs.
const maxMissing = 5

// maxKey limits what the text of an error shows of a key, in bytes. A key may have 253, and an error names up to 30.
const maxKey = 64

// shortKey cuts off a long key for the text of an error.
func shortKey(key string) string {
	const more = "..."
	if len(key) <= maxKey {
		return key
	}
	return key[:maxKey-len(more)] + more
}

// Missing is a required object or key that does not exist.
type Missing struct {
	Ref volume.Ref
	// Key is "" if the whole object is missing.
	Key string
	// Field is the field in which the pod's author names it.
	Field string
	// Env means that a variable needs it.
	Env bool
	// Has names the first keys that the object has, or is "".
	Has string
}

// String describes what is missing with the kubelet's words for its own volumes.
func (m Missing) String() string {
	var text string
	switch {
	case m.Key == "":
		return fmt.Sprintf("%s: %s not found", m.Field, m.Ref)
	case m.Env:
		text = fmt.Sprintf("%s: couldn't find key %s in %s %s/%s", m.Field, shortKey(m.Key), m.Ref.Kind, m.Ref.Namespace, m.Ref.Name)
	case m.Ref.Kind == volume.Secret:
		text = fmt.Sprintf("%s: %s: references non-existent secret key: %s", m.Field, m.Ref, shortKey(m.Key))
	default:
		text = fmt.Sprintf("%s: %s: configmap references non-existent config key: %s", m.Field, m.Ref, shortKey(m.Key))
	}
	if m.Has != "" {
		text += " (it has " + m.Has + ")"
	}
	return text
}

// MissingError lists the required objects and keys that do not exist.
type MissingError struct {
	// Missing has the first maxMissing of them.
	Missing []Missing
	// Count is the number of all of them.
	Count int
}

// Error lists what is missing: the first ones by name, and the number of the others.
func (e *MissingError) Error() string {
	var texts []string
	for _, m := range e.Missing {
		texts = append(texts, m.String())
	}
	if more := e.Count - len(e.Missing); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// add counts m and stores it, unless maxMissing is reached. object is the object that lacks the key, or nil.
func (e *MissingError) add(m Missing, object *volume.Object) {
	if e.Count++; e.Count > maxMissing {
		return
	}
	if object != nil {
		const few = 5
		keys := slices.Sorted(maps.Keys(object.Data))
		keys = keys[:min(few, len(keys))]
		for i := range keys {
			keys[i] = shortKey(keys[i])
		}
		m.Has = strings.Join(keys, ", ")
	}
	e.Missing = append(e.Missing, m)
}

package volume

import (
	"slices"
	"strings"
)

// Reference is one place where a spec names an object, or a key of one.
type Reference struct {
	Ref Ref
	// Key is empty where all keys are meant.
	Key string
	// Optional forgives that the object or the key does not exist.
	Optional bool
	// Field is where the pod's author wrote it.
	Field string
}

// References returns every place where the source names an object, in its order. What the pod's own spec adds is not
// among them before the spec is resolved. The caller must not change it.
func (s *Source) References() []Reference {
	switch {
	case s.Projection != nil:
		return []Reference{{Ref: s.Projection.Ref, Optional: s.Projection.Optional, Field: s.Field}}
	case s.Env != nil:
		return s.Env.References()
	case s.Expand != nil:
		return append([]Reference{s.Expand.Text}, s.Expand.Env.References()...)
	}
	return s.Join
}

// References returns every place where an environment names an object, in its order.
func (e *Env) References() []Reference {
	var uses []Reference
	for _, from := range e.From {
		uses = append(uses, Reference{Ref: from.Ref, Optional: from.Optional, Field: from.Field})
	}
	for _, v := range e.Vars {
		if v.Key != nil && v.Value == "" {
			uses = append(uses, *v.Key)
		}
	}
	return uses
}

// objects returns each object that the spec names, at its first use.
func (s *Spec) objects() []Reference {
	var first []Reference
	seen := map[Ref]bool{}
	for i := range s.Sources {
		for _, use := range s.Sources[i].References() {
			if !seen[use.Ref] {
				seen[use.Ref] = true
				first = append(first, Reference{Ref: use.Ref, Field: use.Field})
			}
		}
	}
	return first
}

// Refs returns the objects that the spec names, each once, in order of first use.
func (s *Spec) Refs() []Ref {
	var refs []Ref
	for _, use := range s.objects() {
		refs = append(refs, use.Ref)
	}
	return refs
}

// CrossNamespaceRefs returns the references to objects in other namespaces than the pod's own, each object
// once, at its first use. Field is where the namespace is written, Key is empty, and
// Optional says nothing.
func (s *Spec) CrossNamespaceRefs(pod Pod) []Reference {
	uses := slices.DeleteFunc(s.objects(), func(use Reference) bool { return use.Ref.Namespace == pod.Namespace })
	for i, use := range uses {
		uses[i].Field = attrNamespace
		if strings.Contains(use.Field, ".") { // not the short form
			uses[i].Field = use.Field + "." + attrNamespace
		}
	}
	return uses
}

// LocalRefs returns the references to objects in the pod's own namespace, each object once, at its
// first use. Key is empty, and Optional says nothing.
func (s *Spec) LocalRefs(pod Pod) []Reference {
	return slices.DeleteFunc(s.objects(), func(use Reference) bool { return use.Ref.Namespace != pod.Namespace })
}

// PodField returns the field that names what the source takes from the pod's own spec, "" if it takes
// nothing from there.
func (s *Source) PodField() string {
	switch {
	case s.PodEnv != nil:
		return s.Field + ".container"
	case s.Volume == "" || s.Projection != nil:
		return ""
	case s.Field == attrVolume: // the short form is the name itself
		return s.Field
	}
	return s.Field + ".name"
}

// NeedsPod returns the first field that names something of the pod's own spec, "" if there is none. pkg/pod
// resolves such a spec.
func (s *Spec) NeedsPod() string {
	for i := range s.Sources {
		if at := s.Sources[i].PodField(); at != "" {
			return at
		}
	}
	return ""
}

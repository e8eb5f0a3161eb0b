package volume

import (
	"slices"
	"strings"
)

// Reference is one place where a spec names an object or a key of it.
type Reference struct {
	Ref Ref
	// Key is "" if all keys are meant.
	Key string
	// Optional means that the object or the key may be missing. Canary is that of Projection.
	Optional, Canary bool
	// Field is the field in which the pod's author names it.
	Field string
}

// References returns every place where the source names an object, in order. It does not include what the pod's own spec adds, until the
// spec is resolved. The caller must not change the slice.
func (s *Source) References() []Reference {
	switch {
	case s.Projection != nil:
		return []Reference{{Ref: s.Projection.Ref, Optional: s.Projection.Optional, Canary: s.Projection.Canary, Field: s.Field}}
	case s.Env != nil:
		return s.Env.References()
	case s.Expand != nil:
		return append([]Reference{s.Expand.Text}, s.Expand.Env.References()...)
	}
	return s.Join
}

// References returns every place where an environment names an object, in order.
func (e *Env) References() []Reference {
	var uses []Reference
	for _, from := range e.From {
		uses = append(uses, Reference{Ref: from.Ref, Optional: from.Optional, Canary: from.Canary, Field: from.Field})
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

// Refs returns the objects that the spec names, without duplicates, in the order of their first use.
func (s *Spec) Refs() []Ref {
	var refs []Ref
	for _, use := range s.objects() {
		refs = append(refs, use.Ref)
	}
	return refs
}

// CrossNamespaceRefs returns the references to objects in other namespaces than the pod's, each object once, at its first use. Field is the
// field with the namespace. Key is "", and Optional has no meaning.
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

// LocalRefs returns the references to objects in the pod's own namespace, each object once, at its first use. Key is "", and Optional has
// no meaning.
func (s *Spec) LocalRefs(pod Pod) []Reference {
	return slices.DeleteFunc(s.objects(), func(use Reference) bool { return use.Ref.Namespace != pod.Namespace })
}

// PodField returns the field that names what the source takes from the pod's own spec, or "" if it takes nothing from there.
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

// NeedsPod returns the first field that refers to the pod's own spec, or "". Package pod resolves such a spec.
func (s *Spec) NeedsPod() string {
	for i := range s.Sources {
		if at := s.Sources[i].PodField(); at != "" {
			return at
		}
	}
	return ""
}

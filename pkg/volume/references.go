package volume

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
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

// References returns every place where the spec names an object, in the order of the spec. What the pod's own
// spec adds is not among them before the spec is resolved.
func (s *Spec) References() []Reference {
	var uses []Reference
	for i := range s.Sources {
		uses = append(uses, s.Sources[i].References()...)
	}
	return uses
}

// References returns every place where the source names an object, in its order. The caller must not change it.
func (s *Source) References() []Reference {
	switch {
	case s.Projection != nil && len(s.Projection.Items) == 0:
		return []Reference{{Ref: s.Projection.Ref, Optional: s.Projection.Optional, Field: s.Field}}
	case s.Projection != nil:
		uses := make([]Reference, 0, len(s.Projection.Items))
		for i, item := range s.Projection.Items {
			at := s.itemPath(i).Child("key").String()
			uses = append(uses, Reference{Ref: s.Projection.Ref, Key: item.Key, Optional: s.Projection.Optional, Field: at})
		}
		return uses
	case s.Env != nil:
		return s.Env.References()
	case s.Join != nil:
		return s.Join.Parts
	}
	return nil
}

// objects is References with one place only of all items of a source, which name the same object: a pod's
// spec has room for thousands of items.
func (s *Source) objects() []Reference {
	if s.Projection == nil || len(s.Projection.Items) == 0 {
		return s.References()
	}
	first := *s.Projection
	first.Items = first.Items[:1]
	one := Source{Projection: &first, Field: s.Field}
	return one.References()
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

// Refs returns the objects that the spec names, each once, in order of first use.
func (s *Spec) Refs() []Ref {
	var refs []Ref
	for _, use := range s.first(atUse) {
		refs = append(refs, use.Ref)
	}
	return refs
}

// atUse has first return every object.
func atUse(_ *Source, use Reference) (string, bool) { return use.Field, true }

// CrossNamespaceRefs returns the references to objects in other namespaces than the pod's own, each object
// once, at its first use. Field is where the namespace is written, Key is empty, and
// Optional says nothing.
func (s *Spec) CrossNamespaceRefs(pod Pod) []Reference {
	return s.first(func(source *Source, use Reference) (string, bool) {
		return source.namespaceField(use), use.Ref.Namespace != pod.Namespace
	})
}

// LocalRefs returns the references to objects in the pod's own namespace, each object once, at its
// first use. Key is empty, and Optional says nothing.
func (s *Spec) LocalRefs(pod Pod) []Reference {
	return s.first(func(source *Source, use Reference) (string, bool) {
		if source.Projection != nil {
			use.Field = source.Field
		}
		return use.Field, use.Ref.Namespace == pod.Namespace
	})
}

// first returns each object at its first use, if that is to count, with the field to tell.
func (s *Spec) first(counts func(*Source, Reference) (field string, ok bool)) []Reference {
	var first []Reference
	seen := map[Ref]bool{}
	for i := range s.Sources {
		for _, use := range s.Sources[i].objects() {
			if seen[use.Ref] {
				continue
			}
			seen[use.Ref] = true
			if at, ok := counts(&s.Sources[i], use); ok {
				first = append(first, Reference{Ref: use.Ref, Field: at})
			}
		}
	}
	return first
}

// namespaceField returns where the namespace of one of the source's uses is written.
func (s *Source) namespaceField(use Reference) string {
	switch {
	case s.Projection == nil:
		return use.Field + "." + attrNamespace
	case strings.HasPrefix(s.Field, attrSources+"["):
		return s.Field + "." + attrNamespace
	}
	return attrNamespace // the short form
}

// PodField returns the field that names what the source takes from the pod's own spec, "" if it takes
// nothing from there.
func (s *Source) PodField() string {
	at := field.NewPath(s.Field)
	switch {
	case s.PodEnv != nil:
		return at.Child("container").String()
	case s.Volume == "":
		return ""
	case s.Field != attrVolume: // the short form is the name itself
		at = at.Child("name")
	}
	return at.String()
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

package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Use is one place where a spec names an object, or a key of one.
type Use struct {
	Ref Ref
	// Key is empty where all keys are meant.
	Key string
	// Optional forgives that the object or the key does not exist.
	Optional bool
	// Field is where the pod's author wrote it.
	Field string
}

// Uses returns every place where the spec names an object, in the order of the
// spec. What a podEnv source names is not among them before WithPodEnv.
func (s *Spec) Uses() []Use {
	var uses []Use
	for i := range s.Sources {
		uses = append(uses, s.Sources[i].uses()...)
	}
	return uses
}

func (s *Source) uses() []Use {
	switch {
	case s.Projection != nil && len(s.Projection.Items) == 0:
		return []Use{{Ref: s.Projection.Ref, Optional: s.Projection.Optional, Field: s.Field}}
	case s.Projection != nil:
		uses := make([]Use, 0, len(s.Projection.Items))
		for i, item := range s.Projection.Items {
			at := s.itemPath(i).Child("key").String()
			uses = append(uses, Use{Ref: s.Projection.Ref, Key: item.Key, Optional: s.Projection.Optional, Field: at})
		}
		return uses
	case s.Env != nil:
		return s.Env.Uses()
	}
	return nil
}

// Uses returns every place where an environment names an object, in its order.
func (e *Env) Uses() []Use {
	var uses []Use
	for _, from := range e.From {
		uses = append(uses, Use{Ref: from.Ref, Optional: from.Optional, Field: from.Field})
	}
	for i := range e.Vars {
		if key := e.Vars[i].source(); key != nil {
			uses = append(uses, Use{Ref: key.Ref, Key: key.Key, Optional: key.Optional, Field: key.Field})
		}
	}
	return uses
}

// source returns the key that a variable's value is, nil for another value.
func (v *EnvVar) source() *EnvKey {
	if v.Value != "" {
		return nil
	}
	return v.Key
}

// Refs returns the objects that the spec names, each once, in order of first use.
func (s *Spec) Refs() []Ref {
	uses := s.Uses()
	seen := make(map[Ref]bool, len(uses))
	refs := make([]Ref, 0, len(uses))
	for _, use := range uses {
		if !seen[use.Ref] {
			seen[use.Ref] = true
			refs = append(refs, use.Ref)
		}
	}
	return refs
}

// Across returns the uses of objects in other namespaces than the pod's own, each object
// once, at its first use. Field is where the namespace is written, Key is empty, and
// Optional says nothing.
func (s *Spec) Across(pod Pod) []Use {
	var across []Use
	seen := map[Ref]bool{}
	for i := range s.Sources {
		for _, use := range s.Sources[i].uses() {
			if use.Ref.Namespace == pod.Namespace || seen[use.Ref] {
				continue
			}
			seen[use.Ref] = true
			across = append(across, Use{Ref: use.Ref, Field: s.Sources[i].namespaceField(use)})
		}
	}
	return across
}

// Own returns those of refs, which are the objects that the spec names, that are in the
// pod's own namespace, each at its first use. Key is empty, and Optional says nothing. Field
// is that of the podEnv sources for what only the pod's spec names.
func (s *Spec) Own(pod Pod, refs []Ref) []Use {
	fields := map[Ref]string{}
	podEnv := ""
	for i := range s.Sources {
		source := &s.Sources[i]
		if source.PodEnv != nil && podEnv == "" {
			podEnv = source.Field
		}
		for _, use := range source.uses() {
			if source.Projection != nil {
				use.Field = source.Field
			}
			if fields[use.Ref] == "" {
				fields[use.Ref] = use.Field
			}
		}
	}
	var own []Use
	for _, ref := range refs {
		if ref.Namespace == pod.Namespace {
			own = append(own, Use{Ref: ref, Field: cmp.Or(fields[ref], podEnv)})
		}
	}
	return own
}

// namespaceField returns where the namespace of one of the source's uses is written.
func (s *Source) namespaceField(use Use) string {
	switch {
	case s.Projection == nil:
		return use.Field + "." + attrNamespace
	case strings.HasPrefix(s.Field, attrSources+"["):
		return s.Field + "." + attrNamespace
	}
	return attrNamespace // the short form
}

// HasPodEnv says whether the spec names variables that only the pod's own spec
// tells.
func (s *Spec) HasPodEnv() bool {
	return slices.ContainsFunc(s.Sources, func(source Source) bool { return source.PodEnv != nil })
}

// WithPodEnv returns a copy of the spec with an env source in place of each podEnv
// source. It calls read once for each container, with its name and where the pod's author
// wrote that first, and stops at its first error. The error is a *field.Error if the spec
// asks for more than a volume may have now.
func (s *Spec) WithPodEnv(read func(container, at string) (Env, error)) (*Spec, error) {
	resolved := *s
	resolved.Sources = slices.Clone(s.Sources)
	// Shared by all sources of the same container: there may be many.
	known, variables := map[string]Env{}, 0
	for i := range resolved.Sources {
		source := &resolved.Sources[i]
		if source.PodEnv == nil {
			continue
		}
		at := source.Field + ".container"
		env, ok := known[source.PodEnv.Container]
		if !ok {
			var err error
			if env, err = read(source.PodEnv.Container, at); err != nil {
				return nil, err
			}
			known[source.PodEnv.Container] = env
		}
		if variables += len(env.From) + len(env.Vars); variables > MaxVariables {
			return nil, tooMany(at, variables, fmt.Sprintf("the env files of a volume may set at most %d variables together, each counted as often as it is set", MaxVariables))
		}
		source.Env, source.PodEnv = source.PodEnv.File(env), nil
	}
	if err := resolved.checkReferences(); err != nil {
		return nil, err
	}
	return &resolved, nil
}

package publisher

import "github.com/refvol/refvol/pkg/volume"

// spec is what a request asks for.
type spec struct {
	*volume.Spec
	// resolved is the same with what the pod's own spec adds to it, and leftOut names what that sets and a volume can't
	// know.
	resolved *volume.Spec
	leftOut  string
	refs     []volume.Ref
	// consent is the objects that the pod needs a right to, and consents the same with where the spec first names each.
	consent  map[volume.Ref]bool
	consents []volume.Reference
}

// together returns the objects of each source that makes one file of several.
func (s *spec) together() (all [][]volume.Ref) {
	for i := range s.resolved.Sources {
		var refs []volume.Ref
		for _, use := range s.resolved.Sources[i].References() {
			refs = append(refs, use.Ref)
		}
		all = append(all, refs)
	}
	return all
}

// isOptional says whether each source that names an object forgives that it does not exist.
func (s *spec) isOptional(ref volume.Ref) bool {
	for i := range s.resolved.Sources {
		for _, use := range s.resolved.Sources[i].References() {
			if use.Ref == ref && !use.Optional {
				return false
			}
		}
	}
	return true
}

// versionsPath returns that of the file of versions, "" for none.
func (s *spec) versionsPath() string {
	for i := range s.resolved.Sources {
		if source := &s.resolved.Sources[i]; source.Versions {
			return source.Path
		}
	}
	return ""
}

package publisher

import (
	"slices"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// spec is what a request asks for.
type spec struct {
	*volume.Spec
	// resolved is the spec with what the pod's own spec adds. leftOut names the variables that the pod sets and a volume cannot know.
	resolved *volume.Spec
	leftOut  string
	refs     []volume.Ref
	// names is what the spec names, without the keys of objects.
	names volume.Names
	// consent has the objects that the pod needs a right to. consents also has the field that first names each of them.
	consent  map[volume.Ref]bool
	consents []volume.Reference
}

// together returns the objects of each source. A source may make one file of several objects.
func (s *spec) together() (all [][]volume.Ref) {
	for i := range s.resolved.Sources {
		all = append(all, refsOf(&s.resolved.Sources[i]))
	}
	return all
}

func refsOf(source *volume.Source) (refs []volume.Ref) {
	for _, use := range source.References() {
		refs = append(refs, use.Ref)
	}
	return refs
}

// anew returns the objects of each combined file that must be written again. An expanded text must go when one of its objects is refused. A
// file that the record's versions imply must come back after it was removed with a refused object.
func (s *spec) anew(files []volume.File, shown record.Versions, refused map[volume.Ref]bool) (all [][]volume.Ref) {
	for i := range s.resolved.Sources {
		source := &s.resolved.Sources[i]
		isThere := slices.ContainsFunc(files, func(file volume.File) bool { return file.Path == source.Path })
		refs, uses := refsOf(source), source.References()
		isRefused := slices.ContainsFunc(refs, func(ref volume.Ref) bool { return refused[ref] })
		isShown := slices.ContainsFunc(refs, func(ref volume.Ref) bool { return shown[ref].UID != "" })
		lacks := slices.ContainsFunc(uses, func(use volume.Reference) bool { return !use.Optional && shown[use.Ref].UID == "" })
		switch {
		case source.Expand != nil && isThere && isRefused,
			source.Expand != nil && !isThere && !isRefused && !lacks && !source.Expand.Text.Optional,
			(source.Env != nil || len(source.Join) > 0) && !isThere && isShown:
			all = append(all, refs)
		}
	}
	return all
}

// lacksFile reports whether a combined file of some objects is not among the files.
func (s *spec) lacksFile(refs map[volume.Ref]bool, files []volume.File) bool {
	return slices.ContainsFunc(s.resolved.Sources, func(source volume.Source) bool {
		isOf := source.Projection == nil && !source.Versions && slices.ContainsFunc(refsOf(&source), func(ref volume.Ref) bool { return refs[ref] })
		return isOf && !slices.ContainsFunc(files, func(file volume.File) bool { return file.Path == source.Path })
	})
}

// isOptional reports whether an object may be missing for every source that names it.
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

// versionsPath returns the path of the versions file, or "".
func (s *spec) versionsPath() string {
	for i := range s.resolved.Sources {
		if source := &s.resolved.Sources[i]; source.Versions {
			return source.Path
		}
	}
	return ""
}

package binding

import (
	"slices"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// Spec is what a request asks for.
type Spec struct {
	*volume.Spec
	// Resolved is the spec with what the pod's own spec adds. LeftOut names the variables that the pod sets and a volume cannot know.
	Resolved *volume.Spec
	LeftOut  string
	// Refs are all objects, and Canaries those that are canaries.
	Refs     []volume.Ref
	Canaries map[volume.Ref]bool
	// names is what the spec names, without the keys of objects.
	names volume.Names
	// isCounted means that these keys have been counted too.
	isCounted bool
	// consent has the objects that the pod needs a right to. consents also has the field that first names each of them.
	consent  map[volume.Ref]bool
	consents []volume.Reference
}

// RefsBySource returns the objects of each source. A source may make one file of several objects.
func (s *Spec) RefsBySource() (all [][]volume.Ref) {
	for i := range s.Resolved.Sources {
		all = append(all, refsOf(&s.Resolved.Sources[i]))
	}
	return all
}

func refsOf(source *volume.Source) (refs []volume.Ref) {
	for _, use := range source.References() {
		refs = append(refs, use.Ref)
	}
	return refs
}

// MustRewrite returns the objects of each file that must be written again. files are those that exist, and shown the versions of their record.
// An expanded text must go when one of its objects is refused. A file that
// the record's versions imply must come back: one that was removed with a refused object, or by somebody else.
func (s *Spec) MustRewrite(files []volume.File, shown record.Versions, refused, unknown map[volume.Ref]bool) (all [][]volume.Ref) {
	paths := make(map[string]bool, len(files))
	for i := range files {
		paths[files[i].Path] = true
	}
	isThere := func(path string) bool { return paths[path] }
	for i := range s.Resolved.Sources {
		source := &s.Resolved.Sources[i]
		refs, uses := refsOf(source), source.References()
		isRefused := slices.ContainsFunc(refs, func(ref volume.Ref) bool { return refused[ref] })
		isUnknown := slices.ContainsFunc(refs, func(ref volume.Ref) bool { return unknown[ref] })
		isShown := slices.ContainsFunc(refs, func(ref volume.Ref) bool { return shown[ref].UID != "" })
		lacks := slices.ContainsFunc(uses, func(use volume.Reference) bool { return !use.Optional && shown[use.Ref].UID == "" })
		isCombined := source.Env != nil || len(source.Join) > 0 || source.Expand != nil
		switch p := source.Projection; {
		case source.Expand != nil && isThere(source.Path) && isRefused,
			source.Expand != nil && !isThere(source.Path) && !isRefused && !lacks && !source.Expand.Text.Optional,
			isCombined && source.Expand == nil && !isThere(source.Path) && isShown,
			isCombined && !isThere(source.Path) && isUnknown, // it can't be made
			p != nil && !p.Optional && !isRefused && isShown && slices.ContainsFunc(p.Items, func(item volume.Item) bool { return !isThere(item.Path) }):
			all = append(all, refs)
		}
	}
	return all
}

// IsOptional reports whether an object may be missing for every source that names it.
func (s *Spec) IsOptional(ref volume.Ref) bool {
	for i := range s.Resolved.Sources {
		for _, use := range s.Resolved.Sources[i].References() {
			if use.Ref == ref && !use.Optional {
				return false
			}
		}
	}
	return true
}

// VersionsPath returns the path of the versions file, or "".
func (s *Spec) VersionsPath() string {
	for i := range s.Resolved.Sources {
		if source := &s.Resolved.Sources[i]; source.Versions {
			return source.Path
		}
	}
	return ""
}

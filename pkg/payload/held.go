package payload

import (
	"slices"

	"github.com/refvol/refvol/pkg/volume"
)

// Held is what a volume continues to show of objects whose newest version it does not take yet.
type Held struct {
	// At has these objects, each with the version that the volume shows. The zero Version means that it shows none.
	At map[volume.Ref]volume.Version
	// Files are the files that the volume shows, each with Keep and its Refs.
	Files []volume.File
}

func (h *Held) has(ref volume.Ref) bool {
	_, isHeld := h.At[ref]
	return isHeld
}

func (h *Held) isOf(file *volume.File) bool { return slices.ContainsFunc(file.Refs, h.has) }

// keeper finds the shown files of held objects. It looks through all files once, however many sources name an object.
type keeper struct {
	// files has the files of each held object, and combined the file at each path that has one.
	files    map[volume.Ref][]*volume.File
	combined map[string]*volume.File
	// last is the last source that shows keys of each held object. Its files are added there, so that they win over those of the sources
	// before it, as the newest files would.
	last map[volume.Ref]*volume.Source
}

// newKeeper returns nil if nothing is held.
func newKeeper(spec *volume.Spec, held *Held) *keeper {
	if len(held.At) == 0 {
		return nil
	}
	k := &keeper{files: map[volume.Ref][]*volume.File{}, combined: map[string]*volume.File{}, last: map[volume.Ref]*volume.Source{}}
	for i := range spec.Sources {
		if p := spec.Sources[i].Projection; p != nil && held.has(p.Ref) {
			k.last[p.Ref] = &spec.Sources[i]
		}
	}
	for i := range held.Files {
		file := &held.Files[i]
		if !held.isOf(file) {
			continue
		}
		k.combined[file.Path] = file
		for _, ref := range file.Refs {
			if k.last[ref] != nil {
				k.files[ref] = append(k.files[ref], file)
			}
		}
	}
	return k
}

// keep adds the files of held objects that a source continues to show. done means that nothing else of the source must be added.
func (r *renderer) keep(source *volume.Source) (done bool) {
	p := source.Projection
	switch {
	case p != nil && r.opts.Held.has(p.Ref):
		if r.keeps.last[p.Ref] == source {
			for _, file := range r.keeps.files[p.Ref] {
				r.addFile(*file)
			}
		}
		return true
	case p == nil && !source.Versions && r.keeps.combined[source.Path] != nil:
		r.addFile(*r.keeps.combined[source.Path])
		return true
	}
	return false
}

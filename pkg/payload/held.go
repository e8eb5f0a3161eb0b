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

// keep adds the files of held objects that a source continues to show. done means that nothing else of the source must be added.
func (r *renderer) keep(source *volume.Source) (done bool) {
	held, p := &r.opts.Held, source.Projection
	for i := range held.Files {
		file := &held.Files[i]
		switch {
		case p != nil && held.has(p.Ref) && slices.Contains(file.Refs, p.Ref):
			r.addFile(*file)
		case p == nil && !source.Versions && file.Path == source.Path && held.isOf(file):
			r.addFile(*file)
			return true
		}
	}
	return p != nil && held.has(p.Ref)
}

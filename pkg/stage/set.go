package stage

import (
	"fmt"

	"github.com/refvol/refvol/pkg/volume"
)

// Split returns, if the volume is a set, for each of its objects the revision that it carries, unless all carry the same one. Nothing of the
// volume may change then. It returns nil if there is nothing new to take.
//
// The objects are those that exist and that the pod may read. An object whose state is not known, and one that was deleted while its files
// stay, match no revision. While the objects don't match, no moment counts. An object that changes without a new revision matches: nobody else can know what belongs together.
func (c *Change) Split() map[volume.Ref]Reason {
	if !c.IsSet || !c.isNew() {
		return nil
	}
	all, revisions := map[volume.Ref]Reason{}, map[volume.Revision]bool{}
	for ref, object := range c.Objects {
		switch {
		case object.Revision.IsValid():
			all[ref] = Reason{Set, fmt.Sprintf("carries %s%s", object.Revision, immutableText(object))}
			revisions[object.Revision] = true
		case object.Revision == "":
			all[ref] = Reason{Set, "carries none" + immutableText(object)}
			revisions[""] = true
		default: // the annotation may be anything, so it is not repeated
			all[ref] = Reason{Mistake, fmt.Sprintf("has an annotation %s that counts as none: it must have 1 to %d bytes of letters, digits and . _ - / : @ +",
				volume.RevisionAnnotation, volume.MaxRevision)}
			revisions[""] = true
		}
	}
	for ref := range c.Unknown {
		all[ref], revisions[""] = Reason{Set, "is not known"}, true
	}
	for ref := range c.Deleted {
		all[ref], revisions[""] = Reason{Set, "was deleted, and its files stay"}, true
	}
	if len(revisions) == 1 && !revisions[""] {
		return nil
	}
	if c.Clock != nil {
		c.Clock.end()
	}
	return all
}

// immutableText says why the revision of an immutable object may be old.
func immutableText(object *volume.Object) string {
	if object.Immutable {
		return " (it is immutable, so it is read again only for a new pod)"
	}
	return ""
}

// isNew reports whether an object has another version than the volume shows.
func (c *Change) isNew() bool {
	for ref := range c.Objects {
		if c.Newest[ref] != c.Shown[ref] {
			return true
		}
	}
	return false
}

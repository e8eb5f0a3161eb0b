// Package stage decides which objects of a volume keep the version that its files show, why, and until when.
//
// It owns the reasons to wait: the object is not known, the pod does not belong to the object's share, the pod's moment has not come, or the
// objects of a set have different revisions. It is pure: it has no file and no context, and no time but the one that it is given. It must not know how files are made or compared.
package stage

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// Versions has the version of each object that exists.
type Versions = map[volume.Ref]volume.Version

// Change is the difference between what a volume shows and the newest state of its objects.
type Change struct {
	// Shown are the versions in the files, and Newest the newest known ones of what the pod may read.
	Shown, Newest Versions
	// Objects are those in Newest. Unknown are the objects whose state is not known.
	Objects map[volume.Ref]*volume.Object
	Unknown map[volume.Ref]bool
	// IsOptional reports whether an object may be missing. Canaries have a share of their own, so that of RolloutAnnotation does not count.
	IsOptional func(volume.Ref) bool
	Canaries   map[volume.Ref]bool
	// IsSet means that the volume takes its objects only together. Deleted are then the objects that don't exist any more while their files
	// stay.
	IsSet   bool
	Deleted map[volume.Ref]bool
	// Place is the pod's place from 1 to 100. Clock is nil if the volume has no spread.
	Place int
	Clock *Clock
}

// Files has, for each file, the objects of which it is made.
type Files struct {
	// Shown are the files that exist. Changing are those that the newest versions change, with the objects of both versions. Now are those
	// that must change now. Possible are the files that the volume's sources may make, with each object that they name: a file with an
	// unknown object stays as it is, so a new object that it would have waits, too.
	Shown, Changing, Now, Possible [][]volume.Ref
}

// Kind says why an object waits.
type Kind int

// The kinds of reasons.
const (
	// Mistake: the annotation of the object cannot be parsed, so no pod takes it.
	Mistake Kind = iota + 1
	// Unknown: the state of the object is not known.
	Unknown
	// Share: the pod does not belong to the object's share.
	Share
	// Moment: the pod's moment has not come.
	Moment
	// Set: the objects of the volume have different revisions.
	Set
	// Beside: another object in one of its files, or of its set, waits.
	Beside
)

// Reason is why one object waits. Text continues a sentence that begins with the object.
type Reason struct {
	Kind Kind
	Text string
}

// Decision has the objects that wait. The zero value means that the volume takes all newest versions.
type Decision struct {
	// At has the version that the files keep showing of each of them; the zero Version means that they show nothing.
	At  Versions
	Why map[volume.Ref]Reason
	// Until is the pod's moment if an object waits for it, or zero.
	Until time.Time
}

// Has reports whether an object waits for a reason of some kind.
func (d *Decision) Has(kind Kind) bool {
	for _, reason := range d.Why {
		if reason.Kind == kind {
			return true
		}
	}
	return false
}

// Waits returns the objects that have a reason of their own to wait at a time. Without any, the volume takes everything. It winds the Clock.
func (c *Change) Waits(now time.Time) map[volume.Ref]Reason {
	all, ready := map[volume.Ref]Reason{}, Versions{}
	for ref := range c.Unknown {
		all[ref] = Reason{Unknown, "is not known"}
	}
	for ref, object := range c.Objects {
		switch reason := c.ofShare(object); {
		case c.Newest[ref] == c.Shown[ref], c.isAtOnce(ref):
		case reason != Reason{}:
			all[ref] = reason
		default:
			ready[ref] = object.Version
		}
	}
	if c.Clock == nil {
		return all
	}
	if until := c.Clock.wait(ready, now); !until.IsZero() {
		for ref := range ready {
			all[ref] = Reason{Moment, fmt.Sprintf("has a change, which the files will show at %s (spread: %s)", until.UTC().Format(time.RFC3339), c.Clock.window)}
		}
	}
	return all
}

// ofShare returns a reason if the pod does not belong to the share of an object's newest version. A volume that shows nothing of the object
// has nothing to keep.
func (c *Change) ofShare(object *volume.Object) Reason {
	share, isValid := volume.ParseShare(object.Rollout)
	switch {
	case object.Immutable, c.Canaries[object.Ref], share >= c.Place, c.Shown[object.Ref].UID == "": // the annotation of an immutable object is never raised
		return Reason{}
	case !isValid:
		return Reason{Mistake, fmt.Sprintf("has a newer version, and its annotation %s is %q, which is not a percentage such as 10%%: no pod takes it", volume.RolloutAnnotation, object.Rollout)}
	}
	return Reason{Share, fmt.Sprintf("has a newer version for %d%% of the pods, and this pod's place is %d (annotation %s)", share, c.Place, volume.RolloutAnnotation)}
}

// isAtOnce reports whether a change never waits: the object is refused or does not exist any more, or it is required and not shown.
func (c *Change) isAtOnce(ref volume.Ref) bool {
	has, is := c.Shown[ref].UID != "", c.Newest[ref].UID != ""
	return !c.Unknown[ref] && (has && !is || is && !has && !c.IsOptional(ref))
}

// Decide returns what waits; waits is what Waits returned. An object waits if it has a reason and a file of it would change. The changed
// objects of a file wait together, so that the record stays true for each file, and so do those of a set. If a file must change now, its
// objects don't wait, apart from a set. ok is false if such a file has an unknown object: then nothing can be shown.
//
// There is one case that the files cannot show. A key of an object that waits may be hidden by the same key of another object, and so be in
// no file. If the other object loses the key, it is missing in the volume.
func (c *Change) Decide(waits map[volume.Ref]Reason, files Files) (d Decision, ok bool) {
	free, held := map[volume.Ref]bool{}, map[volume.Ref]bool{}
	for _, refs := range files.Now {
		add(free, refs)
	}
	for _, versions := range []Versions{c.Shown, c.Newest} {
		for ref := range versions {
			if c.isAtOnce(ref) {
				free[ref] = true
			}
		}
	}
	if c.IsSet {
		clear(free)
	}
	beside := c.newBesideUnknown(files.Possible)
	maps.DeleteFunc(free, func(ref volume.Ref, _ bool) bool { return beside[ref] })
	unknown := with(files.Shown, func(ref volume.Ref) bool { return c.Unknown[ref] })
	changing := c.changed(slices.Concat(files.Changing, files.Now, unknown), free)
	join(free, changing)
	for ref := range beside {
		if free[ref] {
			return Decision{}, false
		}
		held[ref] = true
	}
	for ref, reason := range waits {
		isIn := slices.ContainsFunc(changing, func(refs []volume.Ref) bool { return slices.Contains(refs, ref) })
		switch {
		case reason.Kind == Unknown && free[ref]:
			return Decision{}, false
		case reason.Kind == Unknown, isIn && !free[ref]:
			held[ref] = true
		}
	}
	groups := slices.Concat(changing, c.changed(files.Shown, free))
	if c.IsSet {
		groups = append(groups, c.changed([][]volume.Ref{slices.Collect(maps.Keys(c.Objects))}, nil)...)
	}
	join(held, groups)
	d = Decision{At: Versions{}, Why: map[volume.Ref]Reason{}}
	for ref := range held {
		if free[ref] {
			continue
		}
		reason, hasReason := waits[ref]
		if !hasReason {
			reason = Reason{Beside, "waits for the other objects in its files"}
			if c.IsSet {
				reason.Text = "waits for the other objects of its set"
			}
		}
		if d.At[ref], d.Why[ref] = c.Shown[ref], reason; reason.Kind == Moment {
			d.Until = c.Clock.at
		}
	}
	return d, true
}

// newBesideUnknown returns the objects that are new in a file which must stay as it is, because it is also made of an unknown object.
func (c *Change) newBesideUnknown(possible [][]volume.Ref) map[volume.Ref]bool {
	all := map[volume.Ref]bool{}
	for _, refs := range with(possible, func(ref volume.Ref) bool { return c.Unknown[ref] && c.Shown[ref].UID != "" }) {
		for _, ref := range refs {
			if c.Shown[ref].UID == "" && c.Newest[ref].UID != "" {
				all[ref] = true
			}
		}
	}
	return all
}

// with returns the files that have such an object.
func with(files [][]volume.Ref, is func(volume.Ref) bool) [][]volume.Ref {
	return slices.DeleteFunc(slices.Clone(files), func(refs []volume.Ref) bool { return !slices.ContainsFunc(refs, is) })
}

// changed returns, for each file, its objects that have another version, are unknown or are in also. The others can be shown in any case.
func (c *Change) changed(files [][]volume.Ref, also map[volume.Ref]bool) [][]volume.Ref {
	all := make([][]volume.Ref, 0, len(files))
	for _, refs := range files {
		all = append(all, slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool {
			return c.Newest[ref] == c.Shown[ref] && !also[ref] && !c.Unknown[ref]
		}))
	}
	return all
}

func add(set map[volume.Ref]bool, refs []volume.Ref) {
	for _, ref := range refs {
		set[ref] = true
	}
}

// join adds to a set every group that has a member in the set, until nothing changes.
func join(set map[volume.Ref]bool, groups [][]volume.Ref) {
	for size := -1; size != len(set); {
		size = len(set)
		for _, refs := range groups {
			if slices.ContainsFunc(refs, func(ref volume.Ref) bool { return set[ref] }) {
				add(set, refs)
			}
		}
	}
}

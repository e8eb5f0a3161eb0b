package publisher

import (
	"slices"

	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// shareOf returns the percentage of the pods that may take an object's newest version. isValid is false if its annotation cannot be parsed:
// no pod may take that version.
func shareOf(o *volume.Object) (percent int, isValid bool) {
	if o.Immutable { // its annotation can never be changed to a larger share
		return 100, true
	}
	return volume.ParseShare(o.Rollout)
}

// held is what a volume does not take yet because its pod does not belong to an object's share. The zero value holds nothing.
type held struct {
	// newest are the versions for which this was decided. at has the held objects, each with the version that the files keep showing; the
	// zero Version if they show none.
	newest record.Versions
	at     map[volume.Ref]volume.Version
	// failure reports it.
	failure *failure
}

// rollout decides which objects a volume continues to show at their old versions.
type rollout struct {
	// shown are the versions in the files. newest are the newest known versions.
	shown, newest record.Versions
	// waiting are the objects whose newest version the pod may not take. atOnce are the objects whose change must not wait.
	waiting []volume.Ref
	atOnce  map[volume.Ref]bool
	// before has the objects of each file that is shown. changing has the objects of each file that the newest versions change.
	before, changing [][]volume.Ref
}

// held returns the held objects, each with its version in the files. An object is held if a file of it would change. Objects of one file
// are held together, so that the record stays true for each file. If the file must change for one of its objects, none of them is held.
//
// There is one case that the files cannot show. A key of a held object may be hidden by the same key of another object, and so be in no
// file. If the other object loses the key, it is missing in the volume.
func (r *rollout) held() map[volume.Ref]volume.Version {
	changing := r.changed(r.changing)
	free, isHeld := map[volume.Ref]bool{}, map[volume.Ref]bool{}
	for ref, now := range r.atOnce {
		free[ref] = now
	}
	join(free, changing)
	for _, ref := range r.waiting {
		isHeld[ref] = !free[ref] && slices.ContainsFunc(changing, func(refs []volume.Ref) bool { return slices.Contains(refs, ref) })
	}
	join(isHeld, slices.Concat(changing, r.changed(r.before)))
	at := map[volume.Ref]volume.Version{}
	for ref, is := range isHeld {
		if is && !free[ref] {
			at[ref] = r.shown[ref]
		}
	}
	return at
}

// changed returns, for each file, its objects that have another version. The other objects can be shown in any case.
func (r *rollout) changed(files [][]volume.Ref) [][]volume.Ref {
	all := make([][]volume.Ref, 0, len(files))
	for _, refs := range files {
		all = append(all, slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool {
			return r.newest[ref] == r.shown[ref] && !r.atOnce[ref]
		}))
	}
	return all
}

// join adds to a set every group that has a member in the set, until nothing changes.
func join(set map[volume.Ref]bool, groups [][]volume.Ref) {
	isIn := func(ref volume.Ref) bool { return set[ref] }
	isOut := func(ref volume.Ref) bool { return !set[ref] }
	for again := true; again; {
		again = false
		for _, refs := range groups {
			if !slices.ContainsFunc(refs, isIn) || !slices.ContainsFunc(refs, isOut) {
				continue
			}
			again = true
			for _, ref := range refs {
				set[ref] = true
			}
		}
	}
}
